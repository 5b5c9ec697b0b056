"""Parts: how long each part of a chunk takes, measured by simulating a piece of it op by op.

All times are those of the piece's second step, in which everything is as it stays. A part's time
runs from the end of the part before it on the compute queue to its own end, so communication counts
as far as computation does not hide it.
"""

from collections.abc import Iterable, Mapping

from planner.compile.draft import BEGIN, SLOT_PARTS, UPDATE, Section
from planner.compile.part_times import PartTimes
from planner.compile.pieces import Piece
from simulator.following import Following


def part_times(piece: Piece) -> PartTimes:
    """Follow a piece through two steps and return the times of its parts."""
    steps = Following(piece.graph, (piece.durations_ns,), piece.first)
    steps.follow()
    by_section: dict[Section, list[int]] = {}
    for actor, section in enumerate(piece.sections):
        if section is not None:
            by_section.setdefault(section, []).append(actor)
    return _Reading(piece, steps, by_section).times()


class _Reading:
    """The second step of a piece while it is read."""

    def __init__(
        self, piece: Piece, steps: Following, by_section: Mapping[Section, list[int]]
    ) -> None:
        self.piece = piece
        (self.starts,), (self.ends,) = steps.starts, steps.ends
        self.by_section = by_section
        self.count = max(slot.microbatch for slot in piece.slots) + 1

    def times(self) -> PartTimes:
        """The times of all parts."""
        ends: list[int] = []
        for slot in self.piece.slots:
            found = [self._end(actor, slot.microbatch) for actor in self._actors(slot.part)]
            ends.append(max(found, default=ends[-1] if ends else self._update_end(0)))
        slots_ns = {}
        for index, slot in enumerate(self.piece.slots):
            if slot.microbatch == self.count - 2:
                slots_ns[slot.part] = ends[index] - ends[index - 1]
        exposed = {part: ns - self._ns(self._actors(part)) for part, ns in slots_ns.items()}
        totals = self._totals()
        totals_start, totals_ns = self.starts[totals][1], self._ns([totals])
        first = self.piece.slots[0].part
        steady = self.count * sum(slots_ns.values()) - slots_ns[first]
        update = self.by_section[UPDATE]
        begin_ns = self._ns(self.by_section.get(BEGIN, ()))
        norm_ns = self._ns(update[: update.index(totals)])
        return PartTimes(
            slots_ns=slots_ns,
            exposed_ns=exposed,
            begin_ns=begin_ns,
            gather_ns=ends[0] - self._update_end(0) - slots_ns[first] - begin_ns,
            reduce_ns=totals_start - ends[0] - steady - norm_ns,
            norm_ns=norm_ns,
            totals_ns=totals_ns,
            update_ns=self._update_end(1) - totals_start - totals_ns,
        )

    def _actors(self, part: str) -> list[int]:
        return [a for one in SLOT_PARTS[part] for a in self.by_section.get((one, 0), ())]

    def _end(self, actor: int, microbatch: int) -> int:
        return self.ends[actor][self.count + microbatch]

    def _ns(self, actors: Iterable[int]) -> int:
        return sum(self.piece.durations_ns[actor] for actor in actors)

    def _update_end(self, step: int) -> int:
        return max(self.ends[actor][step] for actor in self.by_section[UPDATE])

    def _totals(self) -> int:
        actors = self.piece.graph.programs[0].actors
        return next(a for a in self.by_section[UPDATE] if actors[a].kind == "step_totals")
