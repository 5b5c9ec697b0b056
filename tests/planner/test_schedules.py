"""Schedules: every piece of work once, in an order that memory and dependencies allow."""

import pytest

from planner.errors import InfeasibleError, PlanError
from planner.schedules import SCHEDULES, Slot, in_flight, schedule_order

CASES = [
    (name, stages, chunks, microbatches)
    for name in SCHEDULES
    for stages in (1, 2, 4)
    for chunks in ((1, 2, 3) if name in ("gpipe", "interleaved-1f1b") else (1,))
    for microbatches in (1, 4, 8)
    if name != "interleaved-1f1b" or microbatches % stages == 0
]


@pytest.mark.parametrize(("name", "stages", "chunks", "microbatches"), CASES)
def test_every_part_of_every_microbatch_runs_once_and_forward_comes_first(
    name, stages, chunks, microbatches
):
    for stage in range(stages):
        order = schedule_order(
            name, stage=stage, stages=stages, chunks=chunks, microbatches=microbatches
        )
        parts = [(part, s.chunk, s.microbatch) for s in order for part in s.part]
        assert len(set(parts)) == len(parts) == 3 * chunks * microbatches
        for chunk in range(chunks):
            for m in range(microbatches):
                at = [parts.index((part, chunk, m)) for part in "FBW"]
                assert at == sorted(at)


@pytest.mark.parametrize(("name", "stages", "chunks", "microbatches"), CASES)
def test_the_stages_orders_fit_together(name, stages, chunks, microbatches):
    """Running every stage's order against its neighbours never gets stuck."""
    last = stages * chunks - 1
    orders = [
        [
            (part, s.chunk * stages + stage, s.microbatch)
            for s in schedule_order(
                name, stage=stage, stages=stages, chunks=chunks, microbatches=microbatches
            )
            for part in s.part
        ]
        for stage in range(stages)
    ]
    done: set[tuple[str, int, int]] = set()
    heads = [0] * stages
    progress = True
    while progress:
        progress = False
        for stage, order in enumerate(orders):
            while heads[stage] < len(order):
                part, piece, m = order[heads[stage]]
                needs = {
                    "F": [("F", piece - 1, m)] if piece else [],
                    "B": [("F", piece, m), *([("B", piece + 1, m)] if piece < last else [])],
                    "W": [("B", piece, m)],
                }[part]
                if not done.issuperset(needs):
                    break
                done.add((part, piece, m))
                heads[stage] += 1
                progress = True
    assert heads == [len(order) for order in orders]


def test_1f1b_keeps_as_many_microbatches_as_there_are_stages_behind():
    found = [
        in_flight(schedule_order("1f1b", stage=s, stages=4, chunks=1, microbatches=8))
        for s in range(4)
    ]
    assert found == [4, 3, 2, 1]


def test_gpipe_keeps_every_microbatch():
    order = schedule_order("gpipe", stage=0, stages=4, chunks=1, microbatches=8)
    assert in_flight(order) == 8


def test_zero_bubble_defers_weight_gradients_on_later_stages():
    order = schedule_order("zb-h1", stage=3, stages=4, chunks=1, microbatches=8)
    assert order[:4] == (Slot("F", 0, 0), Slot("B", 0, 0), Slot("F", 0, 1), Slot("B", 0, 1))
    assert in_flight(order) == 4


def test_an_unknown_schedule_is_named_with_the_known_ones():
    with pytest.raises(PlanError, match="unknown schedule `2f2b`: choose one of gpipe, 1f1b"):
        schedule_order("2f2b", stage=0, stages=2, chunks=1, microbatches=2)


def test_interleaving_needs_rounds_of_as_many_microbatches_as_stages():
    with pytest.raises(InfeasibleError, match="6 microbatches do not divide"):
        schedule_order("interleaved-1f1b", stage=0, stages=4, chunks=2, microbatches=6)
