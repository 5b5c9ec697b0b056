#!/bin/bash
# A launch script of Megatron-LM as people write them; `millrace improve` reads it.
TP=${TP:-2}
NODES=${NODES:-2}
MODEL_ARGS=(
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16
    --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50304
)
TRAINING_ARGS=(
    --micro-batch-size 2 --global-batch-size 512 --bf16
    --train-iters 100000 --lr 2e-4 --lr-decay-style constant
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
)
PARALLEL_ARGS=(--tensor-model-parallel-size $TP)
if [ "$TP" -gt 1 ]; then
    PARALLEL_ARGS+=(--sequence-parallel)
fi
torchrun --nproc-per-node 8 --nnodes $NODES pretrain_gpt.py \
    ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} ${PARALLEL_ARGS[@]} --mock-data
