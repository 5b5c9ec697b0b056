"""Recordings: when each firing of a rank began and ended, and when each step did."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from math import inf
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from millrace.executor.drift.step_log import StepLog
from millrace.executor.errors import saving
from millrace.planner.actors.graph import ActorGraph, Program
from millrace.planner.actors.trace import Span, Trace
from millrace.planner.actors.trace_lanes import lane_of

Totals = tuple[float, float, float]
StepDone = Callable[[int], None]

# A rank keeps of every step two list entries, an integer, and a tuple of three floats.
STEP_BYTES = 200
SPAN_BYTES = 32
_NOTHING = np.zeros(0, np.int64)


def recorded_bytes(program: Program, steps: int, *, spans: bool) -> int:
    """Bytes of memory that a rank's recorder takes, about."""
    firings = sum(actor.firings for actor in program.actors) if spans else 0
    return steps * (STEP_BYTES + SPAN_BYTES * firings)


class Recorder:
    """Times of one rank's firings, in arrays that are made before the run.

    Parameters
    ----------
    program, steps
        What is run, and for how many steps.
    spans
        Keep every firing; otherwise only the ends of steps.
    step_done
        Called with the step's number when its last firing has completed.
    step_log
        Told what every actor takes, and of the end of every step.
    """

    def __init__(
        self,
        program: Program,
        steps: int,
        *,
        spans: bool,
        step_done: StepDone | None = None,
        step_log: StepLog | None = None,
    ) -> None:
        self.spans = spans
        self._firings = [actor.firings for actor in program.actors]
        counts = [count * steps if spans else 0 for count in self._firings]
        self._starts = [array("q", bytes(8 * count)) for count in counts]
        self._ends = [array("q", bytes(8 * count)) for count in counts]
        self._cpu = [array("q", bytes(8 * count)) for count in counts]
        self._queued = [array("q", bytes(8 * count)) for count in counts]
        self._left = [sum(self._firings)] * steps
        self.step_end_ns = [0] * steps
        self._step_done, self._step_log = step_done, step_log

    def record(
        self,
        actor: int,
        firing: int,
        start_ns: int,
        end_ns: int,
        cpu_ns: int = 0,
        queued_ns: int = 0,
    ) -> None:
        """Keep one firing, as a `Span` has it (the caller serialises calls)."""
        if self.spans:
            self._starts[actor][firing] = start_ns
            self._ends[actor][firing] = end_ns
            self._cpu[actor][firing] = cpu_ns
            self._queued[actor][firing] = queued_ns
        if self._step_log is not None:
            self._step_log.spent_ns[actor] += end_ns - start_ns
        step = firing // self._firings[actor]
        self._left[step] -= 1
        if self._left[step] == 0:
            self.step_end_ns[step] = end_ns
            if self._step_log is not None:
                self._step_log.end_step(step, end_ns)
            if self._step_done is not None:
                self._step_done(step)

    def recording(self, rank: int, origin_ns: int) -> "Recording":
        """Recording of all that was kept, in nanoseconds after `origin_ns`."""
        starts, ends, cpu, queued = (
            np.concatenate([np.asarray(column, np.int64) for column in columns] or [_NOTHING])
            for columns in (self._starts, self._ends, self._cpu, self._queued)
        )
        return Recording(
            rank=rank,
            step_end_ns=np.asarray(self.step_end_ns, np.int64) - origin_ns,
            starts_ns=starts - origin_ns,
            ends_ns=ends - origin_ns,
            cpu_ns=cpu,
            queued_ns=queued,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One rank's times from a common origin, and what its kernels kept.

    `starts_ns` and `ends_ns` hold the firings of actor 0, then of actor 1, …; empty when spans
    were not kept, -1 for firings of which they were not. `cpu_ns` and `queued_ns` are those of a
    `Span`, in the same order; empty where they are not known. `totals` are those of every step,
    `smallest_margin` is that of the choices of experts (infinite without any).
    """

    rank: int
    step_end_ns: NDArray[np.int64]
    starts_ns: NDArray[np.int64]
    ends_ns: NDArray[np.int64]
    cpu_ns: NDArray[np.int64] = field(default_factory=lambda: _NOTHING)
    queued_ns: NDArray[np.int64] = field(default_factory=lambda: _NOTHING)
    totals: tuple[Totals, ...] = ()
    smallest_margin: float = inf

    def save(self, path: Path) -> None:
        """Write the recording as a NumPy archive; ExecutorError where the disk refuses."""
        archive = BytesIO()
        np.savez(
            archive,
            rank=self.rank,
            step_end_ns=self.step_end_ns,
            starts_ns=self.starts_ns,
            ends_ns=self.ends_ns,
            cpu_ns=self.cpu_ns,
            queued_ns=self.queued_ns,
            totals=np.asarray(self.totals, np.float64).reshape(-1, 3),
            smallest_margin=self.smallest_margin,
        )
        with saving(path):
            path.write_bytes(archive.getbuffer())


def load_recording(path: Path) -> Recording:
    """Recording that `Recording.save` wrote to a file."""
    with np.load(path) as archive:
        return Recording(
            rank=int(archive["rank"]),
            step_end_ns=archive["step_end_ns"],
            starts_ns=archive["starts_ns"],
            ends_ns=archive["ends_ns"],
            cpu_ns=archive["cpu_ns"],
            queued_ns=archive["queued_ns"],
            totals=tuple((float(a), float(b), float(c)) for a, b, c in archive["totals"]),
            smallest_margin=float(archive["smallest_margin"]),
        )


def losses(recordings: Sequence[Recording]) -> tuple[float, ...]:
    """Mean loss per valid token of every step, from the first rank that knows the totals."""
    totals = max((recording.totals for recording in recordings), key=len, default=())
    return tuple(loss / count if count else float("nan") for loss, count, _ in totals)


def trace_of(
    graph: ActorGraph, recordings: Sequence[Recording], *, plan_digest: str = "", device: str = ""
) -> Trace:
    """Trace document of a run, as measured."""
    return Trace(
        source="measured",
        plan_digest=plan_digest,
        device=device,
        steps=len(recordings[0].step_end_ns),
        lanes=tuple(lane_of(graph, recording.rank) for recording in recordings),
        step_end_ns=tuple(tuple(r.step_end_ns.tolist()) for r in recordings),
        spans=tuple(span for recording in recordings for span in _spans(graph, recording)),
    )


def _spans(graph: ActorGraph, recording: Recording) -> list[Span]:
    """Spans of one rank in order of their start."""
    if not len(recording.starts_ns):
        return []
    program = graph.programs[graph.program_of(recording.rank)]
    steps = len(recording.step_end_ns)
    counts = np.asarray([actor.firings * steps for actor in program.actors])
    actors = np.repeat(np.arange(len(counts)), counts)
    firings = np.concatenate([np.arange(count) for count in counts])
    order = np.lexsort((actors, recording.starts_ns))
    order = order[recording.ends_ns[order] >= 0]
    with_a_core = (
        times if len(times) else np.zeros_like(firings)
        for times in (recording.cpu_ns, recording.queued_ns)
    )
    columns = (actors, firings, recording.starts_ns, recording.ends_ns, *with_a_core)
    rows = zip(*(column[order].tolist() for column in columns), strict=True)
    return [Span(recording.rank, *row) for row in rows]
