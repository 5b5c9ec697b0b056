"""Schedules: every piece of work once, in an order that memory and dependencies allow."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from millrace.planner.compile.slots import Lifetime, timetable
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.schedules import (
    PLAIN,
    SCHEDULES,
    Order,
    Slot,
    schedule_order,
    stage_of,
)
from millrace.planner.schedules.counting import LIFETIMES
from millrace.planner.schedules.orders import PARTS
from tests.planner.spelled_orders import SPELLED


def chunks_of(name: str, *several: int) -> tuple[int, ...]:
    """Numbers of chunks to try: `several` of a schedule that takes any number."""
    chunks = SCHEDULES[name].chunks
    return several if chunks is None else (chunks,)


def shapes(name: str) -> list[tuple[int, int, int]]:
    """Stages, chunks and microbatches, few and many of each."""
    return [
        (stages, chunks, microbatches)
        for stages in (1, 2, 3, 4, 8)
        for chunks in chunks_of(name, 1, 2, 3)
        for microbatches in (1, 3, 4, 7, 8, 17)
    ]


def counted(name: str) -> Iterator[tuple[int, int, int]]:
    """Stages, chunks and up to thrice as many microbatches as counts are read off."""
    for stages in (1, 2, 3, 5):
        for chunks in chunks_of(name, 1, 2, 3):
            for microbatches in range(1, 6 * stages + 2):
                yield stages, chunks, microbatches


def orders_of(name: str, stages: int, chunks: int, microbatches: int) -> list[Order]:
    return [
        schedule_order(name, stage=stage, stages=stages, chunks=chunks, microbatches=microbatches)
        for stage in range(stages)
    ]


def in_flight(order: Order) -> int:
    """Peak number of chunk-microbatches that ran forward and not yet their last backward part."""
    live = np.cumsum([{"F": 1, "W": -1, "BW": -1}.get(slot.part, 0) for slot in order])
    return int(live.max())


def alive_by_slot(order: Order, chunks: int, exchanged: bool = False) -> Iterator[np.ndarray]:
    """Versions alive during every slot [chunks, 3 lifetimes], counted one by one.

    `exchanged`: gradients of inputs alone give back what they read as they begin.
    """
    alive = np.zeros((chunks, len(LIFETIMES)), int)
    deferring = any(slot.part == "W" for slot in order)
    for part, chunk, _ in order:
        for lifetime, (begin, _) in enumerate(LIFETIMES):
            alive[chunk, lifetime] += part == begin
        given = np.zeros_like(alive)
        given[chunk, 0] = exchanged and part == "B"
        yield alive - given
        for lifetime, (_, end) in enumerate(LIFETIMES):
            alive[chunk, lifetime] -= end in part and (deferring or lifetime < 2)
    assert not alive.any()


@pytest.mark.parametrize("name", SCHEDULES)
def test_orders_are_what_they_are_spelled_out_to_be(name):
    for stages in (1, 2, 3, 4, 7):
        for chunks in chunks_of(name, 1, 2, 3):
            for microbatches in (*range(1, 3 * stages + 3), 29):
                for stage in range(stages):
                    place = {"stage": stage, "stages": stages, "chunks": chunks}
                    spelled = SPELLED[name](stage, stages, chunks, microbatches)
                    assert schedule_order(name, **place, microbatches=microbatches) == spelled
                    slots = SCHEDULES[name].order_array(**place, microbatches=microbatches)
                    parts, *others = slots.tolist()
                    rows = zip((PARTS[part] for part in parts), *others, strict=True)
                    assert tuple(rows) == spelled


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_part_of_every_microbatch_runs_once_and_forward_comes_first(name):
    wrong = []
    for shape in shapes(name):
        _, chunks, microbatches = shape
        for stage, order in enumerate(orders_of(name, *shape)):
            parts = [(part, s.chunk, s.microbatch) for s in order for part in s.part]
            place = {part: position for position, part in enumerate(parts)}
            ordered = len(place) == len(parts) == 3 * chunks * microbatches and all(
                place["F", chunk, m] < place["B", chunk, m] < place["W", chunk, m]
                for chunk in range(chunks)
                for m in range(microbatches)
            )
            wrong += [] if ordered else [(shape, stage)]
    assert wrong == []


def time_of(name: str, stages: int, chunks: int, microbatches: int) -> int:
    """Time at which every stage is done, where F, B and W of a chunk last one unit each.

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
    assert heads == [len(order) for order in orders], (name, stages, chunks, microbatches)
    return max(clocks)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_stages_orders_fit_together(name):
    assert [s for s in shapes(name) if time_of(name, *s) < 3 * s[1] * s[2]] == []


