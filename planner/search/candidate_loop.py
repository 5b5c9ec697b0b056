"""Candidate loop: candidates of one space, solved and bounded round by round until they are closed.

Loops go in lockstep and tell each other the best step (`ranking/lockstep.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from millrace.planner.formatting import counted, duration, percent
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.evaluation import Evaluator, Limits, Outcome
from millrace.planner.search.placement_groups import usable_bytes
from millrace.planner.search.search_log import SearchLog


class Standing(NamedTuple):
    """Standing of a loop: the best step, the lowest bound of what is open, and how many are."""

    best_ns: float = inf
    bound_ns: float = inf
    left: int = 0
    total: int = 0

    def and_of(self, other: "Standing") -> "Standing":
        """Standing of two loops together."""
        least = min(self.best_ns, other.best_ns), min(self.bound_ns, other.bound_ns)
        return Standing(*least, self.left + other.left, self.total + other.total)

    def __str__(self) -> str:
        open_now = f"{self.left:,} of {counted(self.total, 'candidates')} are open"
        if self.best_ns == inf:
            return f"{open_now}, no plan yet"
        gap = max(self.best_ns / min(self.bound_ns, self.best_ns) - 1, 0.0)
        return f"{open_now}, best step {duration(self.best_ns)}, gap {percent(gap)}"


class CandidateLoop(ABC):
    """Loop over candidates of a request.

    Parameters
    ----------
    evaluator : Evaluator
        Its request, graph, programs, prices and what they have proven so far.
    candidates : sequence of Candidate
    tell : callable
        Told a line of text now and then.
    record : SearchLog
        Filled with what was done.
    limits : mapping, optional
        Bytes that a candidate may lay out on each of its sites, where that is not what there is.
    best_ns : float, optional
        Step of the best plan so far.
    apart : bool
        True: every candidate is closed by itself; False: against the best plan of all.
    held_ns : float, optional
        Bound of candidates that are not in the loop: it holds the gap, whatever these rise to.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        candidates: Sequence[Candidate],
        tell: Callable[[str], None],
        record: SearchLog,
        *,
        limits: Mapping[Candidate, Limits] | None = None,
        best_ns: float = inf,
        apart: bool = False,
        held_ns: float = inf,
    ) -> None:
        self.evaluator = evaluator
        self.candidates = candidates
        self.tell = tell
        self.record = record
        self.limits = limits or {}
        self.best_ns = best_ns
        self.apart = apart
        self.held_ns = held_ns
        self.other = Standing()

    @abstractmethod
    def rounds(self) -> Iterator[Standing]:
        """Solve and bound candidates, many at a time, until none may be better than the best plan.

        After each round the standing is given out, and may be told of another's (`hear`).
        """

    @abstractmethod
    def open_bounds_ns(self) -> list[float]:
        """Bounds of candidates that may be better than the best plan."""

    @abstractmethod
    def outcomes(self) -> list[Outcome]:
        """Best plans of candidates, and bounds of all."""

    @property
    def standing(self) -> Standing:
        """Best step and lowest bound so far, and candidates that are open."""
        left = self.open_bounds_ns()
        return Standing(self.best_ns, min(left, default=inf), len(left), len(self.candidates))

    def hear(self, other: Standing) -> None:
        """Close candidates against the best plan of another loop, too."""
        self.other = other
        if not self.apart:
            self.best_ns = min(self.best_ns, other.best_ns)

    def limit(self, candidate: Candidate) -> Limits:
        """Bytes that a candidate may lay out on each of its sites."""
        return self.limits.get(candidate) or usable_bytes(self.evaluator.request, candidate)
