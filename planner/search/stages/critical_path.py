"""Critical path: how long a pipeline's static order takes, and which passes decide that.

A *pass* is one part (F, B, W or BW) of one chunk and microbatch. It begins when the pass before it
in its stage's order is over and what it reads has arrived: a forward waits for the same
microbatch's forward of the chunk before, a backward for that of the chunk after. So the end of the
last pass is a longest path, and the passes on it, counted, are a lower bound of the length of the
same order under any other times: length ≥ Σ count · time ("a cut").

In an order of many microbatches a path through a few of them is a path, too, and so is one that
goes round more often: between two equal passes of microbatches that are a round apart.

Passes in a pair have times of their own: what each adds to those before it in its pair. They are
those of a chunk beside its own gradients; two chunks save the mean of what either saves.

Shapes: K positions (chunks in model order), P = 3 parts (forward, input gradient, weight gradient).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from millrace.models.arrays import Floats, Ints
from millrace.planner.errors import ProtocolError
from millrace.planner.schedules import SCHEDULES, Schedule
from millrace.planner.schedules.orders import Codes, pairs_of

# Parts as `millrace.planner.schedules.orders.PARTS` numbers them.
FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, JOINT = range(4)
PAIRED = 4  # added to the part of a pass in a pair
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
        Transfer from each chunk to the next, and for gradients back; 0 where both lie on one stage.
    begins : array [K]
        Earliest begin of the first forward of each chunk.
    ends : array [K]
        Time from the last backward of each chunk until its gradients are reduced.
    paired : array [P, K], optional
        Times of passes in a pair; None: those of `passes`.
    """

    passes: Floats
    hops: Floats
    begins: Floats
    ends: Floats
    paired: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """Length of an order, and counts [P, K] of each pass on its longest path."""

    length_ns: float
    counts: Ints


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PathCut:
    """A path of an order: whatever passes take, the order takes no less than those on it.

    Attributes
    ----------
    counts : array [P, K]
        Number of times that every pass lies on it.
    hops : array [K]
        Number of times that it is sent between each chunk and the next.
    """

    counts: Ints
    hops: Ints

    def least_ns(self, times: PassTimes) -> float:
        """Nanoseconds that an order takes at least, however late it begins."""
        return float((self.counts * times.passes).sum() + self.hops @ times.hops)


