"""Packing by lifetimes: nothing overlaps while it is alive, and little more is laid out than is."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.planner.compile.packing import Bundle, Packing, Sizes, packed, taken_in_turn
from millrace.planner.compile.slots import Timetable
from millrace.planner.schedules import in_flight, stage_of

LINE = 64
KIB = 16 * LINE
# Bytes of what a block keeps, in parts of its input: GPT's, Llama's, and those of experts.
FAMILIES = ((1, 4, 3, 1 / 16), (1, 2.6875, 0.25, 1 / 16), (1, 3.5, 0.125), (1, 1.75, 3.5, 0.25))
SPLIT = (("F", "B"), ("F", "W"), ("B", "W"))


def timetable(schedule: str, stages: int, chunks: int, microbatches: int) -> Timetable:
    homes = [stage_of(schedule, position, stages) for position in range(stages * chunks)]
    return Timetable(schedule, homes, microbatches)


def drawn(draw: Random, schedule: str) -> tuple[Timetable, int, Sizes]:
    """A stage whose chunks have blocks of up to three kinds, as modes of recomputation are."""
    chunks = {"1f1b": 1, "zb-h1": 1, "zb-v": 2}.get(schedule, draw.randint(1, 4))
    stages = draw.choice((2, 4))
    table = timetable(schedule, stages, chunks, draw.choice((5, 12)))
    lives = (("F", "BW"),) if table.joint else SPLIT
    family = [int(part * KIB) // LINE * LINE for part in draw.choice(FAMILIES)]
    kinds = [
        {life: Counter({size: draw.randint(0, 5) for size in family}) for life in lives}
        for _ in range(draw.randint(1, 3))
    ]
    sizes = {Bundle(chunk, *life): Counter[int]() for chunk in range(chunks) for life in lives}
    for chunk in range(chunks):
        for _ in range(draw.randint(1, 4)):
            for life, counts in draw.choice(kinds).items():
                sizes[Bundle(chunk, *life)].update(counts)
    return table, draw.randrange(stages), {bundle: +counts for bundle, counts in sizes.items()}


def most_alive(table: Timetable, stage: int, sizes: Sizes) -> int:
    """The most bytes alive in any slot of the order, by going through it."""
    held = {b: sum(size * n for size, n in counts.items()) for b, counts in sizes.items()}
    alive = most = 0
    for slot in table.orders[stage]:
        own = [bundle for bundle in held if bundle.chunk == slot.chunk]
        alive += sum(held[bundle] for bundle in own if bundle.made == slot.part)
        most = max(most, alive)
        alive -= sum(held[bundle] for bundle in own if bundle.end == slot.part)
    return most


def assert_nothing_overlaps(table: Timetable, stage: int, packing: Packing) -> None:
    """Every size that is shared: no place is taken twice at once, and there are no more of them."""
    for place_bytes in packing.shared:
        pieces = packing.of_size(place_bytes)
        taken = taken_in_turn({b: len(row) for b, row in pieces.items()}, table.turns[stage])
        used: set[int] = set()
        for slot in table.orders[stage]:
            for bundle, rows in taken.items():
                places = {row[slot.microbatch] for row in rows}
                if (bundle.chunk, bundle.made) == (slot.chunk, slot.part):
                    assert len(places) == len(rows)
                    assert not used & places
                    used |= places
            for bundle, rows in taken.items():
                if (bundle.chunk, bundle.end) == (slot.chunk, slot.part):
                    used -= {row[slot.microbatch] for row in rows}
        assert not used
        highest = max(place for rows in taken.values() for row in rows for place in row)
        assert highest + 1 == packing.places[place_bytes]


@given(
    seed=st.integers(0, 2**32),
    schedule=st.sampled_from(("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v")),
)
@settings(max_examples=60, deadline=None)
def test_nothing_overlaps_and_little_more_is_laid_out_than_is_alive(
    seed: int, schedule: str
) -> None:
    table, stage, sizes = drawn(Random(seed), schedule)
    packing = packed(sizes, table.turns[stage])
    assert packing.alive_bytes == most_alive(table, stage, sizes)
    assert packing.alive_bytes <= packing.size_bytes
    assert_nothing_overlaps(table, stage, packing)
    for bundle, pieces in packing.pieces.items():
        registers = Counter(size for piece in pieces.elements() for size in piece.sizes)
        assert registers == sizes[bundle]
        assert all(sum(piece.sizes) <= piece.place_bytes for piece in pieces)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v"])
def test_within_two_per_cent_of_what_is_alive_as_a_rule(schedule: str) -> None:
    laid_out = alive = 0
    for seed in range(40):
        table, stage, sizes = drawn(Random(seed), schedule)
        packing = packed(sizes, table.turns[stage])
        assert packing.size_bytes <= 1.05 * packing.alive_bytes
        laid_out, alive = laid_out + packing.size_bytes, alive + packing.alive_bytes
    assert laid_out <= 1.01 * alive


def test_a_chunk_alone_whose_lives_are_alike_shares_nothing() -> None:
    table = timetable("1f1b", 4, 1, 12)
    packing = packed({Bundle(0, "F", "BW"): {KIB: 3, 4 * KIB: 2}}, table.turns[1])
    assert packing.shared == ()
    assert packing.places == {4 * KIB: 2 * 3, KIB: 3 * 3}


@pytest.mark.parametrize("schedule", ["gpipe", "interleaved-1f1b", "zb-v"])
def test_equal_chunks_have_as_many_places_as_microbatches_that_a_stage_keeps(schedule: str) -> None:
    table = timetable(schedule, 4, 2, 12)
    end = "BW" if table.joint else "W"
    sizes = {Bundle(chunk, "F", end): {KIB: 1} for chunk in range(2)}
    for stage, order in enumerate(table.orders):
        assert packed(sizes, table.turns[stage]).places == {KIB: in_flight(order)}


def test_small_registers_of_one_chunk_take_the_place_of_a_large_one_of_another() -> None:
    table = timetable("zb-v", 4, 2, 12)
    small, large = {KIB: 4}, {4 * KIB: 1}
    for stage, order in enumerate(table.orders):
        packing = packed(
            {Bundle(0, "F", "W"): small, Bundle(1, "F", "W"): large}, table.turns[stage]
        )
        assert packing.size_bytes == 4 * KIB * in_flight(order)
        assert packing.pieces[Bundle(0, "F", "W")] in (
            Counter({(4 * KIB, (KIB,) * 4): 1}),
            Counter({(KIB, (KIB,)): 4}),
        )


def test_what_is_packed_depends_on_sizes_and_counts_alone() -> None:
    table, stage, sizes = drawn(Random(3), "zb-v")
    turned = {b: dict(sorted(sizes[b].items(), reverse=True)) for b in reversed(sizes)}
    assert packed(sizes, table.turns[stage]) == packed(turned, table.turns[stage])
