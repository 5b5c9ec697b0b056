"""Writing: a finished draft becomes a Graph, one dim per leaf of what the views took apart."""

import base64
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod, sqrt

import numpy as np

from millrace.models.builder import GraphBuilder
from millrace.models.errors import ModelError
from millrace.models.importers.torch_export.draft import (
    DraftOp,
    DraftTensor,
    OperandSlot,
    StepOperand,
    Token,
)
from millrace.models.importers.torch_export.extents import Extent, Group, TensorAxis, leaves
from millrace.models.importers.torch_export.sources import ParameterSource
from millrace.models.labels import BATCH, EXPERT, SEQUENCE, Dim, write

BLOCK = "model"
_MASKED = ("masked", "mask_id")  # tokens of masked text have them
_LETTERS = "knduhgrsvcyxijpqmzwaflo"
# More dims than letters are rare: views that take every dim apart.
_SPARE = (*_LETTERS, *(f"{letter}{number}" for number in (1, 2, 3) for letter in _LETTERS))

Layout = tuple[Group, ...]  # per dim the leaf axes in it


class _Labels:
    """Labels of one op: one per leaf of each token."""

    def __init__(self, step: DraftOp) -> None:
        self._step = step
        self.whole_labels: set[str] = set()
        self._taken_labels: set[str] = {label for token in _tokens(step) for label in token.labels}
        self._dims: dict[tuple[Token, int], Dim] = {}
        for slot in (*step.output.slots, *(s for x in step.inputs for s in x.slots)):
            count = 1 if slot.token.single else len(leaves(slot.axes))
            for index in range(count):
                self._add(slot, index)

    def _add(self, slot: OperandSlot, index: int) -> None:
        key = (slot.token, index)
        if key in self._dims:
            return
        if slot.token.labels:
            self._dims[key] = slot.token.labels
            label = slot.token.labels[0]
        else:
            label = self._free(slot, index)
            self._dims[key] = (label,)
        if slot.token.is_whole:
            self.whole_labels.add(label)

    def _free(self, slot: OperandSlot, index: int) -> str:
        group = leaves(slot.axes)
        alone = not slot.token.single or len(group) == 1
        root = group[index].extent.root() if group and alone else None
        wanted: list[str | None] = [slot.token.label]
        if root is not None:
            several = not slot.token.single and len(group) > 1
            named = (root.hint, slot.token.label) if several else (slot.token.label, root.hint)
            wanted = [root.role, *named]
        candidates: list[str | None] = [*wanted, *_SPARE]
        for label in candidates:
            if label and label not in self._taken_labels:
                if label in (SEQUENCE, EXPERT) and not _may(label, slot, root):
                    continue
                self._taken_labels.add(label)
                return label
        raise ModelError(
            f"`{self._step.output.tensor.name}` ({self._step.kind}) has more dims than there are "
            f"labels ({len(_SPARE)}); rewrite its views with fewer dims"
        )

    def dim(self, token: Token, index: int) -> Dim:
        """Labels of a leaf of a token (of the whole token where it is single)."""
        return self._dims[token, index]


def _may(label: str, slot: OperandSlot, root: Extent | None) -> bool:
    return root is None or root.role == label or slot.token.label == label


def _tokens(step: DraftOp) -> list[Token]:
    return [slot.token for x in (*step.inputs, step.output) for slot in x.slots]


