"""Recurrences: the state-space scan and the delta rule, token by token, and their gradients.

B samples, T tokens, G groups of R heads that share queries and keys, N features of a key, P of a
value. A state is S [B, G, R, N, P]. Backward the states are made anew, a chunk at a time from the
last one on: the forward pass leaves the state before every chunk, so that about 2 √T are held.

Notes
-----
Dao and Gu, "Transformers are SSMs", arXiv 2405.21060 (2024), section 2; Yang, Kautz and
Hatamizadeh, "Gated delta networks", arXiv 2412.06464 (2024), equation 10; with a decay of every row
of a state: Kimi Team, "Kimi Linear", arXiv 2510.26692 (2025), equation 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isqrt

import numpy as np

from millrace.executor.kernels.context import Array, Kernel, KernelContext

QUERY, KEY, VALUE, DECAY, BETA = range(5)  # the inputs, and the gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceSizes:
    """Sizes of a recurrence; `by_row`: rows of a state decay apart; `corrects`: the delta rule."""

    samples: int
    tokens: int
    groups: int
    repeats: int
    key_dim: int
    value_dim: int
    dtype: str
    by_row: bool
    corrects: bool

    @property
    def heads(self) -> tuple[int, int, int]:
        """Samples, groups and heads of a group."""
        return self.samples, self.groups, self.repeats

    @property
    def state(self) -> tuple[int, int, int, int, int]:
        """Shape of a state of all heads."""
        return *self.heads, self.key_dim, self.value_dim

    @property
    def chunk(self) -> int:
        """Tokens of a chunk of the backward pass."""
        return max(1, isqrt(self.tokens))


def recurrence_sizes(context: KernelContext) -> RecurrenceSizes:
    """Sizes of the shards of a recurrence or its gradient."""
    key, value, decay = context.inputs[KEY], context.inputs[VALUE], context.inputs[DECAY]
    samples, tokens, groups, repeats, value_dim = value.shape
    return RecurrenceSizes(
        samples=samples,
        tokens=tokens,
        groups=groups,
        repeats=repeats,
        key_dim=key.shape[-1],
        value_dim=value_dim,
        dtype=context.inputs[QUERY].dtype,
        by_row=len(decay.shape) == len(value.shape),
        corrects=context.kind.startswith("delta_rule"),
    )


class _Step:
    """Scratch of one token's step, which makes a state out of the one before."""

    def __init__(self, sizes: RecurrenceSizes) -> None:
        self.sizes = sizes
        self.decayed = np.empty(sizes.state, sizes.dtype)
        self.product = np.empty(sizes.state, sizes.dtype)
        self.change = np.empty((*sizes.heads, 1, sizes.value_dim), sizes.dtype)
        rows = sizes.key_dim if sizes.by_row else 1
        self.rate = np.empty((*sizes.heads, rows, 1), sizes.dtype)

    def decay(self, before: Array, inputs: Sequence[Array], token: int) -> None:
        """Leave the state before the token, decayed, and what the token changes of its values."""
        np.exp(inputs[DECAY][:, token].reshape(self.rate.shape), out=self.rate)
        np.multiply(before, self.rate, out=self.decayed)
        value = inputs[VALUE][:, token][..., None, :]
        if not self.sizes.corrects:
            np.copyto(self.change, value)
            return
        key = inputs[KEY][:, token][:, :, None, None, :]
        np.matmul(key, self.decayed, out=self.change)
        np.subtract(value, self.change, out=self.change)

    def advance(self, before: Array, after: Array, inputs: Sequence[Array], token: int) -> None:
        """Make the state after the token; `after` may be `before`."""
        self.decay(before, inputs, token)
        if self.sizes.corrects:
            beta = inputs[BETA][:, token][..., None, None]
            np.multiply(self.change, beta, out=self.change)
        key = inputs[KEY][:, token][:, :, None, :, None]
        np.multiply(key, self.change, out=self.product)
        np.add(self.decayed, self.product, out=after)


