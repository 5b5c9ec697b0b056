"""Rules of ops that move values: rates, dtypes, dims, pieces."""

from millrace.models.gradients.products import reversed_into
from millrace.models.gradients.tape import ONE, Gradients, Tape
from millrace.models.graph import Op, Phase
from millrace.models.labels import parse, write


def repeat(tape: Tape, op: Op, dy: str) -> Gradients:
    """Added up over the step, unscaled."""
    if dy == ONE:
        dy = tape.ones(op.outputs[0], parse(op.labels).outputs[0], op)
    return tape.builder.emit(
        "accumulate",
        f"{op.name}.accumulate",
        (dy,),
        op.labels,
        block=op.block,
        phase=Phase.BACKWARD_WEIGHT,
    )


def cast(tape: Tape, op: Op, dy: str) -> Gradients:
    """A gradient added up over the step is wide already and passes as it is."""
    dtype = tape.builder.tensors[op.inputs[0]].dtype
    if dy != ONE and tape.builder.tensors[dy].dtype == dtype:
        return (dy,)
    return tape.emit(op, 0, "cast", (dy,), op.labels, dtype=dtype)


def quantise(tape: Tape, op: Op, dy: str) -> Gradients:
    """As if nothing had been rounded."""
    return (dy,)


def rearrange(tape: Tape, op: Op, dy: str) -> Gradients:
    """Rearranged back."""
    return reversed_into(tape, op, dy, "rearrange")


def narrow(tape: Tape, op: Op, dy: str) -> Gradients:
    """Put back where it came from, zeros around it."""
    return reversed_into(tape, op, dy, "widen")


def widen(tape: Tape, op: Op, dy: str) -> Gradients:
    """Only what was not added."""
    return reversed_into(tape, op, dy, "narrow")


def concat(tape: Tape, op: Op, dy: str) -> Gradients:
    """To every input its piece."""
    expression = parse(op.labels)
    (out,) = expression.outputs
    tensors = tape.builder.tensors
    start = 0
    gradients: list[str | None] = []
    for index, operand in enumerate(expression.inputs):
        (at,) = (i for i, dim in enumerate(operand) if dim != out[i])
        made: str | None = None
        if tape.wants(op.inputs[index]):
            labels = write((out,), (operand,), expression.whole)
            (made,) = tape.emit(op, index, "narrow", (dy,), labels, attributes={"start": start})
        gradients.append(made)
        start += tensors[op.inputs[index]].shape[at]
    return tuple(gradients)
