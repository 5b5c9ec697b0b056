"""The loss of an imported model, and the removal of ops that do not lead to it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from millrace.models.errors import ModelError
from millrace.models.graph import Graph
from millrace.models.importers.onnx.labelling import labels_of_tensor
from millrace.models.importers.onnx.lowering import BLOCK, OnnxLowering
from millrace.models.importers.onnx.values import (
    Dim,
    Dims,
    Traced,
    factors_of,
    has_batch,
    size_of,
)
from millrace.models.importers.predictions import classes_dim
from millrace.models.labels import BATCH, SEQUENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOptions:
    """The loss that is asked for.

    Attributes
    ----------
    kind : str or None
        A key of `LOSSES`; None: as the predictions' shape says.
    classes_dim : int or None
        The dim of the predictions that is classes, where it is said.
    targets : str
        Source of the targets of a sequence.
    tokens : bool
        Whether an input is of ids.
    """

    kind: str | None
    classes_dim: int | None
    targets: str
    tokens: bool


class Added(NamedTuple):
    """Losses, their targets, and the dim of the predictions that is classes."""

    losses: Traced
    targets: Traced
    classes_dim: int | None


def _along(dim: Dim) -> bool:
    """True if a dim runs along the tokens."""
    return any(factor.name == SEQUENCE for factor in dim)


def _cross_entropy(low: OnnxLowering, output: Traced, asked: LossOptions) -> Added:
    """Losses and targets of logits over their dim of classes."""
    along = [_along(dim) for dim in output.dims]
    dim_of_classes = classes_dim(output.shape, along, tokens=asked.tokens, asked=asked.classes_dim)
    last = output.dims[dim_of_classes]
    output = output.seen_as(
        (*output.dims[:dim_of_classes], *output.dims[dim_of_classes + 1 :], last)
    )
    logits = _with_batch(low, output, (*_rows(output), last))
    sequence = any(map(_along, logits.operand[:-1]))
    read = asked.targets if sequence or len(logits.operand) > 2 else "classes"
    targets = _targets(low, logits.operand[:-1], read, output.shape[-1])
    rows = logits.operand[:-1]
    names = {last[0]: "v"} if sequence else {last[0]: "c"}
    losses = low.emit(
        "cross_entropy", "loss", (logits, targets), (rows, rows), whole_factors=last, names=names
    )
    return Added(losses, targets, dim_of_classes)


def _logistic(low: OnnxLowering, output: Traced, asked: LossOptions) -> Added:
    """Losses and targets of one logit per sample."""
    if any(factor.size > 1 and factor.name != BATCH for factor in output.seen):
        raise ModelError(
            f"the predictions have shape {output.shape}: a logistic loss needs one number a sample"
        )
    seen = output.seen_as(dim for dim in output.dims if has_batch(dim))
    logits = _with_batch(low, seen, _rows(seen.seen_as((*seen.dims, ()))))
    targets = _targets(low, logits.operand, "clicks", 2)
    losses = low.emit("logistic_loss", "loss", (logits, targets), (logits.operand,))
    return Added(losses, targets, None)


LOSSES: dict[str, Callable[[OnnxLowering, Traced, LossOptions], Added]] = {
    "cross_entropy": _cross_entropy,
    "logistic": _logistic,
}


def add_loss(low: OnnxLowering, asked: LossOptions, output: Traced) -> int | None:
    """Add targets, the losses against them, their sum and the count of those that are valid.

    Returns the dim of the predictions that is classes.
    """
    alone = len(output.dims) < 2 or output.shape[-1] == 1
    kind = asked.kind or ("logistic" if alone else "cross_entropy")
    added = LOSSES[kind](low, low.used(output), asked)
    low.emit("sum", "loss_sum", (added.losses,), ((),))
    low.emit("count_valid", "token_count", (added.targets,), ((),))
    return added.classes_dim


def _rows(output: Traced) -> Dims:
    """All factors before the last dim, each a dim of its own: samples, then positions."""
    factors = factors_of(output.dims[:-1])
    samples = [factor for factor in factors if factor.name == BATCH]
    rest = tuple(factor for factor in factors if factor.name != BATCH)
    return (*((factor,) for factor in samples), *([rest] if rest else []))


def _with_batch(low: OnnxLowering, output: Traced, operand: Dims) -> Traced:
    if not operand or [factor.name for factor in operand[0]] != [BATCH]:
        raise ModelError(
            f"the predictions have shape {output.shape}, in which the batch is not a dim"
        )
    return low.laid_out(output, operand, "logits")


def _targets(low: OnnxLowering, operand: Dims, source: str, values: int) -> Traced:
    labels = labels_of_tensor(operand)
    shape = tuple(size_of(dim) for dim in operand)
    tensor = low.builder.input(low.unique("targets"), labels, shape, source=source, values=values)
    return Traced(tensor=tensor, operand=operand, dims=operand, ids=True)


def pruned(graph: Graph) -> Graph:
    """Return the graph without ops that neither lead to the loss nor count its targets."""
    wanted = {f"{BLOCK}.loss_sum", f"{BLOCK}.token_count"}
    ops = []
    for op in reversed(graph.ops):
        if wanted.isdisjoint(op.outputs):
            continue
        wanted.update((*op.inputs, *op.outputs))
        ops.append(op)
    return msgspec.structs.replace(
        graph,
        ops=tuple(reversed(ops)),
        tensors=tuple(tensor for tensor in graph.tensors if tensor.name in wanted),
    )
