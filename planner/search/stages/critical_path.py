"""Critical path: how long a pipeline's static order takes, and which passes decide that.

A *pass* is one part (F, B, W or BW) of one chunk and microbatch. It begins when the pass before it
in its stage's order is over and what it reads has arrived: a forward waits for the same
microbatch's forward of the chunk before, a backward for that of the chunk after. So the end of the
last pass is a longest path, and the passes on it, counted, are a lower bound of the length of the
same order under any other times: length ≥ Σ count · time ("a cut").

Shapes: K positions (chunks in model order), P = 3 parts (forward, input gradient, weight gradient).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from millrace.planner.errors import ProtocolError
from millrace.planner.schedules import SCHEDULES

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# As `millrace.planner.schedules.orders.PARTS` numbers them.
FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, JOINT = range(4)
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
    """Passes of one step in levels, each after all that it waits for.

    Shapes: N passes, by level; L levels; S stages.

    Attributes
    ----------
    levels : list of slice
    numbers, stages : array [N]
        Per pass `part * (K + 1) + position`, and its stage.
    before, read : array [N]
        The pass before it on its stage, and the one whose result it reads; -1: there is none.
    hops : array [N]
        Position of the earlier of two chunks that what it reads is sent between; K: it is not sent.
    firsts, finals : array [K]
        Every chunk's first forward and last gradient of weights.
    """

    def __init__(self, schedule: str, stages: int, chunks: int, microbatches: int) -> None:
        record = SCHEDULES[schedule]
        self.positions = positions = stages * chunks
        homes = np.array([record.stage_of(position, stages) for position in range(positions)])
        slots = np.stack(
            [record.order_array(stage, stages, chunks, microbatches) for stage in range(stages)]
        )  # [S, 3, slots]
        on_stage = np.stack([np.flatnonzero(homes == stage) for stage in range(stages)])
        parts, slot_chunks, numbers_of = slots[:, 0], slots[:, 1], slots[:, 2]
        slot_positions = np.take_along_axis(on_stage, slot_chunks, axis=1)
        sources = slot_positions + np.where(parts == FORWARD, -1, 1)
        waits = (parts != WEIGHT_GRADIENT) & (sources >= 0) & (sources < positions)
        sent = waits & (homes[np.where(waits, sources, 0)] != np.arange(stages)[:, None])
        # Places of forwards and of backwards, by position and microbatch.
        place_of = np.full((2, positions, microbatches), -1)
        kinds = np.where(parts == FORWARD, 0, 1)
        reached, last = np.zeros(stages, np.int64), np.full(stages, -1)
        rows: list[Ints] = []
        levels: list[slice] = []
        count = 0
        while len(open_stages := np.flatnonzero(reached < slots.shape[2])):
            at = open_stages, reached[open_stages]
            read = np.where(
                waits[at],
                place_of[kinds[at], np.where(waits[at], sources[at], 0), numbers_of[at]],
                -1,
            )
            ready = ~waits[at] | (read >= 0)
            if not ready.any():
                raise ProtocolError(
                    f"the orders of schedule {schedule} wait for one another in a cycle"
                )
            stage, slot = at[0][ready], at[1][ready]
            part, position = parts[stage, slot], slot_positions[stage, slot]
            places = np.arange(count, count + len(stage))
            earlier = np.minimum(position, sources[stage, slot])
            hop = np.where(sent[stage, slot], earlier, positions)
            rows.append(
                np.stack([part * (positions + 1) + position, stage, last[stage], read[ready], hop])
            )
            whole = part != WEIGHT_GRADIENT
            place_of[kinds[stage, slot][whole], position[whole], numbers_of[stage, slot][whole]] = (
                places[whole]
            )
            last[stage] = places
            reached[stage] += 1
            levels.append(slice(count, count + len(stage)))
            count += len(stage)
        self.levels = levels
        self.numbers, self.stages, self.before, self.read, self.hops = np.concatenate(rows, axis=1)
        self.firsts = place_of[0, :, 0]
        closing = np.flatnonzero(self.numbers >= WEIGHT_GRADIENT * (positions + 1))
        self.finals = np.zeros(positions, np.int64)
        self.finals[self.numbers[closing] % (positions + 1)] = closing

    def longest(self, times: PassTimes) -> CriticalPath:
        """The longest path of the passes, in these times."""
        positions = self.positions
        durations = np.zeros((4, positions + 1))
        durations[:3, :positions] = times.passes
        durations[JOINT] = durations[INPUT_GRADIENT] + durations[WEIGHT_GRADIENT]
        took = durations.ravel()[self.numbers]
        hops = np.append(times.hops, 0.0)[self.hops]
        floors = np.zeros(len(took))
        floors[self.firsts] = times.begins
        ends = np.zeros(len(took) + 1)  # the last one is that of no pass
        stage_ends = np.zeros(int(self.stages.max()) + 1)
        for level in self.levels:
            stage = self.stages[level]
            begins = np.maximum(stage_ends[stage], ends[self.read[level]] + hops[level])
            stage_ends[stage] = ends[level] = np.maximum(begins, floors[level]) + took[level]
        tails = ends[self.finals] + times.ends
        at = int(self.finals[int(np.argmax(tails))])
        return CriticalPath(length_ns=float(tails.max()), counts=self._counts(at, ends, hops))

    def _counts(self, at: int, ends: Floats, hops: Floats) -> Ints:
        """How often each pass lies on the path that ends at a place."""
        # Where a pass waits longer for what it reads than for its turn.
        late = (self.read >= 0) & ((self.before < 0) | (ends[self.before] < ends[self.read] + hops))
        came_from = np.where(late, self.read, self.before).tolist()
        on_path: list[int] = []
        while at >= 0:
            on_path.append(at)
            at = came_from[at]
        counts = np.bincount(self.numbers[on_path], minlength=4 * (self.positions + 1))
        by_part = counts.reshape(4, -1)[:, : self.positions].astype(np.int64)
        by_part[[INPUT_GRADIENT, WEIGHT_GRADIENT]] += by_part[JOINT]
        return by_part[:3]


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
