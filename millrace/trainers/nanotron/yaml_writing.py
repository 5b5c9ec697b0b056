"""Writing a job in nanotron's words: its YAML, and the script that starts it."""

import re
from typing import Any

import msgspec

from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.planner.errors import InfeasibleError
from millrace.planner.frameworks.capabilities import check_pins, layer_counts
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.trainers.header import header_of
from millrace.trainers.job import TrainingJob
from millrace.trainers.nanotron.model_configs import written_model
from millrace.trainers.nanotron.stage_layers import stage_layers
from millrace.trainers.trainer import WrittenSettings, flattened
from millrace.trainers.yaml_text import write_yaml

NAME, FILE = "nanotron", "config.yaml"
OVERLAP = "tensor_overlap"  # the word of `TrainingJob.software` that has a setting
STEPS = 1000  # of a run whose schedule does not end
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
ENGINES = {"afab": "gpipe", "1f1b": "1f1b"}
SECTIONS = ("model", "optimizer", "parallelism", "tokens")  # that a plan has a word on
ARGUMENTS = ("--config-file", FILE)
LAUNCH = """\
#!/bin/bash
{header}
# Run it on every node, in a checkout of github.com/huggingface/nanotron, with NODE_RANK counting
# the nodes from 0 and MASTER_ADDR naming the first.
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1  # collectives start in the order in which they are issued
torchrun --nnodes={nodes} --nproc-per-node={devices} --node-rank="${{NODE_RANK:-0}}" \\
    --master-addr="${{MASTER_ADDR:-localhost}}" --master-port="${{MASTER_PORT:-29500}}" \\
    run_train.py {arguments}
"""


def written_settings(job: TrainingJob) -> WrittenSettings:
    """Settings of a job as nanotron takes them.

    Raises
    ------
    InfeasibleError
        nanotron cannot run the job; names what stands in its way.
    """
    runs = capabilities(NAME)
    check_pins(runs, NAME, job.pins.document)
    _check(job)
    model_config, unsaid = written_model(job.model, int(job.pins.cp or 1), float(runs.dropless))
    document = {
        "general": {"project": "millrace", "run": _run_name(job.model), "seed": 42},
        "checkpoints": {
            "checkpoint_interval": STEPS,
            "checkpoints_path": "checkpoints",
            "save_final_state": False,
        },
        "data_stages": [
            {
                "name": "random tokens",
                "start_training_step": 1,
                "data": {"dataset": None, "seed": 42, "num_loading_workers": 1},
            }
        ],
        "logging": {"iteration_step_info_interval": 1},
        "model": {
            "model_config": model_config,
            "init_method": {"std": job.model.config.get("init_std", 0.02)},
            "dtype": DTYPES[job.model.precision],
            "make_vocab_size_divisible_by": 1,
        },
        "optimizer": _optimizer(job),
        "parallelism": _parallelism(job),
        "tokens": {
            "sequence_length": job.model.seq_len,
            "micro_batch_size": job.pins.micro_batch,
            "batch_accumulation_per_replica": _accumulation(job),
            "train_steps": job.training.decay_steps or STEPS,
        },
    }
    launch = LAUNCH.format(
        header=header_of(job),
        nodes=job.nodes,
        devices=job.devices_per_node,
        arguments=" ".join(ARGUMENTS),
    )
    return WrittenSettings(
        files={FILE: write_yaml(document), "launch.sh": launch},
        arguments=ARGUMENTS,
        unsaid=(*unsaid, *_unsaid(job)),
        settings=dict(flattened({name: document[name] for name in SECTIONS})),
    )


def _check(job: TrainingJob) -> None:
    """Refuse what nanotron's record does not forbid and nanotron does not run."""
    pins, training, name = job.pins, job.training, job.model.name
    if job.model.precision not in DTYPES:
        raise InfeasibleError(
            f"nanotron computes in bf16, fp16 or fp32, the plan in {job.model.precision}: plan "
            f"with --precision bf16"
        )
    if training.attention != "flash":
        raise InfeasibleError("nanotron's attention is fused (flash): plan without --unfused")
    if training.optimizer == "sgd" and training.momentum:
        raise InfeasibleError("nanotron's SGD has no momentum: plan with AdamW, or without it")
    if job.recompute_layers:
        raise InfeasibleError(
            f"nanotron recomputes all layers or none, the plan the first {job.recompute_layers} "
            f"of every chunk: pin --recompute full or none"
        )
    if int(pins.interleave or 1) > 1:
        raise InfeasibleError(
            f"--interleave {pins.interleave}: a stage has one chunk in nanotron: leave it out"
        )
    if int(pins.etp or 1) > 1:
        raise InfeasibleError(f"--etp {pins.etp}: nanotron splits no expert: pin --etp 1")
    heads = job.model.config.get("kv_heads", job.model.config.get("heads", 1))
    if isinstance(heads, int) and heads % int(pins.tp or 1):
        raise InfeasibleError(
            f"--tp {pins.tp}: nanotron gives each rank as many heads of keys and values, of which "
            f"`{name}` has {heads}: choose a divisor"
        )


