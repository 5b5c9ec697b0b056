"""Slots by rule: what schedules keep, and that no schedule ever waits for a slot in a cycle."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.planner.compile import slots
from millrace.planner.compile.slots import OVERLAP_DEPTH, Lifetime, Timetable
from millrace.planner.errors import ProtocolError
from millrace.planner.schedules import SCHEDULES, stage_of


def timetable(schedule: str, stages: int, chunks: int, microbatches: int) -> Timetable:
    homes = [stage_of(schedule, position, stages) for position in range(stages * chunks)]
    return slots.timetable(schedule, tuple(homes), microbatches)


def crossing(table: Timetable, part: str, position: int) -> tuple[int, int, int, int]:
    """Stages and slots at both ends of the tensor that a chunk hands to its neighbour."""
    home, other = position, position + (1 if part == "F" else -1)
    ends = [(table.homes[k], table.positions[table.homes[k]].index(k)) for k in (home, other)]
    (source, chunk), (target, taker) = ends
    section = part, taker
    sent = Lifetime(
        producer=(part, chunk),
        read=frozenset(),
        sent=frozenset({(target, section)}),
        received=False,
    )
    received = Lifetime(
        producer=section, read=frozenset({section}), sent=frozenset(), received=True
    )
    return source, target, table.slots(source, sent), table.slots(target, received)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_is_read_in_the_same_pass_alone_has_one_slot(schedule: str) -> None:
    table = timetable(schedule, 4, SCHEDULES[schedule].chunks or 2, 12)
    for stage, positions in enumerate(table.positions):
        for chunk in range(len(positions)):
            section = "F", chunk
            alone = Lifetime(
                producer=section, read=frozenset({section}), sent=frozenset(), received=False
            )
            assert table.slots(stage, alone) == 1


def test_a_stage_of_1f1b_sends_from_as_few_slots_as_gpipe() -> None:
    for schedule in ("1f1b", "gpipe"):
        table = timetable(schedule, 4, 1, 32)
        assert [crossing(table, "F", k)[2:] for k in range(3)] == [(1 + OVERLAP_DEPTH,) * 2] * 3


@given(
    schedule=st.sampled_from(sorted(SCHEDULES)),
    stages=st.integers(2, 5),
    chunks=st.integers(1, 3),
    microbatches=st.integers(1, 12),
)
@settings(max_examples=60, deadline=None)
def test_every_schedule_runs_to_its_end_within_its_slots(
    schedule: str, stages: int, chunks: int, microbatches: int
) -> None:
    chunks = SCHEDULES[schedule].chunks or chunks
    table = timetable(schedule, stages, chunks, microbatches)
    last = len(table.homes) - 1
    links = {
        (part, k): crossing(table, part, k)
        for part in ("F", "B")
        for k in range(len(table.homes))
        if k != (last if part == "F" else 0)
    }
    produced, moved, done = (dict.fromkeys(links, 0) for _ in range(3))
    heads = [0] * stages
    progress = True
    while progress:
        progress = False
        for link, (source, target, _, received) in links.items():
            # Within a stage nothing is sent: the order alone says what waits.
            room = microbatches if source == target else received
            while produced[link] > moved[link] and moved[link] - done[link] < room:
                moved[link] += 1
                progress = True
        for stage, order in enumerate(table.orders):
            if heads[stage] == len(order):
                continue
            part, chunk, microbatch = order[heads[stage]]
            position = table.positions[stage][chunk]
            step = -1 if part == "F" else 1
            before, after = (part[0], position + step), (part[0], position)
            if before in links and moved[before] <= microbatch:
                continue
            if after in links and produced[after] - moved[after] >= links[after][2]:
                continue
            progress = True
            heads[stage] += 1
            if before in links:
                done[before] += 1
            if after in links:
                produced[after] += 1
    assert heads == [len(order) for order in table.orders]


def test_orders_that_wait_for_one_another_are_refused() -> None:
    # Chunks the wrong way round: the second half of the model runs first on its stage.
    table = slots.timetable("interleaved-1f1b", (0, 1, 1, 0), 4)
    with pytest.raises(ProtocolError, match="deadlock"):
        crossing(table, "F", 0)