def pipelines() -> list[tuple[int, int]]:
    """Stages, and as many microbatches as fill them and a few more."""
    return [(n, m) for n in range(1, 9) for m in (2 * n - 1, 2 * n, 3 * n + 1)]


def test_the_v_has_no_bubble_but_the_way_to_the_last_stage():
    assert [(n, m) for n, m in pipelines() if time_of("zb-v", n, 2, m) != 6 * m + n - 1] == []


@pytest.mark.parametrize("stages", range(1, 9))
def test_dualpipe_v_pairs_a_forward_with_the_gradients_of_another_microbatch(stages):
    microbatches = 3 * stages
    pairs = 0
    for stage in range(stages):
        order = schedule_order(
            "dualpipe-v", stage=stage, stages=stages, chunks=2, microbatches=microbatches
        )
        paired_slots = SCHEDULES["dualpipe-v"].paired_slots(stage, stages, 2, microbatches)
        groups: list[list[Slot]] = []
        for number, slot in enumerate(order):
            if number in paired_slots:
                groups[-1].append(slot)
            else:
                groups.append([slot])
        for first, *others in groups:
            if first.part == "F" and others:
                assert [slot.part for slot in others] == ["B", "W"]
                assert {slot.chunk for slot in others} == {1 - first.chunk}
                pairs += 1
    # Both ways while there are both, one way as the second chunk drains; one pair runs apart.
    both = sum(2 * (microbatches - 2 * stages + ahead) for ahead in range(1, stages + 1))
    assert pairs == both + sum(range(stages)) - 1


def test_eager_1f1b_is_as_long_as_1f1b_and_keeps_twice_as_much():
    for stages, microbatches in pipelines():
        shape = stages, 1, microbatches
        assert time_of("eager-1f1b", *shape) == time_of("1f1b", *shape), shape
        peaks = SCHEDULES["eager-1f1b"].counts(*shape)[0].tolist()
        assert peaks == [2 * (stages - stage) - 1 for stage in range(stages)], shape


def test_the_v_keeps_no_more_than_1f1b():
    more = []
    for stages in range(1, 9):
        for microbatches in range(1, 3 * stages):
            most = max(map(in_flight, orders_of("zb-v", stages, 2, microbatches)))
            first = in_flight(orders_of("1f1b", stages, 1, microbatches)[0])
            more += [(stages, microbatches)] if most > 2 * first else []  # chunks: half a stage
    assert more == []


