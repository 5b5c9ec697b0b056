"""Phase contents: the ops and meetings of a chunk's parts, from a piece simulated op by op.

Counted of the piece's second step, as the parts' times are
(`millrace.simulator.chunks.phase_measurement`): one microbatch of each part of the schedule, and
what comes once a step.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from millrace.planner.actors.graph import Actor
from millrace.planner.actors.interval_ownership import OwnedInterval, covering_ns
from millrace.planner.compile.stage_ir import BEGIN, PHASES, SLOT_PARTS, UPDATE
from millrace.simulator.chunks.chunk_sample import CompiledPiece
from millrace.simulator.chunks.phase_times import ContentKey

Times = Sequence[Sequence[int]]


def inside_parts(piece: CompiledPiece, starts: Times, ends: Times) -> Counter[ContentKey]:
    """Contents of a piece's second step, by part."""
    contents: Counter[ContentKey] = Counter()
    count = max(slot.microbatch for slot in piece.slots) + 1
    before = 0
    for slot in piece.slots:
        sections = [(draft_part, 0) for draft_part in SLOT_PARTS[slot.part]]
        firing = count + slot.microbatch
        actors = [actor for actor, section in enumerate(piece.sections) if section in sections]
        until = max((ends[actor][firing] for actor in actors), default=before)
        if slot.microbatch == count - 2:
            for actor in actors:
                op = piece.graph.programs[0].actors[actor]
                key = ContentKey(slot.part, "compute", op.kind, (op.phase,))
                contents[key] += ends[actor][firing] - starts[actor][firing]
            _exposed(contents, slot.part, piece, starts, ends, (before, until))
        before = until
    _once(contents, piece)
    _moved(contents, piece)
    return contents


def _exposed(
    contents: Counter[ContentKey],
    part: str,
    piece: CompiledPiece,
    starts: Times,
    ends: Times,
    window: tuple[int, int],
) -> None:
    """Count what moves in a window while nothing is computed."""
    intervals: list[OwnedInterval] = []
    for index, actor in enumerate(piece.graph.programs[0].actors):
        meeting = actor.meeting
        owner = None if meeting is None else (meeting.kind, meeting.axes)
        intervals.extend(
            OwnedInterval(start, end, int(meeting is not None), owner)
            for start, end in zip(starts[index], ends[index], strict=True)
            if start < window[1] and end > window[0] and end > start
        )
    for what, ns in covering_ns(intervals, *window).items():
        if isinstance(what, tuple):
            kind, axes = what
            contents[ContentKey(part, "exposed", kind, axes)] += ns


def _once(contents: Counter[ContentKey], piece: CompiledPiece) -> None:
    """Count ops that run once a step."""
    part = "norm"
    for actor, section, ns in zip(
        piece.graph.programs[0].actors, piece.sections, piece.durations_ns, strict=True
    ):
        if section == BEGIN:
            contents[ContentKey("begin", "compute", actor.kind, (actor.phase,))] += ns
        elif section == UPDATE:
            totals = actor.kind == "step_totals"
            counted_part = "totals" if totals else part
            contents[ContentKey(counted_part, "compute", actor.kind, (actor.phase,))] += ns
            part = "update" if totals else part


def _moved(contents: Counter[ContentKey], piece: CompiledPiece) -> None:
    """Count meetings along the mesh's axes: those of a microbatch, and those of a step."""
    parts = {
        PHASES[draft_part]: slot.part
        for slot in piece.slots
        for draft_part in SLOT_PARTS[slot.part]
    }
    for actor, ns in _meetings(piece):
        meeting = actor.meeting
        assert meeting is not None
        once = "gather" if actor.phase in ("begin", "forward") else "reduce"
        part = parts.get(actor.phase, once) if actor.firings > 1 else once
        contents[ContentKey(part, "moved", meeting.kind, meeting.axes)] += ns
        contents[ContentKey(part, "bytes", meeting.kind, meeting.axes)] += meeting.message_bytes


def _meetings(piece: CompiledPiece) -> Iterator[tuple[Actor, int]]:
    for actor, ns in zip(piece.graph.programs[0].actors, piece.durations_ns, strict=True):
        if actor.meeting is not None and actor.meeting.axes and not actor.meeting.world:
            yield actor, ns
