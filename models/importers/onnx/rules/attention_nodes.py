"""Attention nodes: attention written out as products and a softmax, or as one node."""

from math import isclose, prod, sqrt
from typing import NamedTuple

import numpy as np

from millrace.models.errors import ModelError
from millrace.models.importers.attention_masks import KeyVisibility, mask_of
from millrace.models.importers.onnx.lowering import OnnxLowering
from millrace.models.importers.onnx.onnx_file import OnnxNode
from millrace.models.importers.onnx.rules.node_patterns import OnnxCalls
from millrace.models.importers.onnx.values import (
    Array,
    Constant,
    Dim,
    Dims,
    LabelFactor,
    Traced,
    UnsupportedNodeError,
    broadcast_columns,
    common_dims,
    factors_of,
    reshaped,
    unified,
    varying,
)
from millrace.models.importers.patterns import DEPTH_MAX, product_of
from millrace.models.labels import BATCH, SEQUENCE


class _Scores(NamedTuple):
    query: str
    key: str
    scale: float
    mask: KeyVisibility


def attention_pattern(low: OnnxLowering, node: OnnxNode) -> Traced | None:
    """Add attention where a product with the softmax of a product ends in `node`, else None."""
    softmax = _softmax(low, node.inputs[0])
    if softmax is None or len(node.inputs) != 2:
        return None
    scores = _scores(low, softmax.inputs[0], KeyVisibility(False))
    if scores is None:
        return None
    values = [low.values[name] for name in (scores.query, scores.key, node.inputs[1])]
    q, k, v = values
    if not (isinstance(q, Traced) and isinstance(k, Traced) and isinstance(v, Traced)):
        return None
    if min(len(x.dims) for x in (q, k, v)) < 3 or low.builder.tensors[q.tensor].batch_dim is None:
        return None
    keys = k.seen_as((*k.dims[:-2], k.dims[-1], k.dims[-2]))
    return attention(low, low.name(node), q, keys, v, scores.mask, scores.scale)


def _softmax(low: OnnxLowering, name: str, depth: int = DEPTH_MAX) -> OnnxNode | None:
    """Find the softmax over the last dim behind a cast, a dropout or a guard against NaN."""
    node = low.producer(name, "Softmax", "Cast", "Identity", "Dropout", "Where")
    if node is None or not depth:
        return None
    if node.kind == "Softmax":
        value = low.values.get(node.inputs[0])
        rank = len(value.dims) if isinstance(value, Traced) else 0
        return node if rank and node.integer("axis", -1) in (-1, rank - 1) else None
    if node.kind == "Where":
        guard = low.producer(node.inputs[0], "IsNaN")
        return _softmax(low, node.inputs[2], depth - 1) if guard is not None else None
    if node.kind == "Dropout" and len(node.inputs) > 2 and low.scalar(node.inputs[2]) != 0:
        return None
    return _softmax(low, node.inputs[0], depth - 1)


def _scores(low: OnnxLowering, name: str, mask: KeyVisibility) -> _Scores | None:
    """Read scale * q k^T + mask backwards; None where it is something else."""
    scaled_product = product_of(OnnxCalls(low), name)
    if len(scaled_product.factors) != 1:
        return None
    (inner,) = scaled_product.factors
    node = low.producer(inner, "MatMul", "Add", "Where")
    if node is None:
        return None
    if node.kind != "MatMul":
        masked = _masked(low, node)
        if masked is None or mask != KeyVisibility(False) or scaled_product.number != 1:
            return None
        return _scores(low, masked[0], masked[1])
    number = scaled_product.number
    sides = []
    for side in node.inputs:
        factor = product_of(OnnxCalls(low), side)
        is_traced = len(factor.factors) == 1 and isinstance(
            low.values.get(factor.factors[0]), Traced
        )
        alike = is_traced and _shape(low, factor.factors[0]) == _shape(low, side)
        sides.append(factor.factors[0] if alike else side)
        number *= factor.number if alike else 1.0
    return _Scores(sides[0], sides[1], number, mask)


