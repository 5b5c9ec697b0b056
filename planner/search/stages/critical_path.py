"""Critical path: how long a pipeline's static order takes, and which passes decide that.

A *pass* is one part (F, B, W or BW) of one chunk and microbatch. It begins when the pass before it
in its stage's order is over and what it reads has arrived: a forward waits for the same
microbatch's forward of the chunk before, a backward for that of the chunk after. So the end of the
last pass is a longest path, and the passes on it, counted, are a lower bound of the length of the
same order under any other times: length ≥ Σ count · time ("a cut").

Shapes: K positions (chunks in model order), P = 3 parts (forward, input gradient, weight gradient).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from millrace.planner.errors import ProtocolError
from millrace.planner.schedules import schedule_order, stage_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, JOINT = range(4)
PARTS = {"F": FORWARD, "B": INPUT_GRADIENT, "W": WEIGHT_GRADIENT, "BW": JOINT}
LAPS = 6  # rounds of `stages` microbatches that are run before one more is tried for its period
PERIODIC = 1e-3  # of a round's time, by which the next may differ where all are taken to be alike


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """Nanoseconds of a pipeline's passes, and of what comes once a step.

    Attributes
    ----------
    passes : array [P, K]
        One microbatch's forward, input gradient and weight gradient of every chunk.
    hops : array [K]
        From each chunk to the next, and for gradients back; 0 where both lie on one stage.
    begins : array [K]
        When the first forward of each chunk may begin.
    ends : array [K]
        From the last backward of each chunk until its gradients are reduced.
    """

    passes: Floats
    hops: Floats
    begins: Floats
    ends: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The length of an order and how often each pass lies on its longest path, array [P, K]."""

    length_ns: float
    counts: Ints


class _Order:
    """Passes of one step, each after all that it waits for, as places in this order.

    Attributes
    ----------
    numbers : list of int
        Per pass `part * (K + 1) + position`.
    before, read : list of int
        The pass before it on its stage, and the one whose result it reads; -1 where there is none.
    hops : list of int
        Position of the earlier of two chunks that what it reads is sent between; K: it is not sent.
    firsts, finals : list of int
        Per position, its first forward and its last gradient of weights.
    """

    def __init__(self, schedule: str, stages: int, chunks: int, microbatches: int) -> None:
        positions = stages * chunks
        self.positions = positions
        self.numbers: list[int] = []
        self.before: list[int] = []
        self.read: list[int] = []
        self.hops: list[int] = []
        self.firsts, self.finals = [-1] * positions, [-1] * positions
        homes = [stage_of(schedule, position, stages) for position in range(positions)]
        orders = [
            schedule_order(
                schedule, stage=stage, stages=stages, chunks=chunks, microbatches=microbatches
            )
            for stage in range(stages)
        ]
        on_stage = [[k for k, home in enumerate(homes) if home == stage] for stage in range(stages)]
        done: dict[tuple[bool, int], list[int]] = {
            (forward, position): [] for forward in (True, False) for position in range(positions)
        }
        reached, last = [0] * stages, [-1] * stages
        waiting: dict[tuple[bool, int], int] = {}  # stages, by what they wait for more of
        pending = list(range(stages))
        while pending:
            stage = pending.pop()
            for part, chunk, microbatch in orders[stage][reached[stage] :]:
                position = on_stage[stage][chunk]
                forward = part == "F"
                source = position - 1 if forward else position + 1
                read, hop = -1, positions
                if part != "W" and 0 <= source < positions:
                    ready = done[forward, source]
                    if len(ready) <= microbatch:
                        waiting[forward, source] = stage
                        break
                    read = ready[microbatch]
                    if homes[source] != stage:
                        hop = min(source, position)
                place = len(self.numbers)
                self.numbers.append(PARTS[part] * (positions + 1) + position)
                self.before.append(last[stage])
                self.read.append(read)
                self.hops.append(hop)
                last[stage] = place
                reached[stage] += 1
                if part in ("W", "BW"):
                    self.finals[position] = place
                elif forward and microbatch == 0:
                    self.firsts[position] = place
                if part != "W":
                    done[forward, position].append(place)
                    if (forward, position) in waiting:
                        pending.append(waiting.pop((forward, position)))
        if any(count < len(order) for count, order in zip(reached, orders, strict=True)):
            raise ProtocolError(
                f"the orders of schedule {schedule} wait for one another in a cycle"
            )

    def longest(self, times: PassTimes) -> CriticalPath:
        """The longest path of the passes, in these times."""
        positions = self.positions
        durations = np.zeros((4, positions + 1))
        durations[:3, :positions] = times.passes
        durations[JOINT] = durations[INPUT_GRADIENT] + durations[WEIGHT_GRADIENT]
        duration_of = durations.ravel().tolist()
        hop_of = [*times.hops.tolist(), 0.0]
        floors = dict(zip(self.firsts, times.begins.tolist(), strict=True))
        ends = [0.0] * (len(self.numbers) + 1)  # the last one is that of no pass
        passes = zip(self.numbers, self.before, self.read, self.hops, strict=True)
        for place, (number, before, read, hop) in enumerate(passes):
            begin = ends[before]
            arrival = ends[read] + hop_of[hop]
            if arrival > begin:
                begin = arrival
            if place in floors and floors[place] > begin:
                begin = floors[place]
            ends[place] = begin + duration_of[number]
        tails = [ends[at] + tail for at, tail in zip(self.finals, times.ends.tolist(), strict=True)]
        at = self.finals[int(np.argmax(tails))]
        return CriticalPath(length_ns=max(tails), counts=self._counts(at, ends, hop_of))

    def _counts(self, at: int, ends: Sequence[float], hop_of: Sequence[float]) -> Ints:
        """How often each pass lies on the path that ends at a place."""
        on_path: list[int] = []
        while at >= 0:
            on_path.append(self.numbers[at])
            before, read = self.before[at], self.read[at]
            late = ends[read] + hop_of[self.hops[at]] if read >= 0 else -1.0
            at = before if before >= 0 and ends[before] >= late else read
        counts = np.bincount(on_path, minlength=4 * (self.positions + 1))
        found = counts.reshape(4, -1)[:, : self.positions].astype(np.int64)
        found[[INPUT_GRADIENT, WEIGHT_GRADIENT]] += found[JOINT]
        return found[:3]