@dataclass(slots=True, kw_only=True)
class DraftWriter:
    """Writer of a draft's steps into a builder."""

    builder: GraphBuilder
    sources: dict[str, ParameterSource] = field(default_factory=dict)
    _names: dict[DraftTensor, str] = field(default_factory=dict)
    _turned: dict[tuple[DraftTensor, Layout], str] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set)
    _inits: dict[DraftTensor, str] = field(default_factory=dict)

    def write(self, steps: Sequence[DraftOp]) -> None:
        """Write steps in order, and before each what it reads."""
        for step in steps:
            for operand in step.inputs:
                self._noted(step, operand)
        for step in steps:
            self._step(step)

    def tensor(self, tensor: DraftTensor, reader: str) -> str:
        """Name in the graph of what a step made, an input, or (for each use) a variable.

        `reader` names the use, where it is not a variable's first.
        """
        if tensor.kind == "input":
            return self._input(tensor)
        if tensor.kind in ("variable", "constant"):
            return self._once_a_step(tensor, reader)
        return self._names[tensor]

    def _noted(self, step: DraftOp, operand: StepOperand) -> None:
        """Note how a variable begins, which follows from what first reads it."""
        if operand.tensor.kind != "variable":
            return
        index = next(i for i, x in enumerate(step.inputs) if x is operand)
        init = "normal"
        if step.kind in ("layer_norm", "rms_norm", "batch_norm"):
            init = "zeros" if index == len(step.inputs) - 1 and step.kind != "rms_norm" else "ones"
        elif step.kind == "add" and len(operand.tensor.leaves()) < len(step.output.tensor.leaves()):
            init = "zeros" if len(operand.tensor.payload.shape) == 1 else "normal"
        elif step.kind == "conv":
            init = "conv"
        self._inits.setdefault(operand.tensor, init)

    def _full(self, name: str) -> str:
        return f"{BLOCK}.{name}"

    def _input(self, tensor: DraftTensor) -> str:
        if tensor not in self._names:
            slots = tuple(OperandSlot(Token(single=True, label=x.role), (x,)) for x in tensor.axes)
            labels = _Labels(DraftOp(kind="input", inputs=(), output=StepOperand(tensor, slots)))
            name = self.builder.input(
                tensor.name,
                _text(_operand(slots, labels)),
                tuple(axis.size for axis in tensor.axes),
                source=str(tensor.attributes["source"]),
                values=int(tensor.attributes.get("values", 0)),
                floating=not tensor.integer,
                attributes={x: tensor.attributes[x] for x in _MASKED if x in tensor.attributes},
            )
            # The data has the dims of the program's input; views of it come after.
            title = f"{tensor.name}.apart"
            self._names[tensor] = self._turn(name, _layout(slots), _apart(tensor), title)
        return self._names[tensor]

    def _once_a_step(self, tensor: DraftTensor, reader: str) -> str:
        """A variable or constant, repeated for this use."""
        _drop_samples(tensor)
        if any(axis.role == BATCH for axis in tensor.leaves()):
            raise ModelError(
                f"`{tensor.name}` is as long as the batch; parameters and constants may not depend "
                f"on it: trace with another number of samples"
            )
        dims = _own_dims(tensor)
        if tensor not in self._names:
            make = self._variable if tensor.kind == "variable" else self._constant
            self._names[tensor] = make(tensor, dims)
        name = self._names[tensor]
        first = tensor.kind == "variable" and name not in self._used
        self._used.add(name)
        return self.builder.repeat(name, tensor.name if first else reader, dims)

    def _variable(self, tensor: DraftTensor, dims: str) -> str:
        source: ParameterSource = tensor.payload
        shape = tuple(axis.size for axis in tensor.leaves())
        self.sources[self._full(tensor.name)] = replace(source, shape=shape)
        init = self._inits.get(tensor, "normal").replace("conv", "normal")
        # He et al., arXiv 1502.01852 (2015), section 2.2, for convolutions; else GPT-2's.
        std = sqrt(2 / prod(shape[1:])) if self._convolved(tensor) else 0.02
        return self.builder.variable(
            tensor.name,
            dims,
            shape,
            init=init,
            std=std,
            decay=len(source.shape) > 1,
            frozen=not tensor.trained,
        )

    def _convolved(self, tensor: DraftTensor) -> bool:
        return self._inits.get(tensor) == "conv"

    def _constant(self, tensor: DraftTensor, dims: str) -> str:
        shape = tuple(axis.size for axis in tensor.leaves())
        dtype = self.builder.precision.variable
        data, value = "", tensor.attributes.get("value", 0.0)
        if tensor.integer:
            dtype = "int32"
        if tensor.payload is not None:
            array = np.asarray(tensor.payload)
            if array.size == 1:
                value = float(array.reshape(-1)[0])
            else:
                raw = np.ascontiguousarray(array.astype(np.dtype(dtype).newbyteorder("<")))
                data = base64.b64encode(zlib.compress(raw.tobytes(), 6)).decode()
        name = self._full(tensor.name)
        self.builder.emit(
            "constant",
            name,
            (),
            f"-> {dims}",
            shapes=(shape,),
            dtype=dtype,
            attributes={"value": value, "data": data},
        )
        compute = self.builder.precision.compute
        if tensor.integer or compute == dtype:
            return name
        labels = f"{dims} -> {dims}"
        return self.builder.emit("cast", f"{name}.cast", (name,), labels, dtype=compute)[0]

    def _step(self, step: DraftOp) -> None:
        if step.kind == "merge":
            self._merge(step)
            return
        labels = _Labels(step)
        names, operands = [], []
        for index, operand in enumerate(step.inputs):
            name, dims = self._read(operand, step, index, labels)
            names.append(name)
            operands.append(dims)
        out = step.output
        output_dims = _operand(out.slots, labels)
        outputs = [output_dims]
        for tokens in step.extras:
            slots = (slot for token in tokens for slot in out.slots if slot.token is token)
            outputs.append(_operand(slots, labels))
        sinks = [(names.pop(), operands.pop())] if step.sunk else []
        text = write(operands, outputs, frozenset(labels.whole_labels))
        layout = _layout(out.slots)
        same = all(len(group) == 1 for group in layout)
        name = out.tensor.name if same else f"{out.tensor.name}.grouped"
        attributes = dict(step.attributes)
        if step.kind == "dropout":
            attributes["op"] = self._full(name)
        sizes = {dim: prod(x.size for x in g) for dim, g in zip(output_dims, layout, strict=True)}
        shapes = [tuple(sizes[dim] for dim in dims) for dims in outputs]
        made_names = self.builder.emit(
            step.kind,
            self._full(f"{name}.keys" if sinks else name),
            names,
            text,
            shapes=shapes,
            attributes=attributes,
            dtype="int32" if out.tensor.integer else None,
        )
        for sink, dims in sinks:
            text = write((*outputs, dims), outputs)
            read = (*made_names, sink)
            made_names = self.builder.emit("attention_sink", self._full(name), read, text)
        first = made_names[0]
        for tensor, made_name in zip(step.more, made_names[1:], strict=False):
            self._names[tensor] = made_name
        if not same:
            first = self._without_units(first, layout, f"{out.tensor.name}.flat")
            layout = tuple(group for group in layout if group)
            first = self._turn(first, layout, _apart(out.tensor), out.tensor.name)
        self._names[out.tensor] = first

    def _merge(self, step: DraftOp) -> None:
        """Merge several dims into one, and split that one as later views made of it."""
        (read,), out = step.inputs, step.output
        name = self.tensor(read.tensor, f"{out.tensor.name}.0")
        name = self._turn(name, _apart(read.tensor), _layout(read.slots), f"{out.tensor.name}.one")
        self._names[out.tensor] = self._turn(
            name, _layout(out.slots), _apart(out.tensor), out.tensor.name
        )

    def _read(
        self, operand: StepOperand, step: DraftOp, index: int, labels: _Labels
    ) -> tuple[str, tuple[Dim, ...]]:
        """Operand as the op needs it (grouped, permuted, with dims of size one), and its labels."""
        name = self.tensor(operand.tensor, f"{step.output.tensor.name}.{index}")
        have = _apart(operand.tensor)
        wanted, dims = _layout(operand.slots), _operand(operand.slots, labels)
        if all(len(group) == 1 for group in wanted) and not step.ordered:
            labels_by_axis = dict(zip(wanted, dims, strict=True))
            return name, tuple(labels_by_axis[axis] for axis in have)
        wanted_full = tuple(group for group in wanted if group)
        if have != wanted_full:
            key = (operand.tensor, wanted_full)
            if operand.tensor.kind != "made" or key not in self._turned:
                title = f"{operand.tensor.name}.for.{step.output.tensor.name}.{index}"
                self._turned[key] = self._turn(name, have, wanted_full, title)
            name = self._turned[key]
        if len(wanted_full) != len(wanted):
            name = self._with_units(name, wanted, f"{step.output.tensor.name}.unit.{index}")
        return name, dims

    def _turn(self, name: str, have: Layout, wanted: Layout, title: str) -> str:
        """Rearrange a tensor from one layout to another."""
        if have == wanted:
            return name
        labels_by_axis: dict[TensorAxis, str] = {}
        taken: set[str] = set()
        for axis in (x for group in (*have, *wanted) for x in group):
            root = axis.extent.root()
            if axis in labels_by_axis:
                continue
            spare = [x for x in (root.role, root.hint, *_SPARE) if x and x not in taken]
            labels_by_axis[axis] = spare[0]
            taken.add(spare[0])
        sides = [
            tuple(tuple(labels_by_axis[axis] for axis in group) for group in layout)
            for layout in (have, wanted)
        ]
        shape = tuple(prod(x.size for x in group) for group in wanted)
        text = write(sides[:1], sides[1:])
        flat = any(len(group) > 1 for group in have)
        shapes = (tuple(x.size for group in wanted for x in group),) if flat else (shape,)
        return self._moved("rearrange", name, title, text, shapes)

    def _moved(
        self, kind: str, name: str, title: str, labels: str, shapes: Sequence[tuple[int, ...]] = ()
    ) -> str:
        """Output of an op that makes ids of ids."""
        dtype = self.builder.tensors[name].dtype
        ids = dtype if dtype.startswith("int") else None
        full = self._full(title)
        return self.builder.emit(kind, full, (name,), labels, shapes=shapes, dtype=ids)[0]

    def _without_units(self, name: str, layout: Layout, title: str) -> str:
        """Sum away the dims of size one that a layout has no axis for."""
        if all(layout):
            return name
        dims = _numbered(layout)
        kept_dims = tuple(dim for dim, group in zip(dims, layout, strict=True) if group)
        return self._moved("sum", name, title, write((dims,), (kept_dims,)))

    def _with_units(self, name: str, wanted: Layout, title: str) -> str:
        """Add the dims of size one that a layout has."""
        dims = _numbered(wanted)
        have = tuple(dim for dim, group in zip(dims, wanted, strict=True) if group)
        text = write((have,), (dims,))
        shape = tuple(prod(x.size for x in group) for group in wanted)
        return self._moved("broadcast", name, title, text, (shape,))


