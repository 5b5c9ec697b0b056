"""Losses: the kind of data of each input, the targets, and the loss over the predictions."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from millrace.models.errors import ModelError
from millrace.models.importers.notes import masked_text
from millrace.models.importers.predictions import classes_dim
from millrace.models.importers.torch_export.algebra import materialize_axes
from millrace.models.importers.torch_export.draft import (
    Array,
    Draft,
    DraftTensor,
    OperandSlot,
    StepOperand,
    Token,
)
from millrace.models.importers.torch_export.extents import Group, TensorAxis, leaves, size_of
from millrace.models.labels import BATCH, SEQUENCE

KINDS = ("cross_entropy", "logistic")
_NAMED = {"token_type": "segments", "decoder": "decoder_tokens", "categor": "categories"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The loss that is asked for.

    Attributes
    ----------
    kind : str
        cross_entropy or logistic.
    classes_dim : int or None
        The dim of the predictions that is classes, where it is said.
    mask_id : int or None
        The id that stands for a hidden token, where the model fills in masked text.
    """

    kind: str
    classes_dim: int | None = None
    mask_id: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ModelError(f"there is no loss `{self.kind}`; choose one of {', '.join(KINDS)}")


class WithLoss(NamedTuple):
    """Tensors to keep once a loss is added, and the dim of classes."""

    kept_tensors: set[DraftTensor]
    classes_dim: int | None


def name_sources(inputs: Sequence[Array]) -> None:
    """Say what kind of data each input is; next to a decoder's tokens others are its source.

    Inputs of one kind read data of their own: no two may see the same.
    """
    pair = any("decoder" in array.tensor.name for array in inputs)
    for array in inputs:
        array.tensor.attributes["source"] = _source(array, pair)
    sources = [array.tensor.attributes["source"] for array in inputs]
    for array, source in zip(inputs, sources, strict=True):
        if sources.count(source) > 1:
            array.tensor.attributes["source"] = f"input.{array.tensor.name}"


def _source(array: Array, pair: bool) -> str:
    tensor = array.tensor
    if not tensor.integer:
        return "images" if len(array.dims) == 4 else "features"
    named = [kind for word, kind in _NAMED.items() if word in tensor.name]
    return named[0] if named else "source_tokens" if pair else "tokens"


def add_loss(
    draft: Draft, inputs: Sequence[Array], logits: Array, loss: Loss, both_ways: Container[str]
) -> WithLoss:
    """Draft targets, their loss, its sum and the count.

    `both_ways`: inputs whose tokens see those behind them.
    """
    draft.where = ""
    rank = len(logits.dims)
    logits = materialize_axes(draft, logits, logits.dims[1:])
    dim_of_classes = None
    if loss.kind == "cross_entropy":
        along = [_along(group) for group in logits.dims]
        tokens = any(array.tensor.integer for array in inputs)
        dim_of_classes = classes_dim(logits.shape, along, tokens=tokens, asked=loss.classes_dim)
    elif rank > 1 and size_of(logits.dims[-1]) == 1:
        dim_of_classes = rank - 1
    lead = [group for dim, group in enumerate(logits.dims) if dim != dim_of_classes]
    axes = tuple(axis for group in lead for axis in leaves(group))
    if not axes or axes[0].role != BATCH or not all(logits.real(axis) for axis in axes):
        raise ModelError(
            f"the predictions have shape {logits.shape}; `{loss.kind}` expects the batch first"
        )
    rows = tuple(OperandSlot(Token(), (axis,)) for axis in axes)
    targets = _targets(draft, axes, rows)
    if loss.kind == "cross_entropy":
        assert dim_of_classes is not None
        classes = OperandSlot(
            Token(single=True, is_whole=True, label="v"), leaves(logits.dims[dim_of_classes])
        )
        targets.tensor.attributes["values"] = size_of(logits.dims[dim_of_classes])
        _name_targets(targets.tensor, inputs, loss, both_ways)
        read = StepOperand(logits.tensor, (*rows, classes))
        extras: tuple[tuple[Token, ...], ...] = (tuple(row.token for row in rows),)
    else:
        targets.tensor.attributes |= {"values": 2, "source": "clicks"}
        read, extras = StepOperand(logits.tensor, rows), ()
    kind = "cross_entropy" if loss.kind == "cross_entropy" else "logistic_loss"
    if loss.mask_id is not None and targets.tensor.attributes["source"] != "masked_targets":
        raise ModelError(
            "mask_id is for a model whose attention looks both ways and that predicts the tokens; "
            "this one does not: leave it out"
        )
    losses = draft.make(kind, (read, targets), rows, name="loss", extras=extras, ordered=True)
    total = draft.make("sum", (StepOperand(losses, rows),), (), name="loss_sum", across=True)
    count = draft.make("count_valid", (targets,), (), name="token_count", across=True)
    return WithLoss({total, count}, dim_of_classes if loss.kind == "cross_entropy" else None)


def _targets(draft: Draft, axes: Group, rows: Sequence[OperandSlot]) -> StepOperand:
    tensor = DraftTensor(
        name=draft.name("targets"),
        axes=tuple(TensorAxis(axis.extent) for axis in axes),
        kind="input",
        integer=True,
    )
    slots = (OperandSlot(row.token, (axis,)) for row, axis in zip(rows, tensor.axes, strict=True))
    return StepOperand(tensor, tuple(slots))


def _name_targets(
    tensor: DraftTensor, inputs: Sequence[Array], loss: Loss, both_ways: Container[str]
) -> None:
    """Name the kind of data that targets of classes are, which may change that of the tokens."""
    if len(tensor.axes) == 1:
        tensor.attributes["source"] = "classes"
        return
    sources = {array.tensor.attributes["source"]: array.tensor for array in inputs}
    tokens = sources.get("decoder_tokens", sources.get("tokens"))
    if tokens is None:
        tensor.attributes["source"] = "targets"
    elif int(tensor.attributes["values"]) < int(tokens.attributes.get("values", 0)):
        tensor.attributes["source"] = "token_classes"  # these are no ids of tokens
    elif tokens.name in both_ways:
        tensor.attributes["source"] = "masked_targets"
        if loss.mask_id is not None and "tokens" in sources:
            tokens.attributes |= masked_text(tokens.axes[-1].size, loss.mask_id)
            tokens.attributes["source"] = "masked_tokens"
    else:
        decoder = "decoder_tokens" in sources
        tensor.attributes["source"] = "decoder_targets" if decoder else "targets"


def _along(group: Group) -> bool:
    """True if a dim runs along the tokens."""
    return any(axis.role == SEQUENCE for axis in leaves(group))
