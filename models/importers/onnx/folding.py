"""Folding: nodes whose inputs are all known, worked out with NumPy.

Exporters leave computations of shapes and masks in the graph (Shape, Gather, Concat, Range, Trilu,
Where, …); at a given batch and sequence length they are constants.

Notes
-----
Meanings as in the ONNX operator specification, https://onnx.ai/onnx/operators/.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from millrace.models.errors import ModelError
from millrace.models.importers.onnx.onnx_file import OnnxNode
from millrace.models.importers.onnx.values import Array, UnsupportedNodeError

ELEMENTS_MAX = 2**27
"""Constants above this many elements are refused: a mask of 8,192 x 8,192 has 2**26."""

# Numbers of the types in onnx.proto's TensorProto.DataType.
_DTYPES: dict[int, str] = {
    1: "float32",
    2: "uint8",
    3: "int8",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    16: "float32",  # bfloat16, which NumPy has not
}

Fold = Callable[[OnnxNode, Sequence[Any]], Array | tuple[Array, ...]]


def folded(node: OnnxNode, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
    """Return the outputs of a node whose inputs are known (None: an optional one left out).

    Raises
    ------
    UnsupportedNodeError
        The kind is not one of `FOLDS`, or the result would be too large.
    ModelError
        Inputs or attributes do not fit the kind.
    """
    fold = FOLDS.get(node.kind)
    if fold is None:
        raise UnsupportedNodeError("is not understood for constants")
    shapes = [x.shape for x in inputs if x is not None]
    try:
        if len(shapes) > 1 and node.kind in _ELEMENTWISE:
            _check_size(np.broadcast_shapes(*shapes))
        with np.errstate(all="ignore"):
            fold_output = fold(node, inputs)
    except (ValueError, TypeError, IndexError, AttributeError, OverflowError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{node.title} is malformed: {error}") from None
    outputs = fold_output if isinstance(fold_output, tuple) else (fold_output,)
    return tuple(np.asarray(output) for output in outputs)


def _check_size(shape: Sequence[int]) -> None:
    if prod(int(size) for size in shape) > ELEMENTS_MAX:
        raise UnsupportedNodeError(
            f"makes a constant of shape {tuple(int(size) for size in shape)}"
        )


def numpy_dtype(node: OnnxNode, number: int) -> str:
    """Return NumPy's name of a type, by its number in ONNX."""
    try:
        return _DTYPES[number]
    except KeyError:
        raise UnsupportedNodeError(f"type {number} is not understood") from None


def _constant(node: OnnxNode, inputs: Sequence[Array | None]) -> Array:
    for name in ("value", "value_float", "value_int", "value_floats", "value_ints"):
        if name in node.attributes:
            if node.attributes[name] is None:
                raise UnsupportedNodeError("its data are not there")
            dtypes: dict[str, str] = {"value_float": "float32", "value_floats": "float32"}
            return np.asarray(node.attributes[name], dtypes.get(name))
    raise ModelError(f"{node.title} holds no value; the file is malformed")


def _constant_of_shape(node: OnnxNode, inputs: Sequence[Any]) -> Array:
    value = np.asarray(node.attributes.get("value", np.zeros(1, "float32")))
    _check_size(inputs[0])
    return np.full(tuple(int(n) for n in inputs[0]), value.reshape(-1)[0], value.dtype)


def _range(node: OnnxNode, inputs: Sequence[Any]) -> Array:
    start, limit, delta = (np.asarray(x).reshape(()).item() for x in inputs)
    if delta == 0:
        raise ModelError(f"{node.title} has a step of 0; the file is malformed")
    _check_size((max(0, int(np.ceil((limit - start) / delta))),))
    numbers: Array = np.arange(start, limit, delta, dtype=np.asarray(inputs[0]).dtype)
    return numbers


def _expand(node: OnnxNode, inputs: Sequence[Any]) -> Array:
    shape = np.broadcast_shapes(inputs[0].shape, tuple(int(n) for n in inputs[1]))
    _check_size(shape)
    return np.broadcast_to(inputs[0], shape)


