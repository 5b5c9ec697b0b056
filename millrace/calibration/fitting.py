"""Fitting: one least-squares step on logarithms, with beliefs; far-off rows count little.

What is minimised is the `loss`: of every row's residual r = log(predicted / measured) and of every
figure's distance from its prior, in logarithms x,

    (FAR² / 2) Σ log(1 + (r / (FAR · USUAL))²)  +  ½ (x - mean)ᵀ covariance⁻¹ (x - mean)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from millrace.calibration.parameters import FittedParameter, prior_moments
from millrace.models.arrays import Floats

# A good prediction is off by this: a row further off than `FAR` times as much counts ever less.
USUAL = 0.05
FAR = 3.0
SWEEPS = 30  # of weighing rows anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Fitted values, and the residuals [R] that are expected with them (logarithms).

    `heard` [R] is the weight of each row (0: not at all); `covariance` [N, N] says how sure the
    logarithms of the values are, by the rows and the priors.
    """

    values: dict[FittedParameter, float]
    residuals: Floats
    heard: Floats
    covariance: Floats


def fitted(
    parameters: Sequence[FittedParameter],
    now: Floats,
    slopes: Floats,
    residuals: Floats,
    *,
    counts: Floats | None = None,
    step: float = 0.5,
) -> Fit:
    """Most likely values of the parameters, where predictions answer as `slopes` say.

    Parameters
    ----------
    parameters : sequence of FittedParameter
        N of them.
    now : array of float, [N]
        Their logarithms at which the slopes were found.
    slopes : array of float, [R, N]
        Of the logarithm of each prediction by the logarithm of each parameter.
    residuals : array of float, [R]
        Logarithms of predicted over measured.
    counts : array of float, [R], optional
        Weight of each row; 1 unless given, 0 leaves a row out.
    step : float
        The furthest that a logarithm moves, for slopes hold nearby only.

    Returns
    -------
    Fit
        Values, not their logarithms, by parameter.

    Notes
    -----
    Maximum a posteriori with Cauchy errors, by iteratively reweighted least squares (Holland and
    Welsch, "Robust regression using iteratively reweighted least-squares", 1977).
    """
    mean, covariance = prior_moments(parameters)
    precision = np.linalg.inv(covariance)
    weights = np.ones(len(residuals)) if counts is None else counts
    moved, heard = np.zeros(len(now)), weights / USUAL**2
    left = precision
    for _ in range(SWEEPS):
        off = residuals + slopes @ moved
        heard = weights / (1 + (off / (FAR * USUAL)) ** 2) / USUAL**2
        left = (slopes * heard[:, None]).T @ slopes + precision
        right = -(slopes * heard[:, None]).T @ residuals + precision @ (mean - now)
        moved = np.clip(np.linalg.solve(left, right), -step, step)
    logs = now + moved
    values = {
        parameter: float(np.exp(log_value))
        for parameter, log_value in zip(parameters, logs, strict=True)
    }
    return Fit(
        values=values,
        residuals=residuals + slopes @ moved,
        heard=heard,
        covariance=np.linalg.inv(left),
    )


def loss(parameters: Sequence[FittedParameter], logs: Floats, residuals: Floats) -> float:
    """Loss of predictions with figures: how far they are from measurements and from priors.

    Parameters
    ----------
    parameters : sequence of FittedParameter
        N of them.
    logs : array of float, [N]
        Logarithms of their values.
    residuals : array of float, [R]
        Logarithms of predicted over measured.
    """
    mean, covariance = prior_moments(parameters)
    off = logs - mean
    rows = FAR**2 / 2 * np.log1p((residuals / (FAR * USUAL)) ** 2).sum()
    return float(rows + off @ np.linalg.solve(covariance, off) / 2)
