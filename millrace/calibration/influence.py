"""Influence: which rows, and which sources, move which figure, and which figures none does.

A row moves a figure by as much as the figure would change back if the row were left out, all else
fitted anew. For rows this is computed with the weights that the fit ended with, for sources the fit
is made again without them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from millrace.calibration.fitting import Fit, fitted
from millrace.calibration.parameters import FittedParameter, prior_moments
from millrace.calibration.sensitivities import Sensitivities
from millrace.models.arrays import Floats

AT_PRIOR = 0.1  # a figure of which rows say less than this share of all that is known of it


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureInfluence:
    """Influence on a figure.

    Attributes
    ----------
    parameter : FittedParameter
        The figure.
    value, deviation : float
        Its fitted value, and the standard deviation of the value's logarithm.
    determined : float
        Share, 0 to 1, of what is known of it (all others given) that rows say; its prior says the
        rest.
    rows, sources : tuple of tuple
        Rows (their places among those of the sensitivities) and sources that move it most, each
        with the change of its logarithm.
    """

    parameter: FittedParameter
    value: float
    deviation: float
    determined: float
    rows: tuple[tuple[int, float], ...]
    sources: tuple[tuple[str, float], ...]

    @property
    def at_prior(self) -> bool:
        """True if hardly a row says anything of it: it is what its pool and its prior say."""
        return self.determined < AT_PRIOR


def influences(
    answers: Sensitivities, fit: Fit, sources: Sequence[str], most: int = 3
) -> tuple[FigureInfluence, ...]:
    """Influence of rows and of sources on every figure, in the order of the parameters.

    Parameters
    ----------
    answers : Sensitivities
        That the fit was made of.
    fit : Fit
        The fit.
    sources : sequence of str
        Of every row, [R].
    most : int
        Rows and sources that are named of a figure.

    Notes
    -----
    Rows: Cook and Weisberg, "Residuals and influence in regression", 1982, section 3.4.
    """
    by_row = row_moves(answers, fit)
    logs = _logs(answers, np.ones(len(sources)))
    by_source = {
        name: logs - _logs(answers, np.array([float(other != name) for other in sources]))
        for name in set(sources)
    }
    _, covariance = prior_moments(answers.parameters)
    prior = np.diag(np.linalg.inv(covariance))
    said = (answers.slopes**2 * fit.heard[:, None]).sum(axis=0)
    figures = []
    for index, parameter in enumerate(answers.parameters):
        moved = [(row, float(by_row[row, index])) for row in range(len(answers.rows))]
        by_name = [(name, float(moves[index])) for name, moves in sorted(by_source.items())]
        figures.append(
            FigureInfluence(
                parameter=parameter,
                value=fit.values[parameter],
                deviation=float(np.sqrt(fit.covariance[index, index])),
                determined=float(said[index] / (said[index] + prior[index])),
                rows=tuple(sorted(moved, key=lambda move: -abs(move[1]))[:most]),
                sources=tuple(sorted(by_name, key=lambda move: -abs(move[1]))[:most]),
            )
        )
    return tuple(figures)


def row_moves(answers: Sensitivities, fit: Fit) -> Floats:
    """Change of the logarithm of every figure [R, N] that each row makes."""
    pulls = answers.slopes @ fit.covariance
    leverage = (pulls * answers.slopes).sum(axis=1) * fit.heard
    scale = fit.heard * fit.residuals / np.maximum(1 - leverage, 1e-9)
    return np.asarray(-pulls * scale[:, None])


def _logs(answers: Sensitivities, counts: Floats) -> Floats:
    """Logarithms of the figures fitted to rows that count, however far they move."""
    slopes, residuals = answers.slopes, answers.residuals
    fit = fitted(answers.parameters, answers.now, slopes, residuals, counts=counts, step=inf)
    return np.log([fit.values[parameter] for parameter in answers.parameters])
