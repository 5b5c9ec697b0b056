"""The op table: one row per kind of op, from which splits, FLOPs and bytes are derived.

A row says what the index labels of an op (`models.labels`) cannot: in which inputs the op is
linear, what a contracted label's partial results add up to, and how much arithmetic one point of
the index space takes. From the two together follow the legal signatures: a label split is S on
every operand that has it and P(reduction) on an output that lacks it; partial inputs pass through
where the op is linear.

The labels shown in the descriptions are those of a transformer; the string stored on each op
decides, so that one kind serves any rank. Shape legend: b batch, t query positions, s key
positions, h heads, d and k features, v vocabulary, z the three step totals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple

from models.errors import ModelError
from models.graph import Graph, Phase, Rate
from models.labels import Shape, bind, parse

Attributes = Mapping[str, int | float | str | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpKind:
    """One row of the op table.

    Attributes
    ----------
    linear : "joint" or tuple of int
        "joint": partial sums on all inputs give partial sums on all outputs. A tuple of input
        indexes: a partial sum on exactly one of them, the whole of every other input, does.
    reduction : "sum", "max" or None
        What joins an output's partial values when a label it lacks is split; None: such a label
        cannot be split.
    flops_per_point : int
        Floating-point operations per point of the index space, counted for matrix products and
        attention only (a multiplication and an addition are two).
    extra_outputs : tuple of str
        Names of the outputs after the first, which is named after the op itself.
    wide_outputs : tuple of int
        Outputs kept in at least float32 however narrow the inputs are.
    rate : Rate or None
        Rate of the outputs; None: that of the inputs.
    attributes : tuple of str
        Attributes that every op of the kind carries.
    state : tuple of str
        Tensors like the first output that the op keeps for itself from step to step.
    gathered : tuple of int
        Inputs of which only as much as the first output holds is read.
    reads_output : bool
        The first output is read before it is written (added to in place).
    differentiable : bool
        `models.gradients` has a rule for it.
    expansion_only : bool
        Occurs inside expansions of extra signatures only, never in a Graph.
    """

    name: str
    description: str
    linear: Literal["joint"] | tuple[int, ...] = ()
    reduction: Literal["sum", "max"] | None = None
    flops_per_point: int = 0
    extra_outputs: tuple[str, ...] = ()
    wide_outputs: tuple[int, ...] = ()
    rate: Rate | None = None
    attributes: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    gathered: tuple[int, ...] = ()
    reads_output: bool = False
    differentiable: bool = False
    expansion_only: bool = False


_SOURCES = (
    OpKind(
        name="input",
        description="-> b t: a batch of the data; source is tokens, targets, features or classes, "
        "`values` how many different ids there are (0: features)",
        rate=Rate.MICROBATCH,
        attributes=("source", "values"),
    ),
    OpKind(
        name="variable",
        description="-> k n: a trainable tensor; init is normal, zeros or ones; weight decay "
        "applies where `decay` holds",
        rate=Rate.STEP,
        attributes=("init", "std", "decay"),
    ),
    OpKind(
        name="learning_rate",
        description="->: this step's learning rate, by warm-up and cosine",
        rate=Rate.STEP,
        attributes=("learning_rate", "warmup_steps", "decay_steps", "final_fraction"),
    ),
)

_LAYOUT = (
    OpKind(
        name="repeat",
        description="k n -> k n: one step's value, for each of its microbatches",
        linear="joint",
        rate=Rate.MICROBATCH,
        differentiable=True,
    ),
    OpKind(
        name="accumulate",
        description="k n -> k n: the sum over a step's microbatches",
        linear="joint",
        rate=Rate.STEP,
        wide_outputs=(0,),
        reads_output=True,
    ),
    OpKind(
        name="cast",
        description="k n -> k n: the same values in another dtype",
        linear="joint",
        differentiable=True,
    ),
    OpKind(
        name="rearrange",
        description="b i j -> b (i j): dims permuted, grouped and ungrouped",
        linear="joint",
        differentiable=True,
    ),
    OpKind(
        name="slice_rows",
        description="p! d -> t! d: the first rows",
        linear="joint",
        gathered=(0,),
        differentiable=True,
    ),
    OpKind(
        name="pad_rows",
        description="t! d -> p! d: zero rows behind",
        linear="joint",
        differentiable=True,
    ),
)

_ARITHMETIC = (
    OpKind(
        name="matmul",
        description="b t k, k n -> b t n: any product of two tensors, summed over what is missing",
        linear=(0, 1),
        reduction="sum",
        flops_per_point=2,
        differentiable=True,
    ),
    OpKind(
        name="add",
        description="b t n, n -> b t n: two or more, broadcast by label",
        linear="joint",
        differentiable=True,
    ),
    OpKind(
        name="sum",
        description="b t n -> n: summed over what is missing",
        linear="joint",
        reduction="sum",
        differentiable=True,
    ),
    OpKind(name="relu", description="b t n -> b t n: max(x, 0)", differentiable=True),
    OpKind(
        name="relu_grad",
        description="(x, dy) b t n, b t n -> b t n: dy where x > 0",
        linear=(1,),
    ),
    OpKind(
        name="gelu",
        description="b t n -> b t n: the tanh form, as GPT-2 has it",
        differentiable=True,
    ),
    OpKind(
        name="gelu_grad",
        description="(x, dy) b t n, b t n -> b t n: dy gelu'(x)",
        linear=(1,),
    ),
)

_NORM = (
    OpKind(
        name="layer_norm",
        description="(x, gamma, beta) b t d!, d!, d! -> b t d!, b t, b t: y, mean and 1 / std",
        extra_outputs=("mean", "rstd"),
        wide_outputs=(1, 2),
        attributes=("epsilon",),
        differentiable=True,
    ),
    OpKind(
        name="layer_norm_grad_input",
        description="(dy, x, gamma, mean, rstd) b t d!, b t d!, d!, b t, b t -> b t d!: dx",
        linear=(0,),
    ),
    OpKind(
        name="layer_norm_grad_weight",
        description="(dy, x, mean, rstd) b t d, b t d, b t, b t -> d, d: dgamma and dbeta",
        linear=(0,),
        reduction="sum",
        extra_outputs=("beta",),
    ),
)

_EMBEDDING = (
    OpKind(
        name="embedding",
        description="(ids, table) b t, v d -> b t d: rows of the table; a shard of rows gives "
        "zeros for ids outside it",
        linear=(1,),
        reduction="sum",
        gathered=(1,),
        differentiable=True,
    ),
    OpKind(
        name="embedding_grad",
        description="(ids, dy) b t, b t d -> v d: dy added up by id",
        linear=(1,),
        reduction="sum",
    ),
)

_ATTENTION = (
    OpKind(
        name="attention",
        description="(q, k, v) b t h d!, b s! h d!, b s! h d! -> b t h d!, b t h: softmax(scale "
        "q k) v and the logarithm of the softmax's sum; `causal`: query t sees keys up to t",
        flops_per_point=4,
        extra_outputs=("logsumexp",),
        wide_outputs=(1,),
        attributes=("causal", "scale"),
        differentiable=True,
    ),
    OpKind(
        name="attention_grad",
        description="(q, k, v, out, logsumexp, dout) b t h d!, b s! h d!, b s! h d!, b t h d!, "
        "b t h, b t h d! -> b t h d!, b s! h d!, b s! h d!: dq, dk, dv",
        reduction="sum",
        flops_per_point=8,
        extra_outputs=("key", "value"),
        attributes=("causal", "scale"),
    ),
)

_LOSS = (
    OpKind(
        name="cross_entropy",
        description="(logits, targets) b t v!, b t -> b t, b t: loss (0 where the target is "
        "negative) and the logarithm of the softmax's sum",
        extra_outputs=("logsumexp",),
        wide_outputs=(0, 1),
        differentiable=True,
    ),
    OpKind(
        name="cross_entropy_grad",
        description="(logits, targets, logsumexp) b t v, b t, b t -> b t v: gradient of the sum "
        "of the losses",
    ),
    OpKind(
        name="count_valid",
        description="b t ->: how many targets are not negative",
        reduction="sum",
    ),
    OpKind(
        name="row_max",
        description="b t v -> b t: the largest logit",
        reduction="max",
        expansion_only=True,
    ),
    OpKind(
        name="shifted_sums",
        description="(logits, max, targets) b t v, b t, b t -> b t c!: sum of exp(logit - max) "
        "and the target's logit",
        reduction="sum",
        wide_outputs=(0,),
        expansion_only=True,
    ),
    OpKind(
        name="loss_from_sums",
        description="(max, sums, targets) b t, b t c!, b t -> b t, b t: loss and logsumexp",
        extra_outputs=("logsumexp",),
        wide_outputs=(0, 1),
        expansion_only=True,
    ),
)

_OPTIMIZER = (
    OpKind(
        name="squared_sum",
        description="k n ->: sum of squares",
        reduction="sum",
        wide_outputs=(0,),
    ),
    OpKind(
        name="step_totals",
        description="(loss, count, squares…) , , -> z!: loss sum, token count, sum of squared "
        "gradients over the whole model",
        linear="joint",
        wide_outputs=(0,),
    ),
    OpKind(
        name="adamw",
        description="(w, grad, totals, lr) k n, k n, z!,  -> k n: w of the next step",
        attributes=(
            "variable",
            "beta1",
            "beta2",
            "epsilon",
            "weight_decay",
            "clip_norm",
        ),
        state=("m", "v"),
    ),
    OpKind(
        name="sgd",
        description="(w, grad, totals, lr) k n, k n, z!,  -> k n: w of the next step",
        attributes=("variable", "momentum", "weight_decay", "clip_norm"),
        state=("velocity",),
    ),
)

OPS: dict[str, OpKind] = {
    kind.name: kind
    for kinds in (
        _SOURCES,
        _LAYOUT,
        _ARITHMETIC,
        _NORM,
        _EMBEDDING,
        _ATTENTION,
        _LOSS,
        _OPTIMIZER,
    )
    for kind in kinds
}


class Work(NamedTuple):
    """What one firing of an op costs: arithmetic, and bytes read and written."""

    flops: int
    bytes: int


def op_kind(name: str) -> OpKind:
    """Return the row called `name`; raises ModelError naming the kinds there are."""
    try:
        return OPS[name]
    except KeyError:
        raise ModelError(f"there is no op kind `{name}`; the kinds are {', '.join(OPS)}") from None


def state_of(kind: str, attributes: Attributes) -> tuple[str, ...]:
    """Names of the tensors, shaped as the first output, that an op keeps from step to step."""
    if kind == "sgd" and not attributes.get("momentum"):
        return ()
    return op_kind(kind).state


def op_work(
    kind: str,
    labels: str,
    attributes: Attributes,
    input_shapes: Sequence[Shape],
    output_shapes: Sequence[Shape],
    input_itemsizes: Sequence[int],
    output_itemsizes: Sequence[int],
) -> Work:
    """FLOPs and bytes of one firing on these (one device's) shapes.

    Matrix products take two FLOPs per point of the index space; attention four (scores and
    output, full, not causal) and its gradient eight; every other kind none that count. Bytes are
    everything read and written once: kept state and an output that is added to count both ways.

    Raises
    ------
    ModelError
        The kind is unknown or the shapes do not fit the labels.
    """
    row = op_kind(kind)
    flops = 0
    if row.flops_per_point:
        sizes = bind(parse(labels), input_shapes, output_shapes)
        flops = row.flops_per_point * prod(sizes.values())
    outputs = [
        prod(shape) * item for shape, item in zip(output_shapes, output_itemsizes, strict=True)
    ]
    moved = sum(outputs)
    for index, (shape, item) in enumerate(zip(input_shapes, input_itemsizes, strict=True)):
        size = prod(shape)
        moved += item * (min(size, prod(output_shapes[0])) if index in row.gathered else size)
    if row.reads_output:
        moved += outputs[0]
    moved += 2 * len(state_of(kind, attributes)) * outputs[0]
    return Work(flops, moved)


def model_flops(graph: Graph) -> int:
    """FLOPs of one microbatch: matrix products and full attention, forward and backward.

    Of a forward graph only the forward; nothing is counted twice for recomputation.
    """
    tensors = graph.tensors_by_name
    total = 0
    for op in graph.ops:
        if op.phase in (Phase.BEGIN, Phase.UPDATE) or not op_kind(op.kind).flops_per_point:
            continue
        inputs = tuple(tensors[name].shape for name in op.inputs)
        outputs = tuple(tensors[name].shape for name in op.outputs)
        total += op_kind(op.kind).flops_per_point * prod(
            bind(
                parse(op.labels), inputs, outputs, op=op.name, tensors=op.inputs + op.outputs
            ).values()
        )
    return total
