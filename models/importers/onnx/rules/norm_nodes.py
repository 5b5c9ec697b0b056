"""Norm nodes: rules of norms and of softmax."""

from collections.abc import Sequence

import numpy as np

from millrace.models.errors import ModelError
from millrace.models.importers.onnx.folding import axis_of
from millrace.models.importers.onnx.labelling import restricted
from millrace.models.importers.onnx.lowering import OnnxLowering
from millrace.models.importers.onnx.onnx_file import OnnxNode
from millrace.models.importers.onnx.values import (
    Array,
    Dim,
    Traced,
    UnsupportedNodeError,
    broadcast_columns,
    factors_of,
    has_batch,
    unified,
)

EPSILON = 1e-5  # the default of LayerNormalization and BatchNormalization


def norm(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Add a norm over the dims from `axis` on, with a scale and (of LayerNormalization) a shift."""
    if len([name for name in node.outputs if name]) > 1:
        raise UnsupportedNodeError("gives its mean or deviation away")
    x = low.floating(node, 0)
    axis = axis_of(node, node.integer("axis", -1), len(x.dims))
    usual = (1.0, 0.0) if node.kind == "LayerNormalization" else (1.0,)
    weights = [_weight(low, node, i, x.shape[axis:], value) for i, value in enumerate(usual, 1)]
    return _normed(low, low.name(node), x, axis, weights, node.number("epsilon", EPSILON))


def rms_norm(
    low: OnnxLowering, name: str, x: Traced, scale: Traced | None, epsilon: float
) -> Traced:
    """Add a norm by the root mean square over the last dim; without a scale it is ones."""
    if scale is None:
        ones = np.ones(x.shape[-1:], "float32")
        scale = low.tensor(ones, f"{name}.ones", squeezed=False)
    return _normed(low, name, x, len(x.dims) - 1, [low.used(scale)], epsilon)


def _normed(
    low: OnnxLowering, name: str, x: Traced, axis: int, weights: Sequence[Traced], epsilon: float
) -> Traced:
    x, *weights = _over_last(low, name, x, axis, weights)
    return low.emit(
        "layer_norm" if len(weights) == 2 else "rms_norm",
        name,
        (x, *weights),
        (x.operand, *(x.operand[:-1] for _ in weights)),
        dims=x.dims,
        whole_factors=x.operand[-1],
        attributes={"epsilon": epsilon},
    )


def _weight(
    low: OnnxLowering, node: OnnxNode, index: int, shape: tuple[int, ...], usual: float
) -> Traced:
    """Scale or shift of a norm; a constant one keeps all its dims."""
    array: Array = np.full(shape, usual, "float32")
    if low.has_input(node, index):
        weight = low.value(node, index)
        if isinstance(weight, Traced):
            return low.used(weight)
        array = np.broadcast_to(weight.array, shape)
    return low.used(low.tensor(array, low.name(node, f"constant.{index}"), squeezed=False))


def _over_last(
    low: OnnxLowering, name: str, x: Traced, axis: int, weights: Sequence[Traced]
) -> tuple[Traced, ...]:
    """Lay x out with its dims from `axis` on as one, and the weights like it."""
    for weight in weights:
        if weight.shape != x.shape[axis:]:
            raise UnsupportedNodeError(f"has a scale or shift of {weight.shape} for {x.shape}")
    columns = broadcast_columns([len(value.dims) for value in (x, *weights)])
    x, *rest = unified((x, *weights), columns, low.fresh)
    last = factors_of(x.dims[axis:])
    if has_batch(last):
        raise UnsupportedNodeError("norms over the batch")
    return with_last(low, name, x, last), *(low.laid_out(w, (last,), name) for w in rest)


def with_last(low: OnnxLowering, name: str, x: Traced, last: Dim) -> Traced:
    """Lay a tensor out so that its last dim has just these factors."""
    x = low.dropped(x)
    if x.operand and x.operand[-1] == last:
        return x
    return low.laid_out(x, (*restricted(x.operand, x.operand_factors.difference(last)), last), name)


def softmax(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Add a softmax over one dim, brought to the end of the tensor where it is not there."""
    x = low.floating(node, 0)
    axis = axis_of(node, node.integer("axis", -1), len(x.dims))
    last = x.dims[axis]
    if not last or has_batch(last):
        raise UnsupportedNodeError("is over the batch or a dim of size one")
    x = with_last(low, low.name(node), x, last)
    probabilities = low.emit(
        "softmax", low.name(node), (x,), (x.operand,), dims=x.dims, whole_factors=x.operand[-1]
    )
    if node.kind == "LogSoftmax":
        return low.pointwise("log", low.name(node, "log"), probabilities)
    return probabilities


def batch_norm(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Add a norm by the statistics of the microbatch, as in training.

    The running mean and variance of the file are not read, whatever its mode: they are what
    training makes, and what inference uses.
    """
    name = low.name(node)
    x = low.floating(node, 0)
    if len(x.dims) < 2:
        raise ModelError(f"{node.title}: its input has {len(x.dims)} dims, at least 2 are needed")
    weights = tuple(low.traced(node, index) for index in (1, 2))
    columns = [[(0, axis), *([(1, 0), (2, 0)] if axis == 1 else [])] for axis in range(len(x.dims))]
    if any(len(weight.dims) != 1 for weight in weights):
        raise UnsupportedNodeError("has a scale or shift of several dims")
    x, gamma, beta = (low.dropped(v) for v in unified((x, *weights), columns, low.fresh))
    channels = x.dims[1]
    if channels not in x.operand:
        x = low.as_seen(x, name)
    gamma, beta = (low.laid_out(weight, (channels,), name) for weight in (gamma, beta))
    c = (channels,)
    sums = low.emit("channel_sums", f"{name}.sums", (x,), (c,))
    squares = low.emit("channel_squares", f"{name}.squares", (x, sums), (c,))
    epsilon = node.number("epsilon", EPSILON)
    return low.emit(
        "batch_norm",
        name,
        (x, sums, squares, gamma, beta),
        (x.operand,),
        dims=x.dims,
        attributes={"epsilon": epsilon},
    )
