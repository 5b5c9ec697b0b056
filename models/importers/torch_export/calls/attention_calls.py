"""Calls of attention, its masks, and softmax."""

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millrace.models.importers.attention_masks import MASK_BELOW, KeyVisibility, mask_of
from millrace.models.importers.torch_export.algebra import along, materialize_axes, scaled
from millrace.models.importers.torch_export.calls.elementwise_calls import added, floating
from millrace.models.importers.torch_export.calls.product_calls import matrices
from millrace.models.importers.torch_export.draft import (
    Array,
    DraftTensor,
    StepOperand,
    Token,
    Value,
    axis_below,
    pointwise,
    slots_of,
    tokens,
)
from millrace.models.importers.torch_export.extents import (
    TensorAxis,
    leaves,
    pair_all,
    paired,
    sequence_axis,
    size_of,
)
from millrace.models.importers.torch_export.program_reader import (
    Arguments,
    Handler,
    ProgramReader,
    UnsupportedCallError,
)


def _attention(reader: ProgramReader, a: Arguments) -> Array:
    query, key, value = (reader.array(floating(a[name])) for name in ("query", "key", "value"))
    scale = 1 / sqrt(query.shape[-1]) if a["scale"] is None else float(a["scale"])
    if len(query.dims) != 4:
        raise UnsupportedCallError(
            "expected query, key and value of [batch, heads, tokens, features]"
        )
    if (a["enable_gqa"] or key.shape[1] == 1) and key.shape[1] != query.shape[1]:
        times = query.shape[1] // key.shape[1]
        key, value = (_grouped(array, times) for array in (key, value))
    mask = a["attn_mask"]
    causal, window, bias = bool(a["is_causal"]), 0, None
    if mask is not None:
        seen = None if isinstance(mask, Array) else _seen(mask, query.shape[2], key.shape[2])
        if seen is None:
            bias = reader.array(mask if isinstance(mask, Array) else _additive(mask))
        else:
            causal, window = seen
    if not (causal or _shuts(reader, mask)) and (name := _tokens_of(reader, query, key)):
        reader.both_ways.setdefault(name, reader.draft.where)
    per_sample = (
        bias is not None
        and len(bias.dims) == 4
        and any(bias.real(axis) and axis.role == "b" for axis in leaves(bias.dims[0]))
    )
    cap, sinks = float(a.get("cap") or 0), a.get("sinks")
    windows = any(len(leaves(array.dims[0])) > 1 for array in (query, key, value))
    if float(a["dropout_p"]) or per_sample or windows:
        if cap or sinks is not None:
            raise UnsupportedCallError("attention with a cap or sinks, and dropout or odd shapes")
        return _plain_attention(reader, (query, key, value), scale, causal, window, bias, a)
    form: dict[str, Value] = {"causal": causal, "scale": scale, "window": window}
    if cap:
        form["cap"] = cap
    return _fused_attention(reader, (query, key, value), form, bias, sinks)


def _grouped(array: Array, times: int) -> Array:
    dims = array.dims
    return Array(array.tensor, (dims[0], (*dims[1], TensorAxis(times)), *dims[2:]))


def _seen(mask: Any, queries: int, keys: int) -> KeyVisibility | None:
    values = mask.float() if mask.is_floating_point() else mask
    return mask_of(values.numpy(), queries, keys)


def _tokens_of(reader: ProgramReader, query: Array, key: Array) -> str:
    """Name of the input along whose tokens queries and keys both run, if there is one."""
    along = [
        {axis.extent.root() for axis in leaves(group)} for group in (query.dims[2], key.dims[2])
    ]
    for array in reader.inputs:
        second = array.dims[1] if array.tensor.integer and len(array.dims) > 1 else ()
        if any(axis.extent.root() in along[0] & along[1] for axis in leaves(second)):
            return array.tensor.name
    return ""


