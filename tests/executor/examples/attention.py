"""Examples of attention: heads g r in groups that share keys, or plain heads h (where r is 1)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from millrace.executor.kernels.context import Array
from tests.executor.examples.example import Example

Attributes = dict[str, int | float | str | bool]


def slope(head: int, heads: int, alibi: float) -> float:
    """Slope of one head: the next power of two from `heads` on decides, odd places come first."""
    power = 1
    while power < heads:
        power *= 2
    place = head
    if power != heads:
        place = 2 * head + 1 if 2 * head < power else 2 * head - power
    return float(2 ** (-alibi * (place + 1) / power))


def hidden(queries: int, keys: int, attributes: Attributes) -> Array:
    """Mask [t, s] of the keys that a query does not see."""
    distance = np.arange(queries)[:, None] - np.arange(keys)[None, :]
    window = attributes.get("window", 0)
    mask = np.zeros(distance.shape, bool)
    if window:
        mask |= abs(distance) >= window
    if attributes["causal"]:
        mask |= distance < 0
    return mask


def probabilities(
    q: Array, k: Array, attributes: Attributes, bias: Array | None
) -> tuple[Array, Array]:
    """Softmax [b, g, r, t, s] and its logsumexp [b, t, g, r]."""
    scores = attributes["scale"] * np.einsum("btgrd,bsgd->bgrts", q, k)
    _, _, groups, repeats, _ = q.shape
    distance = np.arange(q.shape[1])[:, None] - np.arange(k.shape[1])[None, :]
    for g in range(groups):
        for r in range(repeats):
            if alibi := attributes.get("alibi", 0.0):
                scores[:, g, r] -= slope(g * repeats + r, groups * repeats, alibi) * np.abs(
                    distance
                )
    if bias is not None:
        scores = scores + bias
    weights = np.exp(np.where(hidden(*distance.shape, attributes), -np.inf, scores))
    total = weights.sum(-1, keepdims=True)
    return weights / total, np.log(total[..., 0]).transpose(0, 3, 1, 2)


@dataclass(frozen=True, kw_only=True)
class Form:
    """One form of attention; `bias` are the labels of what is added to the scores, if anything."""

    attributes: Attributes
    grouped: bool = False
    bias: str = ""

    def spread_bias(self, bias: Array) -> Array:
        """Bias as [b, g, r, t, s], where "h" counts as g."""
        labels = self.bias.replace("h", "g").split()
        shape = iter(bias.shape)
        return bias.reshape([next(shape) if label in labels else 1 for label in "bgrts"])

    def apart(self, array: Array) -> Array:
        """Plain heads as groups of one."""
        return array if self.grouped else array[:, :, :, None]

    def weights(self, q: Array, k: Array, *bias: Array) -> tuple[Array, Array]:
        spread = self.spread_bias(bias[0]) if bias else None
        return probabilities(self.apart(q), k, self.attributes, spread)

    def forward(self, q: Array, k: Array, v: Array, *bias: Array) -> tuple[Array, ...]:
        weights, logsumexp = self.weights(q, k, *bias)
        out = np.einsum("bgrts,bsgu->btgru", weights, v)
        return out.reshape(*q.shape[:-1], -1), logsumexp.reshape(q.shape[:-1])

    def backward(self, q: Array, k: Array, v: Array, *rest: Array) -> tuple[Array, ...]:
        """Gradients by the softmax's Jacobian, out of q, k, v, bias and dout alone."""
        *bias, _, _, dout = rest
        weights, _ = self.weights(q, k, *bias)
        dout = self.apart(dout)
        dweights = np.einsum("btgru,bsgu->bgrts", dout, v)
        # the Jacobian of a row is diag(w) - w wᵀ
        along = np.einsum("bgrtj,bgrtj->bgrt", weights, dweights)
        dscores = weights * dweights - np.einsum("bgrti,bgrt->bgrti", weights, along)
        scale = self.attributes["scale"]
        gradients = (
            scale * np.einsum("bgrts,bsgd->btgrd", dscores, k).reshape(q.shape),
            scale * np.einsum("bgrts,btgrd->bsgd", dscores, self.apart(q)),
            np.einsum("bgrts,btgru->bsgu", weights, dout),
        )
        if not bias:
            return gradients
        bias_labels = self.bias.replace("h", "g").replace(" ", "")
        return *gradients, np.einsum(f"bgrts->{bias_labels}", dscores).reshape(bias[0].shape)

    def derive(self, *inputs: Array) -> tuple[Array, ...]:
        """Make `out` and `logsumexp` those of q, k, v and bias."""
        given = inputs[: 4 if self.bias else 3]
        return *given, *self.forward(*given), inputs[-1]

    def forward_round(self, *inputs: Array) -> tuple[Array, ...]:
        """Output and logsumexp, joined by the sums of exponentials that either stands for."""
        *given, before, logsumexp = inputs
        out, own_logsumexp = self.forward(*given)
        own_sums, other_sums = np.exp(own_logsumexp), np.exp(logsumexp)
        joined = (own_sums[..., None] * out + other_sums[..., None] * before) / (
            own_sums + other_sums
        )[..., None]
        return joined, np.log(own_sums + other_sums)

    def backward_round(self, *inputs: Array) -> tuple[Array, ...]:
        """Gradients of q, k and v; what others gave for the queries is added."""
        *given, before = inputs
        query, key, value = self.backward(*given)
        return query + before, key, value

    def derive_round(self, *inputs: Array) -> tuple[Array, ...]:
        """Make `out` and `logsumexp` those of q, k and v."""
        return *self.derive(*inputs[:-1]), inputs[-1]

    @property
    def labels(self) -> tuple[str, str]:
        """Labels of the op and of its gradient."""
        heads, group = ("g r", "g") if self.grouped else ("h", "h")
        value = "u" if self.grouped else "d"
        bias_labels = " ".join(f"{x}!" if x == "s" else x for x in self.bias.split())
        given = f"b t {heads} d!, b s! {group} d!, b s! {group} {value}!"
        given += f", {bias_labels}" if bias_labels else ""
        out = f"b t {heads} {value}!"
        return (
            f"{given} -> {out}, b t {heads}",
            f"{given}, {out}, b t {heads}, {out} -> {given}",
        )


