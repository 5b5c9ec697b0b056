"""Outcomes: what comes of candidates by themselves, each solved though another may be faster."""

from collections.abc import Mapping, Sequence
from math import inf

from millrace.planner.errors import InfeasibleError
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.evaluation import Evaluator, Limits, Outcome, Refused, SolvedPlan
from millrace.planner.search.ranking.lockstep import closed
from millrace.planner.search.ranking.ranker import REFINED_OPTIONS


def outcomes_of(
    evaluator: Evaluator,
    few: Sequence[Candidate],
    limits: Mapping[Candidate, Limits] | None = None,
) -> dict[Candidate, Outcome]:
    """Outcomes of candidates without a cutoff, with room made where memory is tight.

    Parameters
    ----------
    evaluator : Evaluator
    few : sequence of Candidate
    limits : mapping, optional
        Bytes that a candidate may lay out on each of its sites, where that is not what there is.
    """
    try:
        outcomes = closed(evaluator, few, limits=limits, apart=True)
    except InfeasibleError as error:
        return {candidate: Refused(candidate, error) for candidate in few}
    return {outcome.candidate: outcome for outcome in outcomes}


def roomier(evaluator: Evaluator, plan: SolvedPlan, limits: Limits) -> SolvedPlan | None:
    """Plan of a solved candidate within other limits; None where nothing fits.

    Parameters
    ----------
    evaluator : Evaluator
    plan : SolvedPlan
        Its candidate, and the bound of it.
    limits : tuple of int
        Bytes that it may lay out on each of its sites.
    """
    candidate = plan.candidate
    smaller = outcomes_of(evaluator, [candidate], {candidate: limits})[candidate]
    few = not evaluator.request.uniform and evaluator.options(candidate) <= REFINED_OPTIONS
    if isinstance(smaller, Refused) and few:
        smaller = evaluator.refine(smaller, limits, inf)
    return smaller if isinstance(smaller, SolvedPlan) else None
