"""Branches: what the queue of a uniform space holds, a candidate of even layers in some modes.

In a uniform space (`Capabilities.mixed` is false) a candidate in one mode of recomputation, with
its layers dealt out one way, is one block program and one price of memory.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from millrace.models.arrays import Floats, Ints
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.programs import Shape
from millrace.planner.search.request import MemoryLimitError
from millrace.planner.search.stages import Division, Pipeline
from millrace.planner.search.stages.even_layers import EvenLayers, Slopes

Column = tuple[str, tuple[int, ...]]
"""Mode of recomputation and options of a block program."""


class Point(NamedTuple):
    """A column dealt out one way: its step, bytes beyond the limit, figures [T, F] of blocks."""

    step_ns: float
    over_bytes: int
    block: Ints
    column: Column


@dataclass(slots=True)
class PricedBranch:
    """A candidate in some modes of recomputation, its layers dealt out in one way.

    Attributes
    ----------
    share : float
        Dearest price of memory that was asked, as a share of the step.
    seen : int
        Cuts and columns of its modes that the bound rests on.
    timed : bool
        True once it has asked for time alone.
    ordered : bool
        True once it has asked along the longest path of its schedule's order.
    multiplier : float
        Nanoseconds that a byte is worth where its columns leave most open, and figures [T, F] of
        the one that is `cheapest` there.
    slopes : Slopes, optional
        Those that it asked at last.
    asks : list
        Modes and prices [F, T] to ask next.
    """

    modes: tuple[str, ...]
    way: int
    bound_ns: float
    share: float = 0.0
    seen: int = -1
    timed: bool = False
    ordered: bool = False
    multiplier: float = 0.0
    cheapest: Ints | None = None
    slopes: Slopes | None = None
    asks: list[tuple[str, Floats]] = field(default_factory=list)
    done: bool = False


@dataclass(slots=True)
class Opened:
    """A candidate with its branches.

    Attributes
    ----------
    even : EvenLayers
    limits : array [S]
        Bytes that blocks may take of every stage; `besides` is what each takes besides.
    rows : dict
        Figures [T, F] of a block by column.
    tried : set
        Columns that were divided.
    points : dict
        Columns as they were divided, by mode and way.
    best : Division, optional
        Fastest that fits so far; `used` has the columns that it numbers.
    short : MemoryLimitError, optional
        That of the division that is least short of memory.
    """

    candidate: Candidate
    shape: Shape
    pipeline: Pipeline
    even: EvenLayers
    limits: Ints
    besides: int
    branches: list[PricedBranch]
    rows: dict[Column, Ints] = field(default_factory=dict)
    tried: set[Column] = field(default_factory=set)
    points: dict[tuple[str, int], list[Point]] = field(default_factory=dict)
    best: Division | None = None
    used: tuple[Column, ...] = ()
    short: MemoryLimitError | None = None

    @property
    def bound_ns(self) -> float:
        """Least step of every plan."""
        return min(branch.bound_ns for branch in self.branches)

    @property
    def best_ns(self) -> float:
        """Step of its best plan; infinite without one."""
        return self.best.step_ns if self.best else float("inf")

    def points_of(self, branch: PricedBranch) -> list[Point]:
        """Columns of a branch."""
        return [point for mode in branch.modes for point in self.points.get((mode, branch.way), ())]

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns of its best plan, and then all that no other one beats in time and memory."""
        every = sorted(
            (point for points in self.points.values() for point in points),
            key=lambda point: (point.step_ns, point.over_bytes),
        )
        least, beyond = float("inf"), list(self.used)
        for point in every:
            if point.over_bytes < least:
                least = point.over_bytes
                beyond.append(point.column)
        return tuple(dict.fromkeys(beyond))