def _shape(low: OnnxLowering, name: str) -> tuple[int, ...]:
    value = low.values[name]
    return value.shape if isinstance(value, (Traced, Constant)) else ()


def _masked(low: OnnxLowering, node: OnnxNode) -> tuple[str, KeyVisibility] | None:
    """Return the scores and the mask that an Add or a Where puts on them."""
    if node.kind == "Add":
        for scores, other in (node.inputs, node.inputs[::-1]):
            value = low.values[other]
            if isinstance(value, Constant):
                return _with_mask(low, scores, value.array)
        return None
    condition, *branches = (low.values[name] for name in node.inputs)
    if not isinstance(condition, Constant):
        return None
    for branch, hidden in enumerate(reversed(branches)):
        if isinstance(branches[branch], Traced) and isinstance(hidden, Constant):
            visible = condition.array.astype(bool) == (branch == 0)
            return _with_mask(low, node.inputs[1 + branch], np.where(visible, 0, hidden.array))
    return None


def _with_mask(low: OnnxLowering, scores: str, array: Array) -> tuple[str, KeyVisibility] | None:
    shape = _shape(low, scores)
    mask = mask_of(varying(array), *shape[-2:]) if len(shape) > 1 else None
    return None if mask is None else (scores, mask)


def attention(
    low: OnnxLowering, name: str, q: Traced, k: Traced, v: Traced, mask: KeyVisibility, scale: float
) -> Traced:
    """Add an attention of tensors seen as (…, t, d), (…, s, d) and (…, s, u)."""
    tq, tk, tv = (len(x.dims) for x in (q, k, v))
    batch = broadcast_columns((tq - 2, tk - 2, tv - 2))
    columns = [*batch, [(0, tq - 2)], [(1, tk - 2), (2, tv - 2)], [(0, tq - 1), (1, tk - 1)]]
    unify = (low.used(x) for x in (q, k, v))
    q, k, v = (low.dropped(x) for x in unified(tuple(unify), [*columns, [(2, tv - 1)]], low.fresh))
    shared = common_dims((q, k, v), batch)
    outer = factors_of(shared)
    heads = [factor for factor in outer if factor.name != BATCH]
    samples = tuple((factor,) for factor in outer if factor.name == BATCH)
    if not samples or not q.dims[-2] or not k.dims[-2]:
        raise UnsupportedNodeError("is attention without a batch or of a single query")
    both = [
        factor for factor in heads if factor in k.operand_factors and factor in v.operand_factors
    ]
    groups = both or heads or [low.fresh(1)]
    query_heads = [factor for factor in heads if factor not in groups]
    grouped: Dims = (tuple(groups), *([tuple(query_heads)] if query_heads else []))
    query: Dims = (*samples, q.dims[-2], *grouped, q.dims[-1])
    key: Dims = (*samples, k.dims[-2], grouped[0], q.dims[-1])
    value: Dims = (*samples, k.dims[-2], grouped[0], v.dims[-1])
    out: Dims = (*samples, q.dims[-2], *grouped, v.dims[-1])
    names = _names(q.dims[-2], k.dims[-2], grouped, q.dims[-1], v.dims[-1])
    alone = names | {k.dims[-2][0]: SEQUENCE}  # before they meet, keys lie along the sequence too
    laid = [
        low.laid_out(tensor.seen_as(_with(tensor.dims, dims)), dims, f"{name}.{part}", alone)
        for part, tensor, dims in (("q", q, query), ("k", k, key), ("v", v, value))
    ]
    usual = 1 / sqrt(prod(factor.size for factor in q.dims[-1]))
    scale = usual if isclose(scale, usual, rel_tol=1e-6) else scale  # it was rounded to float32
    attributes: dict[str, int | float | str | bool] = {"causal": mask.causal, "scale": scale}
    if mask.window:
        attributes["window"] = mask.window
    ends = (*q.dims[-1], *k.dims[-2], *v.dims[-1])
    return low.emit(
        "attention",
        name,
        laid,
        (out, out[:-1]),
        dims=(*shared, q.dims[-2], v.dims[-1]),
        whole_factors=ends,
        names=names,
        attributes=attributes,
    )


