"""Lockstep: two loops, each with half of the shapes, that tell each other the best step.

They go round by round, so that the answer is the same whether the second loop has a process of its
own or both run in turn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from millrace.planner.search.blocks.fork_join import can_fork
from millrace.planner.search.candidate_loop import CandidateLoop
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.decomposition.mixed_loop import MixedLoop
from millrace.planner.search.evaluation import Evaluator, Outcome, SolvedPlan
from millrace.planner.search.programs import FiguresKey
from millrace.planner.search.search_log import SearchLog
from millrace.planner.search.stages import VariantFigures
from millrace.planner.search.uniform.uniform_loop import UniformLoop
from millrace.planner.worker_processes import Child

STOP = "stop"  # told to the other process where this one is interrupted
FEW = 16  # candidates up to which one process is as fast


class StoppedError(KeyboardInterrupt):
    """Candidates were not closed; `outcomes` are what is known of all."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        self.outcomes = outcomes
        super().__init__("candidates were not closed")


@dataclass(frozen=True, slots=True)
class _Closed:
    """Outcomes of another process, what its evaluator learned, and counts of what it did."""

    outcomes: list[Outcome]
    slowdowns: dict[Candidate, float]
    figures: dict[FiguresKey, dict[str, VariantFigures]]
    counts: dict[str, int]


def closed(
    evaluator: Evaluator,
    candidates: Sequence[Candidate],
    tell: Callable[[str], None] = lambda line: None,
    record: SearchLog | None = None,
    **options: Any,
) -> list[Outcome]:
    """Outcomes of candidates, each solved or bounded until it is closed.

    Parameters
    ----------
    evaluator : Evaluator
        Learns the figures of what is solved.
    candidates, tell, record
        As for `CandidateLoop`, with its further `options`.
    """
    record = record or SearchLog()
    shapes = {shape: n for n, shape in enumerate(dict.fromkeys(map(evaluator.shape, candidates)))}
    halves = [[c for c in candidates if shapes[evaluator.shape(c)] % 2 == half] for half in (0, 1)]
    if len(candidates) <= FEW or not halves[1]:
        halves = [list(candidates)]

    space = UniformLoop if evaluator.request.uniform else MixedLoop

    def loop(half: int, record: SearchLog, tell: Callable[[str], None]) -> CandidateLoop:
        return space(evaluator, halves[half], tell, record, **options)

    if len(halves) > 1 and can_fork():
        try:
            child = Child(partial(_other_half, partial(loop, 1)))
        except OSError:  # no more processes are allowed
            pass
        else:
            try:
                return _with_child(loop(0, record, tell), child)
            except (EOFError, OSError):  # it was ended: both run here
                pass
            finally:
                child.end()
    loops = [loop(half, record, tell) for half in range(len(halves))]
    try:
        _in_turn(loops)
    except KeyboardInterrupt:
        raise StoppedError([outcome for each in loops for outcome in each.outcomes()]) from None
    return [outcome for each in loops for outcome in each.outcomes()]


def _in_turn(loops: Sequence[CandidateLoop]) -> None:
    live = [(loop, loop.rounds()) for loop in loops]
    while live:
        standings = [next(rounds, None) for _, rounds in live]
        live = [each for each, standing in zip(live, standings, strict=True) if standing]
        told = [standing for standing in standings if standing]
        if len(live) == 2:
            for (loop, _), other in zip(live, reversed(told), strict=True):
                loop.hear(other)


def _with_child(loop: CandidateLoop, child: Child) -> list[Outcome]:
    """Outcomes of both halves, the second one's from a process of its own."""
    try:
        _talk(loop, child.line)
        other = _closed_by(child)
    except KeyboardInterrupt:
        child.line.send(STOP)
        raise StoppedError([*loop.outcomes(), *_closed_by(child).outcomes]) from None
    evaluator = loop.evaluator
    evaluator.programs.known_figures.update(other.figures)
    evaluator.slowdowns.update(
        (o.candidate, other.slowdowns[o.candidate])
        for o in other.outcomes
        if o.candidate in other.slowdowns
    )
    for name, count in other.counts.items():
        loop.record.count(name, count)
    return [*loop.outcomes(), *other.outcomes]


def _closed_by(child: Child) -> _Closed:
    """Outcomes of another process, once it sends them."""
    while not isinstance(other := child.answer(), _Closed):
        pass  # standings that it told after the last round here
    return other


def _other_half(
    start: Callable[[SearchLog, Callable[[str], None]], CandidateLoop],
    line: "Connection[Any, Any]",
) -> None:
    """Close the second half and send what came of it."""
    record = SearchLog()
    loop = start(record, lambda text: None)
    loop.evaluator.dividing = record.dividing
    _talk(loop, line)
    evaluator, outcomes = loop.evaluator, loop.outcomes()
    solved = {evaluator.shape(o.candidate) for o in outcomes if isinstance(o, SolvedPlan)}
    line.send(
        _Closed(
            outcomes=outcomes,
            slowdowns=evaluator.slowdowns,
            figures={
                key: figures
                for key, figures in evaluator.programs.known_figures.items()
                if key[0] in solved
            },
            counts=record.counts,
        )
    )


def _talk(loop: CandidateLoop, line: "Connection[Any, Any]") -> None:
    """Run a loop, and exchange standings with the other after every round of either."""
    rounds = loop.rounds()
    while True:
        standing = next(rounds, None)
        line.send(standing)
        heard = line.recv()
        if heard == STOP or (standing is None and heard is None):
            return
        if heard is not None:
            loop.hear(heard)
            if standing is None:
                loop.tell(str(loop.standing.and_of(heard)))
