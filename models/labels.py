"""Index labels: one line says what an op does with every dim of its operands.

`b t k, k n -> b t n` reads: operands separated by commas, dims by spaces, inputs before the arrow,
outputs after it. The grammar:

    expression  operands "->" operands
    operands    nothing, or operand ("," operand)*
    operand     dim*, or "()" for a scalar where an empty operand would be unclear
    dim         label, or "(" label+ ")"     a group: labels from the outermost to the innermost
    label       [a-z][a-z0-9_]* "!"?         "!" (anywhere): the label is whole, never split

An empty left side means no inputs, an empty right side one scalar output; any other empty operand
is a scalar. By convention `b` is the batch (samples) and `t` the sequence.

A label is a way to split an op: each operand that has it is split on that dim. In a group only the
outermost label can be split, as only then a shard of the dim is a shard of the label.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod

from millrace.models.errors import ModelError

Dim = tuple[str, ...]  # the labels of one dim, outermost first; one label unless it is a group
Operand = tuple[Dim, ...]
Shape = tuple[int, ...]

# Labels that mean the same in every op: roles and pins go by them.
BATCH = "b"
SEQUENCE = "t"
EXPERT = "e"

_TOKEN = re.compile(r"\s*(?:([a-z][a-z0-9_]*)(!?)|([()]))")


@dataclass(frozen=True, kw_only=True)  # no slots: what follows from the operands is kept
class Expression:
    """Parsed index expression; two are equal when their texts are.

    Attributes
    ----------
    text : str
        The expression as it was written.
    inputs, outputs : tuple of Operand
        An operand is a tuple of dims, a dim a tuple of labels (outermost first).
    whole_labels : frozenset of str
        Labels that may not be split.
    """

    text: str
    inputs: tuple[Operand, ...] = field(compare=False)
    outputs: tuple[Operand, ...] = field(compare=False)
    whole_labels: frozenset[str] = field(compare=False)

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """Inputs, then outputs."""
        return self.inputs + self.outputs

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Every label once, in order of appearance."""
        occurrences = (label for operand in self.operands for dim in operand for label in dim)
        return tuple(dict.fromkeys(occurrences))

    @cached_property
    def contracted(self) -> tuple[str, ...]:
        """Labels of the inputs that no output has."""
        output_labels = {label for operand in self.outputs for dim in operand for label in dim}
        return tuple(label for label in self.labels if label not in output_labels)

    @cached_property
    def splittable(self) -> tuple[str, ...]:
        """Labels that are not whole and are outermost in every dim that has them."""
        inner = {label for operand in self.operands for dim in operand for label in dim[1:]}
        return tuple(
            label for label in self.labels if label not in self.whole_labels and label not in inner
        )


@lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """Read an index expression.

    Parameters
    ----------
    text : str
        For example `b t k, k n -> b t n`.

    Raises
    ------
    ModelError
        The text breaks the grammar, or an operand has one label twice.

    Examples
    --------
    >>> parse("b i j -> b (i j)").outputs
    ((('b',), ('i', 'j')),)
    """
    sides = text.split("->")
    if len(sides) != 2:
        raise ModelError(f"labels `{text}`: expected one `->` between inputs and outputs")
    whole_labels: set[str] = set()
    left, right = sides
    inputs = _operands(left, text, whole_labels) if left.strip() else ()
    outputs = _operands(right, text, whole_labels)
    return Expression(
        text=text, inputs=inputs, outputs=outputs, whole_labels=frozenset(whole_labels)
    )


def _operands(side: str, text: str, whole_labels: set[str]) -> tuple[Operand, ...]:
    return tuple(_operand(piece, text, whole_labels) for piece in side.split(","))