def _drop_samples(tensor: DraftTensor) -> None:
    """Leave the batch out of a constant that is the same for every sample."""
    axes = tensor.leaves()
    batch_dim = next((i for i, axis in enumerate(axes) if axis.role == BATCH), None)
    if batch_dim is None or tensor.payload is None or tensor.kind != "constant":
        return
    values = np.asarray(tensor.payload).reshape([axis.size for axis in axes])
    first = values.take([0], axis=batch_dim)
    if (values == first).all():
        tensor.axes = axes[:batch_dim] + axes[batch_dim + 1 :]
        tensor.payload = first.squeeze(batch_dim)


def _numbered(layout: Layout) -> tuple[Dim, ...]:
    """Labels for dims of which nothing matters but where the batch is."""
    return tuple(
        (BATCH,) if len(group) == 1 and group[0].role == BATCH else (_SPARE[index],)
        for index, group in enumerate(layout)
    )


def _own_dims(tensor: DraftTensor) -> str:
    """Labels of a tensor by itself."""
    slots = tuple(OperandSlot(Token(), (axis,)) for axis in tensor.leaves())
    labels = _Labels(DraftOp(kind=tensor.kind, inputs=(), output=StepOperand(tensor, slots)))
    return _text(_operand(slots, labels))


def _groups(slot: OperandSlot) -> tuple[Group, ...]:
    """Dims that a slot stands for: one per leaf, or one for all."""
    group = leaves(slot.axes)
    return (group,) if slot.token.single else tuple((axis,) for axis in group)


def _layout(slots: Sequence[OperandSlot]) -> Layout:
    return tuple(group for slot in slots for group in _groups(slot))


def _operand(slots: Iterable[OperandSlot], labels: _Labels) -> tuple[Dim, ...]:
    return tuple(
        labels.dim(slot.token, index) for slot in slots for index in range(len(_groups(slot)))
    )


def _apart(tensor: DraftTensor) -> Layout:
    """Layout of a tensor as the graph has it: each leaf a dim."""
    return tuple((axis,) for axis in tensor.leaves())


def _text(operand: Sequence[Dim]) -> str:
    return write((), (tuple(operand),)).removeprefix(" -> ") or "()"
