"""Slots: how many versions of a register a rank keeps, by a rule that needs no run.

Every actor counts where its section stands in the stage's order: ops at the section that runs
them, collectives and receipts at the earliest section that wants what they bring. A version then
lives from the section of its maker to the last section that reads it, and the most versions alive
at once, counted in the stage's own order, are the slots.

What is sent waits for another stage, so two orders count: sections are given equal lengths and
every stage runs its order as early as the others let it. The versions made by then and not yet
wanted on the other side are the slots. Both ends of a transfer have `OVERLAP_DEPTH` more, so that
the next version can travel while the last one is in use.

The runs that this counts are runs of the actor graph that need no more slots, so with these slots
it still goes to its end: a marked graph that has one run to its end stops in none (Commoner et al.,
"Marked directed graphs", 1971). The null clock proves it for every compiled plan.

What a stage keeps from one section to another, all of it made and read on the compute queue, takes
turns in places that chunks and lifetimes share (`millrace.planner.compile.packing`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from millrace.planner.compile.packing import Turns
from millrace.planner.compile.stage_ir import SLOT_PARTS, Section, StageIR
from millrace.planner.errors import ProtocolError
from millrace.planner.schedules import Order, Slot, schedule_of

OVERLAP_DEPTH = 1  # versions of a transferred register beyond those that liveness needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """Sections that make and give back versions of a register, if one comes every microbatch.

    `sent` holds the other end of every transfer that reads it: stage and section.
    """

    producer: Section
    read: frozenset[Section]
    sent: frozenset[tuple[int, Section]]
    received: bool


class Timetable:
    """The orders of all stages, and when each section runs if all last equally long.

    Parameters
    ----------
    orders : sequence of tuple of Slot
        Every stage's.
    homes : sequence of int
        The stage of every chunk, in the order of the model.
    microbatches : int
    paired_slots : sequence of tuple of int, optional
        Every stage's slots that run beside the one before them.
    """

    def __init__(
        self,
        orders: Sequence[Order],
        homes: Sequence[int],
        microbatches: int,
        paired_slots: Sequence[tuple[int, ...]] = (),
    ) -> None:
        self.microbatches = microbatches
        self.homes = tuple(homes)
        self.orders = list(orders)
        # Position in the model of every stage's chunks.
        self.positions = [[k for k, s in enumerate(homes) if s == i] for i in range(len(orders))]
        self.paired_slots = tuple(map(frozenset, paired_slots)) or (frozenset[int](),) * len(
            self.orders
        )
        self.pairs = any(self.paired_slots)
        self.joint = all(slot.part not in ("B", "W") for order in self.orders for slot in order)
        # The place of every section in its stage's order, by microbatch.
        self.turns = [_by_section(order, range(len(order))) for order in self.orders]
        self._slot_counts: dict[tuple[int, Lifetime], int] = {}

    def slots(self, stage: int, lifetime: Lifetime) -> int:
        """Slots of a register of `stage`; every section of the lifetime runs every microbatch."""
        key = stage, lifetime
        if key not in self._slot_counts:
            self._slot_counts[key] = self._counted(stage, lifetime)
        return self._slot_counts[key]

    def _counted(self, stage: int, lifetime: Lifetime) -> int:
        turns, making = self.turns[stage], lifetime.producer
        count = np.arange(1, self.microbatches + 1)
        most = 1
        for section in lifetime.read - {making}:
            alive = count - np.searchsorted(turns[section], turns[making])
            most = max(most, int(alive.max()))
        most += OVERLAP_DEPTH if lifetime.received else 0
        for peer, section in lifetime.sent:
            taken, begun = self._started[peer][section], self._started[stage][making]
            waiting = count - np.searchsorted(taken, begun, side="right")
            most = max(most, int(waiting.max()) + OVERLAP_DEPTH)
        return min(most, self.microbatches)

    @cached_property
    def _started(self) -> list[dict[Section, Turns]]:
        return [
            _by_section(
                order, [end - len(slot.part) for slot, end in zip(order, ends, strict=True)]
            )
            for order, ends in zip(self.orders, self.times, strict=True)
        ]

    @cached_property
    def times(self) -> list[list[int]]:
        """End of each slot of each stage, if a part lasts one unit and none waits for slots.

        Raises
        ------
        ProtocolError
            The orders wait for one another in a cycle.
        """
        # By position of the chunk, the ends of its forwards and backwards, in order.
        ends: dict[tuple[str, int], list[int]] = {
            (part, position): [] for part in "FB" for position in range(len(self.homes))
        }
        times_by_stage: list[list[int]] = [[] for _ in self.orders]
        pending = list(range(len(self.orders)))
        waiting: dict[tuple[str, int], int] = {}  # stages, by what they wait for more of
        while pending:
            stage = pending.pop()
            order, times, positions = (
                self.orders[stage],
                times_by_stage[stage],
                self.positions[stage],
            )
            now = times[-1] if times else 0
            for index in range(len(times), len(order)):
                part, chunk, microbatch = order[index]
                provides = part[0], positions[chunk]
                # The forward before, or the backward after, on whichever stage.
                need = part[0], positions[chunk] - 1 if part == "F" else positions[chunk] + 1
                if part != "W" and need in ends:
                    if len(ends[need]) <= microbatch:
                        waiting[need] = stage
                        break
                    now = max(now, ends[need][microbatch])
                now += len(part)
                times.append(now)
                if part != "W":
                    ends[provides].append(now)
                    if provides in waiting:
                        pending.append(waiting.pop(provides))
        for stage, times in enumerate(times_by_stage):
            if len(times) < len(self.orders[stage]):
                stuck = self.orders[stage][len(times)]
                raise ProtocolError(
                    f"the compute orders deadlock: {stuck.part}{stuck.microbatch} of chunk "
                    f"{stuck.chunk} on stage {stage} waits for a microbatch that never comes"
                )
        return times_by_stage


@lru_cache(maxsize=4)  # plans of one search share theirs; they are large
def timetable(schedule: str, homes: tuple[int, ...], microbatches: int) -> Timetable:
    """Timetable of a schedule, the one of before where it was made already.

    Orders that wait for one another in a cycle are no error here: `Timetable.times` raises it.

    Parameters
    ----------
    schedule : str
        Name of a schedule (`millrace.planner.schedules.SCHEDULES`).
    homes : tuple of int
        The stage of every chunk, in the order of the model; each stage from 0 to the last has one.
    microbatches : int
        Number of microbatches of a step.

    Raises
    ------
    PlanError
        No schedule has that name.
    InfeasibleError
        The schedule does not run that many chunks on a stage.
    """
    stages, record = max(homes) + 1, schedule_of(schedule)
    sizes = [(stage, stages, homes.count(stage), microbatches) for stage in range(stages)]
    orders = [record.order(*size) for size in sizes]
    return Timetable(orders, homes, microbatches, [record.paired_slots(*size) for size in sizes])


def _by_section(order: Sequence[Slot], values: Sequence[int]) -> dict[Section, Turns]:
    """Value of every section's slot, by microbatch."""
    values_by_slot: dict[tuple[str, int], list[int]] = {}
    for (part, chunk, _), value in zip(order, values, strict=True):
        values_by_slot.setdefault((part, chunk), []).append(value)
    return {
        (section_part, chunk): np.asarray(row)
        for (part, chunk), row in values_by_slot.items()
        for section_part in SLOT_PARTS[part]
    }