def _operand(piece: str, text: str, whole_labels: set[str]) -> Operand:
    dims: list[Dim] = []
    group: list[str] | None = None
    position = 0
    while piece[position:].strip():
        match = _TOKEN.match(piece, position)
        if match is None:
            raise ModelError(f"labels `{text}`: `{piece[position:].strip()}` is not a label")
        position = match.end()
        label, mark, bracket = match.groups()
        if label:
            if mark:
                whole_labels.add(label)
            if group is None:
                dims.append((label,))
            else:
                group.append(label)
        elif bracket == "(" and group is None:
            group = []
        elif bracket == ")" and group is not None:
            if not group and piece.strip() != "()":
                raise ModelError(f"labels `{text}`: a group holds at least one label")
            dims.extend([tuple(group)] if group else [])
            group = None
        else:
            raise ModelError(f"labels `{text}`: brackets do not match in `{piece.strip()}`")
    if group is not None:
        raise ModelError(f"labels `{text}`: brackets do not match in `{piece.strip()}`")
    labels = [label for dim in dims for label in dim]
    if len(set(labels)) != len(labels):
        raise ModelError(f"labels `{text}`: `{piece.strip()}` has one label twice")
    return tuple(dims)


def write(
    inputs: Sequence[Operand],
    outputs: Sequence[Operand],
    whole_labels: frozenset[str] = frozenset(),
) -> str:
    """Index expression of operands in the one way that `parse` reads back.

    Parameters
    ----------
    inputs, outputs : sequence of Operand
        Tuples of dims, a dim a tuple of labels (outermost first); scalars among several are written
        as nothing, a single input that is one as `()`.
    whole_labels : frozenset of str
        Labels that may not be split, marked with `!` wherever they occur; by default none.
    """
    return _written_expression(tuple(inputs), tuple(outputs), whole_labels)


@lru_cache(maxsize=16384)
def _written_expression(
    inputs: tuple[Operand, ...], outputs: tuple[Operand, ...], whole_labels: frozenset[str]
) -> str:
    left = ", ".join(_written(operand, whole_labels) for operand in inputs)
    right = ", ".join(_written(operand, whole_labels) for operand in outputs)
    if len(inputs) == 1 and not inputs[0]:
        left = "()"
    return f"{left} -> {right}"


def _written(operand: Operand, whole_labels: frozenset[str]) -> str:
    def dim(labels: Dim) -> str:
        marked = [label + "!" * (label in whole_labels) for label in labels]
        return marked[0] if len(marked) == 1 else "(" + " ".join(marked) + ")"

    return " ".join(dim(labels) for labels in operand)


def bind(
    expression: Expression,
    input_shapes: Sequence[Shape],
    output_shapes: Sequence[Shape] = (),
    sizes: Mapping[str, int] | None = None,
    *,
    op: str = "",
    tensors: Sequence[str] = (),
) -> dict[str, int]:
    """Size of every label, from the shapes of the operands.

    Parameters
    ----------
    expression : Expression
        Parsed labels of an op; the result has its labels in order of appearance.
    input_shapes : sequence of shapes
        One per input operand.
    output_shapes : sequence of shapes
        One per output operand, or empty when outputs are still to be made.
    sizes : mapping of str to int, optional
        Sizes known beforehand, for labels that shapes alone do not give; None: none are.
    op : str
        Name of the op for error messages; empty: they quote the labels.
    tensors : sequence of str
        Names of the tensors for error messages, inputs, then outputs; empty: they count operands.

    Raises
    ------
    ModelError
        There are more or fewer shapes than operands, a shape has another number of dims than its
        operand, a label would have two sizes, a group does not divide, or a label's size cannot be
        known.

    Examples
    --------
    >>> bind(parse("b (h d), d n -> b h n"), [(2, 12), (4, 7)])
    {'b': 2, 'h': 3, 'd': 4, 'n': 7}
    """
    given_sizes = tuple(sorted((sizes or {}).items()))
    try:
        return dict(_bound(expression, tuple(input_shapes), tuple(output_shapes), given_sizes))
    except _MismatchError as mismatch:
        raise _refused(mismatch, expression, op, tensors) from None


def bound_outputs(
    expression: Expression,
    input_shapes: Sequence[Shape],
    output_shapes: Sequence[Shape],
    *,
    op: str,
    tensors: Sequence[str],
) -> tuple[Shape, ...]:
    """Shapes of the outputs, once the shapes of all operands are bound as `bind` does.

    Parameters
    ----------
    expression, input_shapes, output_shapes, op, tensors
        As for `bind`.

    Raises
    ------
    ModelError
        As `bind` does.
    """
    try:
        return _bound_outputs(expression, tuple(input_shapes), tuple(output_shapes))
    except _MismatchError as mismatch:
        raise _refused(mismatch, expression, op, tensors) from None


