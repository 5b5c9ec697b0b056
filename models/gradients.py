"""Reverse-mode differentiation on the graph: a table of rules and the pass that applies them.

A rule adds the gradient ops of one forward op. What it makes for an activation is a
`backward_input` op, what it makes for a weight a `backward_weight` op of its own, so that a
schedule can move the second. Every use of a variable (its `repeat`) gets one `accumulate`; uses
are added up once a step, where the variable lives.

Notes
-----
Griewank and Walther, "Evaluating derivatives", 2nd ed., 2008, section 3.2 (incremental reverse
mode): gradients of a tensor with several readers are added before its producer is differentiated.
"""

from collections.abc import Callable

from models.builder import GraphBuilder
from models.errors import ModelError
from models.graph import Graph, Op, Phase, Rate
from models.labels import Operand, bind, parse, shape_of, write

ONE = "<one>"  # the gradient of the loss by itself: a constant that no op makes

Gradients = tuple[str | None, ...]


class Tape:
    """What rules need to know about the forward graph, and where they add ops.

    Parameters
    ----------
    builder : GraphBuilder
        Holds the forward ops already.
    ops : sequence of Op
        The forward ops in topological order.
    """

    def __init__(self, builder: GraphBuilder, ops: tuple[Op, ...]) -> None:
        self.builder = builder
        self._producer = {name: op for op in ops for name in op.outputs}
        self._trained: set[str] = set()  # depends on a variable
        self._data: set[str] = set()  # depends on an input
        for op in ops:
            if op.kind == "variable" or not self._trained.isdisjoint(op.inputs):
                self._trained.update(op.outputs)
            if op.kind == "input" or not self._data.isdisjoint(op.inputs):
                self._data.update(op.outputs)

    def wants(self, tensor: str) -> bool:
        """Whether a gradient of `tensor` is of any use."""
        return tensor in self._trained

    def phase(self, tensor: str) -> Phase:
        """Phase of the ops that make the gradient of `tensor`."""
        if self.builder.tensors[tensor].rate is Rate.STEP:
            return Phase.UPDATE
        return Phase.BACKWARD_INPUT if tensor in self._data else Phase.BACKWARD_WEIGHT

    def emit(
        self,
        op: Op,
        index: int,
        kind: str,
        inputs: tuple[str, ...],
        labels: str,
        *,
        suffix: str = "",
        dtype: str | None = None,
    ) -> tuple[str, ...]:
        """Add the op that makes the gradient of input `index` of `op`, in the block of `op`.

        `suffix` is its name behind that of `op`, for ops that make several inputs' gradients.
        """
        if ONE in inputs:
            raise ModelError(
                f"op `{op.name}` ({op.kind}) turns losses into the scalar loss; only `sum` of the "
                f"losses of a `cross_entropy` may"
            )
        target = self.builder.tensors[op.inputs[index]]
        expression = parse(labels)
        read = [self.builder.tensors[name].shape for name in inputs]
        first = expression.outputs[0]
        sizes = {dim[0]: n for dim, n in zip(first, target.shape, strict=True) if len(dim) == 1}
        sizes = bind(expression, read, (), sizes, op=op.name, tensors=inputs)
        return self.builder.emit(
            kind,
            f"{op.name}.{suffix or self._suffix(op, index)}",
            inputs,
            labels,
            shapes=tuple(shape_of(operand, sizes) for operand in expression.outputs),
            dtype=dtype,
            attributes=op.attributes,
            block=op.block,
            phase=self.phase(target.name),
        )

    def total(self, name: str, parts: list[tuple[Op, int, str]]) -> str | None:
        """Add up the gradients that the readers of a tensor gave it, the earliest reader last.

        The sum lies in the block of the earliest reader, or for a tensor made once a step in that
        of its producer.
        """
        if not parts:
            return None
        op, index, gradient = parts[-1]
        if len(parts) == 1:
            return gradient
        operand = parse(op.labels).inputs[index]
        owner, suffix = op, "grad_sum" if index == 0 else f"grad_sum.{index}"
        if self.builder.tensors[name].rate is Rate.STEP:
            owner, suffix = self._producer[name], "grad_sum"
        inputs = tuple(part for _, _, part in reversed(parts))
        if ONE in inputs:
            raise ModelError(
                f"`{name}` is summed into the loss, so op `{op.name}` may not read it too"
            )
        return self.builder.emit(
            "add",
            f"{owner.name}.{suffix}",
            inputs,
            write((operand,) * len(parts), (operand,)),
            block=owner.block,
            phase=self.phase(name),
        )[0]

    def _suffix(self, op: Op, index: int) -> str:
        phase = self.phase(op.inputs[index])
        alike = [n for n in op.inputs if self.wants(n) and self.phase(n) is phase]
        base = "grad_input" if phase is Phase.BACKWARD_INPUT else "grad_weight"
        return base if len(alike) == 1 else f"{base}.{index}"