_GROUPED = {"g": 3, "r": 2, "u": 6}  # six heads: not a power of two
_LONG = {"b": 2, "t": 144, "s": 144, "h": 2, "d": 4}  # more than two blocks of queries
_LARGE = {"b": 8, "t": 256, "s": 256, "h": 4, "d": 64, "g": 2, "r": 2, "u": 64}


def _both(form: Form, sizes: dict[str, int]) -> Iterator[Example]:
    """Examples of the op and of its gradient."""
    forward, backward = form.labels
    kind = "biased_attention" if form.bias else "attention"
    # what a firing takes is the same whatever is masked
    large = {} if sizes.get("t", 0) > 64 else _LARGE
    yield Example(
        kind=kind, labels=forward, formula=form.forward, attributes=form.attributes, sizes=sizes,
        large=large,
    )  # fmt: skip
    yield Example(
        kind=f"{kind}_grad", labels=backward, formula=form.backward, derive=form.derive,
        attributes=form.attributes, sizes=sizes, large=large,
    )  # fmt: skip


def _rounds(form: Form, sizes: dict[str, int]) -> Iterator[Example]:
    """Examples of a round of a ring and its gradient, of a device that has the only block."""
    forward, backward = form.labels
    given, output = forward.split(" -> ")
    yield Example(
        kind="attention_round", labels=f"{given}, {output} -> {output}", formula=form.forward_round,
        attributes=form.attributes, sizes=sizes, large=_LARGE,
    )  # fmt: skip
    given, output = backward.split(" -> ")
    yield Example(
        kind="attention_grad_round", labels=f"{given}, {output.split(',')[0]} -> {output}",
        formula=form.backward_round, derive=form.derive_round, attributes=form.attributes,
        sizes=sizes, large=_LARGE,
    )  # fmt: skip


def _softmaxes(attributes: Attributes, sizes: dict[str, int]) -> Iterator[Example]:
    """Examples of probabilities out of scores, and of their gradient."""

    def weights(x: Array) -> Array:
        scores = attributes["scale"] * x
        _, groups, repeats, queries, keys = x.shape
        distance = abs(np.arange(queries)[:, None] - np.arange(keys)[None, :])
        for head in range(groups * repeats) if "alibi" in attributes else ():
            fall = slope(head, groups * repeats, float(attributes["alibi"]))
            scores[:, head // repeats, head % repeats] -= fall * distance
        exponentials = np.exp(np.where(hidden(queries, keys, attributes), -np.inf, scores))
        return np.asarray(exponentials / exponentials.sum(-1, keepdims=True))

    def gradient(y: Array, dy: Array) -> Array:
        jacobian = y[..., :, None] * (np.eye(y.shape[-1]) - y[..., None, :])
        return np.asarray(attributes["scale"] * np.einsum("...i,...ij->...j", dy, jacobian))

    form = "b g r t s!"
    yield Example(
        kind="masked_softmax", labels=f"{form} -> {form}", formula=weights, attributes=attributes,
        sizes=sizes,
    )  # fmt: skip
    yield Example(
        kind="masked_softmax_grad", labels=f"{form}, {form} -> {form}", formula=gradient,
        derive=lambda y, dy: (weights(y), dy), attributes={"scale": attributes["scale"]},
        sizes=sizes,
    )  # fmt: skip


def _examples() -> Iterator[Example]:
    plain: Attributes = {"causal": False, "scale": 0.5}
    for causal in (True, False):
        here = plain | {"causal": causal}
        everything = here | {"window": 70, "alibi": 8.0}
        yield from _both(Form(attributes=here), {})
        yield from _both(Form(attributes=here), _LONG)
        yield from _both(Form(attributes=here | {"window": 3}), {})
        yield from _both(Form(attributes=everything, grouped=True), _LONG | _GROUPED)
        yield from _rounds(Form(attributes=here), {})
        yield from _softmaxes(here, _GROUPED)
        yield from _softmaxes(here | {"window": 3, "alibi": 8.0}, _GROUPED)
        yield from _rounds(Form(attributes=here, grouped=True), _GROUPED)
    yield from _both(Form(attributes=plain, grouped=True), _GROUPED)
    yield from _both(Form(attributes=here | {"alibi": 8.0}), {})
    yield from _both(Form(attributes=plain | {"causal": True}, bias="h t s"), {})
    yield from _both(Form(attributes=plain, bias="b s"), {})
    yield from _both(Form(attributes=plain, bias="b g r t s", grouped=True), _GROUPED)
    yield from _both(Form(attributes=plain, bias="r s", grouped=True), _LONG | _GROUPED)


EXAMPLES = tuple(_examples())
