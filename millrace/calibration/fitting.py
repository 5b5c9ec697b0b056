"""Fitting: one least-squares step on logarithms, with beliefs; far-off rows count little."""

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
    """Fitted values, and the residuals [R] that are expected with them (logarithms)."""

    values: dict[FittedParameter, float]
    residuals: Floats


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
    moved = np.zeros(len(now))
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
    return Fit(values=values, residuals=residuals + slopes @ moved)
