"""Examples of attention: heads g r in groups that share keys, or plain heads h (where r is 1)."""

from collections.abc import Iterator
from dataclasses import dataclass

from millrace.executor.kernels.context import Array
from tests.executor.examples.example import Example
from tests.models.oracle import evaluate

Attributes = dict[str, int | float | str | bool]


@dataclass(frozen=True, kw_only=True)
class Form:
    """One form of attention; `bias` are the labels of what is added to the scores, if anything."""

    attributes: Attributes
    grouped: bool = False
    bias: str = ""

    @property
    def kind(self) -> str:
        return "biased_attention" if self.bias else "attention"

    def forward(self, *inputs: Array) -> tuple[Array, ...]:
        """Output and logsumexp."""
        return evaluate(self.kind, self.labels[0], inputs, attributes=self.attributes)

    def backward(self, *inputs: Array) -> tuple[Array, ...]:
        """Gradients of q, k, v and bias, out of these, output, logsumexp and dout."""
        return evaluate(f"{self.kind}_grad", self.labels[1], inputs, attributes=self.attributes)

    def derive(self, *inputs: Array) -> tuple[Array, ...]:
        """Make `out` and `logsumexp` those of q, k, v and bias."""
        given = inputs[: 4 if self.bias else 3]
        return *given, *self.forward(*given), *inputs[len(given) + 2 :]

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


def both(form: Form, sizes: dict[str, int]) -> Iterator[Example]:
    """Examples of the op and of its gradient."""
    forward, backward = form.labels
    # what a firing takes is the same whatever is masked
    large = {} if sizes.get("t", 0) > 64 else _LARGE
    yield Example(
        kind=form.kind, labels=forward, attributes=form.attributes, sizes=sizes, large=large
    )
    yield Example(
        kind=f"{form.kind}_grad", labels=backward, derive=form.derive, attributes=form.attributes,
        sizes=sizes, large=large,
    )  # fmt: skip


def _rounds(form: Form, sizes: dict[str, int]) -> Iterator[Example]:
    """Examples of a round of a ring and its gradient, of a device that has the only block."""
    forward, backward = form.labels
    given, output = forward.split(" -> ")
    yield Example(
        kind="attention_round", labels=f"{given}, {output} -> {output}", sizes=sizes, large=_LARGE,
        attributes=form.attributes,
    )  # fmt: skip
    given, output = backward.split(" -> ")
    yield Example(
        kind="attention_grad_round", labels=f"{given}, {output.split(',')[0]} -> {output}",
        derive=form.derive, attributes=form.attributes, sizes=sizes, large=_LARGE,
    )  # fmt: skip


def _softmaxes(attributes: Attributes, sizes: dict[str, int]) -> Iterator[Example]:
    """Examples of probabilities out of scores, and of their gradient."""
    form = "b g r t s!"
    labels = f"{form} -> {form}"
    yield Example(kind="masked_softmax", labels=labels, attributes=attributes, sizes=sizes)
    yield Example(
        kind="masked_softmax_grad", labels=f"{form}, {labels}", sizes=sizes,
        derive=lambda y, dy: (*evaluate("masked_softmax", labels, [y], (), attributes), dy),
        attributes={"scale": attributes["scale"]},
    )  # fmt: skip


def _sinks(heads: str, sizes: dict[str, int]) -> Iterator[Example]:
    """Examples of sinks of heads: after attention, and in a softmax of scores."""
    outs, form = f"b t {heads} u, b t {heads}", f"b {heads} t s!"
    plain, softmax = f"{form} -> {form}", f"{form}, {heads} -> {form}"
    attributes: Attributes = {"causal": True, "scale": 0.5, "window": 3}

    def derive(y: Array, dy: Array) -> tuple[Array, Array]:
        return 0.7 * evaluate("masked_softmax", plain, [y], (), attributes)[0], dy

    yield Example(kind="attention_sink", labels=f"{outs}, {heads} -> {outs}", sizes=sizes)
    labels = f"{outs}, {heads}, b t {heads} u -> {heads}"
    yield Example(kind="attention_sink_grad", labels=labels, sizes=sizes)
    yield Example(kind="masked_softmax", labels=softmax, attributes=attributes, sizes=sizes)
    labels = f"{form}, {form} -> {heads}"
    yield Example(kind="masked_softmax_grad_sink", labels=labels, derive=derive, sizes=sizes)


def _examples() -> Iterator[Example]:
    plain: Attributes = {"causal": False, "scale": 0.5}
    for causal in (True, False):
        here = plain | {"causal": causal}
        everything = here | {"window": 70, "alibi": 8.0, "cap": 0.5}
        yield from both(Form(attributes=here), {})
        yield from both(Form(attributes=here), _LONG)
        yield from both(Form(attributes=here | {"window": 3, "cap": 0.7}), {})
        yield from both(Form(attributes=everything, grouped=True), _LONG | _GROUPED)
        yield from _rounds(Form(attributes=here), {})
        yield from _softmaxes(here, _GROUPED)
        yield from _softmaxes(here | {"window": 3, "alibi": 8.0}, _GROUPED)
        yield from _rounds(Form(attributes=here, grouped=True), _GROUPED)
    yield from both(Form(attributes=plain, grouped=True), _GROUPED)
    yield from (*_sinks("g r", _GROUPED), *_sinks("h", {"u": 6}))
    yield from both(Form(attributes=here | {"alibi": 8.0}), {})
    yield from both(Form(attributes=plain | {"causal": True}, bias="h t s"), {})
    yield from both(Form(attributes=plain | {"cap": 0.5}, bias="b s"), {})
    yield from both(Form(attributes=plain, bias="b g r t s", grouped=True), _GROUPED)
    yield from both(Form(attributes=plain, bias="r s", grouped=True), _LONG | _GROUPED)


EXAMPLES = tuple(_examples())