@lru_cache(maxsize=16384)
def _bound_outputs(
    expression: Expression, input_shapes: tuple[Shape, ...], output_shapes: tuple[Shape, ...]
) -> tuple[Shape, ...]:
    sizes = _bound(expression, input_shapes, output_shapes, ())
    return tuple(shape_of(operand, sizes) for operand in expression.outputs)


def _refused(
    mismatch: "_MismatchError", expression: Expression, op: str, tensors: Sequence[str]
) -> ModelError:
    """Error that names the op and the tensor of a mismatch."""
    position, reason = mismatch.args
    where = f"op `{op}`" if op else f"labels `{expression.text}`"
    if position is not None:
        name = tensors[position] if position < len(tensors) else f"operand {position}"
        where += f", tensor `{name}`" if position < len(tensors) else f", {name}"
    return ModelError(f"{where}: {reason} (labels `{expression.text}`)")


class _MismatchError(Exception):
    """Index of the operand (or None) and what is wrong with it."""


@lru_cache(maxsize=16384)
def _bound(
    expression: Expression,
    input_shapes: tuple[Shape, ...],
    output_shapes: tuple[Shape, ...],
    given_sizes: tuple[tuple[str, int], ...],
) -> dict[str, int]:
    if len(input_shapes) != len(expression.inputs):
        raise _MismatchError(
            None, f"{len(expression.inputs)} inputs expected, {len(input_shapes)} given"
        )
    if output_shapes and len(output_shapes) != len(expression.outputs):
        raise _MismatchError(
            None, f"{len(expression.outputs)} outputs expected, {len(output_shapes)} given"
        )
    sizes = dict(given_sizes)
    pending: list[tuple[int, Dim, int]] = []
    shapes = input_shapes + output_shapes
    for position, (operand, shape) in enumerate(zip(expression.operands, shapes, strict=False)):
        if len(operand) != len(shape):
            raise _MismatchError(position, f"{len(operand)} dims expected, the shape is {shape}")
        pending.extend((position, dim, size) for dim, size in zip(operand, shape, strict=True))
    while pending:
        left = [item for item in pending if not _bind_dim(*item, sizes)]
        if len(left) == len(pending):
            position, dim, _ = left[0]
            unknown = next(label for label in dim if label not in sizes)
            raise _MismatchError(
                position, f"the size of label `{unknown}` is not known; give it in `sizes`"
            )
        pending = left
    unbound = [label for label in expression.labels if label not in sizes]
    if unbound:
        raise _MismatchError(
            None, f"the size of label `{unbound[0]}` is not known; give it in `sizes`"
        )
    return {label: sizes[label] for label in expression.labels}


def _bind_dim(position: int, dim: Dim, size: int, sizes: dict[str, int]) -> bool:
    """Fill in the one unknown label of a dim, or check it; False while two are unknown."""
    unknown = [label for label in dim if label not in sizes]
    if len(unknown) > 1:
        return False
    rest = prod(sizes[label] for label in dim if label in sizes)
    if unknown:
        if rest == 0 or size % rest:
            group = " ".join(dim)
            raise _MismatchError(
                position, f"size {size} of group `({group})` is not divisible by {rest}"
            )
        sizes[unknown[0]] = size // rest
    elif rest != size:
        name = f"label `{dim[0]}`" if len(dim) == 1 else f"group `({' '.join(dim)})`"
        raise _MismatchError(
            position, f"{name} is {rest} elsewhere but {size} here; make them equal"
        )
    return True


def shape_of(operand: Operand, sizes: Mapping[str, int]) -> Shape:
    """Shape of an operand whose labels have these sizes.

    Parameters
    ----------
    operand : Operand
        A tuple of dims, a dim a tuple of labels.
    sizes : mapping of str to int
        Size of each of its labels, and perhaps of others; those of a group are multiplied.

    Raises
    ------
    KeyError
        A label has no size.
    """
    return tuple(prod(sizes[label] for label in dim) for dim in operand)


def dim_of(operand: Operand, label: str) -> int | None:
    """Index of the dim that has `label`, alone or in a group; None where the operand lacks it.

    Parameters
    ----------
    operand : Operand
        A tuple of dims, a dim a tuple of labels.
    label : str
        Without `!`.
    """
    for index, dim in enumerate(operand):
        if label in dim:
            return index
    return None