def lifetimes(drafts: Sequence[StageIR]) -> list[list[Lifetime | None]]:
    """Lifetime of every stage's registers; None for those of one version a step."""
    receipts = {
        actor.meeting.key: (stage, actor.section)
        for stage, draft in enumerate(drafts)
        for actor in draft.actors
        if actor.meeting is not None and actor.meeting.kind == "recv"
    }
    return [_stage_lifetimes(draft, receipts) for draft in drafts]


def _stage_lifetimes(
    draft: StageIR, receipts: dict[str, tuple[int, Section]]
) -> list[Lifetime | None]:
    makers: dict[int, tuple[Section, bool]] = {}
    read: dict[int, set[Section]] = {}
    sent: dict[int, set[tuple[int, Section]]] = {}
    for actor in draft.actors:
        meeting = actor.meeting
        for port in actor.inputs:
            if meeting is not None and meeting.kind == "send":
                sent.setdefault(port.register, set()).add(receipts[meeting.key])
            else:
                read.setdefault(port.register, set()).add(actor.section)
        for port in actor.outputs:
            if actor.firings > port.hold and not draft.registers[port.register].initial:
                received = meeting is not None and meeting.kind == "recv"
                makers[port.register] = actor.section, received
    return [
        Lifetime(
            producer=makers[register][0],
            read=frozenset(read.get(register, ())),
            sent=frozenset(sent.get(register, ())),
            received=makers[register][1],
        )
        if register in makers
        else None
        for register in range(len(draft.registers))
    ]