def test_a_shorter_last_round_takes_no_longer_than_a_full_one():
    times = {m: time_of("interleaved-1f1b", 4, 2, m) for m in range(1, 17)}
    assert [m for m in times if times[m] > times[-(-m // 4) * 4]] == []


def test_only_a_schedule_that_pairs_runs_slots_beside_one_another():
    for name, schedule in SCHEDULES.items():
        paired_slots = schedule.paired_slots(1, 4, schedule.chunks or 2, 8)
        assert bool(paired_slots) == schedule.pairs == (name == "dualpipe-v")


def test_the_v_folds_and_loops_go_round():
    assert [stage_of("zb-v", k, 4) for k in range(8)] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert [stage_of("interleaved-1f1b", k, 4) for k in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    with pytest.raises(InfeasibleError, match="two chunks a stage, found 1"):
        schedule_order("zb-v", stage=0, stages=2, chunks=1, microbatches=4)


@pytest.mark.parametrize("name", SCHEDULES)
def test_counts_are_the_most_versions_that_are_alive_in_the_orders(name):
    for shape in counted(name):
        assert_counted(name, *shape)


def assert_counted(name, stages, chunks, microbatches):
    counts = SCHEDULES[name].counts(stages, chunks, microbatches)
    moments = SCHEDULES[name].moments(stages, chunks, microbatches)
    assert len(moments) == stages
    for stage, order in enumerate(orders_of(name, stages, chunks, microbatches)):
        alive = np.array(list(alive_by_slot(order, chunks)))
        positions = [k for k in range(stages * chunks) if stage_of(name, k, stages) == stage]
        assert (alive.max(axis=0) == counts[:, positions].T).all()
        # Moments that no other moment exceeds in every entry, each counted once.
        rows = {tuple(row.ravel().tolist()) for row in alive_by_slot(order, chunks, True)}
        table = np.array(list(rows))
        above = (table[:, None] >= table[None]).all(axis=2).sum(axis=0)
        full = {tuple(row) for row in table[above == 1].tolist()}
        given = [tuple(row.ravel().tolist()) for row in moments[stage]]
        assert set(given) == full
        assert len(given) == len(full)


@pytest.mark.parametrize("name", SCHEDULES)
def test_counts_are_the_slots_of_registers_with_these_lifetimes(name):
    for shape in counted(name):
        assert_slots(name, *shape)


def assert_slots(name, stages, chunks, microbatches):
    homes = tuple(stage_of(name, k, stages) for k in range(stages * chunks))
    table = timetable(name, homes, microbatches)
    counts = SCHEDULES[name].counts(stages, chunks, microbatches)
    for position, stage in enumerate(homes):
        chunk = table.positions[stage].index(position)
        for (begin, end), count in zip(LIFETIMES, counts[:, position].tolist(), strict=True):
            lifetime = Lifetime(
                producer=(begin, chunk),
                read=frozenset({(end, chunk)}),
                sent=frozenset(),
                received=False,
            )
            within_a_slot = table.joint and begin == "B"
            assert count == (0 if within_a_slot else table.slots(stage, lifetime))


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_record_says_what_its_order_is_meant_for(name):
    schedule = SCHEDULES[name]
    assert schedule.name == name
    assert schedule.source
    asks = schedule.chunks is not None or schedule.in_rounds or schedule.least_microbatches(4) > 1
    assert bool(schedule.requirement) == asks
    deferring = any(slot.part == "W" for slot in orders_of(name, 2, schedule.chunks or 1, 2)[0])
    assert schedule.defers_weight_gradients == deferring
    assert schedule.least_microbatches(1) == 1
    if schedule.chunks is not None:
        with pytest.raises(InfeasibleError, match=f"a stage, found {schedule.chunks + 1}"):
            schedule.counts(2, schedule.chunks + 1, 4)


def test_the_plain_schedule_runs_one_chunk_and_defers_nothing():
    plain = SCHEDULES[PLAIN]
    assert plain.searched
    assert (plain.chunks, plain.folded, plain.defers_weight_gradients) == (1, False, False)


def test_counts_that_are_handed_out_cannot_be_changed():
    schedule = replace(SCHEDULES["zb-v"], name="another")
    first, *_ = schedule.moments(3, 2, 9)
    for counts in (schedule.counts(3, 2, 9), first):
        with pytest.raises(ValueError, match="read-only"):
            counts[0] = 0


def test_an_unknown_schedule_is_named_with_the_known_ones():
    with pytest.raises(PlanError, match="unknown schedule `2f2b`: choose one of gpipe, 1f1b"):
        schedule_order("2f2b", stage=0, stages=2, chunks=1, microbatches=2)
