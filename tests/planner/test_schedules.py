"""Schedules: every piece of work once, in an order that memory and dependencies allow."""

import pytest

from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.schedules import (
    SCHEDULES,
    Slot,
    counted,
    in_flight,
    kept_at_once,
    kept_counts,
    schedule_order,
    stage_of,
)

CHUNKS = {"gpipe": (1, 2, 3), "interleaved-1f1b": (1, 2, 3), "zb-v": (2,)}
CASES = [
    (name, stages, chunks, microbatches)
    for name in SCHEDULES
    for stages in (1, 2, 3, 4, 8)
    for chunks in CHUNKS.get(name, (1,))
    for microbatches in (1, 3, 4, 7, 8, 17)
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


def time_of(name: str, stages: int, chunks: int, microbatches: int) -> int:
    """When every stage is done, where F, B and W of a chunk last one unit each.

    Runs every stage's order against its neighbours; fails where they get stuck.
    """
    last = stages * chunks - 1
    place = {(stage_of(name, k, stages), k // stages): k for k in range(last + 1)}
    orders = [
        [
            (part, place[stage, s.chunk], s.microbatch)
            for s in schedule_order(
                name, stage=stage, stages=stages, chunks=chunks, microbatches=microbatches
            )
            for part in s.part
        ]
        for stage in range(stages)
    ]
    done: dict[tuple[str, int, int], int] = {}
    heads, clocks = [0] * stages, [0] * stages
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
                if not done.keys() >= set(needs):
                    break
                clocks[stage] = 1 + max([clocks[stage], *(done[need] for need in needs)])
                done[part, piece, m] = clocks[stage]
                heads[stage] += 1
                progress = True
    assert heads == [len(order) for order in orders]
    return max(clocks)


@pytest.mark.parametrize(("name", "stages", "chunks", "microbatches"), CASES)
def test_the_stages_orders_fit_together(name, stages, chunks, microbatches):
    assert time_of(name, stages, chunks, microbatches) >= 3 * chunks * microbatches


@pytest.mark.parametrize("stages", range(1, 9))
def test_the_v_has_no_bubble_but_the_way_to_the_last_stage(stages):
    for microbatches in (2 * stages - 1, 2 * stages, 3 * stages + 1):
        assert time_of("zb-v", stages, 2, microbatches) == 6 * microbatches + stages - 1


@pytest.mark.parametrize("stages", range(1, 9))
def test_the_v_keeps_no_more_than_1f1b(stages):
    for microbatches in range(1, 3 * stages):
        most = max(
            in_flight(
                schedule_order(
                    "zb-v", stage=stage, stages=stages, chunks=2, microbatches=microbatches
                )
            )
            for stage in range(stages)
        )
        first = in_flight(
            schedule_order("1f1b", stage=0, stages=stages, chunks=1, microbatches=microbatches)
        )
        assert most <= 2 * first  # chunks are half a stage


@pytest.mark.parametrize("microbatches", range(1, 14))
def test_a_shorter_last_round_takes_no_longer_than_a_full_one(microbatches):
    full = -(-microbatches // 4) * 4
    assert time_of("interleaved-1f1b", 4, 2, microbatches) <= time_of(
        "interleaved-1f1b", 4, 2, full
    )


def test_the_v_folds_and_loops_go_round():
    assert [stage_of("zb-v", k, 4) for k in range(8)] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert [stage_of("interleaved-1f1b", k, 4) for k in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    with pytest.raises(InfeasibleError, match="two chunks a stage, found 1"):
        schedule_order("zb-v", stage=0, stages=2, chunks=1, microbatches=4)


def test_1f1b_keeps_as_many_microbatches_as_there_are_stages_behind():
    found = [
        in_flight(schedule_order("1f1b", stage=s, stages=4, chunks=1, microbatches=8))
        for s in range(4)
    ]
    assert found == [4, 3, 2, 1]


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_positions_keep_is_what_the_orders_say(name):
    for chunks in CHUNKS.get(name, (1,)):
        for stages in (1, 2, 3, 5):
            for microbatches in range(1, 6 * stages):
                shape = (name, stages, chunks, microbatches)
                assert kept_counts(*shape) == counted(*shape)


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


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_is_kept_at_once_is_what_a_stage_keeps_at_its_fullest_moment(name):
    for chunks in CHUNKS.get(name, (1,)):
        for stages in (1, 2, 3, 5):
            for microbatches in range(1, 6 * stages):
                assert_a_fullest_moment(name, stages, chunks, microbatches)


def assert_a_fullest_moment(name, stages, chunks, microbatches):
    counts = kept_at_once(name, stages, chunks, microbatches)
    homes = [stage_of(name, position, stages) for position in range(len(counts))]
    for stage in range(stages):
        order = schedule_order(
            name, stage=stage, stages=stages, chunks=chunks, microbatches=microbatches
        )
        mine = [count for count, home in zip(counts, homes, strict=True) if home == stage]
        live, seen = [0] * chunks, False
        for slot in order:
            live[slot.chunk] += {"F": 1, "BW": -1, "W": -1}.get(slot.part, 0)
            seen |= live == mine
        assert seen
        assert sum(mine) == in_flight(order)


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
@pytest.mark.parametrize("microbatches", [1, 2, 3])
def test_few_microbatches_of_zb_v_run_in_the_order_of_a_full_pipeline(stages, microbatches):
    for stage in range(stages):
        few, full = (
            schedule_order("zb-v", stage=stage, stages=stages, chunks=2, microbatches=count)
            for count in (microbatches, 2 * stages - 1)
        )
        assert few == tuple(slot for slot in full if slot.microbatch < microbatches)
