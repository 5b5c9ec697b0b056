"""Draft: the ops of a traced program before its dims are final.

A step says for every operand which axes stand in which slot, and a token says which slots are one
label. Tokens expand to one label per leaf when the graph is written, so that nothing here needs to
know how later views split a dim.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any

from millrace.models.importers.torch_export.extents import (
    Extent,
    Group,
    ShapeError,
    TensorAxis,
    leaves,
    size_of,
)
from millrace.models.importers.torch_export.sources import ParameterSource
from millrace.models.labels import BATCH

Value = int | float | str | bool

# Ops whose outputs are ids where their inputs are.
_MOVES = ("narrow", "widen", "concat", "merge", "broadcast", "sum")


@dataclass(slots=True, kw_only=True, eq=False)
class DraftTensor:
    """A tensor of the graph to be.

    `kind` is variable, constant, input or made; `payload` is the variable's Source, or the
    constant's values.
    """

    name: str
    axes: tuple[TensorAxis, ...]
    kind: str = "made"
    integer: bool = False
    payload: Any = None
    trained: bool = False
    attributes: dict[str, Value] = field(default_factory=dict)

    def leaves(self) -> Group:
        """Dims as the graph will have them."""
        return leaves(self.axes)


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """A traced value: a tensor seen through views.

    `dims` are the dims the program sees, each a group of axes; an axis that `tensor` lacks is one
    along which the tensor is the same.
    """

    tensor: DraftTensor
    dims: tuple[Group, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape as the program sees it."""
        return tuple(size_of(group) for group in self.dims)

    def real(self, axis: TensorAxis) -> bool:
        """True if the tensor has this leaf axis."""
        return axis in self.tensor.leaves()


@dataclass(slots=True, kw_only=True, eq=False)
class Route:
    """Experts that tokens choose.

    Attributes
    ----------
    scores : DraftTensor
        Scores of all experts.
    values : Array
        Those of the chosen ones.
    expert, place : DraftTensor
        Ids of the chosen experts, and the places that a token gets there.
    places, experts : Extent
        Lengths: places of an expert for a sample; experts, once a weight of them is read.
    """

    scores: DraftTensor
    values: Array
    expert: DraftTensor
    place: DraftTensor
    places: Extent
    experts: Extent | None = None


@dataclass(slots=True, eq=False)
class Token:
    """One label of a step, or one per leaf of its axes.

    `single`: the op needs one dim here, however the axes are split; `labels`: that dim is a group
    with these labels.
    """

    label: str | None = None
    is_whole: bool = False
    single: bool = False
    labels: tuple[str, ...] = ()


def tokens(text: str) -> tuple[Token, ...]:
    """Tokens written as labels: `b* t (g c) d!`.

    `*`: one label per leaf; `!`: never split; `_`: any label will do; in brackets: a group.
    """
    return tuple(
        Token(
            label=None if word.startswith(("_", "(")) else word.rstrip("!*"),
            is_whole=word.endswith("!"),
            single=not word.endswith("*"),
            labels=tuple(word[1:-1].split()) if word.startswith("(") else (),
        )
        for word in re.findall(r"\([^)]*\)|\S+", text)
    )


@dataclass(frozen=True, slots=True, eq=False)
class OperandSlot:
    """Axes of an operand that stand for a token; none: a dim of size one to be added."""

    token: Token
    axes: Group


@dataclass(frozen=True, slots=True, eq=False)
class StepOperand:
    """A tensor as a step reads or makes it."""

    tensor: DraftTensor
    slots: tuple[OperandSlot, ...]


def slots_of(labels: Sequence[Token], dims: Sequence[Group]) -> tuple[OperandSlot, ...]:
    """Slots of an operand with these dims, a token for each.

    Parameters
    ----------
    labels : sequence of Token
        One for each dim.
    dims : sequence of tuple of TensorAxis
        Dims of the operand.
    """
    return tuple(starmap(OperandSlot, zip(labels, dims, strict=True)))


@dataclass(slots=True, kw_only=True, eq=False)
class DraftOp:
    """Op to be.

    `ordered`: dims of operands come in the order of their slots. `sunk`: an attention whose last
    input is its heads' sinks.
    """

    kind: str
    inputs: tuple[StepOperand, ...]
    output: StepOperand
    extras: tuple[tuple[Token, ...], ...] = ()
    attributes: dict[str, Value] = field(default_factory=dict)
    ordered: bool = False
    sunk: bool = False
    more: tuple[DraftTensor, ...] = ()  # further outputs that other steps read


