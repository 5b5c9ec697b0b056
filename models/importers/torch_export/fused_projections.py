"""Fused projections taken apart: one product that is sliced becomes a product per slice.

Query, key and value out of one weight (or gate and up) are variables of their own in the graph, so
that heads can be split over devices; each says which part of the parameter it is.
"""

from dataclasses import replace
from typing import NamedTuple

from millrace.models.importers.torch_export.draft import (
    Draft,
    DraftOp,
    DraftTensor,
    OperandSlot,
    StepOperand,
    axis_below,
)
from millrace.models.importers.torch_export.extents import Group, TensorAxis, leaves
from millrace.models.importers.torch_export.sources import ParameterSlice


class _Slice(NamedTuple):
    """Slice that reads a fused projection."""

    start: int
    output_axis: TensorAxis
    output: DraftTensor
    dropped: bool  # a slice of one place, whose dim is summed away at once
    steps: tuple[DraftOp, ...]


class _Piece(NamedTuple):
    """Part of a tensor: `old` is the axis that was sliced, `new` what is left of it."""

    tensor: DraftTensor
    old: TensorAxis
    new: TensorAxis | None


def split_fused_projections(draft: Draft, steps: list[DraftOp]) -> list[DraftOp]:
    """Return the steps with every sliced projection of a parameter taken apart."""
    index, readers = 0, _readers(steps)
    while index < len(steps):
        rewritten = _taken_apart(draft, steps, index, readers)
        if rewritten is None:
            index += 1
        else:
            steps, readers = rewritten, _readers(rewritten)
    return steps


def _taken_apart(
    draft: Draft, steps: list[DraftOp], index: int, readers: dict[DraftTensor, list[DraftOp]]
) -> list[DraftOp] | None:
    """Take the projection that ends in step `index` apart, if it is one that is only sliced."""
    last = steps[index]
    narrows = readers.get(last.output.tensor, [])
    if len(narrows) < 2 or any(step.kind != "narrow" for step in narrows):
        return None
    sliced = [_sliced(step) for step in narrows]
    old = sliced[0][0]
    if old is None or any(axis is not old for axis, _ in sliced):
        return None
    # Only slices that tile the projection are parameters of their own.
    parts = sorted(
        (int(step.attributes["start"]), new_axis.size)
        for step, (_, new_axis) in zip(narrows, sliced, strict=True)
    )
    ends = [start + size for start, size in parts]
    if [start for start, _ in parts] != [0, *ends[:-1]] or ends[-1] != old.size:
        return None
    makers = {step.output.tensor: step for step in steps}
    chain = _projection(last, old, makers, readers)
    if chain is None:
        return None
    slices = [
        _slice(step, new_axis, readers) for step, (_, new_axis) in zip(narrows, sliced, strict=True)
    ]
    gone = {step for slice_ in slices for step in slice_.steps} | set(chain)
    new = [step for i, slice_ in enumerate(slices) for step in _part(draft, chain, old, slice_, i)]
    before = [step for step in steps[: index + 1] if step not in gone]
    return [*before, *new, *(step for step in steps[index + 1 :] if step not in gone)]


def _readers(steps: list[DraftOp]) -> dict[DraftTensor, list[DraftOp]]:
    readers: dict[DraftTensor, list[DraftOp]] = {}
    for step in steps:
        for operand in step.inputs:
            readers.setdefault(operand.tensor, []).append(step)
    return readers


def _sliced(step: DraftOp) -> tuple[TensorAxis | None, TensorAxis]:
    """Axis that a narrow slices, None where it is several leaves, and the axis it makes."""
    read_tokens = {slot.token for slot in step.inputs[0].slots}
    new_slot = next(slot for slot in step.output.slots if slot.token not in read_tokens)
    out_tokens = {slot.token for slot in step.output.slots}
    old_slot = next(slot for slot in step.inputs[0].slots if slot.token not in out_tokens)
    group = leaves(old_slot.axes)
    return group[0] if len(group) == 1 else None, new_slot.axes[0]


def _slice(
    step: DraftOp, new_axis: TensorAxis, readers: dict[DraftTensor, list[DraftOp]]
) -> _Slice:
    start = int(step.attributes["start"])
    after = readers.get(step.output.tensor, [])
    if new_axis.size == 1 and len(after) == 1 and after[0].kind == "sum":
        left = set(after[0].output.tensor.leaves())
        if left == {x for x in step.output.tensor.leaves() if x is not new_axis}:
            return _Slice(start, new_axis, after[0].output.tensor, True, (step, after[0]))
    return _Slice(start, new_axis, step.output.tensor, False, (step,))


