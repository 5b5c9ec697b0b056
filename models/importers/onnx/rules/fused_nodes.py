"""Fused nodes: one product whose output is cut into pieces becomes a product per piece."""

from collections.abc import Mapping
from typing import NamedTuple

from millrace.models.importers.onnx.lowering import OnnxLowering
from millrace.models.importers.onnx.onnx_file import OnnxNode
from millrace.models.importers.onnx.rules.product_nodes import product
from millrace.models.importers.onnx.values import Dim, Traced, size_of
from millrace.models.importers.onnx.weights import InitializerSlice, WeightSource


class _Projection(NamedTuple):
    """Projection x W + b, and the dim of the weight that it makes."""

    node: OnnxNode
    x: Traced
    weight: str
    output_dim: int
    bias: str


def cut_piece(
    low: OnnxLowering, name: str, value: Traced, axis: int, start: int, size: int
) -> Traced | None:
    """Return `size` entries from `start` on along one dim of a projection, None of anything else.

    The dim holds the outermost factors of what the projection makes, or all of them.
    """
    projection = _projection(low, low.first_name(value.tensor))
    cut_factors = value.dims[axis]
    if (
        projection is None
        or not cut_factors
        or not value.operand
        or value.operand[-1][: len(cut_factors)] != cut_factors
    ):
        return None
    rest = value.operand[-1][len(cut_factors) :]
    inner = size_of(rest)
    if (
        size_of(cut_factors) * inner
        != low.source.initializers[projection.weight].shape[projection.output_dim]
    ):
        return None
    weight = low.used(
        low.parameter(
            projection.weight, InitializerSlice(projection.output_dim, start * inner, size * inner)
        )
    )
    if projection.output_dim == 0:
        weight = weight.seen_as(reversed(weight.dims))
    label = f"{name}.matmul" if projection.bias else name
    output = product(low, projection.node, label, low.used(projection.x), weight)
    if projection.bias:
        bias = low.parameter(projection.bias, InitializerSlice(0, start * inner, size * inner))
        output = low.elementwise("add", name, (output, low.used(bias)))
    outer_dims = value.operand[:-1]
    if [size_of(dim) for dim in output.operand[:-1]] != [size_of(dim) for dim in outer_dims]:
        return None
    new: Dim = (low.fresh(size),) if size > 1 or not rest else ()
    dims = tuple(new if position == axis else dim for position, dim in enumerate(value.dims))
    return Traced(tensor=output.tensor, operand=(*outer_dims, (*new, *rest)), dims=dims)


def read_twice(parameters: Mapping[str, WeightSource]) -> set[str]:
    """Return initializers of which pieces are read that overlap each other, or the whole."""
    seen: dict[str, list[InitializerSlice | None]] = {}
    for parameter in parameters.values():
        seen.setdefault(parameter.initializer, []).append(parameter.piece)
    return {name for name, pieces in seen.items() if _overlapping(pieces)}


def _overlapping(pieces: list[InitializerSlice | None]) -> bool:
    ranges = sorted(
        (piece.start, piece.start + piece.size) for piece in pieces if piece is not None
    )
    if len(ranges) < len(pieces):
        return len(pieces) > 1
    ends = [end for _, end in ranges]
    return any(end > start for end, (start, _) in zip(ends, ranges[1:], strict=False))


def _projection(low: OnnxLowering, name: str) -> _Projection | None:
    """Read x W + b backwards."""
    bias = ""
    addition = low.producer(name, "Add")
    if addition is not None and len(addition.inputs) == 2:
        for side, other in (addition.inputs, addition.inputs[::-1]):
            if _parameter(low, side, 1):
                bias, name = side, other
                break
    node = low.producer(name, "MatMul", "Gemm")
    if node is None or len(node.inputs) < 2 or (bias and node.kind == "Gemm"):
        return None
    weight, output_dim = node.inputs[1], 1
    if node.kind == "Gemm":
        plain = node.number("alpha", 1.0) == node.number("beta", 1.0) == 1.0
        if not plain or node.integer("transA", 0):
            return None
        output_dim = 0 if node.integer("transB", 0) else 1
        bias = node.inputs[2] if low.has_input(node, 2) else ""
    transposed = low.producer(weight, "Transpose")
    if transposed is not None and node.kind == "MatMul":
        weight, output_dim = transposed.inputs[0], 0
    if not _parameter(low, weight, 2) or (bias and not _parameter(low, bias, 1)):
        return None
    features = low.source.initializers[weight].shape[output_dim]
    if bias and low.source.initializers[bias].shape != (features,):
        return None
    x = low.values.get(node.inputs[0])
    return _Projection(node, x, weight, output_dim, bias) if isinstance(x, Traced) else None


def _parameter(low: OnnxLowering, name: str, dims: int) -> bool:
    """True if a tensor is a parameter of `dims` dims that may be cut."""
    if name not in low.roles or name in low.uncut:
        return False
    return len(low.source.initializers[name].shape) == dims
