"""Outcomes: what comes of candidates by themselves, each solved though another may be faster."""

from collections.abc import Mapping, Sequence

from millrace.planner.errors import InfeasibleError
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.evaluation import Evaluator, Limits, Outcome, Refused, SolvedPlan
from millrace.planner.search.placement_groups import usable_bytes
from millrace.planner.search.ranking.lockstep import closed
from millrace.planner.search.ranking.ranker import REFINED_OPTIONS

ENDLESS = float("inf")


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
    request, limits = evaluator.request, limits or {}
    try:
        if evaluator.request.uniform:
            outcomes = closed(evaluator, few, limits=limits, apart=True)
            return {outcome.candidate: outcome for outcome in outcomes}
        solved: dict[Candidate, Outcome] = {
            candidate: Refused(candidate, bound)
            for candidate, bound in zip(few, evaluator.lower_bounds_ns(few), strict=True)
            if isinstance(bound, InfeasibleError)
        }
        few = [candidate for candidate in few if candidate not in solved]
        room = {c: limits.get(c) or usable_bytes(request, c) for c in few}
        tight = []
        # Together first, as that is quick; then one by one, as the others would prune it.
        evaluator.evaluate_many(few, list(room.values()), ENDLESS)
        for candidate, limit in room.items():
            outcome = evaluator.evaluate_many([candidate], [limit], ENDLESS)[0]
            if isinstance(outcome, tuple):
                tight.append(outcome)
            else:
                solved[candidate] = outcome
        if tight:
            evaluator.squeeze_many(tight, [room[candidate] for candidate, _ in tight], ENDLESS)
        for pair in tight:
            solved[pair[0]] = evaluator.squeeze_many([pair], [room[pair[0]]], ENDLESS)[0]
    except InfeasibleError as error:
        return {candidate: Refused(candidate, error) for candidate in few}
    return solved


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
    if evaluator.request.uniform:
        smaller = outcomes_of(evaluator, [candidate], {candidate: limits})[candidate]
        return smaller if isinstance(smaller, SolvedPlan) else None
    (smaller,) = evaluator.squeeze_many([(candidate, plan.bound_ns)], [limits], ENDLESS)
    if isinstance(smaller, Refused) and evaluator.options(candidate) <= REFINED_OPTIONS:
        smaller = evaluator.refine(smaller, limits, ENDLESS)
    return smaller if isinstance(smaller, SolvedPlan) else None