def _with(seen: Dims, wanted: Dims) -> Dims:
    """Dims that name every wanted factor, so that none counts as unseen."""
    seen_factors = frozenset(factors_of(seen))
    return (*seen, tuple(f for f in factors_of(wanted) if f not in seen_factors))


def _names(t: Dim, s: Dim, grouped: Dims, d: Dim, u: Dim) -> dict[LabelFactor, str]:
    heads = ("h",) if len(grouped) == 1 else ("g", "r")
    pairs = zip((t, s, *grouped, d, u), (SEQUENCE, "s", *heads, "d", "u"), strict=True)
    return {dim[0]: label for dim, label in pairs if dim}


def attention_node(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Add the Attention node of opset 23, without past keys, softcap or more outputs."""
    if len([name for name in node.outputs if name]) > 1 or low.has_input(node, 4):
        raise UnsupportedNodeError("has past keys or gives its scores away")
    if node.number("softcap", 0.0):
        raise UnsupportedNodeError("caps its scores (softcap)")
    inputs = [low.floating(node, index) for index in range(3)]
    flat = [len(x.dims) for x in inputs] == [3, 3, 3]
    if flat:
        heads = [node.integer("q_num_heads"), *[node.integer("kv_num_heads")] * 2]
        inputs = [_by_head(low, node, x, h) for x, h in zip(inputs, heads, strict=True)]
    q, k, v = inputs
    if any(len(x.dims) != 4 for x in inputs):
        raise ModelError(f"{node.title}: queries, keys and values need 3 or 4 dims each")
    q, k, v = _shared_heads(low, node, q, k, v)
    mask = KeyVisibility(bool(node.integer("is_causal", 0)))
    if low.has_input(node, 3):
        given_mask = mask_of(varying(low.constant(node, 3)), q.shape[2], k.shape[2])
        if given_mask is None or (mask.causal and given_mask != KeyVisibility(False)):
            raise UnsupportedNodeError("has a mask that is neither causal nor a window")
        mask = mask if mask.causal else given_mask
    scale = node.number("scale", 0.0) or 1 / sqrt(q.shape[-1])
    attended = attention(low, low.name(node), q, k, v, mask, scale)
    if flat:
        first, second, third, fourth = attended.dims
        return attended.seen_as((first, third, (*second, *fourth)))
    return attended


def _by_head(low: OnnxLowering, node: OnnxNode, x: Traced, heads: int) -> Traced:
    """See b t (h d) as b h t d."""
    batch, length, features = x.shape
    if heads < 1 or features % heads:
        raise ModelError(f"{node.title}: {features} features are not divisible by {heads} heads")
    apart = reshaped(x, (batch, length, heads, features // heads), low.fresh)
    first, second, third, fourth = apart.dims
    return apart.seen_as((first, third, second, fourth))


def _shared_heads(
    low: OnnxLowering, node: OnnxNode, q: Traced, k: Traced, v: Traced
) -> tuple[Traced, Traced, Traced]:
    """Let groups of query heads share the heads of keys: h (g r) against g."""
    queries, keys = q.shape[1], k.shape[1]
    if queries == keys or keys == 0:
        return q, k, v
    if queries % keys or v.shape[1] != keys:
        raise ModelError(f"{node.title}: {queries} query heads for {keys} key heads")
    each = low.fresh(queries // keys)
    k, v = (x.seen_as((x.dims[0], (*x.dims[1], each), *x.dims[2:])) for x in (k, v))
    return q, k, v
