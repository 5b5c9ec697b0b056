"""Loss and gradients of a graph for given variables and data, by the single-device reference."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from millrace.executor.kernels.context import SampleSource
from millrace.executor.reference import Reference
from millrace.models.graph import Graph
from millrace.models.spec import TrainingSpec
from millrace.models.training import STEP_TOTALS, training_graph

Arrays = Mapping[str, NDArray[Any]]

TOLERANCE = 1e-4  # of the largest value of a gradient
NOISE = 1e-6  # of the largest of all gradients: what is zero in theory is below it


class GivenDataset:
    """A dataset whose samples are the rows of given arrays, by source; images are b c y x."""

    description = "given values"

    def __init__(self, inputs: Arrays) -> None:
        self.inputs = inputs

    def read(self, source: SampleSource, samples: NDArray[np.int64]) -> NDArray[Any]:
        values = self.inputs[source.name]
        if source.channels_last:
            values = values.transpose(0, 2, 3, 1)
        assert values.shape[1:] == source.shape, (source.name, values.shape, source.shape)
        return values[samples][(slice(None), *source.region)]


def run_ours(graph: Graph, values: Arrays, inputs: Arrays) -> tuple[float, dict[str, Any]]:
    """Summed loss and gradient of every variable.

    `graph` is a forward graph; `values` holds every variable's value by its name, `inputs` the data
    of its microbatch by source (tokens, targets, images, ...).
    """
    training = training_graph(graph, TrainingSpec(optimizer="sgd", weight_decay=0.0))
    reference = Reference(training, 1, GivenDataset(inputs), 0)
    assert set(reference.variables) == set(values), set(reference.variables) ^ set(values)
    for name, value in values.items():
        assert reference.values[name].shape == value.shape, name
        np.copyto(reference.values[name], value)
    reference.accumulate_gradients()
    loss = float(reference.values[STEP_TOTALS][0])
    return loss, reference.gradients()


def assert_same(
    graph: Graph,
    values: Arrays,
    inputs: Arrays,
    loss: float,
    gradients: Arrays,
    *,
    tolerance: float = TOLERANCE,
) -> None:
    """Assert that loss and every gradient are those that another library found."""
    our_loss, ours = run_ours(graph, values, inputs)
    assert our_loss == pytest.approx(loss, rel=tolerance)
    noise = (
        NOISE
        * tolerance
        / TOLERANCE
        * max(np.abs(gradient).max() for gradient in gradients.values())
    )
    wrong = {}
    for name, gradient in gradients.items():
        error = np.abs(ours[name] - gradient).max()
        if not error <= tolerance * np.abs(gradient).max() + noise:
            wrong[name] = f"{error:.3g} of {np.abs(gradient).max():.3g}"
    assert not wrong, wrong


def without_windows(graph: Graph) -> Graph:
    """The graph without windows: PyTorch counts every key."""
    ops = tuple(
        replace(op, attributes={**op.attributes, "window": 0}) if "window" in op.attributes else op
        for op in graph.ops
    )
    return replace(graph, ops=ops)
