"""Backward pass of attention, which recomputes the probabilities from every query's logsumexp.

With P = exp(scores − logsumexp) and D = Σ_u dout · out per query (Dao 2022, appendix B.2):
dv = Pᵀ dout, dS = P · (dout vᵀ − D), dq = scale · dS k, dk = scale · dSᵀ q, and what is added to
the scores gets dS; before dq and dk, dS is multiplied by the slopes of a cap. Shapes as in
`geometry.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from millrace.executor.kernels.attention.geometry import Geometry, ScoreBlock, geometry, part
from millrace.executor.kernels.attention.scores import (
    BiasView,
    ScoreScratch,
    additions,
    hide,
    rooms,
    score,
)
from millrace.executor.kernels.context import Array, Kernel, KernelContext


def attention_grad(context: KernelContext) -> Kernel:
    """Kernel of dq, dk and dv from (q, k, v, out, logsumexp, dout)."""
    return _backward(context, None)


def biased_attention_grad(context: KernelContext) -> Kernel:
    """Kernel of dq, dk, dv and dbias from (q, k, v, bias, out, logsumexp, dout)."""
    return _backward(context, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class _GradientRoom:
    """A block with its room for scores, and more: products [g, r, t, u], dout and dS.

    `slopes` holds dout with the heads of a group together, where that takes a copy.
    """

    room: ScoreScratch
    products: Array
    slopes: Array | None
    dscores_apart: Array
    dscores: Array


def _gradient_rooms(sizes: Geometry) -> list[_GradientRoom]:
    """Blocks with scratch that all of them share, from the last block to the first."""
    products, dscores = sizes.rows(sizes.value_dim), sizes.scores()
    slopes = None if sizes.repeats == 1 else sizes.rows(sizes.value_dim)
    gradient_rooms = []
    for room in reversed(rooms(sizes)):
        apart = part(dscores, *room.scores_apart.shape)
        shape = (*room.query_apart.shape[:3], sizes.value_dim)
        gradient_rooms.append(
            _GradientRoom(
                room=room,
                products=part(products, *shape),
                slopes=None if slopes is None else part(slopes, *shape),
                dscores_apart=apart,
                dscores=apart.reshape(room.scores.shape),
            )
        )
    return gradient_rooms


def _backward(context: KernelContext, bias: int | None) -> Kernel:
    """Kernel of the gradient, whose blocks go from the last query to the first.

    In a causal sequence the last block sees the most keys and writes dk and dv, earlier ones add
    to them; through a window every block adds.
    """
    sizes = geometry(context)
    capped = sizes.scores() if context.number("cap", 0.0) else None
    adders, parts = additions(context, sizes, bias, capped), _gradient_rooms(sizes)
    add_to = _adder(sizes)
    heads, rows_of_heads = sizes.heads, (*sizes.heads, -1)
    add_bias = None if bias is None else _bias_adder(context, sizes, bias)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        queries, results, douts, dqs = [
            array.reshape(rows_of_heads).transpose(0, 2, 3, 1, 4)
            for array in (inputs[0], inputs[-3], inputs[-1], outputs[0])
        ]
        logsumexps = inputs[-2].reshape(heads).transpose(0, 2, 3, 1)
        if bias is not None:
            outputs[3].fill(0)
        for sample in range(sizes.samples):
            q, out, dout, dq = queries[sample], results[sample], douts[sample], dqs[sample]
            key, value = (inputs[index][sample].transpose(1, 0, 2) for index in (1, 2))
            dk, dv = outputs[1][sample], outputs[2][sample]
            written = 0
            if sizes.windowed:
                dk.fill(0)
                dv.fill(0)
                written = sizes.keys
            for more in parts:
                room, rows = more.room, more.room.block.rows
                np.multiply(q[:, :, rows], sizes.scale, out=room.query_apart)
                score(room, key)
                for add in adders:
                    add(room, sample, inputs)
                hide(room)
                _to_probabilities(room, logsumexps[sample])
                slope = _dscores(more, dout[:, :, rows], out[:, :, rows], value)
                if add_bias is not None:
                    add_bias(outputs[3], more, sample)
                if capped is not None:
                    here = part(capped, *more.dscores.shape)
                    np.multiply(more.dscores, here, out=more.dscores)
                add_to(dv, room.scores, slope, room.block, written)
                add_to(dk, more.dscores, room.query, room.block, written)
                mixed = dq[:, :, rows]
                weights = more.dscores_apart.transpose(0, 2, 3, 1)
                np.matmul(weights, key[:, None, room.block.columns], out=mixed)
                np.multiply(mixed, sizes.scale, out=mixed)
                written = max(written, room.block.columns.stop)
            dk[written:] = 0
            dv[written:] = 0

    return kernel


def _to_probabilities(room: ScoreScratch, logsumexp: Array) -> None:
    """Turn the room's scores into exp(scores − logsumexp [g, r, t])."""
    rows = logsumexp[:, None, :, room.block.rows]
    np.subtract(room.scores_apart, rows, out=room.scores_apart)
    np.exp(room.scores, out=room.scores)


def _dscores(more: _GradientRoom, slope: Array, out: Array, value: Array) -> Array:
    """Leave dS in the room, of a block's dout and out [g, r, t, u]; return dout as [g, r t, u]."""
    np.multiply(slope, out, out=more.products)
    weighted = np.add.reduce(more.products, axis=3)
    groups, _, _, columns = slope.shape
    if more.slopes is None:
        merged = slope[:, 0]
    else:
        np.copyto(more.slopes, slope)
        merged = more.slopes.reshape(groups, -1, columns)
    dscores, probabilities = more.dscores, more.room.scores
    np.matmul(value[:, more.room.block.columns], merged.transpose(0, 2, 1), out=dscores)
    np.subtract(dscores, weighted.reshape(groups, 1, -1), out=dscores)
    np.multiply(dscores, probabilities, out=dscores)
    return merged


def _adder(sizes: Geometry) -> Callable[[Array, Array, Array, ScoreBlock, int], None]:
    """Function that adds weights [g, s, r t] @ rows [g, r t, d] to the block's keys of [s, g, d].

    `written` keys hold values already: all that the block sees, or none.
    """
    widest = max(sizes.head_dim, sizes.value_dim)
    added = np.empty(sizes.groups * sizes.keys * widest, sizes.dtype)

    def add(total: Array, weights: Array, rows: Array, block: ScoreBlock, written: int) -> None:
        target = total[block.columns].transpose(1, 0, 2)
        if written == 0:
            np.matmul(weights, rows, out=target)
            return
        np.add(target, np.matmul(weights, rows, out=part(added, *target.shape)), out=target)

    return add


def _bias_adder(
    context: KernelContext, sizes: Geometry, bias: int
) -> Callable[[Array, _GradientRoom, int], None]:
    """Function that adds a block's dS to dbias, summed over what that lacks."""
    view = BiasView(context, sizes, bias)
    sums = np.empty(view.shape[1:], sizes.dtype).reshape(-1)

    def add(total: Array, more: _GradientRoom, sample: int) -> None:
        target, change = view.of(more.room.block, sample, total), more.dscores_apart
        if view.lacks:
            change = part(sums, *target.shape)
            np.add.reduce(more.dscores_apart, axis=view.lacks, keepdims=True, out=change)
        np.add(target, change, out=target)

    return add
