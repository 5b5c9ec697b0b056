"""Memory habits: what the framework of a row keeps, and which figure of it the source prints.

One entry per framework; what a row says of its own setting (ZeRO, precision, a fused loss) changes
an entry by a rule that is the same for every row that says it.
"""

from dataclasses import replace

from millrace.published.columns import words
from millrace.published.framework_of_row import flag, framework_name, state_ranks
from millrace.published.peak_memory import Figure, MemoryHabit
from millrace.published.reading import Row, choice, whole_number

# A logit takes 2 bytes, and 4 its softmax in one kernel, which becomes its gradient (Megatron-
# Core, fusions/fused_cross_entropy.py, read 2026-11; others are taken alike).
FUSED_LOSS_BYTES = 6

# Transformer Engine's loss writes gradients over the logits (`--cross-entropy-fusion-impl te`, as
# in SimuMax's runs: its docs/strategy.md, read 2026-11).
TE_LOSS_BYTES = 2

# Where heads are split over context parallel ranks by all-to-all, attention's result is kept before
# and after it (Transformer Engine since 2.8; SimuMax, core/config.py, read 2026-11).
SPLIT_HEADS, RESULT_TWICE = "a2a", ("attention", 2.0)

# DeepSpeed's buckets to reduce and to gather, of 5e8 elements each (its configuration's defaults,
# `reduce_bucket_size` and `allgather_bucket_size`, 2022).
BUCKETS_BYTES = 2 * 2 * 5 * 10**8

# Probabilities of attention, where kept, take 2 bytes, a byte of dropout's mask and 2 of its result
# (Korthikanti et al., 2022, section 4.1: 5 a s^2 b bytes of a layer).
DROPPED = (("masked_softmax", 2.5),)

# A logit of 2 bytes, its float32 copy and what the softmax makes of that: in place in Megatron
# (2 + 4, and 2 of the gradient), shifted beside it in nanotron (2 + 4 + 4: `_ShardedCrossEntropy`,
# parallel/tensor_parallel/functional.py, read 2026-11).
MEMORY_HABITS: dict[str, MemoryHabit] = {
    # In float16 gradients are summed as they come, and brought to float32 with the split state.
    "megatron-deepspeed": MemoryHabit(
        gradient_bytes=2,
        state_bytes=16,
        bucket_bytes=BUCKETS_BYTES,
        byte_multiples=DROPPED,
    ),
    "megatron-2021": MemoryHabit(byte_multiples=DROPPED),
    # silu(gate) is kept beside gate, up and their product: `self.act(gate_states) * up_states` in
    # eager PyTorch (models/llama.py, read 2026-11).
    "nanotron": MemoryHabit(
        passing_bytes=2,
        loss_bytes=10,
        byte_multiples=(("swiglu", 2.0),),
        by_weight=True,
    ),
    # Weights are stored in float32 alone.
    "pytorch-fsdp": MemoryHabit(weight_bytes=4, state_bytes=8),
    # Transformer Engine's `get_dummy_wgrad`, since its release 2.3 (for experts 2.10), which
    # Megatron-Core calls for its logits too (tensor_parallel/layers.py, read 2026-11).
    "megatron-core": MemoryHabit(placeholders=True),
    # Gradients are summed in float16, the loss is one fused kernel.
    "alpa": MemoryHabit(gradient_bytes=2, loss_bytes=FUSED_LOSS_BYTES),
}

# PyTorch's cross entropy: logits of 2 bytes, and of 4 the logarithms and the gradients of both of
# its steps. Split over tensor parallel ranks also their exponentials (torch.distributed.tensor.
# parallel.loss: `(grad_input + torch.exp(x)) * grad_output`, read 2026-11). Compiled: logits and
# their gradient.
LOSS_PLAIN, LOSS_PARALLEL, LOSS_COMPILED = 2 + 3 * 4, 2 + 4 * 4, 2 + 2


def _loss_of_pytorch(row: Row) -> int:
    """Bytes of a logit at the peak of the loss, in blocks that stay reserved."""
    if whole_number(row, "tp", 1) > 1:
        return LOSS_PARALLEL
    return LOSS_COMPILED if row.get("loss") == "compiled" else LOSS_PLAIN


def keeping(row: Row) -> MemoryHabit | None:
    """Memory habit of a row's framework, and the figure its source prints; None if it prints none.

    Raises
    ------
    InexpressibleError
        A degree of the row is no number, or a column holds no word that it may hold.
    """
    if not row.get("peak_mem_gb", ""):
        return None
    name, loss = framework_name(row), choice(row, "loss", words("loss"))
    figure = choice(row, "peak_figure", words("peak_figure"))
    habit = MEMORY_HABITS.get(name, MemoryHabit())
    habit = replace(habit, figure=Figure(figure or Figure.ALLOCATED))
    if name == "megatron-deepspeed" and row["precision"] == "bf16":
        # Gradients are summed in float32, beside those of a microbatch, which stay.
        habit = replace(habit, gradient_bytes=6, state_bytes=12)
    if loss == "fused":
        fused_bytes = TE_LOSS_BYTES if name == "megatron-core" else FUSED_LOSS_BYTES
        habit = replace(habit, loss_bytes=fused_bytes)
    if choice(row, "cp_comm", words("cp_comm")) == SPLIT_HEADS:
        habit = replace(habit, byte_multiples=(*habit.byte_multiples, RESULT_TWICE))
    if name == "pytorch-fsdp":
        habit = replace(habit, loss_bytes=_loss_of_pytorch(row))
        if row["recompute"] == "selective":
            habit = replace(habit, every_second=True, unread=not flag(row, "compiled"))
    if row["zero"] in ("0", "1", "2", "3"):
        habit = replace(habit, zero=int(row["zero"]))
    if name == "pytorch-fsdp" and whole_number(row, "pp", 1) > 1:
        # Between the microbatches of a pipeline weights stay gathered and gradients whole.
        habit = replace(habit, weight_bytes=2, state_bytes=12, zero=1)
    if ranks := state_ranks(row):
        habit = replace(habit, zero_ranks=ranks)
    # Under sequence parallelism norms are gathered again for the backward pass (Korthikanti et al.,
    # 2022, section 4.2.2); keys and values travel round context parallel ranks again.
    again = row["sequence_parallel"] == "1" or whole_number(row, "cp", 1) > 1
    return replace(habit, gathers_again=again)