class _Order:
    """Passes of one step in levels, each after all that it waits for.

    Shapes: N passes, by level; L levels; S stages.

    Attributes
    ----------
    levels : list of slice
    numbers, stages, microbatches : array [N]
        Per pass `part * (K + 1) + position`, its stage and its microbatch. Parts of passes in a
        pair are `PAIRED` more.
    before, read : array [N]
        The pass before it on its stage, and the one whose result it reads; -1: there is none.
    partners : array [N]
        Position of the chunk whose gradients run beside a forward; K: none.
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
        paired, partners = np.zeros(parts.shape, np.int64), np.full(parts.shape, positions)
        for stage, pair in _pairs(record, parts, (stages, chunks, microbatches)):
            paired[stage, pair] = 1
            partners[stage, pair.start] = slot_positions[stage, pair[1]]
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
            next_slots = open_stages, reached[open_stages]
            read = np.where(
                waits[next_slots],
                place_of[
                    kinds[next_slots],
                    np.where(waits[next_slots], sources[next_slots], 0),
                    numbers_of[next_slots],
                ],
                -1,
            )
            ready = ~waits[next_slots] | (read >= 0)
            if not ready.any():
                raise ProtocolError(
                    f"the orders of schedule {schedule} wait for one another in a cycle"
                )
            stage, slot = next_slots[0][ready], next_slots[1][ready]
            part, position = parts[stage, slot], slot_positions[stage, slot]
            places = np.arange(count, count + len(stage))
            earlier = np.minimum(position, sources[stage, slot])
            hop = np.where(sent[stage, slot], earlier, positions)
            number = (part + PAIRED * paired[stage, slot]) * (positions + 1) + position
            microbatch = numbers_of[stage, slot]
            partner = partners[stage, slot]
            rows.append(
                np.stack([number, stage, microbatch, last[stage], read[ready], hop, partner])
            )
            has_reader = part != WEIGHT_GRADIENT
            place_of[
                kinds[stage, slot][has_reader],
                position[has_reader],
                numbers_of[stage, slot][has_reader],
            ] = places[has_reader]
            last[stage] = places
            reached[stage] += 1
            levels.append(slice(count, count + len(stage)))
            count += len(stage)
        self.levels = levels
        columns = np.concatenate(rows, axis=1)
        self.numbers, self.stages, self.microbatches, self.before, self.read = columns[:5]
        self.hops, self.partners = columns[5:]
        self.firsts = place_of[0, :, 0]
        closing = np.flatnonzero(self._parts(self.numbers) >= WEIGHT_GRADIENT)
        self.finals = np.zeros(positions, np.int64)
        self.finals[self.numbers[closing] % (positions + 1)] = closing

    def _parts(self, numbers: Ints) -> Ints:
        """Parts of passes by their numbers, in a pair or not."""
        return numbers // (self.positions + 1) % PAIRED

    def longest(self, times: PassTimes) -> CriticalPath:
        """Longest path of the passes in these times."""
        length_ns, path, _ = self._walked(times)
        return CriticalPath(length_ns=length_ns, counts=self._counts(path))

    def cut(self, times: PassTimes, rounds: int, period: int) -> PathCut:
        """Longest path, with so many further rounds where a round takes longest.

        A round is `period` microbatches.
        """
        _, path, sent = self._walked(times)
        cut = self._counted(path, sent)
        if rounds and (inside := self._longest_round(times, path, sent, period)):
            again = self._counted(path[inside], sent[inside])
            cut = PathCut(
                counts=cut.counts + rounds * again.counts, hops=cut.hops + rounds * again.hops
            )
        return cut

    def _counted(self, path: Ints, sent: Ints) -> PathCut:
        hops = np.bincount(sent, minlength=self.positions + 1)
        return PathCut(counts=self._counts(path), hops=hops[: self.positions])

    def _longest_round(self, times: PassTimes, path: Ints, sent: Ints, period: int) -> slice | None:
        """Part of a path, between equal passes a round apart, that takes longest."""
        durations = self._durations(times)[path]
        ends = np.cumsum(durations + np.append(times.hops, 0.0)[sent])
        microbatches = self.microbatches[path]
        # An order may begin with more forwards, and put off gradients of weights until the end.
        part = self._parts(self.numbers[path])
        final = self.microbatches.max() + 1 - period
        begun = np.flatnonzero((part == FORWARD) & (microbatches < 2 * period))
        put_off = np.flatnonzero((part == WEIGHT_GRADIENT) & (microbatches >= final))
        after = int(begun[-1]) if len(begun) else 0
        before = int(put_off[0]) if len(put_off) else len(path)
        keys = zip(self.numbers[path].tolist(), microbatches.tolist(), strict=True)
        place = {key: index for index, key in enumerate(keys)}
        rounds = [
            (first, last)
            for (number, microbatch), last in place.items()
            if last < before and (first := place.get((number, microbatch - period), -1)) >= after
        ]
        if not rounds:
            return None
        first, last = max(rounds, key=lambda pair: ends[pair[1]] - ends[pair[0]])
        return slice(first + 1, last + 1)

    def _durations(self, times: PassTimes) -> Floats:
        """Nanoseconds of each pass [N]."""
        durations = np.zeros((2, PAIRED, self.positions + 1))
        durations[:, :JOINT, : self.positions] = times.passes
        if times.paired is not None:
            durations[1, :JOINT, : self.positions] = times.paired
        durations[:, JOINT] = durations[:, INPUT_GRADIENT] + durations[:, WEIGHT_GRADIENT]
        took: Floats = durations.ravel()[self.numbers]
        paired = np.flatnonzero(self.partners < self.positions)
        if times.paired is not None and len(paired):
            # A forward in a pair lasts until the gradients beside it take no longer than measured.
            chunk, partner = self.numbers[paired] % (self.positions + 1), self.partners[paired]
            saved = times.passes.sum(axis=0) - times.paired.sum(axis=0)
            tails = durations[1, JOINT, partner]
            beside = durations[0, JOINT, partner] - (saved[chunk] + saved[partner]) / 2 - tails
            took[paired] = np.maximum(times.passes[FORWARD, chunk] + beside, 0)
        return took

    def _walked(self, times: PassTimes) -> tuple[float, Ints, Ints]:
        """Length of the longest path, its passes, and the position each was sent from; K: none."""
        positions = self.positions
        took = self._durations(times)
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
        current = int(self.finals[int(np.argmax(tails))])
        # A pass is late where it waits longer for what it reads than for its turn.
        late = (self.read >= 0) & ((self.before < 0) | (ends[self.before] < ends[self.read] + hops))
        came_from = np.where(late, self.read, self.before).tolist()
        on_path: list[int] = []
        while current >= 0:
            on_path.append(current)
            current = came_from[current]
        path = np.array(on_path[::-1])
        return float(tails.max()), path, np.where(late[path], self.hops[path], positions)

    def _counts(self, path: Ints) -> Ints:
        """Number of times [P, K] that each pass lies on a path."""
        counts = np.bincount(self.numbers[path], minlength=2 * PAIRED * (self.positions + 1))
        by_part: Ints = counts.reshape(2, PAIRED, -1).sum(axis=0)[:, : self.positions]
        by_part[[INPUT_GRADIENT, WEIGHT_GRADIENT]] += by_part[JOINT]
        return by_part[:3]


def _pairs(
    record: Schedule, parts: Codes, shape: tuple[int, int, int]
) -> Iterator[tuple[int, range]]:
    """Stage and slots of every pair, where a schedule pairs slots."""
    for stage, row in enumerate(parts if record.pairs else ()):
        for pair in pairs_of((row == FORWARD).tolist(), set(record.paired_slots(stage, *shape))):
            yield stage, pair


@lru_cache(maxsize=64)
def _order(schedule: str, stages: int, chunks: int, microbatches: int) -> _Order:
    return _Order(schedule, stages, chunks, microbatches)


def critical_path(
    schedule: str, stages: int, chunks: int, microbatches: int, times: PassTimes
) -> CriticalPath:
    """Longest path of a pipeline's order.

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
        busiest_ns = stages * _busiest_stage_ns(schedule, stages, times)
        periodic = abs(round_ns - (fewer.length_ns - fewest.length_ns)) <= PERIODIC * round_ns
        if periodic and round_ns >= (1 - PERIODIC) * busiest_ns:
            return CriticalPath(
                length_ns=path.length_ns + rounds * round_ns,
                counts=path.counts + rounds * (path.counts - fewer.counts),
            )
        laps *= 4