def _tile(node: OnnxNode, inputs: Sequence[Any]) -> Array:
    _check_size([a * int(b) for a, b in zip(inputs[0].shape, inputs[1], strict=True)])
    return np.tile(inputs[0], tuple(int(n) for n in inputs[1]))


def new_shape(node: OnnxNode, old: Sequence[int], asked: Sequence[int]) -> tuple[int, ...]:
    """Shape that a Reshape gives, its 0 and -1 filled in.

    Parameters
    ----------
    node : OnnxNode
        The Reshape; with its attribute `allowzero` a 0 is a length.
    old : sequence of int
        Shape of the input.
    asked : sequence of int
        The second input: lengths, 0 for that of the same axis of `old`, one -1 for the rest.

    Raises
    ------
    ModelError
        Two are -1, or one beside a 0, one is below it, or the number of elements would change.
    """
    zeros = node.integer("allowzero", 0)
    shape = [
        int(old[axis]) if size == 0 and not zeros and axis < len(old) else int(size)
        for axis, size in enumerate(asked)
    ]
    known_product = prod(size for size in shape if size != -1)
    undecided = shape.count(-1) > 1 or (-1 in shape and not known_product)
    if undecided or any(size < -1 for size in shape):
        raise ModelError(f"{node.title} asks for shape {tuple(shape)}; the file is malformed")
    if -1 in shape:
        shape[shape.index(-1)] = prod(old) // known_product
    if prod(shape) != prod(old):
        raise ModelError(f"{node.title}: {tuple(old)} does not fit shape {tuple(shape)}")
    return tuple(shape)


def _reshape(node: OnnxNode, inputs: Sequence[Any]) -> Array:
    return np.reshape(inputs[0], new_shape(node, inputs[0].shape, inputs[1].tolist()))


def _slice(node: OnnxNode, inputs: Sequence[Any]) -> Array:
    index = [slice(None)] * inputs[0].ndim
    for axis, start, end, step in slices(node, inputs[0].ndim, inputs[1:]):
        index[axis] = slice(start, None if step < 0 and end < -(2**31) else end, step)
    return np.asarray(inputs[0][tuple(index)])


def slices(
    node: OnnxNode, rank: int, bounds: Sequence[Array | None]
) -> list[tuple[int, int, int, int]]:
    """Rows (axis, start, end, step) of a Slice's inputs after the first.

    Parameters
    ----------
    node : OnnxNode
        The Slice; named in messages.
    rank : int
        Number of dims of the tensor that is sliced.
    bounds : sequence of (int array (slices,) or None)
        Starts, ends, axes and steps, in this order; axes left out (or None) are the first ones,
        steps left out are 1.

    Returns
    -------
    list of (int, int, int, int)
        One per axis named, the axis counted from the left; starts and ends as the file has them,
        counted from the end if below zero, perhaps beyond the dim.

    Raises
    ------
    ModelError
        Starts or ends are missing, or an axis is none of the tensor's.
    ValueError
        The inputs are not equally long.
    """
    filled = [*bounds, None, None][:4]
    starts, ends, axes, steps = (None if x is None else np.ravel(x).tolist() for x in filled)
    if starts is None or ends is None:
        raise ModelError(f"{node.title} lacks its bounds; the file is malformed")
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    rows = list(zip(axes, starts, ends, steps, strict=True))
    return [(axis_of(node, axis, rank), start, end, step) for axis, start, end, step in rows]


def axis_of(node: OnnxNode, axis: int, rank: int) -> int:
    """Axis counted from the left.

    Parameters
    ----------
    node : OnnxNode
        Named in the message.
    axis : int
        Index as the file has it, counted from the end if below zero.
    rank : int
        Number of dims of the tensor.

    Raises
    ------
    ModelError
        There is no such axis.
    """
    if not -rank <= axis < rank:
        raise ModelError(f"{node.title}: axis {axis} of a tensor of {rank} dims")
    return int(axis) % rank


