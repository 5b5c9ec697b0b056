"""Layer gradients: rules of norms, embeddings, attention, recurrences, images and experts."""

from millrace.models.errors import ModelError
from millrace.models.fp8 import ARITHMETIC, quantised
from millrace.models.gradients.tape import Gradients, Tape
from millrace.models.graph import Op
from millrace.models.labels import parse, write


def layer_norm(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradients of `layer_norm`: one op for the input, which needs whole rows, one for weights."""
    expression = parse(op.labels)
    (x, gamma, beta), (_, mean, rstd) = expression.inputs, expression.outputs
    _, mean_name, rstd_name = op.outputs
    dx: str | None = None
    if tape.requires_grad(op.inputs[0]):
        labels = write((x, x, gamma, mean, rstd), (x,), expression.whole_labels)
        read = (dy, *op.inputs[:2], mean_name, rstd_name)
        (dx,) = tape.emit(op, 0, "layer_norm_grad_input", read, labels)
    if not (tape.requires_grad(op.inputs[1]) or tape.requires_grad(op.inputs[2])):
        return dx, None, None
    labels = write((x, x, mean, rstd), (gamma, beta))
    weight_gradients = tape.emit(
        op,
        1,
        "layer_norm_grad_weight",
        (dy, op.inputs[0], mean_name, rstd_name),
        labels,
        suffix="grad_weight",
    )
    return dx, *weight_gradients


def rms_norm(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradients of `rms_norm`: as those of `layer_norm`, with no mean."""
    expression = parse(op.labels)
    (x, gamma), (_, rstd) = expression.inputs, expression.outputs
    dx: str | None = None
    if tape.requires_grad(op.inputs[0]):
        labels = write((x, x, gamma, rstd), (x,), expression.whole_labels)
        read = (dy, *op.inputs, op.outputs[1])
        (dx,) = tape.emit(op, 0, "rms_norm_grad_input", read, labels)
    if not tape.requires_grad(op.inputs[1]):
        return dx, None
    labels = write((x, x, rstd), (gamma,))
    read = (dy, op.inputs[0], op.outputs[1])
    return dx, *tape.emit(op, 1, "rms_norm_grad_weight", read, labels, suffix="grad_weight")


def l2_normalize(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `l2_normalize`, from the rows of length one."""
    expression = parse(op.labels)
    y, rnorm = expression.outputs
    labels = write((y, y, rnorm), expression.inputs, expression.whole_labels)
    return tape.emit(op, 0, "l2_normalize_grad", (dy, *op.outputs), labels)


def batch_norm(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradients of `batch_norm`, through the statistics too.

    So `channel_sums` and `channel_squares` get none.
    """
    expression = parse(op.labels)
    x, sums, squares, gamma, beta = expression.inputs
    statistics = op.inputs[1:3]
    labels = write((x, x, sums, squares), (gamma, beta), expression.whole_labels)
    read = (dy, op.inputs[0], *statistics)
    index = 0 if tape.requires_grad(op.inputs[0]) else 3
    # Sizes of the sums come from what is read, so the target only says which phase it is.
    dgamma, dbeta = tape.emit(
        op, index, "batch_norm_grad_sums", read, labels, suffix="grad_sums", like=3
    )
    if index:
        return None, None, None, dgamma, dbeta
    labels = write((x, x, sums, squares, gamma, gamma, beta), (x,), expression.whole_labels)
    read = (dy, op.inputs[0], *statistics, op.inputs[3], dgamma, dbeta)
    (dx,) = tape.emit(op, 0, "batch_norm_grad_input", read, labels)
    return dx, None, None, dgamma, dbeta


def embedding(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `embedding`: dy added up by id."""
    expression = parse(op.labels)
    (ids, table), (out,) = expression.inputs, expression.outputs
    labels = write((ids, out), (table,), expression.whole_labels)
    return None, *tape.emit(op, 1, "embedding_grad", (op.inputs[0], dy), labels)


def rotary(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `rotary`: dy turned back."""
    attributes = {**op.attributes, "inverse": not op.attributes["inverse"]}
    return tape.emit(op, 0, "rotary", (dy,), op.labels, attributes=attributes)


def relative_bias(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `relative_bias`: dy added up by bucket."""
    expression = parse(op.labels)
    labels = write(expression.outputs, expression.inputs, expression.whole_labels)
    return tape.emit(op, 0, "relative_bias_grad", (dy,), labels)


def attention(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradients of `attention`, all from one op that finds the probabilities again.

    Where an `attention_sink` follows, its outputs are read, and dy is the gradient of its first:
    they give the probabilities with the sink, and a key's gradient follows from these alike. Of
    attention in 8 bits dy is read in 8 bits too.
    """
    expression = parse(op.labels)
    inputs, outputs = expression.inputs, expression.outputs
    labels = write((*inputs, *outputs, outputs[0]), inputs, expression.whole_labels)
    dtype: str | None = None
    if ARITHMETIC in op.attributes:
        dtype = tape.builder.tensors[op.outputs[0]].dtype
        dy = quantised(tape.builder, dy, op, outputs[0], phase=tape.phase(op.outputs[0]))
    (sink,) = tape.readers(op.outputs[1]) or (op,)
    read = (*op.inputs, *sink.outputs, dy)
    return tape.emit(op, 0, f"{op.kind}_grad", read, labels, suffix="grad_input", dtype=dtype)


def sparse_attention(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradients of `sparse_attention` for what was chosen; the choice itself has no slope.

    Where an `attention_sink` follows, its outputs are read, as for `attention`.
    """
    expression = parse(op.labels)
    inputs, outputs = expression.inputs, expression.outputs
    labels = write((*inputs, *outputs, outputs[0]), inputs[:3], expression.whole_labels)
    (sink,) = tape.readers(op.outputs[1]) or (op,)
    read = (*op.inputs, *sink.outputs, dy)
    kind = "sparse_attention_grad"
    return *tape.emit(op, 0, kind, read, labels, suffix="grad_input"), None


def sinkhorn(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `sinkhorn`, whose rounds are made again."""
    expression = parse(op.labels)
    labels = write(
        (*expression.inputs, *expression.outputs), expression.inputs, expression.whole_labels
    )
    return tape.emit(
        op, 0, "sinkhorn_grad", (op.inputs[0], dy), labels, attributes=dict(op.attributes)
    )


def attention_sink(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradients of `attention_sink`: that of the sink, and dy for the attention before it.

    Raises
    ------
    ModelError
        The outputs of an attention do not come here alone.
    """
    if [tape.readers(name) for name in op.inputs[:2]] != [(op,), (op,)]:
        raise ModelError(
            f"op `{op.name}`: what it reads, `{op.inputs[0]}` and `{op.inputs[1]}`, are to be one "
            f"attention's outputs, which nothing else reads"
        )
    if not tape.requires_grad(op.inputs[2]):
        return dy, None, None
    expression = parse(op.labels)
    (out, _, sink), whole_labels = expression.inputs, expression.whole_labels
    labels = write((*expression.outputs, sink, out), (sink,), whole_labels)
    read = (*op.outputs, op.inputs[2], dy)
    return dy, None, *tape.emit(op, 2, "attention_sink_grad", read, labels, suffix="grad_sink")


def masked_softmax(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradients of `masked_softmax`: zero where the probabilities are, and that of the sinks."""
    expression = parse(op.labels)
    (x, *sinks), (y,) = expression.inputs, expression.outputs
    labels = write((y, y), (x,), expression.whole_labels)
    attributes = {"scale": op.attributes["scale"]}
    read = (op.outputs[0], dy)
    (dx,) = tape.emit(op, 0, "masked_softmax_grad", read, labels, attributes=attributes)
    if not (sinks and tape.requires_grad(op.inputs[1])):
        return (dx, *(None for _ in sinks))
    labels = write((y, y), (sinks[0],), expression.whole_labels)
    return dx, *tape.emit(
        op, 1, "masked_softmax_grad_sink", read, labels, suffix="grad_sink", attributes={}
    )


def recurrence(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradients of `state_space_scan` or `delta_rule`: one op goes through the states again."""
    expression = parse(op.labels)
    inputs, outputs = expression.inputs, expression.outputs
    labels = write((*inputs, *outputs), inputs, expression.whole_labels)
    return tape.emit(op, 0, f"{op.kind}_grad", (*op.inputs, dy), labels, suffix="grad_input")


def conv(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradients of `conv` or `causal_conv1d`, by two ops as those of a product."""
    expression = parse(op.labels)
    (x, weight), (out,), whole_labels = (
        expression.inputs,
        expression.outputs,
        expression.whole_labels,
    )
    dx: str | None = None
    dw: str | None = None
    if tape.requires_grad(op.inputs[0]):
        labels = write((out, weight), (x,), whole_labels)
        (dx,) = tape.emit(op, 0, f"{op.kind}_grad_input", (dy, op.inputs[1]), labels)
    if tape.requires_grad(op.inputs[1]):
        labels = write((x, out), (weight,), whole_labels)
        (dw,) = tape.emit(op, 1, f"{op.kind}_grad_weight", (op.inputs[0], dy), labels)
    return dx, dw


def max_pool(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `max_pool`: dy at the largest value of every window."""
    expression = parse(op.labels)
    labels = write(
        (*expression.inputs, *expression.outputs), expression.inputs, expression.whole_labels
    )
    return tape.emit(op, 0, "max_pool_grad", (op.inputs[0], dy), labels)


def avg_pool(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `avg_pool`: dy spread over every window."""
    expression = parse(op.labels)
    labels = write(expression.outputs, expression.inputs, expression.whole_labels)
    return tape.emit(op, 0, "avg_pool_grad", (dy,), labels)


def top_k(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `top_k`: dy at the scores that were chosen; the choice itself has no slope."""
    expression = parse(op.labels)
    value, expert, _ = expression.outputs
    labels = write((value, expert), expression.inputs[:1], expression.whole_labels)
    dscores = tape.emit(op, 0, "top_k_grad", (dy, op.outputs[1]), labels)
    return *dscores, *(None for _ in op.inputs[1:])


def dispatch(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradient of `dispatch`: dy added up over the places a token got."""
    expression = parse(op.labels)
    x, expert, place = expression.inputs
    labels = write((*expression.outputs, expert, place), (x,), expression.whole_labels)
    return *tape.emit(op, 0, "dispatch_grad", (dy, *op.inputs[1:]), labels), None, None


def combine(tape: Tape, op: Op, dy: str) -> Gradients:
    """Gradients of `combine`: dy by weight for experts' outputs, output times dy for weights."""
    expression = parse(op.labels)
    (y, expert, place, weight), (out,) = expression.inputs, expression.outputs
    whole_labels = expression.whole_labels
    expert_outputs, chosen = op.inputs[0], op.inputs[1:3]
    d_expert_outputs: str | None = None
    dweight: str | None = None
    if tape.requires_grad(expert_outputs):
        labels = write((out, expert, place, weight), (y,), whole_labels)
        read = (dy, *chosen, op.inputs[3])
        (d_expert_outputs,) = tape.emit(
            op, 0, "combine_grad_input", read, labels, suffix="grad_input"
        )
    if tape.requires_grad(op.inputs[3]):
        labels = write((out, y, expert, place), (weight,), whole_labels)
        read = (dy, expert_outputs, *chosen)
        (dweight,) = tape.emit(op, 3, "combine_grad_weight", read, labels, suffix="grad_scale")
    return d_expert_outputs, None, None, dweight