def _busiest_stage_ns(schedule: str, stages: int, times: PassTimes) -> float:
    """Nanoseconds of one microbatch on the stage that computes longest: no round is shorter."""
    position_ns = times.passes.sum(axis=0)
    if times.paired is not None:
        position_ns = np.minimum(position_ns, times.paired.sum(axis=0))
    homes = [SCHEDULES[schedule].stage_of(position, stages) for position in range(len(position_ns))]
    return float(np.bincount(homes, weights=position_ns).max())


def path_cut(
    schedule: str, stages: int, chunks: int, microbatches: int, times: PassTimes
) -> PathCut:
    """Path of a pipeline's order that is about the longest in these times.

    Of many microbatches a few rounds are run, and one of these is repeated for the others.

    Parameters
    ----------
    schedule : str
        Name in `SCHEDULES`.
    stages : int
        Stages of the pipeline.
    chunks : int
        Chunks of each stage.
    microbatches : int
        Microbatches of a step.
    times : PassTimes
        Nanoseconds of the passes of every position, `stages * chunks` in all.

    Raises
    ------
    ProtocolError
        The orders wait for one another in a cycle.
    """
    rounds = max(0, microbatches - LAPS * stages) // stages
    order = _order(schedule, stages, chunks, microbatches - rounds * stages)
    return order.cut(times, rounds, stages)
