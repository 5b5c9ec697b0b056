"""A float64 evaluator of graphs, from the definitions of the ops, to test rules and table against.

It knows nothing of the code under test but the documents: every op is worked out from its labels
and attributes, whole or (with `offsets`, the global index of a label's first element) as one shard.
"""

from collections.abc import Callable, Mapping
from math import pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.graph import Graph
from models.labels import Expression, Operand, bind, parse, shape_of

Array = NDArray[Any]
Sizes = Mapping[str, int]
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def evaluate(
    kind: str,
    labels: str,
    inputs: list[Array],
    output_shapes: list[tuple[int, ...]],
    attributes: Mapping[str, Any] | None = None,
    offsets: Sizes | None = None,
) -> tuple[Array, ...]:
    """Compute the outputs of one op."""
    expression = parse(labels)
    sizes = bind(expression, [x.shape for x in inputs], output_shapes)
    outputs = KINDS[kind](expression, sizes, attributes or {}, offsets or {}, *inputs)
    made = outputs if isinstance(outputs, tuple) else (outputs,)
    for array, operand in zip(made, expression.outputs, strict=True):
        assert array.shape == shape_of(operand, sizes), (kind, labels, array.shape)
    return made


def run(graph: Graph, given: Mapping[str, Array]) -> dict[str, Array]:
    """Compute every tensor of one step with one microbatch, up to the totals of the step.

    `given` holds the tensors of `input` and `variable` ops.
    """
    tensors = graph.tensors_by_name
    values: dict[str, Array] = {}
    for op in graph.ops:
        if op.kind in ("learning_rate", "adamw", "sgd"):
            continue
        if op.kind in ("input", "variable"):
            values[op.outputs[0]] = given[op.outputs[0]]
            continue
        shapes = [tensors[name].shape for name in op.outputs]
        inputs = [values[name] for name in op.inputs]
        made = evaluate(op.kind, op.labels, inputs, shapes, op.attributes)
        values.update(zip(op.outputs, made, strict=True))
    return values


def random_values(graph: Graph, seed: int) -> dict[str, Array]:
    """Random variables and features, random ids; a few targets are negative (not counted)."""
    generator = np.random.default_rng(seed)
    tensors = graph.tensors_by_name
    values: dict[str, Array] = {}
    for op in graph.ops:
        if op.kind not in ("input", "variable"):
            continue
        shape = tensors[op.outputs[0]].shape
        ids = op.attributes.get("values", 0)
        if ids:
            low = -1 if op.attributes["source"] in ("targets", "classes") else 0
            values[op.outputs[0]] = generator.integers(low, int(ids), shape)
        else:
            scale = 1 / sqrt(shape[0]) if op.kind == "variable" else 1.0
            values[op.outputs[0]] = generator.normal(0, scale, shape)
    return values


def _flat(operand: Operand) -> tuple[str, ...]:
    return tuple(label for dim in operand for label in dim)


def _einsum(expression: Expression, sizes: Sizes, *inputs: Array) -> Array:
    letter = dict(zip(expression.labels, LETTERS, strict=False))
    spread = [
        x.reshape([sizes[label] for label in _flat(operand)])
        for x, operand in zip(inputs, expression.inputs, strict=True)
    ]
    text = ",".join("".join(letter[x] for x in _flat(o)) for o in expression.inputs)
    (out,) = expression.outputs
    text += "->" + "".join(letter[x] for x in _flat(out))
    return np.asarray(np.einsum(text, *spread)).reshape(shape_of(out, sizes))


def _contract(
    expression: Expression, sizes: Sizes, attributes: Any, offsets: Any, *inputs: Array
) -> Array:
    return _einsum(expression, sizes, *inputs)


def _add(e: Expression, sizes: Sizes, attributes: Any, offsets: Any, *inputs: Array) -> Array:
    (out,) = e.outputs
    total = np.zeros(shape_of(out, sizes))
    for x, operand in zip(inputs, e.inputs, strict=True):
        kept = [dim for dim in out if dim in operand]
        moved = np.transpose(x, [operand.index(dim) for dim in kept])
        sizes_here = iter(moved.shape)
        total += moved.reshape([next(sizes_here) if dim in kept else 1 for dim in out])
    return total