def _shuts(reader: ProgramReader, mask: Any) -> bool:
    """True if a mask, constant or a learned term plus one, shows no place those behind it."""
    if mask is None:
        return False
    if not isinstance(mask, Array):
        return _is_shut(_additive(mask).numpy(), mask.ndim - 2, mask.ndim - 1)
    rows, columns = (leaves(group) for group in mask.dims[-2:])
    return len(rows) == len(columns) == 1 and _term_shuts(reader, mask.tensor, rows[0], columns[0])


def _term_shuts(
    reader: ProgramReader, tensor: DraftTensor, row: TensorAxis, column: TensorAxis
) -> bool:
    """True if some constant term of a sum does so, along these axes of the sum."""
    axes = tensor.leaves()
    if tensor.kind == "constant" and tensor.payload is not None:
        places = [
            next((i for i, x in enumerate(axes) if x is axis), None) for axis in (row, column)
        ]
        if places[0] is None or places[1] is None:
            return False
        return _is_shut(tensor.payload.reshape([x.size for x in axes]), places[0], places[1])
    step = next((step for step in reader.draft.steps if step.output.tensor is tensor), None)
    if step is None or step.kind not in ("add", "broadcast"):
        return False
    for operand in step.inputs:
        operand_axes = [axis_below(step, operand, axis) for axis in (row, column)]
        if (
            operand_axes[0]
            and operand_axes[1]
            and _term_shuts(reader, operand.tensor, operand_axes[0], operand_axes[1])
        ):
            return True
    return False


def _is_shut(values: NDArray[Any], row: int, column: int) -> bool:
    """True if nothing is seen behind the diagonal of two dims."""
    plane = np.moveaxis(values, (row, column), (-2, -1))
    behind = np.triu(np.ones(plane.shape[-2:], bool), 1)
    return bool((plane[..., behind] < MASK_BELOW).all())


def _additive(mask: Any) -> Any:
    import torch

    if mask.dtype is not torch.bool:
        return mask
    return torch.zeros(mask.shape).masked_fill(~mask, -3.0e38)


def _heads(
    query: Array, key: Array, value: Array
) -> list[tuple[TensorAxis, TensorAxis, TensorAxis]]:
    """Axes of heads, leaf by leaf: those that keys lack are groups that share them."""
    pair_all([(query.dims[1], key.dims[1]), (query.dims[1], value.dims[1])])
    first = paired(query.dims[1], key.dims[1])
    second = paired(query.dims[1], value.dims[1])
    return [(q, k, v) for (q, k), (_, v) in zip(first, second, strict=True)]


def _fused_attention(
    reader: ProgramReader,
    arrays: tuple[Array, Array, Array],
    attributes: dict[str, Value],
    bias: Array | None,
    sinks: Any,
) -> Array:
    draft = reader.draft
    query, key, value = arrays
    query = materialize_axes(draft, query, query.dims)
    heads = _heads(query, key, value)
    shared = [row for row in heads if key.real(row[1])]
    if bias is not None or any(value.real(v) != key.real(k) for _, k, v in heads):
        key, value = (materialize_axes(draft, x, x.dims[1:2]) for x in (key, value))
        shared = heads
    alone = [row for row in heads if row not in shared]
    key, value = (materialize_axes(draft, x, (x.dims[0], *x.dims[2:])) for x in (key, value))
    batch, features = ((query.dims[i], key.dims[i]) for i in (0, 3))
    pair_all([batch, (query.dims[0], value.dims[0]), features, (key.dims[2], value.dims[2])])
    for axis in leaves(query.dims[2]):
        sequence_axis(axis)
    _hinted(shared, "g" if alone else "h")
    _hinted(alone, "r")
    for axis in (*leaves(query.dims[3]), *leaves(value.dims[3])):
        axis.extent.root().hint = "d"
    b, t, s, d, u, g, r = tokens(f"_* t s! d! u! {'g' if alone else 'h'} r")
    rows = ((shared, alone) if alone else (shared,)) if heads else ()
    queries = (b, t, *(g, r)[: len(rows)])
    query_dims = (query.dims[0], query.dims[2], *(tuple(q for q, _, _ in row) for row in rows))
    inputs = [StepOperand(query.tensor, slots_of((*queries, d), (*query_dims, query.dims[3])))]
    for array, index, last in ((key, 1, d), (value, 2, u)):
        group = [tuple(row[index] for row in shared)] if heads else []
        dims = (array.dims[0], array.dims[2], *group, array.dims[3])
        inputs.append(StepOperand(array.tensor, slots_of((b, s, *queries[2:3], last), dims)))
    kind = "attention"
    if bias is not None:
        kind = "biased_attention"
        attributes = attributes | {"causal": False}
        del attributes["window"]
        inputs.append(_bias(reader, bias, query, key, (g, t, s)))
    if sinks is not None:
        inputs.append(_sinks(reader, sinks, query, rows, queries[2:]))
    tensor = draft.make(
        kind,
        inputs,
        slots_of((*queries, u), (*query_dims, leaves(value.dims[3]))),
        extras=(queries,),
        attributes=attributes,
        ordered=True,
    )
    draft.steps[-1].sunk = sinks is not None
    return Array(tensor, (query.dims[0], query.dims[1], query.dims[2], value.dims[3]))