def recurrence(context: KernelContext) -> Kernel:
    """Kernel of y = Sᵀ query, after the state of every token is made."""
    sizes = recurrence_sizes(context)
    step, state = _Step(sizes), np.empty(sizes.state, sizes.dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        state.fill(0)
        for token in range(sizes.tokens):
            step.advance(state, state, inputs, token)
            query = inputs[QUERY][:, token][:, :, None, None, :]
            np.matmul(query, state, out=outputs[0][:, token][..., None, :])

    return kernel


def recurrence_grad(context: KernelContext) -> Kernel:
    """Kernel of the gradients of all inputs, from the last token to the first."""
    sizes = recurrence_sizes(context)
    step, back = _Step(sizes), _BackwardStep(sizes)
    chunk, chunks = sizes.chunk, ceil(sizes.tokens / sizes.chunk)
    begins = np.empty((chunks, *sizes.state), sizes.dtype)
    states = np.empty((chunk + 1, *sizes.state), sizes.dtype)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        begins[:1].fill(0)
        for token in range((chunks - 1) * chunk):
            number, place = divmod(token, chunk)
            last = place == chunk - 1
            before = begins[number] if place == 0 else states[0]
            step.advance(before, begins[number + 1] if last else states[0], inputs, token)
        back.slope.fill(0)
        for number in reversed(range(chunks)):
            first, end = number * chunk, min((number + 1) * chunk, sizes.tokens)
            np.copyto(states[0], begins[number])
            for token in range(first, end):
                place = token - first
                step.advance(states[place], states[place + 1], inputs, token)
            for token in reversed(range(first, end)):
                place = token - first
                step.decay(states[place], inputs, token)
                back.take(step, states[place + 1], inputs, outputs, token)

    return kernel


class _BackwardStep:
    """Gradient of the state that goes from token to token, and the scratch of a step."""

    def __init__(self, sizes: RecurrenceSizes) -> None:
        self.sizes = sizes
        self.slope = np.empty(sizes.state, sizes.dtype)
        self.product = np.empty(sizes.state, sizes.dtype)
        self.by_row = np.empty((*sizes.heads, sizes.key_dim, 1), sizes.dtype)
        self.row = np.empty_like(self.by_row)
        self.column = np.empty((*sizes.heads, 1, sizes.value_dim), sizes.dtype)

    def take(
        self,
        step: _Step,
        after: Array,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        token: int,
    ) -> None:
        """Write the gradients of one token's inputs, `step` holding its state before the change."""
        key = inputs[KEY][:, token]
        dy, dv = inputs[-1][:, token], outputs[VALUE][:, token][..., None, :]
        np.matmul(after, dy[..., None], out=self.row)
        np.add.reduce(self.row[..., 0], axis=2, out=outputs[QUERY][:, token])
        query = inputs[QUERY][:, token][:, :, None, :, None]
        np.add(self.slope, np.multiply(query, dy[..., None, :], out=self.product), out=self.slope)
        # The change is laid down along the key: its gradient is that of the value, times beta.
        np.matmul(key[:, :, None, None, :], self.slope, out=self.column)
        np.matmul(self.slope, np.swapaxes(step.change, -1, -2), out=self.row)
        if self.sizes.corrects:
            beta = inputs[BETA][:, token][..., None, None]
            np.multiply(self.column, step.change, out=dv)
            np.add.reduce(dv[..., 0, :], axis=-1, out=outputs[BETA][:, token])
            np.matmul(step.decayed, np.swapaxes(self.column, -1, -2), out=self.by_row)
            np.subtract(self.row, self.by_row, out=self.row)
            np.multiply(self.row, beta, out=self.row)
            np.multiply(self.column, beta, out=self.column)
            np.multiply(key[:, :, None, :, None], self.column, out=self.product)
            np.subtract(self.slope, self.product, out=self.slope)
        np.add.reduce(self.row[..., 0], axis=2, out=outputs[KEY][:, token])
        np.copyto(dv, self.column)
        np.multiply(self.slope, step.decayed, out=self.product)
        axes = -1 if self.sizes.by_row else (-2, -1)
        np.add.reduce(self.product, axis=axes, out=outputs[DECAY][:, token])
        np.multiply(self.slope, step.rate, out=self.slope)
