"""A PyTorch module beside a graph: its parameters drawn, renamed, and its gradients compared."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millrace.models.graph import Graph
from tests.extras import optional
from tests.models.torch_parity.machinery import assert_same

torch = optional("torch")

Named = Mapping[str, Any]
Arrays = dict[str, NDArray[Any]]
Translate = Callable[[Named], Arrays]
"""Parameters (or their gradients) by the module's names, to arrays by the graph's."""


def drawn(module: Any, seed: int) -> Any:
    """The module with every parameter drawn: weights by their inputs, scales around one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in module.named_parameters():
            if not value.requires_grad:
                continue
            noise = torch.randn(value.shape, generator=generator)
            if value.ndim > 1:
                value.copy_(noise * (2 / value[0].numel()) ** 0.5)
            else:
                value.copy_((1.0 if "norm" in name and name.endswith("weight") else 0) + noise / 10)
    return module.train()


def compare(graph: Graph, module: Any, loss: Any, translate: Translate, inputs: Arrays) -> None:
    """Assert that loss and gradients of the graph are the module's, whose `loss` was just made."""
    loss.backward()
    parameters = {
        name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad
    }
    values = translate({name: parameter.detach() for name, parameter in parameters.items()})
    expected = translate({name: parameter.grad for name, parameter in parameters.items()})
    shapes = {op.outputs[0]: graph.tensor(op.outputs[0]).shape
              for op in graph.ops if op.kind == "variable"}  # fmt: skip
    assert {name: value.shape for name, value in values.items()} == shapes
    assert_same(graph, values, inputs, float(loss.detach()), expected)


def renamed(named: Named, *rules: tuple[str, Any]) -> Arrays:
    """Arrays renamed by regular expressions; linear layers are transposed, filters n q p c."""
    arrays: Arrays = {}
    for name, value in named.items():
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        array = value.numpy()
        order = {2: (1, 0), 4: (0, 2, 3, 1)}.get(array.ndim, range(array.ndim))
        arrays[name] = np.ascontiguousarray(array.transpose(*order))
    return arrays


def labelled_images(shape: tuple[int, ...], labels: str, values: int) -> Arrays:
    """Random images (a whole batch of a shape b c y x) and an id below `values` for each."""
    generator = np.random.default_rng(3)
    return {
        "images": generator.normal(size=shape).astype(np.float32),
        labels: generator.integers(0, values, shape[0]).astype(np.int32),
    }