def axis_below(step: DraftOp, operand: StepOperand, axis: TensorAxis) -> TensorAxis | None:
    """Axis of an operand that stands where this one stands in what is made.

    Parameters
    ----------
    step : DraftOp
        The op.
    operand : StepOperand
        One of its operands.
    axis : TensorAxis
        Axis of what it makes.
    """
    for slot in step.output.slots:
        if axis in leaves(slot.axes):
            position = leaves(slot.axes).index(axis)
            same = (other for other in operand.slots if other.token is slot.token)
            return next((leaves(other.axes)[position] for other in same), None)
    return None


@dataclass(slots=True, kw_only=True)
class Draft:
    """Steps and names given so far."""

    batch: int
    steps: list[DraftOp] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    where: str = ""  # module path of the op being read

    def name(self, wanted: str) -> str:
        """Return `wanted`, with a number behind it where it is taken."""
        name, count = wanted, 1
        while name in self.names:
            count += 1
            name = f"{wanted}.{count}"
        self.names.add(name)
        return name

    def make(
        self,
        kind: str,
        inputs: Sequence[StepOperand],
        slots: Sequence[OperandSlot],
        *,
        name: str | None = None,
        extras: Sequence[tuple[Token, ...]] = (),
        attributes: Mapping[str, Value] | None = None,
        ordered: bool = False,
        integer: bool = False,
        across: bool = False,
    ) -> DraftTensor:
        """Add a step and return the tensor it makes, its axes those of `slots` in order.

        Raises
        ------
        ShapeError
            It would let samples meet, which only what reduces `across` them may.
        """
        if not across:
            _check_samples(inputs, slots)
        path = f"{self.where}.{name or kind}".lstrip(".")
        tensor = DraftTensor(
            name=self.name(path),
            axes=tuple(axis for slot in slots for axis in slot.axes),
            integer=integer or (kind in _MOVES and inputs[0].tensor.integer),
            trained=any(operand.tensor.trained for operand in inputs),
        )
        self.steps.append(
            DraftOp(
                kind=kind,
                inputs=tuple(inputs),
                output=StepOperand(tensor, tuple(slots)),
                extras=tuple(extras),
                attributes=dict(attributes or {}),
                ordered=ordered,
            )
        )
        return tensor

    def variable(
        self, source: ParameterSource, shape: Sequence[int], keep_units: bool, trained: bool = True
    ) -> Array:
        """Add a parameter; its dims of size one are left out unless they are to be kept."""
        groups = tuple((TensorAxis(size),) if size > 1 or keep_units else () for size in shape)
        tensor = DraftTensor(
            name=self.name(source.fqn),
            axes=tuple(axis for group in groups for axis in group),
            kind="variable",
            payload=source,
            trained=trained,
        )
        return Array(tensor, groups)


def _check_samples(inputs: Sequence[StepOperand], slots: Sequence[OperandSlot]) -> None:
    """Check that every sample of what is made comes from the same sample of what is read."""
    sample_tokens = {slot.token for slot in slots if _of_samples(slot) and not slot.token.is_whole}
    for operand in inputs:
        if any(_of_samples(slot) and slot.token not in sample_tokens for slot in operand.slots):
            raise ShapeError("it computes across samples")
    if sum(len([x for x in leaves(slot.axes) if x.role == BATCH]) for slot in slots) > 1:
        raise ShapeError("it computes across samples")


def _of_samples(slot: OperandSlot) -> bool:
    return any(axis.role == BATCH for axis in leaves(slot.axes))


def pointwise(
    draft: Draft,
    kind: str,
    array: Array,
    attributes: Mapping[str, Value] | None = None,
    name: str | None = None,
) -> Array:
    """Output of an op that is applied to every element.

    Parameters
    ----------
    draft : Draft
        Gets the op.
    kind : str
        Row of the op table with one input, such as `sqrt` or `dropout`.
    array : Array
        Its tensor is read as it lies; views and broadcasts stay views of the output.
    attributes : mapping, optional
        Attributes of the op, such as `{"exponent": 2.0}`; None: it has none.
    name : str, optional
        Name of the op within its module; None: its kind.
    """
    slots = tuple(OperandSlot(Token(), (axis,)) for axis in array.tensor.axes)
    operand = StepOperand(array.tensor, slots)
    return Array(draft.make(kind, (operand,), slots, attributes=attributes, name=name), array.dims)


def fresh(size: int, hint: str | None = None) -> TensorAxis:
    """New axis that no other is tied to.

    Parameters
    ----------
    size : int
        Length.
    hint : str, optional
        Label that reads well for it in the graph, such as `y`, used where it is free.
    """
    return TensorAxis(Extent(size, hint=hint))
