"""Calls of norms, convolutions, pooling and dropout."""

from collections.abc import Sequence
from typing import Any

from millrace.models.importers.torch_export.algebra import combined, slots_along, summed_axes
from millrace.models.importers.torch_export.calls.elementwise_calls import (
    added,
    floating,
    mean,
    multiplied,
)
from millrace.models.importers.torch_export.draft import (
    Array,
    DraftTensor,
    OperandSlot,
    StepOperand,
    Value,
    fresh,
    pointwise,
    slots_of,
    tokens,
)
from millrace.models.importers.torch_export.extents import TensorAxis, leaves, pair_all
from millrace.models.importers.torch_export.program_reader import (
    Arguments,
    Handler,
    ProgramReader,
    UnsupportedCallError,
)


def _norm(reader: ProgramReader, kind: str, a: Arguments, epsilon: float) -> Array:
    x = reader.array(floating(a["input"]))
    rank = len(a["normalized_shape"])
    given = [a["weight"]] if kind == "rms_norm" else [a["weight"], a["bias"]]
    weights = [
        value if value is not None else _filled(reader, a["normalized_shape"], 1.0 - index)
        for index, value in enumerate(given)
    ]
    pair_all([pair for w in weights for pair in zip(x.dims[-rank:], w.dims, strict=True)])
    inside = tuple(axis for group in x.dims[-rank:] for axis in leaves(group))
    if any(axis.role == "b" for axis in inside) or not all(x.real(axis) for axis in inside):
        raise UnsupportedCallError("it is taken over samples or over a dim that was expanded")
    (token,) = tokens("d!")
    slots = slots_along(x, inside, token)
    inputs = [StepOperand(x.tensor, slots)]
    for weight in weights:
        axes = tuple(axis for group in weight.dims for axis in leaves(group))
        inputs.append(StepOperand(weight.tensor, (OperandSlot(token, axes),)))
    statistics = tuple(slot.token for slot in slots[:-1])
    tensor = reader.draft.make(
        kind,
        inputs,
        slots,
        extras=(statistics,) * len(weights),
        attributes={"epsilon": epsilon},
        ordered=True,
    )
    return Array(tensor, x.dims)


def _filled(reader: ProgramReader, shape: Sequence[int], value: float) -> Array:
    """Constant of one value that has its dims."""
    axes = tuple(fresh(size) for size in shape)
    name = reader.draft.name(f"{reader.draft.where}.{'ones' if value else 'zeros'}".lstrip("."))
    tensor = DraftTensor(name=name, axes=axes, kind="constant", attributes={"value": value})
    return Array(tensor, tuple((axis,) for axis in axes))


def _layer_norm(reader: ProgramReader, a: Arguments) -> Array:
    return _norm(reader, "layer_norm", a, float(a["eps"]))


def _rms_norm(reader: ProgramReader, a: Arguments) -> Array:
    # PyTorch's default is the spacing of numbers around one.
    return _norm(reader, "rms_norm", a, 1.1920929e-07 if a["eps"] is None else float(a["eps"]))


def _batch_norm(reader: ProgramReader, a: Arguments) -> Array:
    x = reader.array(floating(a["input"]))
    epsilon = float(a["eps"])
    if not a["training"]:
        return _known_batch_norm(reader, x, a, epsilon)
    draft = reader.draft
    size = x.shape[1]
    weights = [
        reader.array(a[key]) if a[key] is not None else _filled(reader, [size], value)
        for key, value in (("weight", 1.0), ("bias", 0.0))
    ]
    pair_all([(x.dims[1], weight.dims[0]) for weight in weights])
    (channel,) = tokens("c")
    inside = leaves(x.dims[1])
    *slots, of_channel = slots_along(x, inside, channel)
    before = [axis for axis in x.tensor.leaves() if axis is inside[0] or axis not in inside]
    slots.insert(before.index(inside[0]), of_channel)
    operands = [StepOperand(x.tensor, tuple(slots))]
    for name in ("sums", "squares"):
        kind = f"channel_{name}"
        sums = draft.make(kind, operands, (of_channel,), name=name, ordered=True, across=True)
        operands.append(StepOperand(sums, (of_channel,)))
    operands += [StepOperand(w.tensor, slots_of((channel,), (leaves(w.dims[0]),))) for w in weights]
    attributes: dict[str, Value] = {"epsilon": epsilon}
    tensor = draft.make("batch_norm", operands, slots, attributes=attributes, ordered=True)
    return Array(tensor, x.dims)


