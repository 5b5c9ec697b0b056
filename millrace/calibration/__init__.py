"""Calibration: figures of devices and frameworks that no data sheet prints, from measured runs.

In come published rows (`millrace.published`), out go shares of peaks, launch times and the like,
one value per device or framework and never per row. The simulator itself is what is fitted: how its
prediction of every row answers to every figure is found by simulating, and a least-squares step
with beliefs follows. Read `parameters.py` (what is fitted), `sensitivities.py` (what predictions
answer to) and `fitting.py` (the loss, and the step); `gauss_newton.py` takes several,
`influence.py` says which rows move which figure, `leave_one_out.py` fits without each source.
"""

from millrace.calibration.fitting import Fit, fitted
from millrace.calibration.parameters import FittedParameter, parameters_of, scaled, value_of
from millrace.calibration.sensitivities import Sensitivities, sensitivities_of

__all__ = [
    "Fit",
    "FittedParameter",
    "Sensitivities",
    "fitted",
    "parameters_of",
    "scaled",
    "sensitivities_of",
    "value_of",
]