def _sinks(
    reader: ProgramReader,
    sinks: Any,
    query: Array,
    rows: Sequence[Sequence[tuple[TensorAxis, TensorAxis, TensorAxis]]],
    labels: Sequence[Token],
) -> StepOperand:
    """Numbers of heads, as the queries' heads lie."""
    array = reader.array(floating(sinks))
    pair_all([(query.dims[1], array.dims[1])])
    place = {id(q): sink for q, sink in paired(query.dims[1], array.dims[1])}
    dims = tuple(tuple(place[id(q)] for q, _, _ in row) for row in rows)
    return StepOperand(array.tensor, slots_of(labels, dims))


def _hinted(rows: list[tuple[TensorAxis, TensorAxis, TensorAxis]], hint: str) -> None:
    for row in rows:
        for axis in row:
            axis.extent.root().hint = hint


def _bias(
    reader: ProgramReader, bias: Array, query: Array, key: Array, labels: Sequence[Token]
) -> StepOperand:
    """Term of the scores as `h t s`."""
    dims = ((),) * (3 - len(bias.dims)) + bias.dims[-3:]
    wanted = (query.dims[1], query.dims[2], key.dims[2])
    filled = tuple(
        group if size_of(group) > 1 else tuple(TensorAxis(axis.extent) for axis in leaves(want))
        for group, want in zip(dims, wanted, strict=True)
    )
    pair_all(list(zip(filled, wanted, strict=True)))
    spread_bias = materialize_axes(reader.draft, Array(bias.tensor, filled), filled)
    return StepOperand(spread_bias.tensor, slots_of(labels, spread_bias.dims))


def _plain_attention(
    reader: ProgramReader,
    arrays: tuple[Array, Array, Array],
    scale: float,
    causal: bool,
    window: int,
    bias: Array | None,
    a: Arguments,
) -> Array:
    """Draft products, softmax and dropout one by one, where the fused op has no such thing."""
    import torch

    query, key, value = arrays
    turned = Array(key.tensor, (*key.dims[:2], key.dims[3], key.dims[2]))
    scores = scaled(reader.draft, matrices(reader, query, turned), scale)
    if causal:
        ones = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
        seen = ones & ~ones.tril(-window) if window else ones
        scores = added(reader, scores, _additive(seen))
    if bias is not None:
        scores = added(reader, scores, bias)
    weights = softmax(reader, scores, 3)
    if float(a["dropout_p"]):
        attributes = {"rate": float(a["dropout_p"])}
        weights = pointwise(reader.draft, "dropout", weights, attributes)
    return matrices(reader, weights, value)


def softmax(reader: ProgramReader, array: Array, dim: int) -> Array:
    """Add a softmax over one dim, which comes last in what is made."""
    return along(reader.draft, "softmax", array, dim, "_!")


HANDLERS: dict[str, Handler] = {
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(
        ("softmax", "_softmax"), lambda reader, a: softmax(reader, floating(a["self"]), a["dim"])
    ),
}
