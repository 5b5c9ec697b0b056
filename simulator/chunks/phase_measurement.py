"""Phase measurement: the time of each part of a chunk, from a piece simulated op by op.

All times are those of the piece's second step, in which everything is as it stays. A part's time
runs from the end of the part before it on the compute queue to its own end, so communication counts
as far as computation does not hide it.

The host is left out here, as if it were far ahead: it holds back a part by as much as the part's
ops were launched later than they begin (`PartPace`), which depends on what was launched before.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

from millrace.planner.compile.stage_ir import BEGIN, SLOT_PARTS, UPDATE, Section
from millrace.planner.schedules import Order
from millrace.simulator.chunks.chunk_sample import CompiledPiece, PieceCompiler, in_pairs
from millrace.simulator.chunks.phase_contents import inside_parts
from millrace.simulator.chunks.phase_times import PartPace, PartTimes
from millrace.simulator.replay import Replay, followed
from millrace.simulator.step_split import covered_ns, times_of


def part_times(
    pieces: PieceCompiler,
    chunk: int,
    block_names: Sequence[str],
    order: Order,
    stage: int,
    *,
    joint: bool,
    pairs: bool,
    detailed: bool = False,
) -> tuple[PartTimes, CompiledPiece]:
    """Times of the parts of some of a chunk's blocks, and the piece that they were read from.

    Parameters
    ----------
    pieces : PieceCompiler
        Of the plan that the chunk is of.
    chunk, block_names, order, stage
        As `PieceCompiler.compile` takes them.
    joint : bool
        True: gradients of inputs and of weights are one part.
    pairs : bool
        True: the schedule pairs forwards with gradients.
    detailed : bool
        True says what the parts are made of as well (`PartTimes.contents`).

    Returns
    -------
    PartTimes
        Nanoseconds of one step in which everything is as it stays.
    CompiledPiece
        The piece alone.

    Raises
    ------
    ProtocolError
        The piece's graph stops before its end.
    """
    piece = pieces.compile(chunk, block_names, order, stage)
    paired = None
    if pairs or pieces.overlaps:
        turns, paired_slots = in_pairs(joint=joint)
        paired = pieces.compile(chunk, block_names, turns, stage, paired_slots)
    times = _read_times(piece, paired, detailed=detailed)
    return times if pairs or paired is None else times.always_paired(), piece


def _read_times(
    piece: CompiledPiece, paired: CompiledPiece | None = None, *, detailed: bool = False
) -> PartTimes:
    """Times of a piece's parts, from following it through two steps.

    The second step's second last microbatch stands for the schedule's parts. `pacing` of the piece
    slows what it computes beside moving data; launches by the host are left out.
    """
    reading = _Reading(piece)
    times = reading.times()
    if paired is not None:
        paired_ns, exposed_ns = _Reading(paired).paired()
        times = replace(times, paired_ns=paired_ns, paired_exposed_ns=exposed_ns)
    if not detailed:
        return times
    return replace(times, contents=inside_parts(piece, reading.starts, reading.ends))


class _Reading:
    """The second step of a piece while it is read."""

    def __init__(self, piece: CompiledPiece) -> None:
        self.piece = piece
        pacing = piece.pacing
        if pacing is not None and pacing.overlap < 1:
            unpaced = pacing._replace(host_ns=0)
            starts, ends = followed(piece.graph, (piece.durations_ns,), unpaced, 2)
        else:
            steps = Replay(piece.graph, (piece.durations_ns,), piece.first)
            steps.follow()
            starts, ends = steps.starts, steps.ends
        self.starts, self.ends = starts[0], ends[0]
        self.by_section: dict[Section, list[int]] = {}
        for actor, section in enumerate(piece.sections):
            if section is not None:
                self.by_section.setdefault(section, []).append(actor)
        self.count = max(slot.microbatch for slot in piece.slots) + 1

    def paired(self) -> tuple[dict[str, int], int]:
        """Nanoseconds that each part of a pair ends later than those before it, and those exposed.

        The pair is that of the second last forward; the pair before it ends as it begins.
        """
        forward = self.count - 2
        pair = {"F": forward} | dict.fromkeys(
            (slot.part for slot in self.piece.slots if slot.part != "F"), forward - 1
        )
        end_ns = max(
            self._end(actor, microbatch - 1)
            for part, microbatch in pair.items()
            for actor in self._actors(part)
        )
        paired_ns, busy_ns = {}, 0
        for part, microbatch in pair.items():
            actors, firing = self._actors(part), self.count + microbatch
            busy_ns += sum(self.ends[a][firing] - self.starts[a][firing] for a in actors)
            latest_ns = max([end_ns, *(self.ends[actor][firing] for actor in actors)])
            paired_ns[part] = latest_ns - end_ns
            end_ns = latest_ns
        return paired_ns, sum(paired_ns.values()) - busy_ns

    def times(self) -> PartTimes:
        """Times of all parts."""
        ends: list[int] = []
        for slot in self.piece.slots:
            actor_ends = [self._end(actor, slot.microbatch) for actor in self._actors(slot.part)]
            ends.append(max(actor_ends, default=ends[-1] if ends else self._update_end(0)))
        slots_ns, exposed, paces = {}, {}, {}
        for index, slot in enumerate(self.piece.slots):
            if slot.microbatch == self.count - 2:
                slots_ns[slot.part] = ends[index] - ends[index - 1]
                firing = self.count + slot.microbatch
                actors = sorted(self._actors(slot.part))
                begun = [self.starts[actor][firing] for actor in actors]
                busy_ns = sum(self.ends[actor][firing] for actor in actors) - sum(begun)
                exposed[slot.part] = slots_ns[slot.part] - busy_ns
                if self.piece.pacing is not None:
                    paces[slot.part] = self._pace(actors, begun, ends[index - 1], ends[index])
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
            paces=paces | self._once(totals) if self.piece.pacing is not None else {},
        )

    def _pace(
        self, actors: Sequence[int], begun: Sequence[int], begin_ns: int, end_ns: int
    ) -> PartPace:
        """Pace of what runs from one time to another, its firings in order."""
        pacing = self.piece.pacing
        assert pacing is not None
        launched = [*accumulate(pacing.rows[0][actor].launches for actor in actors)]
        rows = zip(launched, begun, strict=True)
        late = ((count - 1) * pacing.host_ns + begin_ns - ns for count, ns in rows)
        alone = end_ns - begin_ns
        if pacing.overlap < 1:
            alone = self._covered(begin_ns, end_ns, True) - self._covered(begin_ns, end_ns, False)
        return PartPace(launched[-1] if launched else 0, max(late, default=0), alone)

    def _once(self, totals: int) -> dict[str, PartPace]:
        """Paces of what is computed once a step."""
        update = self.by_section[UPDATE]
        totals_position = update.index(totals)
        paces = {}
        for part, actors in (
            ("begin", self.by_section.get(BEGIN, ())),
            ("norm", update[:totals_position]),
        ):
            # Here other lanes decide when ops begin, not the ops before them.
            begun = [0, *accumulate(self.piece.durations_ns[actor] for actor in actors)]
            pace = self._pace(list(actors), begun[:-1], 0, begun[-1])
            paces[part] = pace._replace(alone_ns=begun[-1])
        begin_ns = self.ends[totals][1]
        begun = [self.starts[actor][1] for actor in update[totals_position + 1 :]]
        paces["totals"] = PartPace(1, 0, self._ns([totals]))
        paces["update"] = self._pace(
            update[totals_position + 1 :], begun, begin_ns, self._update_end(1)
        )
        return paces

    def _covered(self, begin_ns: int, end_ns: int, either: bool) -> int:
        """Nanoseconds of a window in which anything is under way; without `either`, data moves."""
        actors = [
            index
            for index, actor in enumerate(self.piece.graph.programs[0].actors)
            if either or actor.meeting is not None
        ]
        intervals = times_of(self.starts, actors), times_of(self.ends, actors)
        return covered_ns([intervals], begin_ns, end_ns)

    def _actors(self, part: str) -> list[int]:
        return [
            a for draft_part in SLOT_PARTS[part] for a in self.by_section.get((draft_part, 0), ())
        ]

    def _end(self, actor: int, microbatch: int) -> int:
        return self.ends[actor][self.count + microbatch]

    def _ns(self, actors: Iterable[int]) -> int:
        return sum(self.piece.durations_ns[actor] for actor in actors)

    def _update_end(self, step: int) -> int:
        return max(self.ends[actor][step] for actor in self.by_section[UPDATE])

    def _totals(self) -> int:
        actors = self.piece.graph.programs[0].actors
        return next(a for a in self.by_section[UPDATE] if actors[a].kind == "step_totals")
