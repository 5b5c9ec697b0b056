"""Ops that move values: rates, dtypes, dims, pieces; and dropout, which leaves some out."""

from hashlib import sha256

import numpy as np

from tests.models.oracle.call import Array, Call, Definition
from tests.models.oracle.products import contract


def same(call: Call, x: Array) -> Array:
    return x.copy()


def broadcast(call: Call, x: Array) -> Array:
    out = call.labels_out()
    apart = call.aligned(x, call.labels_in(0), out)
    return np.broadcast_to(apart, [call.sizes[label] for label in out]).reshape(call.shape_out())


def _along(call: Call, index: int = 0) -> int:
    """The dim in which an input and the output differ."""
    pairs = zip(call.expression.inputs[index], call.expression.outputs[0], strict=True)
    (dim,) = (dim for dim, (here, there) in enumerate(pairs) if here != there)
    return dim


def narrow(call: Call, x: Array) -> Array:
    dim, start = _along(call), call.attributes["start"]
    return np.take(x, np.arange(start, start + call.shape_out()[dim]), dim)


def widen(call: Call, x: Array) -> Array:
    dim, start = _along(call), call.attributes["start"]
    out = np.zeros(call.shape_out())
    np.moveaxis(out, dim, 0)[start : start + x.shape[dim]] = np.moveaxis(x, dim, 0)
    return out


def concat(call: Call, *inputs: Array) -> Array:
    return np.concatenate(inputs, _along(call))


def dropout(call: Call, x: Array) -> Array:
    """Dropout by a function of the op's name and the place that looks random."""
    name = str(call.attributes["op"])
    drawn = [
        int.from_bytes(sha256(f"{name} {place}".encode()).digest()[:4], "big") / 2**32
        for place in range(x.size)
    ]
    rate = call.attributes["rate"]
    survives = np.array(drawn).reshape(x.shape) >= rate
    return np.asarray(np.where(survives, x / (1 - rate), 0))


LAYOUT: dict[str, Definition] = {
    "repeat": same,
    "accumulate": same,
    "cast": same,
    "quantise": same,
    "rearrange": contract,
    "broadcast": broadcast,
    "narrow": narrow,
    "widen": widen,
    "concat": concat,
    "dropout": dropout,
}