def axes_of(node: OnnxNode, inputs: Sequence[Array | None]) -> list[int] | None:
    """Axes given as second input or as the attribute `axes`; None where they are left out.

    Parameters
    ----------
    node : OnnxNode
        A reduction, Squeeze or Unsqueeze.
    inputs : sequence of (array or None)
        Values of the node's inputs; only the second is read, and goes before the attribute.

    Returns
    -------
    list of int or None
        As the file has them: counted from the end if below zero, not checked.

    Raises
    ------
    ModelError
        The attribute is not a list of integers.
    """
    if len(inputs) > 1 and inputs[1] is not None:
        return [int(axis) for axis in np.ravel(inputs[1])]
    axes = node.integers("axes")
    return None if axes is None else list(axes)


def _unsqueeze(node: OnnxNode, inputs: Sequence[Any]) -> Array:
    return np.expand_dims(inputs[0], tuple(axes_of(node, inputs) or ()))


def _squeeze(node: OnnxNode, inputs: Sequence[Any]) -> Array:
    axes = axes_of(node, inputs)
    return np.asarray(np.squeeze(inputs[0], None if axes is None else tuple(axes)))


def _split(node: OnnxNode, inputs: Sequence[Any]) -> tuple[Array, ...]:
    axis = axis_of(node, node.integer("axis", 0), inputs[0].ndim)
    sizes = split_sizes(node, inputs[0].shape[axis], inputs[1] if len(inputs) > 1 else None)
    return tuple(np.split(inputs[0], np.cumsum(sizes)[:-1], axis))


