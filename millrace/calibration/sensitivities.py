"""Sensitivities of every row's prediction to every parameter.

A row is planned and simulated once. What costs of ops and meetings do to it follows from its shares
(`shares`); what the host's launches and overlap do is simulated again where it can matter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp

import numpy as np
from msgspec.structs import replace

from millrace.calibration.parameters import (
    DEVICE_FIELDS,
    FittedParameter,
    default_parameters,
    parameters_of,
    scaled,
    value_of,
)
from millrace.calibration.time_decomposition import StepWork, step_of
from millrace.models.arrays import Floats
from millrace.planner.cluster import Cluster
from millrace.planner.search import Pins
from millrace.planner.worker_processes import map_in_processes
from millrace.published.prediction import REFUSED, PlannedQuestion, Predicted, planned, predicted
from millrace.published.question import InexpressibleError, Question
from millrace.published.validation import RowQuestion

NUDGE = 0.08  # by which a logarithm is moved
SHARES = (*DEVICE_FIELDS, "loss")

# Below these shares of a step launches, and meetings, are taken to change nothing.
LAUNCHES, MEETINGS = 0.4, 0.03

FIDELITY = "stage"

Slopes = dict[FittedParameter, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivities:
    """Sensitivities of the predictions of R rows to N parameters.

    `rows` are places in what was asked; `now` [N] holds logarithms of the parameters' values,
    `slopes` [R, N] derivatives of the logarithms of the predictions by those, `residuals` [R]
    logarithms of predicted over measured.
    """

    parameters: tuple[FittedParameter, ...]
    now: Floats
    rows: tuple[int, ...]
    slopes: Floats
    residuals: Floats


def sensitivities_of(
    asked: Sequence[RowQuestion],
    processes: int,
    told: Callable[[int, int], None] = lambda done, of: None,
) -> Sensitivities:
    """Find the sensitivities of these rows' predictions to the parameters they depend on.

    Rows that cannot be expressed are left out.
    """
    jobs: dict[object, tuple[Question, Pins, Cluster]] = {}
    places: dict[int, object] = {}
    for row, question_row in enumerate(asked):
        if question_row.question is None or question_row.cluster is None:
            continue
        places[row] = (question_row.question.key, question_row.pins, question_row.cluster.software)
        jobs.setdefault(
            places[row], (question_row.question, question_row.pins, question_row.cluster)
        )
    answered: dict[object, tuple[float, Slopes]] = {}
    for done, (key, slope_answer) in enumerate(
        zip(jobs, map_in_processes(_answer, list(jobs.values()), processes), strict=True), start=1
    ):
        if slope_answer is not None:
            answered[key] = slope_answer
        told(done, len(jobs))
    parameters = dict.fromkeys(default_parameters())
    for _, slopes in answered.values():
        parameters |= dict.fromkeys(slopes)
    rows = tuple(row for row, key in places.items() if key in answered)
    table = np.zeros((len(rows), len(parameters)))
    residuals = np.zeros(len(rows))
    for index, row in enumerate(rows):
        step_time_s, slopes = answered[places[row]]
        residuals[index] = np.log(step_time_s / asked[row].measured_s)
        table[index] = [slopes.get(parameter, 0.0) for parameter in parameters]
    return Sensitivities(
        parameters=tuple(parameters),
        now=np.log([value_of(parameter) for parameter in parameters]),
        rows=rows,
        slopes=table,
        residuals=residuals,
    )


def _answer(job: tuple[Question, Pins, Cluster]) -> tuple[float, Slopes] | None:
    """Predicted step time in seconds and slopes of its logarithm; None where not expressed."""
    question, pins, cluster = job
    try:
        planned_run = planned(question, pins)
        (now,) = predicted(planned_run, (cluster,), FIDELITY)
        return now.step_time_s, _slopes(question, planned_run, cluster, now)
    except (InexpressibleError, *REFUSED):
        return None


def _slopes(
    question: Question, planned_run: PlannedQuestion, cluster: Cluster, now: Predicted
) -> Slopes:
    step = step_of(replace(planned_run.plan, cluster=cluster))
    stages = planned_run.plan.stages
    ops_ns, meetings_ns = step.busy_ns(cluster), step.moving_ns(cluster)
    slopes: Slopes = {}
    for alike in parameters_of(question, cluster):
        field = alike[0].field
        # Shares and losses end at 1: what is near moves down.
        down = field in SHARES and value_of(alike[0]) * exp(NUDGE) > 1
        by = -NUDGE if down else NUDGE
        moved = scaled(cluster, {alike[0]: exp(by)})
        bound = step.launches * cluster.software.host_ns > LAUNCHES * now.step_time_s * 1e9
        if field == "host_ns" and bound:
            slope = _resimulated_change(planned_run, moved, now) / by
        elif field == "loss":
            asked = meetings_ns / stages > MEETINGS * now.step_time_s * 1e9
            slope = _resimulated_change(planned_run, moved, now) / by if asked else 0.0
        else:
            slope = _estimated_change(step, moved, now, ops_ns) / by
        slopes |= dict.fromkeys(alike, slope)
    return slopes


def _resimulated_change(planned_run: PlannedQuestion, moved: Cluster, now: Predicted) -> float:
    """Change of the logarithm of the step time, by simulating again."""
    (then,) = predicted(planned_run, (moved,), FIDELITY)
    return float(np.log(then.step_time_s / now.step_time_s))


def _estimated_change(step: StepWork, moved: Cluster, now: Predicted, ops_ns: float) -> float:
    """Change of the logarithm of the step time, by the step's shares."""
    exposed = min(now.exposed_communication_s / now.step_time_s, 1.0)
    busy = max(1 - exposed - now.bubble_fraction, 0.0)
    change = busy * (step.busy_ns(moved) / ops_ns - 1)
    return float(np.log1p(change / max(busy + exposed, 1e-9)))
