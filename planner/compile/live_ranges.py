"""Live ranges of a stage's registers, for those of which no run is needed to tell.

Time is counted within a section of the compute queue, in which the ops of one block form a
*stretch*.
"""

from collections.abc import Sequence
from typing import NamedTuple

from millrace.planner.compile.stage_ir import BOXING, Section, StageIR


class LiveRange(NamedTuple):
    """Closed interval of a section's time in which a register holds its place.

    Op number i of the draft runs at 2i; what a collective makes of its output begins at 2i + 1.
    """

    register: int
    size: int
    first: int
    last: int


class LiveRanges:
    """Registers of a draft that never outlive one section, and their live ranges."""

    def __init__(self, draft: StageIR, joint_backward: bool) -> None:
        self.draft = draft
        self.joint = joint_backward
        self.readers: dict[int, list[int]] = {}
        self.followers: dict[int, int] = {}  # register → the one whose place it takes
        long_held: set[int] = set()
        for index, actor in enumerate(draft.actors):
            for port in actor.inputs:
                self.readers.setdefault(port.register, []).append(index)
            for port in (*actor.inputs, *actor.outputs):
                if port.hold > 1:
                    long_held.add(port.register)
        self._sections = [self._slot(actor.section) for actor in draft.actors]
        self._ops: dict[Section, list[int]] = {}
        for index, actor in enumerate(draft.actors):
            if actor.lane == "compute":
                self._ops.setdefault(self._sections[index], []).append(index)
        self.candidates = [
            register
            for register in draft.producer
            if register not in long_held and not draft.registers[register].initial
        ]

    def _slot(self, section: Section) -> Section:
        part, chunk = section
        if part == "R" or (self.joint and part in ("B", "W")):
            part = "BW" if self.joint else "B"
        return part, chunk

    def section(self, index: int) -> Section:
        """Section in whose slot an actor runs."""
        return self._sections[index]

    def ops(self, section: Section) -> list[int]:
        """Actors of the compute queue that run in a section, in order."""
        return self._ops.get(section, [])

    def by_section(self) -> dict[Section, list[LiveRange]]:
        """Live ranges of the registers that share the area, per section.

        One place that several take in turn is one live range, known by the first of them.
        """
        ranges_by_section: dict[Section, dict[int, LiveRange]] = {}
        for register in self.candidates:
            begin = self.begin(register)
            end = self.end(register, begin[0]) if begin else None
            if not begin or end is None:
                continue
            live_ranges = ranges_by_section.setdefault(begin[0], {})
            leader = self.draft.places.get(register, register)
            size = self.draft.registers[register].slot_bytes
            live_range = LiveRange(register, size, begin[1], end)
            if leader != register and leader in live_ranges:
                self.followers[register] = leader
                first = live_ranges[leader]
                size = max(size, first.size)
                live_range = LiveRange(
                    leader, size, min(live_range.first, first.first), max(end, first.last)
                )
            live_ranges[live_range.register] = live_range
        return {
            section: list(live_ranges.values())
            for section, live_ranges in ranges_by_section.items()
        }

    def local(self, index: int) -> bool:
        """True if an actor is a collective of this stage alone."""
        meeting = self.draft.actors[index].meeting
        return meeting is not None and meeting.peer is None and not meeting.world

    def begin(self, register: int) -> tuple[Section, int] | None:
        """Section and time from which a register may be written; None if no order tells."""
        index = self.draft.producer.get(register)
        if index is None or self.draft.registers[register].initial:
            return None
        actor = self.draft.actors[index]
        if actor.lane == "compute":
            return self.section(index), 2 * index
        if not self.local(index):
            return None
        section = self.section(index)
        before = [self.begin(port.register) for port in actor.inputs]
        in_section = [
            input_begin is not None and input_begin[0] == section for input_begin in before
        ]
        # A bucket's output may be written once its own part is there and all that the bucket waits
        # for; its other parts do not matter.
        parts = 1 if actor.meeting is None else actor.meeting.parts
        part = [port.register for port in actor.outputs].index(register)
        if not any((*in_section[part : part + 1], *in_section[parts:])):
            return None
        return section, max(
            input_begin[1] for input_begin in before if input_begin and input_begin[0] == section
        ) | 1

    def end(self, register: int, section: Section) -> int | None:
        """Time after which a register is free; None unless that is within the section."""
        readers = self.readers.get(register, ())
        maker = self.draft.producer[register]
        if not readers:
            return 2 * maker if self.draft.actors[maker].lane == "compute" else None
        ends = [self.done(index, section) for index in readers]
        return None if None in ends else max(end for end in ends if end is not None)

    def done(self, index: int, section: Section) -> int | None:
        """Time at which an actor is known to be done, within a section."""
        if self.draft.actors[index].lane == "compute":
            return 2 * index if self.section(index) == section else None
        if not self.local(index):
            return None
        reader_times = [
            done
            for port in self.draft.actors[index].outputs
            for reader in self.readers.get(port.register, ())
            if (done := self.done(reader, section)) is not None
        ]
        return min(reader_times, default=None)


def stretches(draft: StageIR, ops: Sequence[int]) -> list[tuple[int, str]]:
    """Stretches of a section: when each starts, and its block. Boxing belongs to the op it is for.

    Sums of gradients belong where they lie, be they of the block or of the one before.

    Parameters
    ----------
    draft : StageIR
        The stage that the section is of.
    ops : sequence of int
        Actors of the section on the compute queue, in order (`LiveRanges.ops`).

    Returns
    -------
    list of tuple (int, str)
        The start is 2i for op number i of the draft, as in `LiveRange`. Boxing behind the last op
        is a stretch of block "".
    """
    rows: list[tuple[int, str]] = []
    block: str | None = None
    begun: int | None = None
    for index in ops:
        actor = draft.actors[index]
        begun = index if begun is None else begun
        if actor.kind in BOXING:
            continue
        if actor.block != block and (block is None or actor.kind != "accumulate"):
            rows.append((2 * begun, actor.block))
            block = actor.block
        begun = None
    if begun is not None:
        rows.append((2 * begun, ""))
    return rows