def _accumulation(job: TrainingJob) -> int:
    """Microbatches of a replica in a step."""
    samples = int(job.pins.dp or 1) * int(job.pins.micro_batch or 1)
    if job.global_batch % samples:
        raise InfeasibleError(
            f"{job.global_batch} samples a step are no multiple of {samples}, the samples of one "
            f"microbatch on {job.pins.dp} replicas"
        )
    return job.global_batch // samples


def _parallelism(job: TrainingJob) -> dict[str, Any]:
    pins = job.pins
    by_schedule = {schedule: engine for engine, schedule in ENGINES.items()}
    parallel = pins.sequence_parallel is not False
    return {
        "dp": pins.dp,
        "tp": pins.tp,
        "pp": pins.pp,
        "context_parallel_size": pins.cp or 1,
        "expert_parallel_size": pins.ep or 1,
        "pp_engine": by_schedule[pins.schedule or "1f1b"],
        "tp_mode": "REDUCE_SCATTER" if parallel else "ALL_REDUCE",
        "tp_linear_async_communication": parallel and job.software.get(OVERLAP) != "0",
        "recompute_layer": pins.recompute == "full",
    }


def _optimizer(job: TrainingJob) -> dict[str, Any]:
    training = job.training
    factory: dict[str, Any] = {"name": "sgd"}
    if training.optimizer == "adamw":
        factory = {
            "name": "adamW",
            "adam_beta1": training.beta1,
            "adam_beta2": training.beta2,
            "adam_eps": training.epsilon,
            "torch_adam_is_fused": True,
        }
    return {
        "zero_stage": int(job.pins.zero or 0),
        "weight_decay": training.weight_decay,
        "clip_grad": training.clip_norm or None,
        "accumulate_grad_in_fp32": job.model.precision != "fp32",
        "learning_rate_scheduler": _schedule(training),
        "optimizer_factory": factory,
    }


def _schedule(training: TrainingSpec) -> dict[str, Any]:
    lowest = training.learning_rate
    if training.decay_steps:
        lowest = float(f"{lowest * training.final_fraction:.12g}")
    return {
        "learning_rate": training.learning_rate,
        "lr_warmup_steps": training.warmup_steps,
        "lr_warmup_style": "linear",
        "lr_decay_style": "cosine" if training.decay_steps else "linear",
        "lr_decay_steps": max(training.decay_steps or STEPS, training.warmup_steps + 1)
        - training.warmup_steps,
        "min_decay_lr": lowest,
    }


def _run_name(model: ModelSpec) -> str:
    """Name of a model as part of a path."""
    return re.sub(r"[^\w.-]+", "-", model.name) or "model"


def _unsaid(job: TrainingJob) -> list[str]:
    """Sentences about what of a job nanotron decides itself."""
    pins = job.pins
    sentences = [
        "data, tokenizer, checkpoints and the number of steps are no part of a plan: random "
        "tokens, none saved, until `data_stages`, `tokenizer`, `checkpoints` and `train_steps` say "
        "others"
    ]
    tp, vocab = int(pins.tp or 1), int(str(job.model.config["vocab"]))
    if vocab % tp:
        sentences.append(
            f"nanotron pads the vocabulary from {vocab:,} to {-(-vocab // tp) * tp:,}, a multiple "
            f"of the {tp} tensor-parallel ranks"
        )
    sentences += [
        f"nanotron has no setting for {name} {word}"
        for name, word in job.software.items()
        if name != OVERLAP
    ]
    if int(pins.zero or 0) and int(pins.cp or 1) > 1:
        sentences.append(
            f"nanotron splits optimizer state over the {pins.dp} data-parallel ranks alone, the "
            f"plan over the {pins.cp} context-parallel ranks too"
        )
    if int(pins.pp or 1) > 1:
        config = msgspec.convert(job.model.config, DecoderConfig)
        dealt, planned = stage_layers(config, int(pins.pp or 1)), _planned_layers(job, config)
        if dealt != planned:
            counts = ", ".join(map(str, planned)) if planned else "as even numbers as there are"
            sentences.append(
                f"nanotron deals out layers by their matrices, {', '.join(map(str, dealt))} to the "
                f"stages, where the plan has {counts}"
            )
    return sentences


def _planned_layers(job: TrainingJob, config: DecoderConfig) -> tuple[int, ...]:
    """Layers of every stage in the plan; none where it says no more than evenly."""
    if job.chunk_layers:
        return job.chunk_layers
    ways = layer_counts(config.layers, int(job.pins.pp or 1), "even")
    return ways[0] if ways else ()