def _projection(
    last: DraftOp,
    old: TensorAxis,
    makers: dict[DraftTensor, DraftOp],
    readers: dict[DraftTensor, list[DraftOp]],
) -> tuple[DraftOp, ...] | None:
    """Product (and addition of its bias) that make a sliced tensor out of a parameter."""
    if last.kind == "add" and len(last.inputs) == 2:
        makes = [makers.get(operand.tensor) for operand in last.inputs]
        index = next((i for i, step in enumerate(makes) if step and step.kind == "matmul"), None)
        if index is None or not _is_parameter_read_once(last.inputs[1 - index].tensor, readers):
            return None
        product, inner = makes[index], axis_below(last, last.inputs[index], old)
        if product is None or inner is None or len(readers[product.output.tensor]) != 1:
            return None
        return (product, last) if _from_parameter(product, inner, readers) else None
    if last.kind == "matmul" and _from_parameter(last, old, readers):
        return (last,)
    return None


def _is_parameter_read_once(tensor: DraftTensor, readers: dict[DraftTensor, list[DraftOp]]) -> bool:
    """True if a tensor is a parameter that is read once."""
    return tensor.kind == "variable" and len(readers[tensor]) == 1


def _from_parameter(
    step: DraftOp, old: TensorAxis, readers: dict[DraftTensor, list[DraftOp]]
) -> bool:
    """True if the axis comes from a parameter alone."""
    have = [axis_below(step, operand, old) is not None for operand in step.inputs]
    return sum(have) == 1 and _is_parameter_read_once(step.inputs[have.index(True)].tensor, readers)


def _part(
    draft: Draft, chain: tuple[DraftOp, ...], old: TensorAxis, slice_: _Slice, index: int
) -> list[DraftOp]:
    """Steps that make one slice from its own part of the parameters."""
    steps: list[DraftOp] = []
    olds = [old]
    for step in reversed(chain[1:]):
        inner = next(x for x in step.inputs if x.tensor is chain[0].output.tensor)
        place = axis_below(step, inner, olds[0])
        assert place is not None
        olds.insert(0, place)
    output_piece: _Piece | None = None
    for step, axis in zip(chain, olds, strict=True):
        inputs = []
        for operand in step.inputs:
            place = axis_below(step, operand, axis)
            if place is None:
                inputs.append(operand)
                continue
            if operand.tensor.kind == "variable":
                piece = _cut(draft, operand.tensor, place, slice_, index)
            else:
                assert output_piece is not None
                piece = output_piece
            inputs.append(_read(operand, piece))
        if step is chain[-1]:
            output_piece = _Piece(
                slice_.output, axis, None if slice_.dropped else slice_.output_axis
            )
        else:
            output_piece = _renamed(draft, step.output.tensor, axis, slice_, index)
        steps.append(replace(step, inputs=tuple(inputs), output=_read(step.output, output_piece)))
    return steps


def _renamed(
    draft: Draft, tensor: DraftTensor, old: TensorAxis, slice_: _Slice, index: int
) -> _Piece:
    new = None if slice_.dropped else TensorAxis(slice_.output_axis.extent)
    name = draft.name(f"{tensor.name}.part{index}")
    return _Piece(replace(tensor, name=name, axes=_with(tensor.leaves(), old, new)), old, new)


def _cut(draft: Draft, tensor: DraftTensor, old: TensorAxis, slice_: _Slice, index: int) -> _Piece:
    """Part of a parameter that makes one slice."""
    piece = _renamed(draft, tensor, old, slice_, index)
    axes = tensor.leaves()
    cut = ParameterSlice(
        shape=tuple(axis.size for axis in axes),
        dim=next(i for i, axis in enumerate(axes) if axis is old),
        start=slice_.start,
        size=slice_.output_axis.size,
    )
    source = tensor.payload
    piece.tensor.payload = replace(source, cuts=(*source.cuts, cut))
    return piece


def _read(operand: StepOperand, piece: _Piece) -> StepOperand:
    slots = (
        OperandSlot(s.token, _with(leaves(s.axes), piece.old, piece.new)) for s in operand.slots
    )
    return StepOperand(piece.tensor, tuple(slot for slot in slots if slot.axes))


def _with(axes: Group, old: TensorAxis, new: TensorAxis | None) -> Group:
    replaced = (new if axis is old else axis for axis in axes)
    return tuple(axis for axis in replaced if axis is not None)
