"""Edge splitting: boxing that several readers of an edge may want, split among their pairs.

A target counts once, whoever reads it, so that any split of what it costs gives a bound. The best
split gives every reader what it uses: what its ends have taken out of its pair. Shapes: A sources,
B targets, K rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from millrace.models.arrays import Bools, Ints, Reals
from millrace.planner.search.blocks.duals.messages import ILLEGAL, StatePair

T = TypeVar("T", bound=np.generic)

TINY = 1e-30  # no cost: what costs nothing is split into nothings
EVENLY = 0.1  # share of boxing that readers have alike of what none of them needs


@dataclass(slots=True, eq=False)
class Shared:
    """Pairs of one edge, between which the cost of boxing may be split in any way."""

    pairs: list[StatePair]
    columns: list[Ints | slice]  # of every pair: which of the targets its reader wants
    total: Reals  # [A, B, K]: what the pairs cost together, of targets that some reader wants
    takers: Reals  # [B, 1]: number of pairs that a target is in
    closed: Bools | None  # [A, B, K]: what no pair can be boxed by, whatever the split
    floor: Reals = field(init=False)  # [A, B, K]: the part of the total that is split evenly
    raised: Reals = field(init=False)  # [A, B, K]: the total and that part
    even: Reals = field(init=False)  # [B, 1]

    def __post_init__(self) -> None:
        self.floor = self.total * EVENLY
        self.raised = self.total * (1 + EVENLY)
        self.even = EVENLY / (1 + EVENLY) / self.takers

    @classmethod
    def of(
        cls, pairs: list[StatePair], wanted: Sequence[Ints], share: Reals, reachable: Bools
    ) -> "Shared":
        """Pairs of the readers that want these targets, at this share each."""
        for pair in pairs:
            pair.shared = True
        counts = np.bincount(np.concatenate(wanted))
        every = np.flatnonzero(counts)
        takers = counts[every, None].astype(share.dtype)
        total = along(share, every, 1) * takers
        closed = ~along(reachable, every, 1)
        if closed.any():
            total[closed] = 0.0
        columns = [_slice(np.searchsorted(every, targets)) for targets in wanted]
        return cls(pairs, columns, total, takers, closed if closed.any() else None)

    def split(self, room: Reals) -> None:
        """Leave every pair what both ends have taken out of it, and split the rest anew.

        Most goes where much was taken, `EVENLY` as much of the whole to all alike. Where more was
        taken than there is, all have less; none less than nothing, as few may come to want it.

        Parameters
        ----------
        room : array
            Scratch for three arrays like `total`.
        """
        used, scale, most = room[: 3 * self.total.size].reshape(3, *self.total.shape)
        used.fill(TINY)
        for pair, columns in zip(self.pairs, self.columns, strict=True):
            np.add(pair.messages[0][:, None], pair.messages[1], out=pair.cost)
            np.maximum(pair.cost, 0.0, out=pair.cost)
            used[:, columns] += pair.cost
        np.add(used, self.floor, out=scale)
        np.divide(self.raised, scale, out=scale)
        np.divide(self.total, used, out=most)
        np.minimum(scale, most, out=scale)
        np.subtract(self.total, used, out=used)
        np.maximum(used, 0.0, out=used)
        used *= scale
        used *= self.even
        if self.closed is not None:
            np.copyto(used, ILLEGAL, where=self.closed)
        for pair, columns in zip(self.pairs, self.columns, strict=True):
            pair.cost *= scale[:, columns]
            pair.cost += used[:, columns]
            np.copyto(pair.turned, pair.cost.swapaxes(0, 1))

    def keep(self, rows: Ints) -> None:
        """Leave out all other rows; pairs are left to `StatePair.keep`."""
        self.total = self.total.take(rows, axis=2)
        self.floor = self.floor.take(rows, axis=2)
        self.raised = self.raised.take(rows, axis=2)
        if self.closed is not None:
            self.closed = self.closed.take(rows, axis=2)


def along(values: NDArray[T], places: Ints, axis: int) -> NDArray[T]:
    """Values at these places along an axis; the array itself where these are all."""
    return values if len(places) == values.shape[axis] else values.take(places, axis=axis)


def _slice(places: Ints) -> Ints | slice:
    """Places as a slice where they are one after the other: much faster to read."""
    first, last = int(places[0]), int(places[-1])
    return slice(first, last + 1) if last - first == len(places) - 1 else places
