"""Answers: how every row's prediction answers to every parameter, by simulating again.

A row is planned once. It is simulated as it stands, and once more for every parameter that its
device or framework has, moved by `NUDGE`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp

import numpy as np

from millrace.calibration.parameters import (
    DEVICE_FIELDS,
    Floats,
    Parameter,
    default_parameters,
    parameters_of,
    scaled,
    value_of,
)
from millrace.published.question import Question
from millrace.published.validation import Asked, answers_to
from planner.cluster import Cluster

NUDGE = 0.08  # of a logarithm
SHARES = (*DEVICE_FIELDS, "loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What predictions of R rows answer to N parameters.

    `rows` are places in what was asked; `now` holds logarithms of the parameters' values, `slopes`
    those of the predictions by those, `residuals` logarithms of predicted over measured.
    """

    parameters: tuple[Parameter, ...]
    now: Floats
    rows: tuple[int, ...]
    slopes: Floats
    residuals: Floats


def nudged(
    question: Question, cluster: Cluster
) -> Iterator[tuple[tuple[Parameter, ...], Cluster, float]]:
    """Every parameter, the cluster with it moved, and by how much its logarithm is."""
    for alike in parameters_of(question, cluster):
        one = alike[0]
        # Shares and losses end at 1: what is near moves down.
        by = -NUDGE if one.field in SHARES and value_of(one) * exp(NUDGE) > 1 else NUDGE
        yield alike, scaled(cluster, {one: exp(by)}), by


def answers_of(
    asked: Sequence[Asked], processes: int, told: Callable[[int, int], None] = lambda done, of: None
) -> Answers:
    """Find how the predictions of these rows answer to the parameters they depend on.

    Rows that cannot be expressed are left out.
    """
    moves = {
        at: tuple(nudged(one.question, one.cluster))
        for at, one in enumerate(asked)
        if one.cluster is not None and one.question is not None
    }
    wanted = {
        at: (cluster, *(moved for _, moved, _ in moves[at]))
        for at, one in enumerate(asked)
        if at in moves and (cluster := one.cluster) is not None
    }
    predicted = answers_to(asked, wanted, processes, told)
    parameters = dict.fromkeys(default_parameters())
    for found in moves.values():
        parameters |= dict.fromkeys(one for alike, _, _ in found for one in alike)
    place = {one: index for index, one in enumerate(parameters)}
    rows = tuple(at for at in moves if at in predicted)
    slopes = np.zeros((len(rows), len(parameters)))
    residuals = np.zeros(len(rows))
    for index, at in enumerate(rows):
        first, *others = (one.step_time_s for one in predicted[at])
        residuals[index] = np.log(first / asked[at].measured_s)
        for (alike, _, by), moved_s in zip(moves[at], others, strict=True):
            slopes[index, [place[one] for one in alike]] = np.log(moved_s / first) / by
    return Answers(
        parameters=tuple(parameters),
        now=np.log([value_of(one) for one in parameters]),
        rows=rows,
        slopes=slopes,
        residuals=residuals,
    )
