"""Peaks of memory as frameworks have them and sources print them."""

from dataclasses import replace

import pytest

from millrace.published.kept import KEPT, keeping
from millrace.published.language import question
from millrace.published.peaks import Figure, Keeping, peak_bytes
from millrace.published.prediction import planned
from planner.plan import Plan, plan_graph
from tests.millrace.published.rows import PLAIN

GPT = 4 * (12 * 256**2 + 13 * 256) + 1024 * 256 + 128 * 256 + 2 * 256  # vocabulary padded


def row(**changes: str) -> dict[str, str]:
    return PLAIN | {"line": "2"} | changes


def plan_of(**changes: str) -> Plan:
    return planned(*question(row(**changes))).plan


def peak(plan: Plan, kept: Keeping) -> int:
    return peak_bytes(plan, plan_graph(plan), kept)


@pytest.mark.parametrize(("zero", "state"), [(0, 18), (1, 12), (2, 10), (3, 9)])
def test_flat_buffers_are_split_over_all_replicas(zero, state):
    plan = plan_of()
    nothing = Keeping(weight_bytes=0, gradient_bytes=0, state_bytes=0, zero=0)
    found = peak(plan, Keeping(zero=zero)) - peak(plan, nothing)
    assert found == pytest.approx(state * GPT, rel=1e-3)


def test_groups_smaller_than_the_replicas_split_less():
    plan = plan_of()
    assert peak(plan, Keeping(zero=1, zero_ranks=1)) == peak(plan, Keeping(zero=0))


def test_a_loss_in_float32_may_be_the_most_that_lives_at_once():
    plan, more = plan_of(vocab="100000"), 6
    fused = peak(plan, Keeping(zero=0, loss_bytes=8))
    logits = 2 * 128 * 100096
    assert peak(plan, Keeping(zero=0, loss_bytes=8 + more)) - fused == more * logits


def test_a_reserved_figure_is_above_what_is_allocated_and_a_device_s_above_both():
    plan = plan_of()
    found = [peak(plan, Keeping(zero=0, figure=figure)) for figure in Figure]
    assert found == sorted(set(found))
    assert found[1] == pytest.approx(1.05 * found[0], rel=1e-6)


def test_a_row_without_a_peak_keeps_what_the_plan_keeps():
    assert keeping(row()) is None
    plan = plan_of()
    assert peak(plan, Keeping()) >= max(0, peak(plan, Keeping(loss_bytes=0)))


def test_what_a_row_says_changes_what_its_framework_keeps():
    printed = {"peak_mem_gb": "1", "framework": "megatron-core"}
    assert keeping(row(**printed)) == Keeping(zero=1)
    assert keeping(row(**printed, notes="fused cross entropy;")).loss_bytes == 4
    assert keeping(row(**printed, notes="zero1=8")).zero_ranks == 8
    assert keeping(row(**printed, tp="2", sequence_parallel="1")).gathers_again
    fsdp = printed | {"framework": "pytorch-fsdp", "zero": "3"}
    assert keeping(row(**fsdp)) == replace(KEPT["pytorch-fsdp"], zero=3)
    assert keeping(row(**fsdp | {"pp": "2"})).zero == 1
    assert keeping(row(**fsdp | {"recompute": "selective"})).activations < 1
    deepspeed = printed | {"framework": "megatron-deepspeed"}
    assert keeping(row(**deepspeed | {"precision": "bf16"})).gradient_bytes == 6
    assert keeping(row(**deepspeed | {"precision": "fp16"})).gradient_bytes == 2