Rule = Callable[[Tape, Op, str], Gradients]


def backward(builder: GraphBuilder, graph: Graph, loss: str) -> dict[str, str]:
    """Add the backward ops of `graph` and return the gradient, once a step, of every variable.

    Parameters
    ----------
    builder : GraphBuilder
        Made by `GraphBuilder.extending(graph)`.
    graph : Graph
        The forward graph.
    loss : str
        A scalar tensor that is the sum of the losses, read by nothing; the gradients are of this
        sum, over all samples of the step (not of a mean).

    Returns
    -------
    dict
        Variable to gradient, in the order of the variables.

    Raises
    ------
    ModelError
        An op on the way to the loss has no rule, or a variable does not reach the loss.
    """
    tape = Tape(builder, graph.ops)
    parts: dict[str, list[tuple[Op, int, str]]] = {}
    found: dict[str, str] = {}
    for op in reversed(graph.ops):
        totals = [tape.total(name, parts.pop(name, [])) for name in op.outputs]
        gradient = ONE if loss in op.outputs else totals[0]
        if any(total is not None for total in totals[1:]):
            raise ModelError(f"op `{op.name}`: only its first output can reach the loss")
        if gradient is None or not tape.wants(op.outputs[0]):
            continue
        if op.kind == "variable":
            found[op.outputs[0]] = gradient
            continue
        for index, part in enumerate(_rule(op)(tape, op, gradient)):
            if part is not None and tape.wants(op.inputs[index]):
                parts.setdefault(op.inputs[index], []).append((op, index, part))
    variables = [op.outputs[0] for op in graph.ops if op.kind == "variable"]
    if lost := [name for name in variables if name not in found]:
        raise ModelError(f"variable `{lost[0]}` does not reach the loss `{loss}`; remove it")
    return {name: found[name] for name in variables}


def _rule(op: Op) -> Rule:
    try:
        return RULES[op.kind]
    except KeyError:
        known = ", ".join(RULES)
        raise ModelError(
            f"op `{op.name}`: kind `{op.kind}` cannot be differentiated; these can: {known}"
        ) from None


def _matmul(tape: Tape, op: Op, dy: str) -> Gradients:
    """Each factor's gradient is dy times the other factor."""
    expression = parse(op.labels)
    (left, right), (out,), whole = expression.inputs, expression.outputs, expression.whole
    gradients: list[str | None] = [None, None]
    operands = (
        (0, (dy, op.inputs[1]), (out, right), left),
        (1, (op.inputs[0], dy), (left, out), right),
    )
    # The activation's gradient comes first: what waits for it is on the critical path.
    for index, inputs, read, made in sorted(
        operands, key=lambda entry: tape.phase(op.inputs[entry[0]]) is not Phase.BACKWARD_INPUT
    ):
        if not tape.wants(op.inputs[index]):
            continue
        if missing := set(sum(made, ())) - set(sum(sum(read, ()), ())):
            raise ModelError(
                f"op `{op.name}`, tensor `{op.inputs[index]}`: label `{min(missing)}` is summed "
                f"over alone, which has no gradient rule; apply `sum` before the matmul"
            )
        (gradients[index],) = tape.emit(op, index, "matmul", inputs, write(read, (made,), whole))
    return tuple(gradients)


def _add(tape: Tape, op: Op, dy: str) -> Gradients:
    """The same, summed over the dims along which an input was broadcast."""
    expression = parse(op.labels)
    (out,) = expression.outputs
    return tuple(
        _summed(tape, op, index, dy, out, operand, expression.whole)
        if tape.wants(op.inputs[index])
        else None
        for index, operand in enumerate(expression.inputs)
    )


def _summed(
    tape: Tape, op: Op, index: int, dy: str, out: Operand, operand: Operand, whole: frozenset[str]
) -> str:
    if operand == out:
        return dy
    kind = "rearrange" if set(sum(operand, ())) == set(sum(out, ())) else "sum"
    return tape.emit(op, index, kind, (dy,), write((out,), (operand,), whole))[0]