def split_sizes(
    node: OnnxNode, size: int, given: Array | None, pieces: int | None = None
) -> list[int]:
    """Sizes of a Split's pieces along the axis that is split.

    Parameters
    ----------
    node : OnnxNode
        The Split (or SplitToSequence).
    size : int
        Length of the dim that is split.
    given : int array (pieces,) or None
        Lengths of the pieces; None: equal ones, the last perhaps shorter, as many as the attribute
        `num_outputs` says or else as the node has outputs.
    pieces : int, optional
        Number of pieces expected; by default as many as the node has outputs.

    Raises
    ------
    ModelError
        The lengths do not add up to `size`, are not as many, or one is below 1.
    """
    if given is not None:
        sizes = [int(n) for n in np.ravel(given)]
    else:
        count = node.integer("num_outputs", len(node.outputs))
        piece = -(-size // max(count, 1))
        sizes = [min(piece, size - piece * index) for index in range(count)]
    if (
        sum(sizes) != size
        or len(sizes) != (pieces or len(node.outputs))
        or min(sizes, default=0) < 1
    ):
        raise ModelError(f"{node.title}: pieces {sizes} of a dim of {size}")
    return sizes


def _cast(node: OnnxNode, inputs: Sequence[Any]) -> Array:
    return np.asarray(inputs[0]).astype(numpy_dtype(node, node.integer("to")))


def _trilu(node: OnnxNode, inputs: Sequence[Any]) -> Array:
    shift = int(np.ravel(inputs[1])[0]) if len(inputs) > 1 and inputs[1] is not None else 0
    return (np.triu if node.integer("upper", 1) else np.tril)(inputs[0], shift)


def _reduction(function: Callable[..., Any]) -> Fold:
    def fold(node: OnnxNode, inputs: Sequence[Any]) -> Array:
        axes = axes_of(node, inputs)
        keep = bool(node.integer("keepdims", 1))
        if not axes and node.integer("noop_with_empty_axes", 0):
            return np.asarray(inputs[0])
        axis = tuple(axes) if axes else None
        return np.asarray(function(inputs[0], axis=axis, keepdims=keep))

    return fold


def _divided(a: Any, b: Any) -> Any:
    """Quotient; of integers rounded towards zero, as ONNX has it."""
    if np.asarray(a).dtype.kind != "f":
        if not np.all(b):
            raise ValueError("a division by zero")
        quotient = np.abs(a) // np.abs(b) * np.sign(a) * np.sign(b)
        return quotient.astype(np.asarray(a).dtype)
    return a / b


def _simple(function: Callable[..., Any]) -> Fold:
    return lambda node, inputs: np.asarray(function(*inputs))


def _cumsum(node: OnnxNode, inputs: Sequence[Any]) -> Array:
    if node.integer("exclusive", 0) or node.integer("reverse", 0):
        raise UnsupportedNodeError("sums exclusively or in reverse")
    return np.cumsum(inputs[0], int(np.ravel(inputs[1])[0]), dtype=inputs[0].dtype)


def shape_part(node: OnnxNode, shape: Sequence[int]) -> Array:
    """Part of a shape that a Shape node gives: all of it, or from `start` to `end`."""
    end = node.integer("end", len(shape))
    return np.asarray(shape[node.integer("start", 0) : end], "int64")


def _gathered(node: OnnxNode, inputs: Sequence[Any]) -> Array:
    """Slices of the data that rows of indices name, behind the first `batch_dims` dims."""
    data, indices = inputs
    shared = node.integer("batch_dims", 0)
    if not 0 <= shared < min(data.ndim, indices.ndim):
        raise ModelError(f"{node.title}: batch_dims is {shared}; the file is malformed")
    rows = np.meshgrid(*(np.arange(n) for n in data.shape[:shared]), indexing="ij")
    lead = [row.reshape(row.shape + (1,) * (indices.ndim - 1 - shared)) for row in rows]
    return np.asarray(data[(*lead, *np.moveaxis(indices, -1, 0))])


def _scattered(node: OnnxNode, inputs: Sequence[Any]) -> Array:
    if node.text("reduction", "none") != "none":
        raise UnsupportedNodeError("scatters with a reduction")
    out = np.array(inputs[0])
    out[tuple(np.moveaxis(inputs[1], -1, 0))] = inputs[2]
    return out


def _alike(*kinds: str) -> dict[str, Callable[..., Any]]:
    """Functions that NumPy calls by the same name."""
    return {kind: getattr(np, kind.lower()) for kind in kinds}


_UNARY: dict[str, Callable[..., Any]] = {
    **_alike("Abs", "Sqrt", "Exp", "Log", "Sin", "Cos", "Floor", "Ceil", "Reciprocal", "Tanh"),
    "Neg": np.negative,
    "Not": np.logical_not,
    "Identity": np.asarray,
    "IsNaN": np.isnan,
}
_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    **_alike("Add", "Equal", "Greater", "Less"),
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _divided,
    "Pow": lambda a, b: np.asarray(np.power(a, b)).astype(np.asarray(a).dtype),
    "GreaterOrEqual": np.greater_equal,
    "LessOrEqual": np.less_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Where": lambda c, a, b: np.asarray(np.where(c, a, b), np.asarray(a).dtype),
    "Max": lambda *xs: reduce(np.maximum, xs),
    "Min": lambda *xs: reduce(np.minimum, xs),
}
FOLDS: dict[str, Fold] = {
    **{kind: _simple(function) for kind, function in _UNARY.items()},
    **{kind: _simple(function) for kind, function in _ELEMENTWISE.items()},
    **{
        f"Reduce{kind}": _reduction(function)
        for kind, function in _alike("Max", "Mean", "Min", "Prod", "Sum").items()
    },
    "Cast": _cast,
    "CastLike": lambda node, inputs: np.asarray(inputs[0]).astype(np.asarray(inputs[1]).dtype),
    "Concat": lambda node, inputs: np.concatenate(list(inputs), node.integer("axis")),
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "CumSum": _cumsum,
    "Expand": _expand,
    "Gather": lambda node, inputs: np.take(inputs[0], inputs[1], node.integer("axis", 0)),
    "GatherElements": lambda node, inputs: np.take_along_axis(
        inputs[0], inputs[1], node.integer("axis", 0)
    ),
    "GatherND": _gathered,
    "MatMul": _simple(np.matmul),
    "Mod": lambda node, inputs: (np.fmod if node.integer("fmod", 0) else np.mod)(*inputs),
    "Range": _range,
    "Reshape": _reshape,
    "ScatterND": _scattered,
    "Shape": lambda node, inputs: shape_part(node, np.shape(inputs[0])),
    "Size": lambda node, inputs: np.asarray(np.size(inputs[0]), "int64"),
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": lambda node, inputs: np.transpose(inputs[0], node.integers("perm")),
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