def _same(e: Any, sizes: Any, attributes: Any, offsets: Any, x: Array) -> Array:
    return x.copy()


def _narrow(e: Expression, sizes: Sizes, attributes: Any, offsets: Any, x: Array) -> Array:
    return x[: shape_of(e.outputs[0], sizes)[0]].copy()


def _widen(e: Expression, sizes: Sizes, attributes: Any, offsets: Any, x: Array) -> Array:
    out = np.zeros(shape_of(e.outputs[0], sizes))
    out[: x.shape[0]] = x
    return out


def _relu(e: Any, sizes: Any, attributes: Any, offsets: Any, x: Array) -> Array:
    return np.where(x > 0, x, 0)


def _relu_grad(e: Any, sizes: Any, attributes: Any, offsets: Any, x: Array, dy: Array) -> Array:
    return np.where(x > 0, dy, 0)


def _gelu(e: Any, sizes: Any, attributes: Any, offsets: Any, x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))


def _gelu_grad(e: Any, sizes: Any, attributes: Any, offsets: Any, x: Array, dy: Array) -> Array:
    step = 1e-5  # the derivative by Richardson's extrapolation of central differences

    def central(h: float) -> Array:
        return (_gelu(e, 0, 0, 0, x + h) - _gelu(e, 0, 0, 0, x - h)) / (2 * h)

    return dy * (4 * central(step / 2) - central(step)) / 3


def _layer_norm(
    e: Any, sizes: Any, attributes: Any, offsets: Any, x: Array, gamma: Array, beta: Array
) -> tuple[Array, ...]:
    mean = x.mean(-1)
    rstd = 1 / np.sqrt(((x - mean[..., None]) ** 2).mean(-1) + attributes["epsilon"])
    return (x - mean[..., None]) * rstd[..., None] * gamma + beta, mean, rstd


def _layer_norm_grad_input(
    e: Any, sizes: Any, attributes: Any, offsets: Any, *inputs: Array
) -> Array:
    dy, x, gamma, mean, rstd = inputs
    normed = (x - mean[..., None]) * rstd[..., None]
    scaled = dy * gamma
    centred = scaled - scaled.mean(-1, keepdims=True)
    return rstd[..., None] * (centred - normed * (scaled * normed).mean(-1, keepdims=True))


def _layer_norm_grad_weight(
    e: Any, sizes: Any, attributes: Any, offsets: Any, *inputs: Array
) -> tuple[Array, ...]:
    dy, x, mean, rstd = inputs
    rows = tuple(range(x.ndim - 1))
    normed = (x - mean[..., None]) * rstd[..., None]
    return (dy * normed).sum(rows), dy.sum(rows)


def _embedding(
    e: Expression, sizes: Sizes, attributes: Any, offsets: Sizes, ids: Array, table: Array
) -> Array:
    here = ids[..., None] - offsets.get(e.inputs[1][0][0], 0) == np.arange(table.shape[0])
    return here.astype(float) @ table


def _embedding_grad(
    e: Expression, sizes: Sizes, attributes: Any, offsets: Sizes, ids: Array, dy: Array
) -> Array:
    (row,), _ = e.outputs[0]
    here = ids[..., None] - offsets.get(row, 0) == np.arange(sizes[row])
    return here.reshape(-1, sizes[row]).T.astype(float) @ dy.reshape(-1, dy.shape[-1])


def _scores(attributes: Any, offsets: Sizes, query: Array, key: Array) -> Array:
    scores = attributes["scale"] * np.einsum("bthd,bshd->bths", query, key)
    if attributes["causal"]:
        t = offsets.get("t", 0) + np.arange(query.shape[1])
        hidden = np.arange(key.shape[1])[None, :] > t[:, None]
        scores = np.where(hidden[None, :, None, :], -np.inf, scores)
    return np.asarray(scores)


def _attention(
    e: Any, sizes: Any, attributes: Any, offsets: Sizes, q: Array, k: Array, v: Array
) -> tuple[Array, ...]:
    scores = _scores(attributes, offsets, q, k)
    logsumexp = np.log(np.exp(scores).sum(-1))
    return np.einsum("bths,bshd->bthd", np.exp(scores - logsumexp[..., None]), v), logsumexp


