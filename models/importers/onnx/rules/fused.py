"""Fused projections: one product whose output is cut into pieces becomes a product per piece.

Queries, keys and values from one weight are three weights to a planner: cut, the heads of each can
be split, while a slice of a split dim cannot. The variables are pieces of the file's tensors.
"""

from collections.abc import Sequence
from typing import NamedTuple

from models.importers.onnx.lowering import Lowering
from models.importers.onnx.reading import Node
from models.importers.onnx.rules.products import product
from models.importers.onnx.values import Traced, UnsupportedError, reshaped
from models.importers.onnx.weights import Piece


class _Projection(NamedTuple):
    """x W + b, the weight's dim that is made, and the shape in which it is read."""

    node: Node
    x: Traced
    weight: str
    made: int
    bias: str
    shape: tuple[int, ...]


def cut_projection(
    low: Lowering, node: Node, name: str, sizes: Sequence[int]
) -> tuple[Traced, ...] | None:
    """Return the pieces along the last dim of the tensor `name`; None where it is no projection."""
    found = _projection(low, name)
    if found is None or len(sizes) < 2:
        return None
    pieces: list[Traced] = []
    start = 0
    for at, size in enumerate(sizes):
        label = low.name(node, str(at))
        weight = low.used(low.parameter(found.weight, Piece(found.made, start, size)))
        if found.made == 0:
            weight = weight.seen_as(reversed(weight.dims))
        made = product(low, node, f"{label}.matmul" if found.bias else label, found.x, weight)
        if found.bias:
            bias = low.used(low.parameter(found.bias, Piece(0, start, size)))
            made = low.elementwise("add", label, (made, bias))
        try:
            pieces.append(reshaped(made, (*found.shape[:-1], size), low.fresh))
        except UnsupportedError:
            return None  # as one tensor it may still be read
        start += size
    return tuple(pieces)


def _projection(low: Lowering, name: str) -> _Projection | None:
    """Read x W + b, perhaps reshaped, backwards from its one reader."""
    value = low.values.get(name)
    if not isinstance(value, Traced) or not low.read_once(name):
        return None
    shape, bias = value.shape, ""
    view = low.producer(name, "Reshape")
    if view is not None:
        name = view.inputs[0]
        inner = low.values.get(name)
        if not isinstance(inner, Traced) or inner.shape[-1:] != shape[-1:]:
            return None
    addition = low.producer(name, "Add")
    if addition is not None and low.read_once(name):
        for own, other in (addition.inputs, addition.inputs[::-1]):
            if _parameter(low, own, 1):
                bias, name = own, other
                break
    node = low.producer(name, "MatMul", "Gemm")
    if node is None or not low.read_once(name) or (bias and node.kind == "Gemm"):
        return None
    return _factors(low, node, bias, shape)


def _factors(low: Lowering, node: Node, bias: str, shape: tuple[int, ...]) -> _Projection | None:
    weight, made = node.inputs[1], 1
    if node.kind == "Gemm":
        plain = node.number("alpha", 1.0) == node.number("beta", 1.0) == 1.0
        if not plain or node.integer("transA", 0):
            return None
        made = 0 if node.integer("transB", 0) else 1
        bias = node.inputs[2] if low.given(node, 2) else ""
    transposed = low.producer(weight, "Transpose")
    if transposed is not None and low.read_once(weight) and node.kind == "MatMul":
        weight, made = transposed.inputs[0], 0
    if not _parameter(low, weight, 2) or (bias and not _parameter(low, bias, 1)):
        return None
    if low.source.initializers[weight].shape[made] != shape[-1]:
        return None
    if bias and low.source.initializers[bias].shape != shape[-1:]:
        return None
    x = low.values.get(node.inputs[0])
    if not isinstance(x, Traced) or x.ids:
        return None
    return _Projection(node, low.used(x), weight, made, bias, shape)


def _parameter(low: Lowering, name: str, dims: int) -> bool:
    """Whether a tensor is a parameter of so many dims, used nowhere else."""
    return (
        name in low.roles
        and len(low.source.initializers[name].shape) == dims
        and low.read_once(name)
    )
