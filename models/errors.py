"""The errors of the models package."""


class ModelError(ValueError):
    """A model, graph or op is not well formed; the message names the op or tensor and the fix."""
