"""Convolution and pooling, window by window, on images whose channels come first.

Shape legend: b samples, y x rows and columns of an image, j i those of what is made of it, q p rows
and columns of a window.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from millrace.models.labels import parse, write
from tests.models.oracle.call import Array, Call, Definition


class OracleTap(NamedTuple):
    """Place (y, x) of the image where a window at (j, i) has its place (q, p)."""

    j: int
    i: int
    q: int
    p: int
    y: int
    x: int


def _taps(
    call: Call, image: tuple[int, ...], out: tuple[int, ...], window: tuple[int, ...]
) -> Iterator[OracleTap]:
    """Every place of every window that lies in the image, in the order of reading."""
    given = call.attributes
    for j, i, q, p in product(*(range(size) for size in (*out, *window))):
        y = j * given["stride_y"] - given["pad_y"] + q * given.get("dilation_y", 1)
        x = i * given["stride_x"] - given["pad_x"] + p * given.get("dilation_x", 1)
        if 0 <= y < image[0] and 0 <= x < image[1]:
            yield OracleTap(j, i, q, p, y, x)


def _groups(call: Call, weight: int) -> int:
    """Number of groups that the weight's first dim is made of."""
    operand = (*call.expression.inputs, *call.expression.outputs)[weight][0]
    return prod(call.sizes[label] for label in operand[:-1])


def _apart(x: Array, groups: int) -> Array:
    """[b, (g c), y, x] as [b, g, c, y, x]."""
    return x.reshape(x.shape[0], groups, -1, *x.shape[2:])


def conv(call: Call, x: Array, w: Array) -> Array:
    groups = _groups(call, 1)
    out = np.zeros(call.shape_out())
    images, sums = _apart(x, groups), _apart(out, groups)
    weights = w.reshape(groups, -1, *w.shape[1:])
    for tap in _taps(call, x.shape[2:], out.shape[2:], w.shape[2:]):
        sums[..., tap.j, tap.i] += np.einsum(
            "bgc,gnc->bgn", images[..., tap.y, tap.x], weights[..., tap.q, tap.p]
        )
    return out


def conv_grad_input(call: Call, dy: Array, w: Array) -> Array:
    groups = _groups(call, 1)
    out = np.zeros(call.shape_out())
    images, slopes = _apart(out, groups), _apart(dy, groups)
    weights = w.reshape(groups, -1, *w.shape[1:])
    for tap in _taps(call, out.shape[2:], dy.shape[2:], w.shape[2:]):
        images[..., tap.y, tap.x] += np.einsum(
            "bgn,gnc->bgc", slopes[..., tap.j, tap.i], weights[..., tap.q, tap.p]
        )
    return out


def conv_grad_weight(call: Call, x: Array, dy: Array) -> Array:
    groups = _groups(call, 2)
    out = np.zeros(call.shape_out())
    images, slopes = _apart(x, groups), _apart(dy, groups)
    weights = out.reshape(groups, -1, *out.shape[1:])
    for tap in _taps(call, x.shape[2:], dy.shape[2:], out.shape[2:]):
        weights[..., tap.q, tap.p] += np.einsum(
            "bgn,bgc->gnc", slopes[..., tap.j, tap.i], images[..., tap.y, tap.x]
        )
    return out


def _window(call: Call) -> tuple[int, int]:
    return call.attributes["size_y"], call.attributes["size_x"]


def max_pool(call: Call, x: Array) -> Array:
    out = np.full(call.shape_out(), -np.inf)
    for tap in _taps(call, x.shape[2:], out.shape[2:], _window(call)):
        out[..., tap.j, tap.i] = np.maximum(out[..., tap.j, tap.i], x[..., tap.y, tap.x])
    return out


def max_pool_grad(call: Call, x: Array, dy: Array) -> Array:
    out = np.zeros(call.shape_out())
    largest = np.full(dy.shape, -np.inf)
    taken = np.zeros(dy.shape, bool)
    for tap in _taps(call, x.shape[2:], dy.shape[2:], _window(call)):
        largest[..., tap.j, tap.i] = np.maximum(largest[..., tap.j, tap.i], x[..., tap.y, tap.x])
    for tap in _taps(call, x.shape[2:], dy.shape[2:], _window(call)):
        window = (..., tap.j, tap.i)
        hit = (x[..., tap.y, tap.x] == largest[window]) & ~taken[window]
        taken[window] |= hit
        out[..., tap.y, tap.x] += np.where(hit, dy[window], 0)
    return out


def avg_pool(call: Call, x: Array) -> Array:
    out = np.zeros(call.shape_out())
    for tap in _taps(call, x.shape[2:], out.shape[2:], _window(call)):
        out[..., tap.j, tap.i] += x[..., tap.y, tap.x] / prod(_window(call))
    return out


def avg_pool_grad(call: Call, dy: Array) -> Array:
    out = np.zeros(call.shape_out())
    for tap in _taps(call, out.shape[2:], dy.shape[2:], _window(call)):
        out[..., tap.y, tap.x] += dy[..., tap.j, tap.i] / prod(_window(call))
    return out


def _either_order(definition: Definition) -> Definition:
    """The definition for channels first and, by moving dims, for channels last."""

    def defined(call: Call, *inputs: Array) -> Array | tuple[Array, ...]:
        expression = call.expression
        if not expression.whole_labels.isdisjoint(expression.inputs[0][3]):  # columns come last
            return definition(call, *inputs)
        operands = [
            [(operand[0], operand[3], operand[1], operand[2]) for operand in side]
            for side in (expression.inputs, expression.outputs)
        ]
        first = replace(call, expression=parse(write(*operands, expression.whole_labels)))
        out = definition(first, *(np.moveaxis(x, 3, 1) for x in inputs))
        assert isinstance(out, np.ndarray)
        return np.moveaxis(out, 1, 3)

    return defined


_CHANNELS_FIRST: dict[str, Definition] = {
    "conv": conv,
    "conv_grad_input": conv_grad_input,
    "conv_grad_weight": conv_grad_weight,
    "max_pool": max_pool,
    "max_pool_grad": max_pool_grad,
    "avg_pool": avg_pool,
    "avg_pool_grad": avg_pool_grad,
}

IMAGES = {kind: _either_order(definition) for kind, definition in _CHANNELS_FIRST.items()}
