"""Peaks of memory as frameworks have them and sources print them."""

from typing import Any

import pytest
from msgspec.structs import replace as changed

from millrace.planner.compile.placement import place
from millrace.planner.frameworks.framework_memory import (
    FrameworkMemory,
    LayerSplit,
    ParameterBytes,
)
from millrace.planner.frameworks.framework_tables import framework_memory
from millrace.planner.frameworks.layer_split import split_layers
from millrace.planner.frameworks.peak_memory import (
    Figure,
    MemoryHabit,
    placeholder_bytes,
    printed_bytes,
    printed_stage,
)
from millrace.planner.plan import Plan
from millrace.published.language import question
from millrace.published.memory_of_row import keeping
from millrace.published.notes import with_columns
from millrace.published.prediction import planned
from tests.millrace.published.rows import PLAIN

USUAL = ParameterBytes()
NOTHING = ParameterBytes(weight_bytes=0, gradient_bytes=0, state_bytes=0)
GPT = 4 * (12 * 256**2 + 13 * 256) + 1024 * 256 + 128 * 256 + 2 * 256  # vocabulary padded


def row(**changes: str) -> dict[str, str]:
    return with_columns(PLAIN | {"line": "2"} | changes)


def plan_of(**changes: str) -> Plan:
    return planned(*question(row(**changes))).plan


def habit(zero: int | None = 0, parameters: ParameterBytes = USUAL, **memory: Any) -> MemoryHabit:
    """Habit of a framework with such memory, and a level of ZeRO."""
    return MemoryHabit(zero=zero, framework=FrameworkMemory(parameters=parameters, **memory))


def peak(plan: Plan, keeping: MemoryHabit) -> int:
    return printed_bytes(plan, [printed_stage(plan, keeping)], keeping.figure)


@pytest.mark.parametrize(("zero", "state"), [(0, 18), (1, 12), (2, 10), (3, 9)])
def test_flat_buffers_are_split_over_all_replicas(zero, state):
    plan = plan_of()
    stored_bytes = peak(plan, habit(zero)) - peak(plan, habit(parameters=NOTHING))
    assert stored_bytes == pytest.approx(state * GPT, rel=1e-3)


def test_groups_smaller_than_the_replicas_split_less():
    plan = plan_of()
    assert peak(plan, MemoryHabit(zero=1, zero_ranks=1)) == peak(plan, MemoryHabit(zero=0))


def test_a_loss_in_float32_may_be_the_most_that_lives_at_once():
    plan, more = plan_of(vocab="100000"), 6
    fused = peak(plan, habit(loss_bytes=8))
    logits = 2 * 128 * 100096
    assert peak(plan, habit(loss_bytes=8 + more)) - fused == more * logits


def test_a_reserved_figure_is_above_what_is_allocated_and_a_device_s_above_both():
    plan = plan_of()
    peaks = [peak(plan, MemoryHabit(zero=0, figure=figure)) for figure in Figure]
    assert peaks == sorted(set(peaks))
    assert peaks[1] == pytest.approx(1.05 * peaks[0], rel=1e-6)


def test_a_row_without_a_peak_keeps_what_the_plan_keeps():
    assert keeping(row()) is None
    plan = plan_of()
    assert peak(plan, MemoryHabit()) >= max(0, peak(plan, habit(None, loss_bytes=0)))


def test_what_a_row_says_changes_what_its_framework_keeps():
    printed = {"peak_mem_gb": "1", "framework": "megatron-core"}
    core = framework_memory("megatron-core")
    assert keeping(row(**printed)) == MemoryHabit(zero=1, framework=core)
    assert core.placeholders
    assert keeping(row(**printed, notes="fused cross entropy;")).framework.loss_bytes == 2
    assert keeping(row(**printed, notes="zero1=8")).zero_ranks == 8
    assert keeping(row(**printed, tp="2", sequence_parallel="1")).gathers_again
    fsdp = printed | {"framework": "pytorch-fsdp", "zero": "3"}
    plain = keeping(row(**fsdp))
    assert plain == MemoryHabit(
        zero=3, framework=framework_memory("pytorch-fsdp"), figure=Figure.RESERVED
    )
    assert plain.framework.parameters == ParameterBytes(weight_bytes=4, state_bytes=8)
    pipelined = keeping(row(**fsdp | {"pp": "2"}))
    assert (pipelined.zero, pipelined.framework.parameters) == (1, USUAL)
    assert keeping(row(**fsdp | {"recompute": "selective"})).unread
    compiled = fsdp | {"recompute": "selective", "notes": "torch.compile"}
    assert not keeping(row(**compiled)).unread
    summed = ParameterBytes(gradient_bytes=6)
    deepspeed = printed | {"framework": "megatron-deepspeed"}
    assert keeping(row(**deepspeed | {"precision": "bf16"})).framework.parameters == summed
    as_they_come = keeping(row(**deepspeed | {"precision": "fp16"})).framework.parameters
    assert as_they_come.gradient_bytes == 2


