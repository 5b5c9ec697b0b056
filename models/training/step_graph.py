"""The step graph: a forward graph with its gradients, the step's totals and the optimizer."""

from millrace.models.blocks import split_templates
from millrace.models.builder import GraphBuilder
from millrace.models.errors import ModelError
from millrace.models.gradients import backward
from millrace.models.graph import GLOBAL_BLOCK, Graph, Op, Phase
from millrace.models.labels import parse, write
from millrace.models.ops import kinds_where
from millrace.models.spec import TrainingSpec
from millrace.models.training.adapters import adapted
from millrace.models.training.optimizer_updates import MUON, add_update, hidden_matrices
from millrace.models.training.unfused_attention import ATTENTIONS, UNFUSED, unfused

LEARNING_RATE = f"{GLOBAL_BLOCK}.learning_rate"
OPTIMIZERS = kinds_where(lambda row: row.updates)
SCALARS = ("sum", "add", "scale")  # a loss may end in these kinds
STEP_TOTALS = f"{GLOBAL_BLOCK}.step_totals"


def training_graph(forward: Graph, training: TrainingSpec) -> Graph:
    """Return the graph of one training step.

    Parameters
    ----------
    forward : Graph
        Ends in one scalar, a `sum` of losses or an `add` of such, read by nothing, and one
        `count_valid`.
    training : TrainingSpec
        The optimizer and its learning rate, and how attention is computed.

    Returns
    -------
    Graph
        Ops by phase: begin, forward, backward (each weight gradient right after the input gradient
        of its op), update. Blocks of one template are equal in all of these. Gradients are sums
        over the step's samples; the optimizer divides by the token count, then clips, both from
        `step_totals`. An optimizer's output is the variable of the next step, `<variable>.next`;
        frozen variables have none.

    Raises
    ------
    ModelError
        The graph has no loss or count or trains no variable, an op has no gradient rule, a variable
        does not reach the loss, or a field of `training` is out of range.
    """
    check_training(training)
    if training.attention == UNFUSED:
        forward = unfused(forward)
    if training.lora_rank:
        forward = adapted(forward, training.lora_rank, training.lora_alpha)
    loss, count = _loss_and_count(forward)
    variables = [op for op in forward.ops if op.trains]
    if not variables:
        raise ModelError(f"graph `{forward.name}` trains no variable: leave one that is not frozen")
    builder = GraphBuilder.extending(forward)
    totals = [_accumulated(builder, op) for op in (loss, count)]
    gradients = backward(builder, forward, loss.outputs[0])
    for variable in variables:
        name = variable.outputs[0]
        totals += builder.emit(
            "squared_sum",
            f"{name}.squared_sum",
            (gradients[name],),
            write(parse(variable.labels).outputs, ((),)),
            block=variable.block,
            phase=Phase.UPDATE,
        )
    dtype = builder.tensors[totals[0]].dtype
    _learning_rate(builder, training, dtype)
    builder.emit(
        "step_totals",
        STEP_TOTALS,
        totals,
        write(((),) * len(totals), ((("z",),),), frozenset("z")),
        shapes=((3,),),
        dtype=dtype,
        block=GLOBAL_BLOCK,
        phase=Phase.UPDATE,
    )
    matrices = hidden_matrices(forward) if training.optimizer == MUON else {}
    for variable in variables:
        name = variable.outputs[0]
        add_update(
            builder,
            training,
            variable,
            gradients[name],
            matrices.get(name),
            (STEP_TOTALS, LEARNING_RATE),
        )
    return split_templates(builder.build())


def check_training(training: TrainingSpec) -> None:
    """Raise ModelError when a field is out of its range, naming the field and the range."""
    if training.optimizer not in OPTIMIZERS:
        raise ModelError(
            f"there is no optimizer `{training.optimizer}`; choose one of {', '.join(OPTIMIZERS)}"
        )
    if training.attention not in ATTENTIONS:
        raise ModelError(
            f"there is no attention `{training.attention}`; choose {' or '.join(ATTENTIONS)}"
        )
    for field in ("beta1", "beta2", "momentum"):
        value = getattr(training, field)
        if not 0 <= value < 1:
            raise ModelError(f"training: `{field}` is {value}; expected 0 <= {field} < 1")
    not_negative = (
        "learning_rate",
        "warmup_steps",
        "decay_steps",
        "final_fraction",
        "epsilon",
        "weight_decay",
        "clip_norm",
        "lora_rank",
        "lora_alpha",
    )
    for field in not_negative:
        value = getattr(training, field)
        if value < 0:
            raise ModelError(f"training: `{field}` is {value}; expected 0 or more")
    if 0 < training.decay_steps < training.warmup_steps:
        raise ModelError(
            f"training: `decay_steps` ({training.decay_steps}) is below `warmup_steps` "
            f"({training.warmup_steps}); the decay follows the warm-up"
        )


def _loss_and_count(forward: Graph) -> tuple[Op, Op]:
    read = {name for op in forward.ops for name in op.inputs}
    tensors = forward.tensors_by_name
    losses = [
        op
        for op in forward.ops
        if op.kind in SCALARS and not tensors[op.outputs[0]].shape and op.outputs[0] not in read
    ]
    counts = [op for op in forward.ops if op.kind == "count_valid"]
    for candidates, what in ((losses, "scalar `sum` of losses"), (counts, "`count_valid`")):
        if len(candidates) != 1:
            raise ModelError(
                f"graph `{forward.name}` has {len(candidates)} ops that are the {what}; a graph to "
                f"train has one"
            )
    return losses[0], counts[0]


def _accumulated(builder: GraphBuilder, op: Op) -> str:
    return builder.emit(
        "accumulate",
        f"{op.name}.accumulate",
        op.outputs,
        "() -> ",
        block=op.block,
        phase=Phase.BACKWARD_WEIGHT,
    )[0]


def _learning_rate(builder: GraphBuilder, training: TrainingSpec, dtype: str) -> None:
    fields = ("learning_rate", "warmup_steps", "decay_steps", "final_fraction")
    builder.emit(
        "learning_rate",
        LEARNING_RATE,
        (),
        " -> ",
        dtype=dtype,
        attributes={field: getattr(training, field) for field in fields},
        block=GLOBAL_BLOCK,
        phase=Phase.BEGIN,
    )
