"""Lockstep: two uniform loops, each with half of the shapes, that tell each other the best step.

They go round by round, so that the answer is the same whether the second loop has a process of its
own or both run in turn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from millrace.planner.search.blocks.fork_join import can_fork
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.evaluation import Evaluator, Outcome, SolvedPlan
from millrace.planner.search.programs import FiguresKey
from millrace.planner.search.search_log import SearchLog
from millrace.planner.search.stages import VariantFigures
from millrace.planner.search.uniform.uniform_loop import UniformLoop
from millrace.planner.worker_processes import Child

STOP = "stop"  # told to the other process where this one is interrupted
FEW = 16  # candidates up to which one process is as fast


class StoppedError(KeyboardInterrupt):
    """Candidates were not priced to their end; `outcomes` are what is known of all."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        self.outcomes = outcomes
        super().__init__("candidates were not priced to their end")


@dataclass(frozen=True, slots=True)
class _Closed:
    """Outcomes of another process, figures of their blocks, and counts of what it did."""

    outcomes: list[Outcome]
    figures: dict[FiguresKey, dict[str, VariantFigures]]
    counts: dict[str, int]


def closed(
    evaluator: Evaluator,
    candidates: Sequence[Candidate],
    tell: Callable[[str], None] = lambda line: None,
    record: SearchLog | None = None,
    **options: Any,
) -> list[Outcome]:
    """Outcomes of candidates, each priced until it is closed.

    Parameters
    ----------
    evaluator : Evaluator
        Learns the figures of what is solved.
    candidates, tell, record
        As for `UniformLoop`, with its further `options`.
    """
    record = record or SearchLog()
    shapes = {shape: n for n, shape in enumerate(dict.fromkeys(map(evaluator.shape, candidates)))}
    halves = [[c for c in candidates if shapes[evaluator.shape(c)] % 2 == half] for half in (0, 1)]
    if len(candidates) <= FEW or not halves[1]:
        halves = [list(candidates)]

    def loop(half: int, record: SearchLog, tell: Callable[[str], None]) -> UniformLoop:
        return UniformLoop(evaluator, halves[half], tell, record, **options)

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


def _in_turn(loops: Sequence[UniformLoop]) -> None:
    live = [(loop, loop.rounds()) for loop in loops]
    while live:
        standings = [next(rounds, None) for _, rounds in live]
        live = [each for each, standing in zip(live, standings, strict=True) if standing]
        told = [standing for standing in standings if standing]
        if len(live) == 2:
            for (loop, _), other in zip(live, reversed(told), strict=True):
                loop.hear(other)


def _with_child(loop: UniformLoop, child: Child) -> list[Outcome]:
    """Outcomes of both halves, the second one's from a process of its own."""
    try:
        _talk(loop, child.line)
        other = _closed_by(child)
    except KeyboardInterrupt:
        child.line.send(STOP)
        raise StoppedError([*loop.outcomes(), *_closed_by(child).outcomes]) from None
    evaluator = loop.evaluator
    evaluator.programs.known_figures.update(other.figures)
    for name, count in other.counts.items():
        loop.record.count(name, count)
    return [*loop.outcomes(), *other.outcomes]


def _closed_by(child: Child) -> _Closed:
    """Outcomes of another process, once it sends them."""
    while not isinstance(other := child.answer(), _Closed):
        pass  # standings that it told after the last round here
    return other


def _other_half(
    start: Callable[[SearchLog, Callable[[str], None]], UniformLoop],
    line: "Connection[Any, Any]",
) -> None:
    """Close the second half and send what came of it."""
    record = SearchLog()
    loop = start(record, lambda text: None)
    _talk(loop, line)
    evaluator, outcomes = loop.evaluator, loop.outcomes()
    solved = {evaluator.shape(o.candidate) for o in outcomes if isinstance(o, SolvedPlan)}
    line.send(
        _Closed(
            outcomes=outcomes,
            figures={
                key: figures
                for key, figures in evaluator.programs.known_figures.items()
                if key[0] in solved
            },
            counts=record.counts,
        )
    )


def _talk(loop: UniformLoop, line: "Connection[Any, Any]") -> None:
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
