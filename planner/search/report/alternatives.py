"""Alternatives: plans that lost, no two of which people would call by the same roles.

A search solves many meshes that differ in the order of their axes alone. Of plans with equal roles
(degrees, ZeRO, microbatch, schedule, recomputation) the best one speaks for all; what has the roles
of the chosen plan is no alternative to it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.planner.formatting import percent, size
from millrace.planner.parallel_degrees import ROLES, Value, plan_roles
from millrace.planner.plan import Plan
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.evaluation import Evaluator, Pruned, Refused, SolvedPlan
from millrace.planner.search.plan_writer import write_plan
from millrace.planner.search.report.breakdown import Parts, breakdown, cause
from millrace.planner.search.request import MemoryLimitError

# Steps by which two plans are compared: the simulator's, of measured blocks, of the cost tables.
SIMULATED, BLOCK_TIMES, PLANNER = "simulated", "block times", "planner"
STEPS = {SIMULATED: "simulated", BLOCK_TIMES: "block-timed", PLANNER: "planner's"}
SAME = 0.0005  # losses below are none
# Cause of the loss of the chosen plan where a faster one was passed over (`choosing/simplest.py`).
LESS_SIMPLE = "not as simple, and nearer than predictions can tell"
Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A plan that was not chosen, and by how much its step is longer than the chosen plan's.

    `by` says which of `STEPS` the loss is of; `plan` is None where it has not been written yet.
    `refused` is why it is no good, `over_bytes` what it lacks of a device's memory.
    """

    solved_plan: SolvedPlan
    loss: float
    by: str
    plan: Plan | None = None
    refused: str = ""
    over_bytes: int = 0
    step_time_s: float | None = None


def alternatives(
    evaluator: Evaluator,
    chosen: tuple[SolvedPlan, Plan],
    rivals: Iterable[Rival],
    unsolved: Sequence[Pruned | Refused],
    top: int,
) -> tuple[Document, ...]:
    """Documents of the best alternatives to a plan, distinct by their roles.

    Parameters
    ----------
    evaluator : Evaluator
        That of the search.
    chosen : tuple of SolvedPlan and Plan
        The plan that was chosen.
    rivals : iterable of Rival
        Other plans; those that lose least come first.
    unsolved : sequence of Pruned or Refused
        Candidates without a plan, in the order in which they fill up what is left.
    top : int
        Alternatives at most.

    Returns
    -------
    tuple of dict
        Each with the candidate (`plan`), its roles (None where ops disagree or where it was not
        solved; `mixed` lists values), `loss` of the step and `by` which of `STEPS` it is,
        `over_bytes`, what it comes from (`cause`), and the `reason` in words.
    """
    documents: list[Document] = []
    if not top:
        return ()
    taken = {_key(plan_roles(chosen[1], evaluator.graph))}
    parts = breakdown(evaluator, chosen[0])
    for rival in sorted(rivals, key=lambda rival: rival.loss):
        if len(documents) == top:
            break
        plan = rival.plan or write_plan(evaluator, rival.solved_plan)
        values = plan_roles(plan, evaluator.graph)
        if _key(values) in taken:
            continue
        taken.add(_key(values))
        documents.append(_solved(evaluator, rival, values, chosen[0], parts))
    documents += list(_unlike(unsolved))[: top - len(documents)]
    return tuple(documents)


def _key(values: dict[str, list[Value]]) -> tuple[object, ...]:
    """Roles by which plans are told apart; a schedule of one stage is none."""
    alone = values["pp"] == [1]
    return tuple(
        tuple(values[name]) for name in ROLES if not (alone and name in ("schedule", "interleave"))
    )


def _solved(
    evaluator: Evaluator,
    rival: Rival,
    values: dict[str, list[Value]],
    chosen: SolvedPlan,
    chosen_parts: Parts,
) -> Document:
    solved = rival.solved_plan
    document: Document = {
        "plan": solved.candidate.text,
        **{name: options[0] if len(options) == 1 else None for name, options in values.items()},
        "mixed": {name: options for name, options in values.items() if len(options) > 1},
        "loss": rival.loss,
        "by": rival.by,
        "over_bytes": rival.over_bytes or None,
        "objective_s": solved.division.step_ns / 1e9,
        "bound_s": solved.bound_ns / 1e9,
    }
    if rival.step_time_s is not None:
        document["step_time_s"] = rival.step_time_s
    objective_ns = chosen.division.step_ns
    effect = solved.division.step_ns / objective_ns - 1
    why = rival.refused
    if effect > SAME:
        why = cause(chosen_parts, breakdown(evaluator, solved), effect, objective_ns)
    if rival.loss < -SAME and rival.by == SIMULATED and not why:
        why = LESS_SIMPLE
    if rival.over_bytes > 0:
        why = "; ".join([f"exceeds memory by {size(rival.over_bytes)}", *([why] * (effect > SAME))])
    return document | {"cause": why or None, "reason": _sentence(rival, why)}


def _sentence(rival: Rival, why: str) -> str:
    """Loss of a plan in words, of which step it is, and what it comes from."""
    verb = "loses" if rival.loss >= 0 else "saves"
    amount = percent(abs(rival.loss)) if abs(rival.loss) > SAME else "nothing"
    text = f"{verb} {amount} of the {STEPS[rival.by]} step" + (f" ({why})" if why else "")
    if verb == "saves" and rival.by != SIMULATED and not rival.refused:
        text += ", which is not the simulator's"
    return text


def _unlike(unsolved: Iterable[Pruned | Refused]) -> Iterator[Document]:
    """Documents of candidates without a plan, but for permutations of one another."""
    seen: set[object] = set()
    for outcome in unsolved:
        candidate = outcome.candidate
        key = candidate.pipeline, candidate.batch, tuple(sorted(candidate.sizes))
        if key in seen:
            continue
        seen.add(key)
        document: Document = {"plan": candidate.text, **_settled_roles(candidate), "loss": None}
        if isinstance(outcome, Pruned):
            bound_s, reason = outcome.bound_ns / 1e9, f"not solved: {outcome.reason}"
            yield document | {"bound_s": bound_s, "over_bytes": None, "reason": reason}
            continue
        error = outcome.error
        over = (
            error.needed_bytes - error.limit_bytes if isinstance(error, MemoryLimitError) else None
        )
        reason = f"exceeds memory by {size(over)}" if over else str(error)
        yield document | {"over_bytes": over, "reason": reason}


def _settled_roles(candidate: Candidate) -> Document:
    """Roles that a candidate has before it is solved."""
    pipeline = candidate.pipeline
    settled = {
        "pp": pipeline.stages,
        "schedule": pipeline.schedule,
        "interleave": pipeline.interleave,
    }
    return {name: settled.get(name) for name in ROLES}
