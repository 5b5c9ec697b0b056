"""Gauss-Newton: steps of a fit, each with the slopes where the step before has led.

Slopes hold nearby: after a step they are taken anew, where the figures have moved to. The loss
(`millrace.calibration.fitting`) of the predictions there tells whether the step before was one for
the better.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millrace.calibration.fitting import Fit, fitted, loss
from millrace.calibration.parameters import FittedParameter, value_of
from millrace.calibration.sensitivities import Sensitivities, sensitivities_of
from millrace.published.validation import RowQuestion, Told


@dataclass(frozen=True, slots=True, kw_only=True)
class FitStep:
    """Step of a fit: sensitivities where it begins, the loss there, and where it leads."""

    sensitivities: Sensitivities
    loss: float
    fit: Fit


def fit_steps(
    asked: Sequence[RowQuestion],
    steps: int,
    processes: int = 1,
    told: Told = lambda done, of: None,
    owners: str = "",
) -> Iterator[FitStep]:
    """Steps of a fit, one after another.

    Parameters
    ----------
    asked : sequence of RowQuestion
        Rows that figures are fitted to.
    steps : int
        How many; each plans and simulates every row anew.
    processes : int
        Worker processes; what comes out does not depend on them.
    told : callable
        Called with how many questions of a step are answered, and how many there are.
    owners : str
        Begin of the names of the devices or frameworks whose figures are fitted; blank: of all.
    """
    factors: dict[FittedParameter, float] = {}
    for _ in range(steps):
        answers = sensitivities_of(asked, processes, told, factors, owners)
        fit = fitted(answers.parameters, answers.now, answers.slopes, answers.residuals)
        yield FitStep(
            sensitivities=answers,
            loss=loss(answers.parameters, answers.now, answers.residuals),
            fit=fit,
        )
        factors = {
            parameter: value / value_of(parameter) for parameter, value in fit.values.items()
        }
