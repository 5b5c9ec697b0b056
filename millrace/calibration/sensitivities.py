"""Sensitivities of every row's prediction to every parameter.

A row is planned and simulated once. What costs of ops and meetings do to it follows from its shares
(`shares`); what the host's launches and overlap do is simulated again where it can matter.
"""

from collections.abc import Mapping, Sequence
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
    value_in,
    value_of,
)
from millrace.calibration.time_decomposition import StepWork, step_of
from millrace.models.arrays import Floats
from millrace.planner.cluster import Cluster
from millrace.planner.search import Pins
from millrace.published.prediction import REFUSED, PlannedQuestion, planned, simulated
from millrace.published.question import InexpressibleError, Question
from millrace.published.validation import RowQuestion, Told, answered
from millrace.simulator import FastPrediction

NUDGE = 0.08  # by which a logarithm is moved
HOST_NUDGE = 0.3  # that of a launch: it begins to count where launches outlast what they launch
SHARES = (*DEVICE_FIELDS, "loss")

# Below these shares of a step launches, and meetings, are taken to change nothing.
LAUNCHES, MEETINGS = 0.3, 0.03

FIDELITY = "stage"  # of slopes; residuals are those of what is predicted

Slopes = dict[FittedParameter, float]
NONE_MOVED: Mapping[FittedParameter, float] = {}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SlopeJob:
    """Question with pins, and the cluster at which its prediction is differentiated."""

    question: Question
    pins: Pins
    cluster: Cluster


def sensitivities_of(
    asked: Sequence[RowQuestion],
    processes: int,
    told: Told = lambda done, of: None,
    factors: Mapping[FittedParameter, float] = NONE_MOVED,
    owners: str = "",
) -> Sensitivities:
    """Find the sensitivities of these rows' predictions to the parameters they depend on.

    Rows that cannot be expressed are left out. The derivatives are taken where the parameters have
    `factors` times the values that are kept, by the parameters of `owners`: devices or frameworks
    whose names begin so.
    """
    jobs: dict[object, SlopeJob] = {}
    places: dict[int, object] = {}
    for row, question_row in enumerate(asked):
        timed = question_row.measured_s
        if question_row.question is None or question_row.cluster is None or not timed:
            continue
        places[row] = (question_row.question.key, question_row.pins, question_row.cluster.software)
        job = SlopeJob(
            question=question_row.question,
            pins=question_row.pins,
            cluster=scaled(question_row.cluster, factors),
        )
        jobs.setdefault(places[row], job)
    answers = {
        key: slope_answer
        for key, slope_answer in answered(_answer, jobs, processes, told).items()
        if slope_answer is not None
    }
    parameters = dict.fromkeys(default_parameters())
    for _, slopes in answers.values():
        parameters |= dict.fromkeys(slopes)
    fitted = [parameter for parameter in parameters if parameter.owner.startswith(owners)]
    rows = tuple(row for row, key in places.items() if key in answers)
    table = np.zeros((len(rows), len(fitted)))
    residuals = np.zeros(len(rows))
    for index, row in enumerate(rows):
        step_time_s, slopes = answers[places[row]]
        measured_s = asked[row].measured_s
        assert measured_s, "rows without a time are left out"
        residuals[index] = np.log(step_time_s / measured_s)
        table[index] = [slopes.get(parameter, 0.0) for parameter in fitted]
    return Sensitivities(
        parameters=tuple(fitted),
        now=np.log([value_of(each) * factors.get(each, 1.0) for each in fitted]),
        rows=rows,
        slopes=table,
        residuals=residuals,
    )


def _answer(job: SlopeJob) -> tuple[float, Slopes] | None:
    """Predicted step time in seconds and slopes of its logarithm; None where not expressed."""
    try:
        planned_run = planned(job.question, job.pins)
        (prediction,) = (now,) = simulated(planned_run, (job.cluster,))
        if prediction.fidelity != FIDELITY:
            (now,) = simulated(planned_run, (job.cluster,), FIDELITY)
        return prediction.step_time_ns / 1e9, _slopes(job, planned_run, now)
    except (InexpressibleError, *REFUSED):
        return None


def _slopes(job: SlopeJob, planned_run: PlannedQuestion, now: FastPrediction) -> Slopes:
    cluster = job.cluster
    step = step_of(replace(planned_run.plan, cluster=cluster))
    ops_ns, meetings_ns = step.busy_ns(cluster), step.moving_ns(cluster) / planned_run.plan.stages
    bound = step.launches * cluster.software.host_ns > LAUNCHES * now.step_time_ns
    simulated_fields = {"host_ns"} if bound else set()
    if meetings_ns > MEETINGS * now.step_time_ns:
        simulated_fields.add("loss")
    slopes: Slopes = {}
    for alike in parameters_of(job.question, cluster):
        field = alike[0].field
        # Shares and losses end at 1: what is near moves down.
        down = field in SHARES and value_in(cluster, field) * exp(NUDGE) > 1
        by = HOST_NUDGE if field == "host_ns" else -NUDGE if down else NUDGE
        moved = scaled(cluster, {alike[0]: exp(by)})
        slope = 0.0
        if field in simulated_fields:
            (then,) = simulated(planned_run, (moved,), FIDELITY)
            slope = float(np.log(then.step_time_ns / now.step_time_ns)) / by
        elif field != "loss":
            slope = _estimated_change(step, moved, now, ops_ns) / by
        slopes |= dict.fromkeys(alike, slope)
    return slopes


def _estimated_change(step: StepWork, moved: Cluster, now: FastPrediction, ops_ns: float) -> float:
    """Change of the logarithm of the step time, by the step's shares."""
    exposed = min(now.exposed_communication_ns / now.step_time_ns, 1.0)
    busy = max(1 - exposed - now.bubble_fraction, 0.0)
    change = busy * (step.busy_ns(moved) / ops_ns - 1)
    return float(np.log1p(change / max(busy + exposed, 1e-9)))