@lru_cache(maxsize=64)
def _order(schedule: str, stages: int, chunks: int, microbatches: int) -> _Order:
    return _Order(schedule, stages, chunks, microbatches)


def critical_path(
    schedule: str, stages: int, chunks: int, microbatches: int, times: PassTimes
) -> CriticalPath:
    """The longest path of a pipeline's order.

    Parameters
    ----------
    schedule : str
    stages, chunks, microbatches : int
        Chunks of each stage; microbatches of a step.
    times : PassTimes

    Returns
    -------
    CriticalPath
        From the begin of the step to the last reduced gradient. Of many microbatches a few rounds
        are run: what one further round adds, all further ones do. Its counts say how much longer
        the step takes for each nanosecond of a pass, and are a cut where none was added.

    Raises
    ------
    ProtocolError
        The orders wait for one another in a cycle.

    Notes
    -----
    An order with fixed durations is a max-plus linear system, which becomes periodic (Baccelli et
    al., "Synchronization and Linearity", 1992, theorem 3.112).

    Examples
    --------
    >>> times = PassTimes(
    ...     passes=np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]),
    ...     hops=np.zeros(2), begins=np.zeros(2), ends=np.zeros(2),
    ... )
    >>> critical_path("1f1b", 2, 1, 8, times).length_ns
    27.0
    """
    laps = LAPS
    while True:
        rounds = max(0, microbatches - laps * stages) // stages
        few = microbatches - rounds * stages
        path = _order(schedule, stages, chunks, few).longest(times)
        if not rounds:
            return path
        fewer, fewest = (
            _order(schedule, stages, chunks, few - less * stages).longest(times) for less in (1, 2)
        )
        round_ns = path.length_ns - fewer.length_ns
        if abs(round_ns - (fewer.length_ns - fewest.length_ns)) <= PERIODIC * round_ns:
            return CriticalPath(
                length_ns=path.length_ns + rounds * round_ns,
                counts=path.counts + rounds * (path.counts - fewer.counts),
            )
        laps *= 2
