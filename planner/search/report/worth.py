"""Worth: what more memory would save, by the multipliers of a plan's columns."""

from dataclasses import dataclass

import numpy as np

from millrace.planner.search.candidates import Candidate
from millrace.planner.search.decomposition.block_oracle import BlockOracle
from millrace.planner.search.decomposition.cut_bounds import CutBounds
from millrace.planner.search.evaluation import Evaluator, SolvedPlan
from millrace.planner.search.placement_groups import usable_bytes
from millrace.planner.search.search_log import SearchLog
from millrace.planner.search.uniform.uniform_loop import UniformLoop

GIB = 2**30
PROGRAMS = 200  # block programs for the columns of one candidate: two or three rounds; by eye


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """Share of a step that one GiB more saves: a shadow price.

    Attributes
    ----------
    limit_bytes : int
        Bytes that a device may lay out as it is.
    saved : float
        Share of the step, where every device has that much more.
    stage : int
        Stage whose devices save most of it.
    """

    limit_bytes: int
    saved: float
    stage: int


def memory_worth(evaluator: Evaluator, chosen: SolvedPlan) -> Worth | None:
    """Share of a plan's step that a GiB more saves; None where kinds of device are mixed.

    It is the slope where the plan is: further GiB are worth less.
    """
    candidate = chosen.candidate
    limits = usable_bytes(evaluator.request, candidate)
    if len(limits) > 1 or not evaluator.request.max_gap:
        return None
    if evaluator.request.uniform:
        return _uniform_worth(evaluator, candidate, limits[0])
    oracle = BlockOracle(evaluator.programs, evaluator.modes)
    cuts = CutBounds(oracle, evaluator.graph, evaluator.asker, evaluator.sends)
    mixed = cuts.mixed(candidate, chosen.bound_ns, PROGRAMS)
    if mixed.memory_prices is None:
        return None
    return Worth(
        limit_bytes=limits[0],
        saved=float(mixed.memory_prices.sum()) * GIB / mixed.step_ns,
        stage=int(np.argmax(mixed.memory_prices)),
    )


def _uniform_worth(evaluator: Evaluator, candidate: Candidate, limit_bytes: int) -> Worth | None:
    """Worth by the multiplier of the candidate's lowest branch."""
    loop = UniformLoop(evaluator, [candidate], lambda line: None, SearchLog(), apart=True)
    for _ in loop.rounds():
        pass
    opened = loop.opened[candidate]
    lowest = min(opened.branches, key=lambda branch: branch.bound_ns)
    if opened.best is None or lowest.slopes is None:
        return None
    return Worth(
        limit_bytes=limit_bytes,
        saved=lowest.multiplier * GIB / opened.best_ns,
        stage=lowest.slopes.stage,
    )
