"""Linear and elementwise ops: gradient rules of products, sums, softmax, functions and losses."""

from millrace.models.errors import ModelError
from millrace.models.fp8 import ARITHMETIC, quantised
from millrace.models.gradients.tape import UNIT_GRADIENT, Gradients, Tape
from millrace.models.graph import Op, Phase
from millrace.models.labels import Operand, parse, write
from millrace.models.ops.pointwise_ops import SLOPE_OF_RESULT


def matmul(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradients of `matmul` and `mul`: each factor's is dy times the other factor.

    Of a product in 8 bits these are such products too, and read dy in 8 bits.
    """
    expression = parse(op.labels)
    (left, right), (out,), whole_labels = (
        expression.inputs,
        expression.outputs,
        expression.whole_labels,
    )
    dtype: str | None = None
    if ARITHMETIC in op.attributes:
        dtype = tape.builder.tensors[op.outputs[0]].dtype
        dy = quantised(tape.builder, dy, op, out, phase=tape.phase(op.outputs[0]))
    gradients: list[str | None] = [None, None]
    operands = (
        (0, (dy, op.inputs[1]), (out, right), left),
        (1, (op.inputs[0], dy), (left, out), right),
    )
    # The activation's gradient comes first: what waits for it is on the critical path.
    for index, inputs, read, factor in sorted(
        operands, key=lambda entry: tape.phase(op.inputs[entry[0]]) is not Phase.BACKWARD_INPUT
    ):
        if not tape.requires_grad(op.inputs[index]):
            continue
        if missing := set(sum(factor, ())) - set(sum(sum(read, ()), ())):
            raise ModelError(
                f"op `{op.name}`, tensor `{op.inputs[index]}`: label `{min(missing)}` is summed "
                f"over alone, which has no gradient rule; apply `sum` before the {op.kind}"
            )
        labels = write(read, (factor,), whole_labels)
        (gradients[index],) = tape.emit(op, index, op.kind, inputs, labels, dtype=dtype)
    return tuple(gradients)


def add(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradients of `add`: dy, summed over the dims along which an input was broadcast."""
    expression = parse(op.labels)
    (out,) = expression.outputs
    return tuple(
        _summed(tape, op, index, dy, out, operand, expression.whole_labels)
        if tape.requires_grad(op.inputs[index])
        else None
        for index, operand in enumerate(expression.inputs)
    )


def _summed(
    tape: Tape,
    op: Op,
    index: int,
    dy: str,
    out: Operand,
    operand: Operand,
    whole_labels: frozenset[str],
) -> str:
    if operand == out:
        return dy
    kind = "rearrange" if set(sum(operand, ())) == set(sum(out, ())) else "sum"
    return tape.emit(op, index, kind, (dy,), write((out,), (operand,), whole_labels))[0]


def sum_(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `sum`: dy for every summand."""
    if dy == UNIT_GRADIENT:
        return (UNIT_GRADIENT,)
    return transpose_rule(tape, op, dy, "broadcast")


def broadcast(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `broadcast`: dy summed over the new dims."""
    return transpose_rule(tape, op, dy, "sum")


def transpose_rule(tape: Tape, op: Op, dy: str, kind: str) -> Gradients:
    """Gradient by an op of kind `kind`, whose input and output are exchanged."""
    expression = parse(op.labels)
    labels = write(expression.outputs, expression.inputs, expression.whole_labels)
    return tape.emit(op, 0, kind, (dy,), labels)


def scale(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `scale`: dy scaled alike."""
    return tape.emit(op, 0, "scale", (dy,), op.labels)


def shift(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `shift`: dy unchanged."""
    return (dy,)


def pointwise(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of a pointwise op: `<kind>_grad` of x and dy.

    It is of y and dy where the slope at y is that at x: what reads the function's result next keeps
    y for a gradient of its own, so that x need not be kept. What a block hands on is kept for the
    next one, and stays out of its own gradients.
    """
    expression = parse(op.labels)
    (x,) = expression.inputs
    labels = write((x, x), (x,), expression.whole_labels)
    result = op.kind in SLOPE_OF_RESULT and tape.is_block_local(op.outputs[0])
    slope_tensor = op.outputs[0] if result else op.inputs[0]
    return tape.emit(op, 0, f"{op.kind}_grad", (slope_tensor, dy), labels)


def swiglu(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradients of either form of `swiglu`: those of both factors, from one op."""
    expression = parse(op.labels)
    (gate, up), (out,) = expression.inputs, expression.outputs
    labels = write((gate, up, out), (gate, up), expression.whole_labels)
    return tape.emit(op, 0, f"{op.kind}_grad", (*op.inputs, dy), labels, suffix="grad_input")


def prelu(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradients of `prelu`: those of x and slope, from one op."""
    expression = parse(op.labels)
    (x, slope), (out,) = expression.inputs, expression.outputs
    labels = write((x, slope, out), (x, slope), expression.whole_labels)
    return tape.emit(op, 0, "prelu_grad", (*op.inputs, dy), labels, suffix="grad_input")


def dropout(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `dropout`: dy with the same bits, which follow from the forward op's name."""
    return tape.emit(op, 0, "dropout", (dy,), op.labels)


def softmax(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `softmax`, from the probabilities, not the scores."""
    expression = parse(op.labels)
    (y,) = expression.outputs
    labels = write((y, y), expression.inputs, expression.whole_labels)
    return tape.emit(op, 0, "softmax_grad", (op.outputs[0], dy), labels)


def cross_entropy(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `cross_entropy`: of the losses' sum, times dy where more than the sum is made."""
    expression = parse(op.labels)
    (logits, targets), (_, logsumexp) = expression.inputs, expression.outputs
    labels = write((logits, targets, logsumexp), (logits,))
    return *_of_losses(tape, op, dy, (*op.inputs, op.outputs[1]), labels), None


def logistic_loss(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `logistic_loss`, made as that of `cross_entropy`."""
    expression = parse(op.labels)
    labels = write(expression.inputs, (expression.inputs[0],), expression.whole_labels)
    return *_of_losses(tape, op, dy, op.inputs, labels), None


def _of_losses(
    tape: Tape, op: Op, dy: str, inputs: tuple[str, ...], labels: str
) -> tuple[str, ...]:
    kind = f"{op.kind}_grad"
    if dy == UNIT_GRADIENT:
        return tape.emit(op, 0, kind, inputs, labels, attributes=tape.loss_scaled(op.attributes))
    (sum_gradient,) = tape.emit(op, 0, kind, inputs, labels, suffix="grad_sum_input")
    (logits,), (losses, *_) = parse(labels).outputs, parse(op.labels).outputs
    return tape.emit(op, 0, "mul", (sum_gradient, dy), write((logits, losses), (logits,)))


def arc_margin(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `arc_margin` for the cosines; the targets have none."""
    expression = parse(op.labels)
    (cosine, targets), (out,) = expression.inputs, expression.outputs
    labels = write((cosine, targets, out), (cosine,), expression.whole_labels)
    return *tape.emit(op, 0, "arc_margin_grad", (*op.inputs, dy), labels), None
