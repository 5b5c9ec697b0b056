"""Packing by lifetimes: nothing overlaps while it is alive, and little more is laid out than is."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.planner.compile.packing import (
    UNSTRETCHED,
    Bundle,
    Packing,
    Sizes,
    packed,
    taken_in_turn,
)
from millrace.planner.compile.slots import Timetable
from millrace.planner.compile.slots import timetable as timetable_of
from millrace.planner.schedules import Slot, stage_of
from tests.planner.test_schedules import in_flight

LINE = 64
KIB = 16 * LINE
# Bytes of what a block keeps, in parts of its input: GPT's, Llama's, and those of experts.
FAMILIES = ((1, 4, 3, 1 / 16), (1, 2.6875, 0.25, 1 / 16), (1, 3.5, 0.125), (1, 1.75, 3.5, 0.25))
SPLIT = (("F", "B"), ("F", "W"), ("B", "W"))


def timetable(schedule: str, stages: int, chunks: int, microbatches: int) -> Timetable:
    homes = [stage_of(schedule, position, stages) for position in range(stages * chunks)]
    return timetable_of(schedule, tuple(homes), microbatches)


def drawn(draw: Random, schedule: str) -> tuple[Timetable, int, Sizes]:
    """Stage whose chunks have blocks of up to three kinds, as modes of recomputation are."""
    chunks = {"1f1b": 1, "zb-h1": 1, "zb-v": 2}.get(schedule, draw.randint(1, 4))
    stages = draw.choice((2, 4))
    table = timetable(schedule, stages, chunks, draw.choice((5, 12)))
    parts = (("F", "BW"),) if table.joint else SPLIT
    family = [int(part * KIB) // LINE * LINE for part in draw.choice(FAMILIES)]
    kinds = [
        {life: Counter({size: draw.randint(0, 5) for size in family}) for life in parts}
        for _ in range(draw.randint(1, 3))
    ]
    sizes: dict[Bundle, Counter[int]] = {}
    for chunk in range(chunks):
        for block in reversed(range(draw.randint(1, 4))):
            for life, counts in draw.choice(kinds).items():
                bundle = Bundle(chunk, *life, block if "B" in life else UNSTRETCHED)
                sizes.setdefault(bundle, Counter()).update(counts)
    return table, draw.randrange(stages), {b: +counts for b, counts in sizes.items() if +counts}


def lives(order: Sequence[Slot], bundles: Iterable[Bundle]) -> Iterator[tuple[str, Bundle, int]]:
    """Begins ("made") and ends of versions, in the order of a stage, stretch by stretch."""
    for part, chunk, microbatch in order:
        chunk_bundles = [bundle for bundle in bundles if bundle.chunk == chunk]
        stretched = [b for b in chunk_bundles if part == "B" and b.stretch != UNSTRETCHED]
        yield from (
            ("made", b, microbatch) for b in chunk_bundles if b.start == part and b not in stretched
        )
        for stretch in range(4):
            there = [b for b in stretched if b.stretch == stretch]
            yield from (("made", bundle, microbatch) for bundle in there if bundle.start == part)
            yield from (("end", bundle, microbatch) for bundle in there if bundle.end == part)
        yield from (
            ("end", b, microbatch) for b in chunk_bundles if b.end == part and b not in stretched
        )


def most_alive(order: Sequence[Slot], sizes: Sizes) -> int:
    """Most bytes alive at any moment of the order, found by going through it."""
    bundle_bytes = {b: sum(size * n for size, n in counts.items()) for b, counts in sizes.items()}
    alive = most = 0
    for what, bundle, _ in lives(order, bundle_bytes):
        alive += bundle_bytes[bundle] if what == "made" else -bundle_bytes[bundle]
        most = max(most, alive)
    return most


def assert_nothing_overlaps(table: Timetable, stage: int, packing: Packing) -> None:
    """Assert, per shared size, that no place is taken twice at once and none is superfluous."""
    for place_bytes in packing.shared:
        pieces = packing.of_size(place_bytes)
        taken = taken_in_turn({b: len(row) for b, row in pieces.items()}, table.turns[stage])
        used: set[int] = set()
        for what, bundle, microbatch in lives(table.orders[stage], taken):
            places = {row[microbatch] for row in taken[bundle]}
            assert len(places) == len(taken[bundle])
            if what == "made":
                assert not used & places
                used |= places
            else:
                used -= places
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
    unsplit_sizes: dict[Bundle, Counter[int]] = {}
    for bundle, counts in sizes.items():
        unsplit_sizes.setdefault(bundle._replace(stretch=UNSTRETCHED), Counter()).update(counts)
    packed_as = sizes if packing.pieces.keys() == sizes.keys() else unsplit_sizes
    assert packing.alive_bytes == most_alive(table.orders[stage], packed_as)
    assert packing.alive_bytes <= packing.size_bytes
    assert_nothing_overlaps(table, stage, packing)
    assert packing.pieces.keys() == packed_as.keys()
    for bundle, pieces in packing.pieces.items():
        registers = Counter(size for piece in pieces.elements() for size in piece.sizes)
        assert registers == packed_as[bundle]
        assert all(sum(piece.sizes) <= piece.place_bytes for piece in pieces)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v"])
def test_within_two_per_cent_of_what_is_alive_as_a_rule(schedule: str) -> None:
    laid_out = alive = 0
    for seed in range(40):
        table, stage, sizes = drawn(Random(seed), schedule)
        packing = packed(sizes, table.turns[stage])
        least = most_alive(table.orders[stage], sizes)
        assert packing.size_bytes <= 1.08 * least
        laid_out, alive = laid_out + packing.size_bytes, alive + least
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
    turned = {b: dict(sorted(sizes[b].items(), reverse=True)) for b in reversed(list(sizes))}
    assert packed(sizes, table.turns[stage]) == packed(turned, table.turns[stage])


def test_what_a_block_gives_back_in_its_backward_pass_the_next_one_fills() -> None:
    table = timetable("zb-h1", 4, 1, 12)
    blocks = range(3)
    sizes = {
        Bundle(0, *life, block): {KIB: 2} for life in (("F", "B"), ("B", "W")) for block in blocks
    }
    for stage, order in enumerate(table.orders):
        unsplit_sizes = {Bundle(0, "F", "B"): {KIB: 6}, Bundle(0, "B", "W"): {KIB: 6}}
        apart, together = (
            packed(unsplit_sizes, table.turns[stage]),
            packed(sizes, table.turns[stage]),
        )
        # At its most a version of either is there, and of one block both.
        assert apart.size_bytes - together.size_bytes == 4 * KIB
        assert together.size_bytes == most_alive(order, sizes)