def _sum(tape: Tape, op: Op, dy: str) -> Gradients:
    if dy != ONE:
        raise ModelError(
            f"op `{op.name}`: a `sum` that is not the loss has no gradient rule; use a matmul"
        )
    return (ONE,)


def _reversed(tape: Tape, op: Op, dy: str) -> Gradients:
    """The same kind with input and output exchanged."""
    expression = parse(op.labels)
    labels = write(expression.outputs, expression.inputs, expression.whole)
    kind = {"rearrange": "rearrange", "slice_rows": "pad_rows", "pad_rows": "slice_rows"}[op.kind]
    return tape.emit(op, 0, kind, (dy,), labels)


def _repeat(tape: Tape, op: Op, dy: str) -> Gradients:
    return tape.builder.emit(
        "accumulate",
        f"{op.name}.accumulate",
        (dy,),
        op.labels,
        block=op.block,
        phase=Phase.BACKWARD_WEIGHT,
    )


def _cast(tape: Tape, op: Op, dy: str) -> Gradients:
    """A gradient added up over the step is wide already and passes as it is."""
    dtype = tape.builder.tensors[op.inputs[0]].dtype
    if tape.builder.tensors[dy].dtype == dtype:
        return (dy,)
    return tape.emit(op, 0, "cast", (dy,), op.labels, dtype=dtype)


def _pointwise(tape: Tape, op: Op, dy: str) -> Gradients:
    """`<kind>_grad` of x and dy."""
    expression = parse(op.labels)
    (x,) = expression.inputs
    labels = write((x, x), (x,), expression.whole)
    return tape.emit(op, 0, f"{op.kind}_grad", (op.inputs[0], dy), labels)


def _layer_norm(tape: Tape, op: Op, dy: str) -> Gradients:
    """Two ops: the input's gradient needs rows whole, the weights' gradients do not."""
    expression = parse(op.labels)
    (x, gamma, beta), (_, mean, rstd) = expression.inputs, expression.outputs
    _, mean_name, rstd_name = op.outputs
    dx: str | None = None
    if tape.wants(op.inputs[0]):
        labels = write((x, x, gamma, mean, rstd), (x,), expression.whole)
        read = (dy, *op.inputs[:2], mean_name, rstd_name)
        (dx,) = tape.emit(op, 0, "layer_norm_grad_input", read, labels)
    if not (tape.wants(op.inputs[1]) or tape.wants(op.inputs[2])):
        return dx, None, None
    labels = write((x, x, mean, rstd), (gamma, beta))
    made = tape.emit(
        op,
        1,
        "layer_norm_grad_weight",
        (dy, op.inputs[0], mean_name, rstd_name),
        labels,
        suffix="grad_weight",
    )
    return dx, *made


def _embedding(tape: Tape, op: Op, dy: str) -> Gradients:
    expression = parse(op.labels)
    (ids, table), (out,) = expression.inputs, expression.outputs
    labels = write((ids, out), (table,), expression.whole)
    return None, *tape.emit(op, 1, "embedding_grad", (op.inputs[0], dy), labels)


def _attention(tape: Tape, op: Op, dy: str) -> Gradients:
    expression = parse(op.labels)
    queries_keys_values, outputs = expression.inputs, expression.outputs
    read = (*queries_keys_values, *outputs, outputs[0])
    labels = write(read, queries_keys_values, expression.whole)
    inputs = (*op.inputs, *op.outputs, dy)
    return tape.emit(op, 0, "attention_grad", inputs, labels, suffix="grad_input")


def _cross_entropy(tape: Tape, op: Op, dy: str) -> Gradients:
    if dy != ONE:
        raise ModelError(
            f"op `{op.name}`: `{op.outputs[0]}` is not summed straight into the loss; apply one "
            f"`sum` to it and nothing else"
        )
    (logits, targets), (_, logsumexp) = parse(op.labels).inputs, parse(op.labels).outputs
    labels = write((logits, targets, logsumexp), (logits,))
    return *tape.emit(op, 0, "cross_entropy_grad", (*op.inputs, op.outputs[1]), labels), None


RULES: dict[str, Rule] = {
    "repeat": _repeat,
    "cast": _cast,
    "rearrange": _reversed,
    "slice_rows": _reversed,
    "pad_rows": _reversed,
    "matmul": _matmul,
    "add": _add,
    "sum": _sum,
    "relu": _pointwise,
    "gelu": _pointwise,
    "layer_norm": _layer_norm,
    "embedding": _embedding,
    "attention": _attention,
    "cross_entropy": _cross_entropy,
}
