"""Sources of the values of variables, and the imported graph that has them."""

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millrace.models.errors import ModelError
from millrace.models.graph import Graph
from millrace.models.spec import ModelSpec, graph_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSlice:
    """A part of a parameter: seen in `shape`, `size` places of dim `dim` from `start` on."""

    shape: tuple[int, ...]
    dim: int
    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSource:
    """Source of a variable's value: a parameter of the module, cut and reshaped.

    Attributes
    ----------
    fqn : str
        The parameter's name in the module (`named_parameters`).
    cuts : tuple of ParameterSlice
        Taken one after the other: a fused projection is several variables.
    shape : tuple of int
        The variable's shape, into which the last cut is reshaped.
    """

    fqn: str
    cuts: tuple[ParameterSlice, ...] = ()
    shape: tuple[int, ...] = ()

    def read(self, parameter: NDArray[Any]) -> NDArray[Any]:
        """Return the variable's value from that of the parameter.

        Examples
        --------
        >>> part = ParameterSlice(shape=(3, 2), dim=0, start=1, size=2)
        >>> ParameterSource(fqn="w", cuts=(part,), shape=(4,)).read(np.arange(6))
        array([2, 3, 4, 5])
        """
        values = parameter
        for cut in self.cuts:
            values = values.reshape(cut.shape)
            part = (slice(None),) * cut.dim + (slice(cut.start, cut.start + cut.size),)
            values = values[part]
        if values.size != prod(self.shape):
            raise ModelError(
                f"parameter `{self.fqn}` gives {values.size} values where its variable has shape "
                f"{self.shape}; import the module again"
            )
        return np.ascontiguousarray(values.reshape(self.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """A program as a graph.

    Attributes
    ----------
    graph : Graph
        The forward graph, its loss and targets included.
    parameters : dict
        Variable to where its value comes from.
    values : dict or None
        Variable to its value; None where the module has none (a fake or meta one).
    precision : str
        What the graph computes in.
    inputs : tuple of (str, str)
        The program's inputs in order, each with its op in the graph, or "" where it is not read.
    loss, output, classes_dim
        The kind of loss, what it is taken of, and which dim of that is classes.
    notes : tuple of str
        What the user should know: parameters left out, data that the model is not made for.
    absent_ids : dict
        Input of the program to the ids that samples are taken not to hold, as padding.
    """

    graph: Graph
    parameters: dict[str, ParameterSource]
    values: dict[str, NDArray[Any]] | None = None
    precision: str = "fp32"
    inputs: tuple[tuple[str, str], ...] = ()
    loss: str = "cross_entropy"
    output: str | int | None = None
    classes_dim: int | None = None
    notes: tuple[str, ...] = ()
    absent_ids: dict[str, tuple[int, ...]] = field(default_factory=dict)


def spec(imported: ExportedModel) -> ModelSpec:
    """Return the specification of an imported model, which the planner takes like any other."""
    return graph_spec(imported.graph, imported.precision)
