"""Data movement: gradient rules of ops that move values (rates, dtypes, dims, pieces)."""

from millrace.models.gradients.linear import transpose_rule
from millrace.models.gradients.tape import UNIT_GRADIENT, Gradients, Tape
from millrace.models.graph import Op, Phase
from millrace.models.labels import parse, write


def repeat(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `repeat`: dy added up over the step, unscaled."""
    if dy == UNIT_GRADIENT:
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
    """Gradient of `cast`: dy in the input's dtype, which a sum over the step has already."""
    dtype = tape.builder.tensors[op.inputs[0]].dtype
    if dy != UNIT_GRADIENT and tape.builder.tensors[dy].dtype == dtype:
        return (dy,)
    return tape.emit(op, 0, "cast", (dy,), op.labels, dtype=dtype)


def quantise(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `quantise`: dy unchanged (straight-through estimator)."""
    return (dy,)


def rearrange(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `rearrange`: dy rearranged back."""
    return transpose_rule(tape, op, dy, "rearrange")


def narrow(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `narrow`: dy put back where it came from, zeros around it."""
    return transpose_rule(tape, op, dy, "widen")


def widen(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `widen`: the part of dy that was not added."""
    return transpose_rule(tape, op, dy, "narrow")


def concat(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradients of `concat`: to every input its piece of dy."""
    expression = parse(op.labels)
    (out,) = expression.outputs
    tensors = tape.builder.tensors
    start = 0
    gradients: list[str | None] = []
    for index, operand in enumerate(expression.inputs):
        (concat_dim,) = (i for i, dim in enumerate(operand) if dim != out[i])
        gradient: str | None = None
        if tape.requires_grad(op.inputs[index]):
            labels = write((out,), (operand,), expression.whole_labels)
            (gradient,) = tape.emit(op, index, "narrow", (dy,), labels, attributes={"start": start})
        gradients.append(gradient)
        start += tensors[op.inputs[index]].shape[concat_dim]
    return tuple(gradients)