def _known_batch_norm(reader: ProgramReader, x: Array, a: Arguments, epsilon: float) -> Array:
    """Batch norm by running statistics, which are constants: an affine map per channel."""
    tail = (1,) * (len(x.dims) - 2)
    if isinstance(a["running_mean"], Array) or not hasattr(a["running_mean"], "reshape"):
        raise UnsupportedCallError("its running statistics have no values: they are fake")
    centre = a["running_mean"].reshape(-1, *tail)
    spread = (a["running_var"] + epsilon).rsqrt().reshape(-1, *tail)
    normed = multiplied(reader, added(reader, x, -centre), spread)
    for weight, join in ((a["weight"], multiplied), (a["bias"], added)):
        if weight is not None:
            normed = join(reader, normed, Array(weight.tensor, (*weight.dims, *((),) * len(tail))))
    return normed


def _conv2d(reader: ProgramReader, a: Arguments) -> Array:
    x, weight = reader.array(floating(a["input"])), reader.array(a["weight"])
    if len(x.dims) != 4:
        raise UnsupportedCallError("expected images of [batch, channels, rows, columns]")
    stride, dilation = _two(a["stride"]), _two(a["dilation"])
    kernel, groups = weight.shape[2:], int(a["groups"])
    padding = a["padding"]
    if isinstance(padding, str):
        full_padding = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
        if padding == "same" and any(size % 2 for size in full_padding):
            raise UnsupportedCallError("`same` padding of a window of even size")
        padding = [size // 2 if padding == "same" else 0 for size in full_padding]
    pad = _two(padding)
    attributes: dict[str, Value] = _window(stride, pad)
    if dilation != (1, 1):
        attributes |= {"dilation_y": dilation[0], "dilation_x": dilation[1]}
    sizes = [
        (x.shape[2 + i] + 2 * pad[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i in (0, 1)
    ]
    return _convolved(reader, x, weight, groups, sizes, attributes, a["bias"])


def _convolved(
    reader: ProgramReader,
    x: Array,
    weight: Array,
    groups: int,
    sizes: list[int],
    attributes: dict[str, Value],
    bias: Any,
) -> Array:
    if groups == 1:
        pair_all([(x.dims[1], weight.dims[1])])
    b, of_x, y, z = tokens("b* (c) y! x!" if groups == 1 else "b* (g c) y! x!")
    of_w, j, i, *of_window = tokens(f"{'(n)' if groups == 1 else '(g n)'} j! i! (c) q! p!")
    out = TensorAxis(leaves(weight.dims[0])[0].extent) if weight.dims[0] else fresh(1)
    dims = (x.dims[0], (out,), (fresh(sizes[0], "y"),), (fresh(sizes[1], "x"),))
    inputs = [
        StepOperand(x.tensor, slots_of((b, of_x, y, z), x.dims)),
        StepOperand(weight.tensor, slots_of((of_w, *of_window), weight.dims)),
    ]
    slots = slots_of((b, of_w, j, i), dims)
    tensor = reader.draft.make("conv", inputs, slots, attributes=attributes, ordered=True)
    convolved = _without_places(reader, Array(tensor, dims))
    if bias is None:
        return convolved
    over = reader.array(bias)
    return combined(reader.draft, "add", convolved, Array(over.tensor, (*over.dims, (), ())))


def _without_places(reader: ProgramReader, array: Array) -> Array:
    """Array without dims of size one but the batch: an image of one place is a vector."""
    units = [x for group in array.dims[1:] for x in leaves(group) if x.size == 1]
    return summed_axes(reader.draft, array, units) if units else array


def _two(value: Any) -> tuple[int, int]:
    values = [int(x) for x in value] if isinstance(value, list | tuple) else [int(value)]
    return (values[0], values[-1])


def _window(stride: tuple[int, int], pad: tuple[int, int]) -> dict[str, Value]:
    return {"stride_y": stride[0], "stride_x": stride[1], "pad_y": pad[0], "pad_x": pad[1]}


def _pooled(
    reader: ProgramReader,
    kind: str,
    x: Array,
    size: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
) -> Array:
    if len(x.dims) != 4:
        raise UnsupportedCallError("expected images of [batch, channels, rows, columns]")
    sizes = [(x.shape[2 + i] + 2 * pad[i] - size[i]) // stride[i] + 1 for i in (0, 1)]
    b, c, *places, j, i = tokens("b* c y! x! j! i!")
    dims = (*x.dims[:2], (fresh(sizes[0], "y"),), (fresh(sizes[1], "x"),))
    read = StepOperand(x.tensor, slots_of((b, c, *places), x.dims))
    attributes = _window(stride, pad) | {"size_y": size[0], "size_x": size[1]}
    slots = slots_of((b, c, j, i), dims)
    tensor = reader.draft.make(kind, (read,), slots, attributes=attributes, ordered=True)
    return _without_places(reader, Array(tensor, dims))


def _cut_windows(
    x: Array, size: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int]
) -> bool:
    """True if the last window of a row or column is not whole."""
    return any((x.shape[2 + i] + 2 * pad[i] - size[i]) % stride[i] for i in (0, 1))


def _max_pool2d(reader: ProgramReader, a: Arguments) -> Array:
    size = _two(a["kernel_size"])
    stride = _two(a["stride"]) if a["stride"] else size
    cut = a["ceil_mode"] and _cut_windows(a["self"], size, stride, _two(a["padding"]))
    if cut or _two(a["dilation"]) != (1, 1):
        raise UnsupportedCallError("windows that reach over the edge (`ceil_mode`) or dilation")
    return _pooled(reader, "max_pool", floating(a["self"]), size, stride, _two(a["padding"]))


def _avg_pool2d(reader: ProgramReader, a: Arguments) -> Array:
    pad = _two(a["padding"])
    size = _two(a["kernel_size"])
    stride = _two(a["stride"]) if a["stride"] else size
    if a["divisor_override"] or (pad != (0, 0) and not a["count_include_pad"]):
        raise UnsupportedCallError("a divisor or padding that is not counted")
    if a["ceil_mode"] and all(s >= n for s, n in zip(size, a["self"].shape[2:], strict=True)):
        return mean(reader, floating(a["self"]), [2, 3], keep=True)
    if a["ceil_mode"] and _cut_windows(a["self"], size, stride, pad):
        raise UnsupportedCallError("windows that reach over the edge (`ceil_mode`)")
    return _pooled(reader, "avg_pool", floating(a["self"]), size, stride, pad)


def _adaptive_avg_pool2d(reader: ProgramReader, a: Arguments) -> Array:
    x = floating(a["self"])
    rows, columns = _two(a["output_size"])
    rank = len(x.dims)
    if (rows, columns) == (1, 1):
        return mean(reader, x, [rank - 2, rank - 1], keep=True)
    if x.shape[-2] % rows or x.shape[-1] % columns:
        raise UnsupportedCallError(f"windows of unequal size for an output of {rows} x {columns}")
    size = (x.shape[-2] // rows, x.shape[-1] // columns)
    return x if size == (1, 1) else _pooled(reader, "avg_pool", x, size, size, (0, 0))


def _adaptive_avg_pool1d(reader: ProgramReader, a: Arguments) -> Array:
    x = floating(a["self"])
    if _two(a["output_size"]) != (1, 1):
        raise UnsupportedCallError("an output of more than one place")
    return mean(reader, x, [len(x.dims) - 1], keep=True)


def _dropout(reader: ProgramReader, a: Arguments) -> Array:
    x = reader.array(a["input"] if "input" in a else a["self"])
    rate = float(a["p"])
    if not a["train"] or rate == 0:
        return x
    if rate >= 1:
        raise UnsupportedCallError("it drops everything")
    return pointwise(reader.draft, "dropout", x, {"rate": rate})


def _convolution(reader: ProgramReader, a: Arguments) -> Array:
    if a["transposed"]:
        raise UnsupportedCallError("a transposed convolution")
    return _conv2d(reader, a)


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(
        (
            "_native_batch_norm_legit",
            "_native_batch_norm_legit_functional",
            "_native_batch_norm_legit_no_training",
        ),
        lambda reader, a: [_batch_norm(reader, {"training": False, **a})],
    ),
    "native_dropout": lambda reader, a: [_dropout(reader, {**a, "train": a["train"] is not False})],
    "convolution": _convolution,
    "native_layer_norm": lambda reader, a: [_layer_norm(reader, a)],
    "max_pool2d_with_indices": lambda reader, a: [_max_pool2d(reader, a)],
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "batch_norm": _batch_norm,
    "conv2d": _conv2d,
    "max_pool2d": _max_pool2d,
    "avg_pool2d": _avg_pool2d,
    "adaptive_avg_pool2d": _adaptive_avg_pool2d,
    "adaptive_avg_pool1d": _adaptive_avg_pool1d,
    "dropout": _dropout,
}
