"""The errors of the simulator package."""


class SimulationError(ValueError):
    """A simulation was asked for something that does not exist; names the option and the fix."""