def _attention_grad(
    e: Any, sizes: Any, attributes: Any, offsets: Sizes, *inputs: Array
) -> tuple[Array, ...]:
    q, k, v, out, logsumexp, dout = inputs
    weights = np.exp(_scores(attributes, offsets, q, k) - logsumexp[..., None])
    of_weights = np.einsum("bthd,bshd->bths", dout, v)
    of_scores = weights * (of_weights - (dout * out).sum(-1)[..., None]) * attributes["scale"]
    dq = np.einsum("bths,bshd->bthd", of_scores, k)
    dk = np.einsum("bths,bthd->bshd", of_scores, q)
    return dq, dk, np.einsum("bths,bthd->bshd", weights, dout)


def _picked(logits: Array, targets: Array, offset: int) -> Array:
    return targets[..., None] - offset == np.arange(logits.shape[-1])


def _cross_entropy(
    e: Any, sizes: Any, attributes: Any, offsets: Any, logits: Array, targets: Array
) -> tuple[Array, ...]:
    logsumexp = np.log(np.exp(logits).sum(-1))
    own = np.where(_picked(logits, targets, 0), logits, 0).sum(-1)
    return np.where(targets >= 0, logsumexp - own, 0), logsumexp


def _cross_entropy_grad(
    e: Expression, sizes: Any, attributes: Any, offsets: Sizes, *inputs: Array
) -> Array:
    logits, targets, logsumexp = inputs
    own = _picked(logits, targets, offsets.get(e.inputs[0][-1][0], 0))
    return np.where(targets[..., None] >= 0, np.exp(logits - logsumexp[..., None]) - own, 0)


def _count_valid(e: Any, sizes: Any, attributes: Any, offsets: Any, targets: Array) -> Array:
    return np.asarray(float((targets >= 0).sum()))


def _row_max(e: Any, sizes: Any, attributes: Any, offsets: Any, logits: Array) -> Array:
    return np.asarray(logits.max(-1))


def _shifted_sums(
    e: Expression, sizes: Any, attributes: Any, offsets: Sizes, *inputs: Array
) -> Array:
    logits, largest, targets = inputs
    own = _picked(logits, targets, offsets.get(e.inputs[0][-1][0], 0))
    sums = np.exp(logits - largest[..., None]).sum(-1)
    return np.stack([sums, np.where(own, logits, 0).sum(-1)], -1)


def _loss_from_sums(
    e: Any, sizes: Any, attributes: Any, offsets: Any, *inputs: Array
) -> tuple[Array, ...]:
    largest, sums, targets = inputs
    logsumexp = largest + np.log(sums[..., 0])
    return np.where(targets >= 0, logsumexp - sums[..., 1], 0), logsumexp


def _squared_sum(e: Any, sizes: Any, attributes: Any, offsets: Any, x: Array) -> Array:
    return np.asarray((x**2).sum())


def _step_totals(e: Any, sizes: Any, attributes: Any, offsets: Any, *inputs: Array) -> Array:
    return np.array([inputs[0], inputs[1], sum(inputs[2:])], dtype=float)


KINDS: dict[str, Callable[..., Any]] = {
    "repeat": _same,
    "accumulate": _same,
    "cast": _same,
    "rearrange": _contract,
    "matmul": _contract,
    "sum": _contract,
    "narrow": _narrow,
    "widen": _widen,
    "add": _add,
    "relu": _relu,
    "relu_grad": _relu_grad,
    "gelu": _gelu,
    "gelu_grad": _gelu_grad,
    "layer_norm": _layer_norm,
    "layer_norm_grad_input": _layer_norm_grad_input,
    "layer_norm_grad_weight": _layer_norm_grad_weight,
    "embedding": _embedding,
    "embedding_grad": _embedding_grad,
    "attention": _attention,
    "attention_grad": _attention_grad,
    "cross_entropy": _cross_entropy,
    "cross_entropy_grad": _cross_entropy_grad,
    "count_valid": _count_valid,
    "row_max": _row_max,
    "shifted_sums": _shifted_sums,
    "loss_from_sums": _loss_from_sums,
    "squared_sum": _squared_sum,
    "step_totals": _step_totals,
}
