"""Dispatch of tokens to the places of their experts, and back, as gathers of rows.

`rows` says for every choice [b, t, k] which row of [e b c, d] it has, -1 where it was dropped or
where another rank holds the expert; `holders` says for every row which choice has it, -1 for none.
Experts may be a shard: their offset decides who holds them.

Shape legend: b samples, t tokens of a sample, k choices of a token, e experts here, c places of an
expert, d features.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from millrace.executor.kernels.chunks import chunks, rows_per_chunk
from millrace.executor.kernels.context import Array, Kernel, KernelContext, Shard


class _TokenPlacement:
    """Rows of choices and choices of rows, in scratch that every firing fills anew.

    Parameters
    ----------
    at_experts, choices
        The shards of [e, b, c, d] and of [b, t, k].
    """

    def __init__(self, at_experts: Shard, choices: Shard) -> None:
        self.experts, self.samples, self.capacity, self.features = at_experts.shape
        self.choices = choices.shape[2]
        self.tokens = prod(choices.shape[:2])
        self._first = at_experts.offsets[0]
        self._rows = np.empty(choices.shape, np.intp)
        self._is_here, self._other = (np.empty(choices.shape, bool) for _ in range(2))
        self._sample = np.arange(self.samples, dtype=np.intp)[:, None, None]
        # one more than there are rows, for the choices that have none
        self._holders = np.empty(prod(at_experts.shape[:3]) + 1, np.intp)
        self._numbers = np.arange(self._rows.size)

    def rows(self, expert: Array, place: Array) -> Array:
        """Row [b t, k] of every choice."""
        rows, is_here, other = self._rows, self._is_here, self._other
        np.subtract(expert, self._first, out=rows)
        np.greater_equal(place, 0, out=is_here)
        for compare, bound in ((np.greater_equal, 0), (np.less, self.experts)):
            compare(rows, bound, out=other)
            np.logical_and(is_here, other, out=is_here)
        np.multiply(rows, self.samples, out=rows)
        np.add(rows, self._sample, out=rows)
        np.multiply(rows, self.capacity, out=rows)
        np.add(rows, place, out=rows)
        np.logical_not(is_here, out=other)
        np.copyto(rows, -1, where=other)
        return rows.reshape(self.tokens, self.choices)

    def holders(self, expert: Array, place: Array) -> Array:
        """Choice [b t k] that has every row [e b c]."""
        rows = self.rows(expert, place)
        self._holders.fill(-1)
        self._holders[rows.reshape(-1)] = self._numbers
        return self._holders[:-1]

    def at_experts(self, array: Array) -> Array:
        """View [e, b, c, d] as rows."""
        return array.reshape(-1, self.features)

    def at_tokens(self, array: Array) -> Array:
        """View [b, t, d] as rows."""
        return array.reshape(self.tokens, self.features)

    def step(self) -> int:
        """Tokens whose rows stay in the cache."""
        return rows_per_chunk(self.features, self.tokens)


def dispatch(context: KernelContext) -> Kernel:
    """Kernel of every token at the places it got, from (x, expert, place); zeros elsewhere."""
    ways = _TokenPlacement(context.outputs[0], context.inputs[1])

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, expert_rows = ways.at_tokens(inputs[0]), ways.at_experts(outputs[0])
        holders = ways.holders(inputs[1], inputs[2])
        np.floor_divide(holders, ways.choices, out=holders)
        np.take(x, holders, axis=0, out=expert_rows, mode="clip")
        expert_rows[holders < 0] = 0

    return kernel


def dispatch_grad(context: KernelContext) -> Kernel:
    """Kernel of dx from (dy, expert, place): dy of a token's places, added up."""
    return _gather(_TokenPlacement(context.inputs[0], context.inputs[1]), context.outputs[0].dtype)


def combine(context: KernelContext) -> Kernel:
    """Kernel of the sum by weight of a token's places, from (y, expert, place, weight)."""
    return _gather(_TokenPlacement(context.inputs[0], context.inputs[1]), context.outputs[0].dtype)


def _gather(ways: _TokenPlacement, dtype: str) -> Kernel:
    """Kernel of the sum of a token's rows, by weight where there is a fourth input."""
    buffer = np.empty((ways.step(), ways.features), dtype)
    weights = np.empty((ways.tokens, ways.choices), dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        given, out = ways.at_experts(inputs[0]), ways.at_tokens(outputs[0])
        rows = ways.rows(inputs[1], inputs[2])
        np.copyto(weights, inputs[3].reshape(weights.shape) if len(inputs) > 3 else 1)
        weights[rows < 0] = 0
        for part in chunks(ways.tokens, ways.step()):
            gathered, total = buffer[: part.stop - part.start], out[part]
            for choice in range(ways.choices):
                np.take(given, rows[part, choice], axis=0, out=gathered, mode="clip")
                np.multiply(
                    gathered, weights[part, choice, None], out=gathered if choice else total
                )
                if choice:
                    np.add(total, gathered, out=total)

    return kernel


def combine_grad_input(context: KernelContext) -> Kernel:
    """Kernel of dy from (dout, expert, place, weight): dout by weight, at its token's places."""
    ways = _TokenPlacement(context.outputs[0], context.inputs[1])
    weights = np.empty(prod(context.outputs[0].shape[:3]), context.outputs[0].dtype)
    tokens = np.empty(weights.size, np.intp)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        dout, dy = ways.at_tokens(inputs[0]), ways.at_experts(outputs[0])
        holders = ways.holders(inputs[1], inputs[2])
        np.floor_divide(holders, ways.choices, out=tokens)
        np.take(dout, tokens, axis=0, out=dy, mode="clip")
        np.take(inputs[3].reshape(-1), holders, out=weights, mode="clip")
        weights[holders < 0] = 0
        np.multiply(dy, weights[:, None], out=dy)

    return kernel


def combine_grad_weight(context: KernelContext) -> Kernel:
    """Kernel of dweight from (dout, y, expert, place): dout times what is at a token's places."""
    ways = _TokenPlacement(context.inputs[1], context.inputs[2])
    buffer = np.empty((ways.step(), ways.features), context.outputs[0].dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        dout, y = ways.at_tokens(inputs[0]), ways.at_experts(inputs[1])
        rows, dweight = ways.rows(inputs[2], inputs[3]), outputs[0].reshape(ways.tokens, -1)
        for part in chunks(ways.tokens, ways.step()):
            gathered = buffer[: part.stop - part.start]
            for choice in range(ways.choices):
                np.take(y, rows[part, choice], axis=0, out=gathered, mode="clip")
                np.vecdot(gathered, dout[part], out=dweight[part, choice])
        dweight[rows < 0] = 0

    return kernel
