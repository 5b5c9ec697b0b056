"""Signatures: the legal ways to lay one op over a mesh, derived from its index labels.

On one mesh axis (`axis_signatures`) an op may

- run whole everywhere: B on every operand;
- be split on a label: S on every operand that has it, B on every input that lacks it, P(reduction)
  on every output that lacks it (no reduction: the label cannot be split);
- pass partial sums through, where it is linear: P(sum) on all inputs and outputs for a jointly
  linear op, on exactly one input and all outputs for a multilinear one;
- take one of the extra signatures of the table `EXTRA`, which labels cannot say: collectives inside
  complete the outputs. `EXPANSIONS` gives such an op as primitive ops, and `sub_signatures` says
  how those lie; `millrace.planner.ring_attention` gives attention as rounds.

On several axes (`joined`) it is one of these per axis, where every dim divides.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from millrace.models.graph import Graph, Op
from millrace.models.labels import Expression, Operand, dim_of, parse
from millrace.models.ops import op_kind
from millrace.planner.errors import PlanError
from millrace.planner.plan import OpSignature
from millrace.planner.ring_attention import RING, RINGS
from millrace.planner.sbp import (
    BROADCAST,
    PARTIAL_SUM,
    NdSbp,
    Sbp,
    format_nd_sbp,
    parse_nd_sbp,
    split,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisSignature:
    """One op on one mesh axis.

    Attributes
    ----------
    inputs, outputs : tuple of Sbp
        One per operand.
    label : str or None
        The label that is split; None where every operand is whole or partial.
    expansion : str
        Name of the extra signature, empty for a derived one.
    """

    inputs: tuple[Sbp, ...]
    outputs: tuple[Sbp, ...]
    label: str | None = None
    expansion: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One op on a whole mesh: nd-SBPs per operand, and per axis the label that is split."""

    inputs: tuple[NdSbp, ...]
    outputs: tuple[NdSbp, ...]
    labels: tuple[str | None, ...]
    expansion: str = ""

    @property
    def document(self) -> OpSignature:
        """Signature as a Plan holds it."""
        return OpSignature(
            inputs=tuple(map(format_nd_sbp, self.inputs)),
            outputs=tuple(map(format_nd_sbp, self.outputs)),
            expansion=self.expansion,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """An extra signature: the label of one dim is split, outputs that lack it come out whole.

    `along` are dims (operand and dim) whose labels are split at the same time.
    """

    name: str
    operand: int
    dim: int
    along: tuple[tuple[int, int], ...] = ()

    def label(self, expression: Expression) -> str:
        """Label that is split, in the words of the op's own expression."""
        return expression.operands[self.operand][self.dim][0]

    def signature(self, expression: Expression) -> AxisSignature:
        """Signature of an op on one mesh axis whose label is split."""
        dims = ((self.operand, self.dim), *self.along)
        labels = [expression.operands[operand][dim][0] for operand, dim in dims]

        def cut(operand: Operand) -> Sbp:
            return next((sbp for label in labels if (sbp := _split_on(operand, label))), BROADCAST)

        return AxisSignature(
            inputs=tuple(map(cut, expression.inputs)),
            outputs=tuple(map(cut, expression.outputs)),
            label=labels[0],
            expansion=self.name,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpansionOp:
    """One primitive op of an expansion, as a row of an op table: kind, labels, names."""

    kind: str
    labels: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """The primitive ops that stand for one op, in order.

    `in0`, `in1` … are the op's inputs, `out0` … its outputs, other names are inner tensors. In the
    labels `{split}` stands for the label that the extra signature splits and `{rest}` for the other
    labels of that operand. Between two of these ops the usual boxing applies: an inner tensor that
    comes out partial is made what its readers take. `sizes` are those of labels that only inner
    tensors have.
    """

    ops: tuple[ExpansionOp, ...]
    sizes: dict[str, int]


EXTRA: dict[str, tuple[Extra, ...]] = {
    "cross_entropy": (Extra(name="vocabulary_parallel", operand=0, dim=-1),),
    # The sequence of the queries, and with it that of the keys.
    **{kind: (Extra(name=RING, operand=0, dim=1, along=((1, 1),)),) for kind in RINGS},
}

# Megatron-LM's cross entropy over a split vocabulary (Shoeybi et al. 2019, section 3): all_reduces
# of a maximum and two sums per token, never of the logits.
EXPANSIONS: dict[tuple[str, str], Expansion] = {
    ("cross_entropy", "vocabulary_parallel"): Expansion(
        ops=(
            ExpansionOp(
                kind="row_max",
                labels="{rest} {split} -> {rest}",
                inputs=("in0",),
                outputs=("max",),
            ),
            ExpansionOp(
                kind="shifted_sums",
                labels="{rest} {split}, {rest}, {rest} -> {rest} moments!",
                inputs=("in0", "max", "in1"),
                outputs=("sums",),
            ),
            ExpansionOp(
                kind="loss_from_sums",
                labels="{rest}, {rest} moments!, {rest} -> {rest}, {rest}",
                inputs=("max", "sums", "in1"),
                outputs=("out0", "out1"),
            ),
        ),
        sizes={"moments": 2},
    ),
}


def split_signature(kind: str, expression: Expression, label: str) -> AxisSignature | None:
    """Signature that splits `label`; None where an output cannot be partial."""
    reduction = op_kind(kind).reduction
    inputs = tuple(_split_on(operand, label) or BROADCAST for operand in expression.inputs)
    outputs: list[Sbp] = []
    for operand in expression.outputs:
        sbp = _split_on(operand, label)
        if sbp is None:
            if reduction is None:
                return None
            sbp = Sbp("P", reduction=reduction)
        outputs.append(sbp)
    return AxisSignature(inputs=inputs, outputs=tuple(outputs), label=label)


def _split_on(operand: Operand, label: str) -> Sbp | None:
    dim = dim_of(operand, label)
    return None if dim is None else split(dim)


def axis_signatures(
    kind: str, labels: str, never_partial: Sequence[int] = (), unsplit: Iterable[str] = ()
) -> tuple[AxisSignature, ...]:
    """Legal signatures of an op on one mesh axis, all-B first.

    Parameters
    ----------
    kind, labels : str
        A row of `millrace.models.ops.OPS` and the op's index expression.
    never_partial : sequence of int, optional
        Indexes of inputs that cannot be partial (ids).
    unsplit : iterable of str, optional
        Labels that may not be split, besides those marked `!`.

    Examples
    --------
    >>> for s in axis_signatures("matmul", "m k, k n -> m n"):
    ...     print(*s.inputs, "->", *s.outputs)
    B B -> B
    S(0) B -> S(0)
    S(1) S(0) -> P(sum)
    B S(1) -> S(1)
    P(sum) B -> P(sum)
    B P(sum) -> P(sum)
    """
    expression = parse(labels)
    count = len(expression.inputs)
    outputs = len(expression.outputs)
    signatures = [AxisSignature(inputs=(BROADCAST,) * count, outputs=(BROADCAST,) * outputs)]
    barred = set(unsplit)
    for label in expression.splittable:
        if label not in barred and (signature := split_signature(kind, expression, label)):
            signatures.append(signature)
    for partial in _partial_inputs(kind, count):
        if not partial & set(never_partial):
            inputs = tuple(PARTIAL_SUM if i in partial else BROADCAST for i in range(count))
            signatures.append(AxisSignature(inputs=inputs, outputs=(PARTIAL_SUM,) * outputs))
    for extra in EXTRA.get(kind, ()):
        if extra.label(expression) not in barred:
            signatures.append(extra.signature(expression))
    return tuple(signatures)


def _partial_inputs(kind: str, count: int) -> list[set[int]]:
    linear = op_kind(kind).linear
    if linear == "joint":
        return [set(range(count))] if count else []
    return [{index} for index in linear]


Allowed = Callable[[Op, int, AxisSignature], bool]
"""Rule: True if an op may take a signature on the mesh axis of this index (pins are such rules)."""


def joined(choice: tuple[AxisSignature, ...], inputs: int, outputs: int) -> Signature | None:
    """Signature over several axes of one per axis; None where P(sum) and P(max) would mix.

    Parameters
    ----------
    choice : tuple of AxisSignature
        One per mesh axis, outer first, all of one op; the first that is an extra one names the
        expansion.
    inputs, outputs : int
        Numbers of the op's inputs and outputs.
    """
    signature = Signature(
        inputs=tuple(
            tuple(axis_signature.inputs[i] for axis_signature in choice) for i in range(inputs)
        ),
        outputs=tuple(
            tuple(axis_signature.outputs[i] for axis_signature in choice) for i in range(outputs)
        ),
        labels=tuple(axis_signature.label for axis_signature in choice),
        expansion=next(
            (axis_signature.expansion for axis_signature in choice if axis_signature.expansion), ""
        ),
    )
    for sbp in (*signature.inputs, *signature.outputs):
        if len({sbp_of_axis for sbp_of_axis in sbp if sbp_of_axis.is_partial}) > 1:
            return None
    return signature


def variable_values(graph: Graph) -> frozenset[str]:
    """Tensors that hold a variable's value: variables, repeated, cast or sliced."""
    tensors: set[str] = set()
    for op in graph.ops:
        moved = op_kind(op.kind).moves
        if op.kind == "variable" or (moved and op.inputs[0] in tensors):
            tensors.update(op.outputs)
    return frozenset(tensors)


def split_labels(labels: str, signature: OpSignature) -> tuple[str | None, ...]:
    """Label that a signature splits on each mesh axis; None for whole and partial."""
    expression = parse(labels)
    operands = [parse_nd_sbp(text) for text in (*signature.inputs, *signature.outputs)]
    axis_labels: list[str | None] = []
    for axis in range(len(operands[0]) if operands else 0):
        label = None
        for operand, sbp in zip(expression.operands, operands, strict=True):
            if sbp[axis].is_split:
                label = operand[sbp[axis].dim][0]
                break
        axis_labels.append(label)
    return tuple(axis_labels)


def sub_signatures(
    kind: str, labels: str, signature: OpSignature
) -> tuple[tuple[ExpansionOp, OpSignature], ...]:
    """Primitive ops of an expanded op, each with its signature, in order.

    Every primitive op splits, per axis, the label that the op itself splits, where it has it.

    Parameters
    ----------
    kind : str
        Kind of the expanded op, such as `cross_entropy`.
    labels : str
        Its index expression, whose labels the primitive ops' labels are made of.
    signature : OpSignature
        Its signature on the whole mesh, which names one of `EXPANSIONS`.

    Raises
    ------
    PlanError
        The kind has no extra signature of that name, or none that is expanded; or one of the
        signature's texts is no nd-SBP.
    ModelError
        The labels are malformed.
    """
    if (kind, signature.expansion) not in EXPANSIONS:
        raise PlanError(f"op kind `{kind}` has no extra signature `{signature.expansion}`")
    (extra,) = (candidate for candidate in EXTRA[kind] if candidate.name == signature.expansion)
    op_expression = parse(labels)
    column = extra.label(op_expression)
    rest = " ".join(d[0] for d in op_expression.operands[extra.operand] if d[0] != column)
    split_on = split_labels(labels, signature)
    sub_ops: list[tuple[ExpansionOp, OpSignature]] = []
    for op in EXPANSIONS[kind, signature.expansion].ops:
        op = replace(op, labels=op.labels.format(split=column, rest=rest))
        expression = parse(op.labels)
        choice: list[AxisSignature] = []
        for label in split_on:
            applies = label is not None and label in expression.labels
            axis_signature = (
                split_signature(op.kind, expression, label) if label and applies else None
            )
            choice.append(axis_signature or axis_signatures(op.kind, op.labels)[0])
        joint = joined(tuple(choice), len(expression.inputs), len(expression.outputs))
        assert joint is not None, "one reduction per op"
        sub_ops.append((op, joint.document))
    return tuple(sub_ops)
