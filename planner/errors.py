"""The errors of the planner package, one class per cause."""

import copyreg
from typing import Any


class PlanError(ValueError):
    """A plan is malformed or names something that does not exist (exit code 2)."""

    def __reduce__(self) -> tuple[Any, ...]:  # made again as it is, whatever makes its text
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class InfeasibleError(PlanError):
    """A well-formed question whose answer is no; names the limit that binds (exit code 1)."""


class ClusterError(ValueError):
    """A cluster or device is unknown or malformed; names the field and the fix."""


class ProtocolError(RuntimeError):
    """An actor graph breaks the protocol or cannot run to its end; names the actors."""


class ChildError(RuntimeError):
    """A process that worked for this one was ended from outside; says how (exit code 3)."""
