"""Causal convolution, the state-space scan and the delta rule, and their gradients.

Forward a token at a time, from the definitions. Gradients are those of the definition written out
for all pairs of tokens where that is linear (convolution), and else by the adjoint of every step,
with every state held.
"""

import numpy as np

from millrace.models.labels import SEQUENCE
from tests.models.oracle.call import Array, Call, Definition


def _shifts(call: Call, labels: tuple[str, ...], taps: str) -> Array:
    """One where a query token, a token that it reads and a tap belong together: [t, s, k]."""
    tokens, count = np.arange(call.sizes[SEQUENCE]), call.sizes[taps]
    distance = tokens[:, None] - tokens[None, :]
    return (distance[..., None] == count - 1 - np.arange(count)).astype(float)


def _with_source(labels: tuple[str, ...]) -> tuple[str, ...]:
    return tuple("source" if label == SEQUENCE else label for label in labels)


def causal_conv1d(call: Call, x: Array, w: Array) -> Array:
    labels, weight = call.labels_in(0), call.labels_in(1)
    return _convolved(call, x, _with_source(labels), w, weight, labels, weight[-1])


def causal_conv1d_grad_input(call: Call, dy: Array, w: Array) -> Array:
    labels, weight = call.labels_in(0), call.labels_in(1)
    return _convolved(call, dy, labels, w, weight, _with_source(labels), weight[-1])


def causal_conv1d_grad_weight(call: Call, x: Array, dy: Array) -> Array:
    labels, weight = call.labels_in(0), call.labels_out()
    return _convolved(call, x, _with_source(labels), dy, labels, weight, weight[-1])


def _convolved(
    call: Call, x: Array, x_labels: tuple[str, ...], w: Array, w_labels: tuple[str, ...],
    out: tuple[str, ...], taps: str,
) -> Array:  # fmt: skip
    sizes = {**call.sizes, "source": call.sizes[SEQUENCE]}
    wide = Call(expression=call.expression, sizes=sizes, attributes=call.attributes)
    shifts = _shifts(call, x_labels, taps)
    return wide.einsum([(x, x_labels), (w, w_labels), (shifts, (SEQUENCE, "source", taps))], out)


def _rates(value: Array, decay: Array) -> Array:
    """exp(decay) as [b, t, g, r, n or 1, 1]."""
    return np.exp(decay if decay.ndim == value.ndim else decay[..., None])[..., None]


def _states(inputs: tuple[Array, ...]) -> tuple[list[Array], list[Array], Array]:
    """States after every token, the same before the token's change, and the results."""
    query, key, value, decay, *rest = inputs
    rates = _rates(value, decay)
    state = np.zeros((*np.delete(value.shape[:-1], 1), key.shape[-1], value.shape[-1]))
    states, decayed, results = [], [], []
    for t in range(value.shape[1]):
        decayed.append(rates[:, t] * state)
        change = value[:, t]
        if rest:
            seen = np.einsum("bgn,bgrnp->bgrp", key[:, t], decayed[-1])
            change = rest[0][:, t][..., None] * (change - seen)
        state = decayed[-1] + np.einsum("bgn,bgrp->bgrnp", key[:, t], change)
        states.append(state)
        results.append(np.einsum("bgn,bgrnp->bgrp", query[:, t], state))
    return states, decayed, np.stack(results, 1)


def recurrence(call: Call, *inputs: Array) -> Array:
    return _states(inputs)[2]


def recurrence_grad(call: Call, *inputs: Array) -> tuple[Array, ...]:
    *given, dy = inputs
    query, key, value, decay, *rest = given
    states, decayed, _ = _states(tuple(given))
    rates, gradients = _rates(value, decay), tuple(np.zeros(x.shape) for x in given)
    carried = np.zeros(states[0].shape)
    for t in reversed(range(value.shape[1])):
        gradients[0][:, t] = np.einsum("bgrnp,bgrp->bgn", states[t], dy[:, t])
        slope = carried + np.einsum("bgn,bgrp->bgrnp", query[:, t], dy[:, t])
        along = np.einsum("bgn,bgrnp->bgrp", key[:, t], slope)  # of what is laid along the key
        change = value[:, t]
        if rest:
            beta = rest[0][:, t][..., None]
            seen = np.einsum("bgn,bgrnp->bgrp", key[:, t], decayed[t])
            gradients[4][:, t] = np.einsum("bgrp,bgrp->bgr", along, value[:, t] - seen)
            change, along = beta * (value[:, t] - seen), beta * along
            gradients[1][:, t] -= np.einsum("bgrnp,bgrp->bgn", decayed[t], along)
        gradients[1][:, t] += np.einsum("bgrnp,bgrp->bgn", slope, change)
        gradients[2][:, t] = along
        if rest:
            slope = slope - np.einsum("bgn,bgrp->bgrnp", key[:, t], along)
        by_row = (slope * decayed[t]).sum(-1)
        gradients[3][:, t] = by_row if decay.ndim == value.ndim else by_row.sum(-1)
        carried = rates[:, t] * slope
    return gradients


RECURRENCES: dict[str, Definition] = {
    "causal_conv1d": causal_conv1d,
    "causal_conv1d_grad_input": causal_conv1d_grad_input,
    "causal_conv1d_grad_weight": causal_conv1d_grad_weight,
    "state_space_scan": recurrence,
    "state_space_scan_grad": recurrence_grad,
    "delta_rule": recurrence,
    "delta_rule_grad": recurrence_grad,
}