@pytest.mark.parametrize(
    ("said", "bytes_of_a_logit"),
    [
        ({}, 14),
        ({"tp": "2"}, 18),
        ({"notes": "torch.compile"}, 4),
        ({"notes": "torch.compile", "source_path": "llama3_202506_x.md"}, 4),
        ({"notes": "torch.compile", "source_path": "llama3_202412_x.md"}, 14),
    ],
)
def test_the_loss_of_pytorch_is_split_or_compiled(said, bytes_of_a_logit):
    printed = {"peak_mem_gb": "1", "framework": "pytorch-fsdp", "zero": "3"}
    assert keeping(row(**printed | said)).framework.loss_bytes == bytes_of_a_logit


def test_what_is_kept_beside_a_result_is_counted_per_layer():
    plan = plan_of(micro_batch="4", seq_len="1024")
    keeping = habit(loss_bytes=0)
    more = peak(plan, habit(loss_bytes=0, byte_multiples=(("gelu", 2.0),))) - peak(plan, keeping)
    assert more == pytest.approx(4 * 2 * 4 * 1024 * 1024, rel=0.05)


def test_what_is_kept_may_be_told_by_the_end_of_names():
    plan, keeping = plan_of(micro_batch="4", seq_len="1024"), habit(loss_bytes=0)
    masks = peak(plan, habit(loss_bytes=0, byte_multiples=(("residual", 1.5),))) - peak(
        plan, keeping
    )
    assert masks == pytest.approx(2 * 4 * 4 * 1024 * 256, rel=0.05), "a byte, twice a layer"


def test_gradients_of_logits_that_wait_are_kept():
    plan, keeping = plan_of(micro_batch="4", seq_len="1024"), habit(loss_bytes=6)
    waiting = peak(plan, habit(loss_bytes=6, deferred=1)) - peak(plan, keeping)
    assert waiting == pytest.approx(peak(plan, habit(loss_bytes=8)) - peak(plan, keeping))


def test_gradients_of_a_microbatch_count_where_activations_are_less():
    plan = plan_of(micro_batch="1")
    keeping = habit(loss_bytes=0)
    assert peak(plan, habit(loss_bytes=0, passing_bytes=8)) > peak(plan, keeping)
    assert peak(plan, habit(loss_bytes=0, bucket_bytes=5)) == peak(plan, keeping) + 5


def test_tables_are_split_over_tensor_parallel_ranks():
    plan = plan_of(dp="1", tp="2", vocab="100000", sequence_parallel="0")
    weights = habit(loss_bytes=0, parameters=changed(NOTHING, weight_bytes=2))
    weight_bytes = peak(plan, weights) - peak(plan, habit(loss_bytes=0, parameters=NOTHING))
    table = 100096 * 256
    assert weight_bytes == pytest.approx(2 * (GPT - 1024 * 256 + table) / 2, rel=0.05)


def test_the_peak_is_that_of_layers_dealt_out_as_the_framework_does():
    plan = plan_of(dp="1", pp="2", gpus="2", vocab="512", global_batch="16")
    blocks = [choice for chunk in plan.chunks for choice in chunk.blocks]
    chunks = (blocks[:2], blocks[2:])
    skewed = changed(
        plan,
        chunks=tuple(
            changed(chunk, blocks=tuple(some))
            for chunk, some in zip(plan.chunks, chunks, strict=True)
        ),
    )
    for rule in LayerSplit:
        expected = peak(split_layers(plan, rule), habit(layer_split=rule))
        assert peak(skewed, habit(layer_split=rule)) == expected


def test_a_gradient_that_is_never_read_stands_in_once_for_every_shape_of_weight():
    plan = plan_of(vocab="512")
    more = peak(plan, habit(placeholders=True)) - peak(plan, habit())
    layer, logits = 12 * 256**2, 512 * 256
    # Gradients of one layer and of the logits stay; none is made at the peak any more.
    assert 0 < more <= 2 * (layer + logits)
    assert placeholder_bytes(plan, place(plan, plan.graph)) == {0: 2 * (layer + logits)}


def test_experts_of_a_layer_share_a_gradient_that_is_never_read():
    plans = [plan_of(notes=f"experts={count};topk=1;moe_ffn=512") for count in (2, 4)]
    sizes = [placeholder_bytes(plan, place(plan, plan.graph))[0] for plan in plans]
    assert sizes[1] - sizes[0] == 2 * 2 * 256  # of the router alone


def test_megatron_core_s_fused_loss_is_transformer_engine_s():
    noted = {"peak_mem_gb": "1", "notes": "fused cross entropy"}
    core, alpa = (keeping(row(framework=name, **noted)) for name in ("megatron-core", "alpa"))
    assert core is not None
    assert alpa is not None
    assert (core.framework.loss_bytes, alpa.framework.loss_bytes) == (2, 6)
    split = keeping(row(framework="megatron-core", peak_mem_gb="1", notes="cp_comm=a2a"))
    assert split is not None
    assert split.framework.byte_multiples[-1] == ("attention", 2.0)
