"""Schedule record: the declared properties of a pipeline schedule, and what its order implies."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product, starmap

import numpy as np

from millrace.planner.errors import InfeasibleError
from millrace.planner.schedules.counting import Shorts, alive, undominated
from millrace.planner.schedules.orders import (
    PARTS,
    Codes,
    Ints,
    Order,
    Slot,
    TurnRule,
    equal_turns,
    indices_of,
    ordered_pieces,
)

# A round has as many microbatches as there are stages. After so many rounds no order keeps more,
# for no more rounds are under way at once: counts of more microbatches are equal.
ROUNDS = 2


def _any_number(stages: int) -> int:
    return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A pipeline schedule.

    Attributes
    ----------
    name : str
    turns : callable
        Order of the slots, as turns (`millrace.planner.schedules.orders`).
    source : str
        Paper and section.
    chunks : int or None
        Chunks that a stage has; None: any number.
    folded : bool
        True if every other row of chunks goes back up the stages.
    least_microbatches : callable
        Fewest microbatches, by the stages, for which the order is meant.
    in_rounds : bool
        True if a search asks for microbatches in multiples of the stages.
    keeps_all : bool
        True if every microbatch's activations are kept at once, however many there are.
    pairs : bool
        True if pieces of one turn run beside one another: a forward, and the gradients of another
        microbatch, so that one computes while the other communicates.
    searched : bool
        True if a search proposes it; else only a pin brings it in.
    requirement : str
        What it asks of chunks and microbatches, to follow its name; empty: nothing.
    """

    name: str
    turns: TurnRule
    source: str
    chunks: int | None = 1
    folded: bool = False
    least_microbatches: Callable[[int], int] = _any_number
    in_rounds: bool = False
    keeps_all: bool = False
    pairs: bool = False
    searched: bool = True
    requirement: str = ""

    @property
    def defers_weight_gradients(self) -> bool:
        """True if weight gradients have slots of their own."""
        return "W" in _parts(self.turns, self.chunks or 1)

    @property
    def interleaves(self) -> bool:
        """True if a search tries several numbers of chunks, more than one."""
        return self.searched and self.chunks is None

    @property
    def least_chunks(self) -> int:
        """Fewest chunks a stage that a search tries."""
        return self.chunks or (2 if self.interleaves else 1)

    def check(self, chunks: int) -> None:
        """Raise InfeasibleError where stages cannot have so many chunks."""
        if self.chunks not in (None, chunks):
            number_words = {1: "one chunk", 2: "two chunks"}
            asked = number_words.get(self.chunks or 0, f"{self.chunks} chunks")
            raise InfeasibleError(
                f"schedule {self.name} runs {asked} a stage, found {chunks}: give every stage so "
                f"many, or choose another schedule"
            )

    def stage_of(self, position: int, stages: int) -> int:
        """Stage of the chunk at a position of the model."""
        row, stage = divmod(position, stages)
        return stages - 1 - stage if self.folded and row % 2 else stage

    def order_array(self, stage: int, stages: int, chunks: int, microbatches: int) -> Codes:
        """Slots of a stage in order: [3, slots] of part codes, chunks and microbatches.

        Parts are coded by their places in `PARTS`.
        """
        self.check(chunks)
        pieces, (order,) = ordered_pieces(
            self.turns, indices_of(stages, chunks, microbatches, stage)
        )
        slots: Codes = np.take(pieces, order, axis=1)
        return slots

    def order(self, stage: int, stages: int, chunks: int, microbatches: int) -> Order:
        """Slots that a stage runs during one step, in order."""
        part, chunk, microbatch = self.order_array(stage, stages, chunks, microbatches)
        slot_indices = (part * chunks + chunk) * microbatches + microbatch
        return tuple(map(_slots(chunks, microbatches).__getitem__, slot_indices.tolist()))

    def paired_slots(
        self, stage: int, stages: int, chunks: int, microbatches: int
    ) -> tuple[int, ...]:
        """Numbers of a stage's slots that run beside the one before them."""
        if not self.pairs:
            return ()
        (equal,) = equal_turns(self.turns, indices_of(stages, chunks, microbatches, stage))
        return tuple(np.flatnonzero(equal).tolist())

    def counts(self, stages: int, chunks: int, microbatches: int) -> Ints:
        """Most versions alive at once by lifetime and position [3, positions].

        Lifetimes are those from a forward to the gradients of its inputs, from a forward to the
        gradients of its weights, and from the former gradients to the latter; positions are chunks
        in the order of the model. Where both gradients share their slots, the first two are equal
        and the third is 0.

        Examples
        --------
        >>> from millrace.planner.schedules import SCHEDULES
        >>> SCHEDULES["zb-h1"].counts(4, 1, 512).tolist()
        [[4, 3, 2, 1], [4, 4, 4, 4], [1, 2, 3, 4]]
        """
        return _counts(self, stages, chunks, microbatches)

    def moments(self, stages: int, chunks: int, microbatches: int) -> tuple[Ints, ...]:
        """Versions alive at once at every stage's fullest moments [K, chunks, 3].

        Of all K that are given none is above another in every count, and every other moment is
        below one of them: whatever versions weigh, a stage keeps most at one of these. While
        gradients of inputs run apart, what they have read gives its place to what they make.

        Examples
        --------
        >>> from millrace.planner.schedules import SCHEDULES
        >>> first, last = SCHEDULES["interleaved-1f1b"].moments(2, 2, 8)
        >>> first[:, :, 1].tolist(), last[:, :, 1].tolist()
        ([[4, 1], [3, 2]], [[3, 0], [2, 1]])
        """
        return _moments(self, stages, chunks, microbatches)

    def _alive(
        self, stages: int, chunks: int, microbatches: int, exchanged: bool = False
    ) -> tuple[Shorts, int]:
        """Versions alive in an order that is as short as counts allow, and how often they count."""
        self.check(chunks)
        if self.keeps_all:
            return alive(self.turns, stages, chunks, 1, exchanged), microbatches
        rounds = min(microbatches, ROUNDS * stages)
        return alive(self.turns, stages, chunks, rounds, exchanged), 1

    def _by_position(self, counts: Ints) -> Ints:
        """Counts of the stages' chunks [..., chunks, stages] in the order of the model."""
        if self.folded:
            counts = counts.copy()
            counts[..., 1::2, :] = counts[..., 1::2, ::-1]
        return counts.reshape(*counts.shape[:-2], -1)


@lru_cache(maxsize=256)
def _parts(rule: TurnRule, chunks: int) -> frozenset[str]:
    return frozenset(rule(indices_of(1, chunks, 1)))


@lru_cache(maxsize=1)  # stages share theirs
def _slots(chunks: int, microbatches: int) -> Order:
    """Every possible slot, by part, chunk and microbatch."""
    return tuple(starmap(Slot, product(PARTS, range(chunks), range(microbatches))))


@lru_cache(maxsize=4096)
def _counts(schedule: Schedule, stages: int, chunks: int, microbatches: int) -> Ints:
    counts, times = schedule._alive(stages, chunks, microbatches)
    most = np.moveaxis(counts.max(axis=2), 0, 1).astype(np.int64)
    by_position = schedule._by_position(times * most)
    by_position.setflags(write=False)
    return by_position


@lru_cache(maxsize=256)
def _moments(schedule: Schedule, stages: int, chunks: int, microbatches: int) -> tuple[Ints, ...]:
    counts, times = schedule._alive(stages, chunks, microbatches, exchanged=True)
    by_stage = tuple(times * moments.astype(np.int64) for moments in undominated(counts))
    for moments in by_stage:
        moments.setflags(write=False)
    return by_stage
