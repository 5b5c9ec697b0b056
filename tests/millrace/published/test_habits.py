"""Settings of a framework that the notes of a row state."""

import pytest

from millrace.planner.cluster import Software
from millrace.planner.clusters import reference_node
from millrace.published.framework_of_row import as_set, settings, state_ranks
from tests.millrace.published.rows import row


def software(framework: str, notes: str = "", precision: str = "bf16") -> Software:
    noted = row(framework=framework, notes=notes, precision=precision)
    return as_set(settings(framework), noted, reference_node(noted["gpu"]).device)


@pytest.mark.parametrize(
    ("framework", "precision", "notes", "expected"),
    [
        ("megatron-deepspeed", "fp16", "", 2),
        ("megatron-deepspeed", "bf16", "", 0),
        ("megatron-core", "bf16", "NeMo/Megatron-Core;distributed optimizer", 2),
        ("megatron-core", "fp8", "recipe LLAMA3_70B_PRETRAIN_CONFIG at 5acef9309", 2),
        ("megatron-core", "bf16", "fused cross entropy;fp32 grad accumulation", 0),
        ("megatron-core", "bf16", "recipe X: fp32 grad accumulation", 0),
        ("megatron-core", "bf16", "", 0),
        ("internevo", "bf16", "zero1=8", 2),
        ("pytorch-fsdp", "bf16", "recipe of torchtitan", 0),
    ],
)
def test_gradients_are_summed_as_wide_as_a_framework_or_its_notes_say(
    framework: str, precision: str, notes: str, expected: int
) -> None:
    assert software(framework, notes, precision).gradient_bytes == expected


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ("zero1=8; micro_num=1", 8),
        ("zero1=-1; micro_num=1", 0),
        ("fsdp_shard_group=8", 8),
        ("MaxText/JAX, fsdp 8 in node x dcn fsdp 16 x dcn data 4;model", 128),
        ("recompute_num_layers=3", 0),
    ],
)
def test_storage_is_split_among_as_many_replicas_as_the_notes_say(
    notes: str, expected: int
) -> None:
    assert state_ranks(row(notes=notes)) == expected
    assert software("jax-xla", notes).state_ranks == expected


def test_weights_are_broadcast_rank_by_rank_where_state_is_split_over_all() -> None:
    assert software("internevo", "zero1=-1; micro_num=4").broadcast_ns > 0
    assert software("internevo", "zero1=8; micro_num=4").broadcast_ns == 0
