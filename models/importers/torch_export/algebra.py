"""Array algebra on a draft: broadcasting, products, sums, slices and joins.

Everything a traced op needs comes down to these; they pair the axes of operands dim by dim, so
that what must be split alike is.
"""

from collections.abc import Mapping, Sequence
from math import prod

from millrace.models.importers.torch_export.draft import (
    Array,
    Draft,
    OperandSlot,
    StepOperand,
    Token,
    Value,
    fresh,
    pointwise,
    tokens,
)
from millrace.models.importers.torch_export.extents import (
    Group,
    ShapeError,
    TensorAxis,
    leaves,
    paired,
    size_of,
)
from millrace.models.labels import BATCH

Pair = tuple[TensorAxis | None, TensorAxis | None]


def matched(left: Group, right: Group) -> list[Pair]:
    """Pairs of leaf axes of two dims that broadcast; None where a dim has size one."""
    if size_of(left) == 1 and size_of(right) == 1:
        left_leaves, right_leaves = leaves(left), leaves(right)
        if len(left_leaves) == len(right_leaves):
            return list(zip(left_leaves, right_leaves, strict=True))
        return [(axis, None) for axis in left_leaves] + [(None, axis) for axis in right_leaves]
    if size_of(right) == 1:
        return [(axis, None) for axis in leaves(left)]
    if size_of(left) == 1:
        return [(None, axis) for axis in leaves(right)]
    return list(paired(left, right))


class _Joined:
    """Two operands whose axes are paired, and the axes of what comes out."""

    def __init__(self, left: Array, right: Array) -> None:
        self.left, self.right = left, right
        self.slots: tuple[list[OperandSlot], list[OperandSlot]] = ([], [])
        self.out: dict[TensorAxis, OperandSlot] = {}
        self._real = tuple(set(array.tensor.leaves()) for array in (left, right))

    def add(self, pair: Pair, keep: bool = True) -> TensorAxis:
        """Take in a pair of axes and return the output's."""
        left_axis, right_axis = pair
        here = [axis in real for axis, real in zip(pair, self._real, strict=True)]
        token = Token()
        for axis, real, slots in zip(pair, here, self.slots, strict=True):
            if axis is not None and real:
                slots.append(OperandSlot(token, (axis,)))
        chosen = left_axis if left_axis is not None and (here[0] or not here[1]) else right_axis
        if chosen is None:
            raise ShapeError("an op reads a dim that none of its operands has")
        if not keep:
            if here[0] != here[1]:
                raise ShapeError("a product sums over a dim that one factor is constant along")
            return chosen
        if chosen in self.out:
            chosen = TensorAxis(chosen.extent)
        if any(here):
            self.out[chosen] = OperandSlot(token, (chosen,))
        return chosen

    def operands(self) -> tuple[StepOperand, StepOperand]:
        """Both operands, as a step reads them."""
        return (
            StepOperand(self.left.tensor, tuple(self.slots[0])),
            StepOperand(self.right.tensor, tuple(self.slots[1])),
        )


def without_units(draft: Draft, array: Array) -> Array:
    """Array without the dims of size one that its tensor really has, but for the batch.

    Parameters
    ----------
    draft : Draft
        Gets a `sum` over them, if there are any.
    array : Array
        Its rank stays.
    """
    units = [x for x in array.tensor.leaves() if x.size == 1 and x.role != "b"]
    return summed_axes(draft, array, units) if units else array


def summed_axes(draft: Draft, array: Array, gone: Sequence[TensorAxis]) -> Array:
    """Array summed over real leaf axes, which leave the dims they were in.

    Parameters
    ----------
    draft : Draft
        Gets one `sum`.
    array : Array
        Its rank stays: a dim that loses all its axes has size one.
    gone : sequence of TensorAxis
        Leaf axes of the array's tensor.

    Raises
    ------
    ShapeError
        One of them is the batch.
    """
    slots = tuple(OperandSlot(Token(), (axis,)) for axis in array.tensor.leaves())
    left = [slot for slot in slots if slot.axes[0] not in gone]
    total = draft.make("sum", (StepOperand(array.tensor, slots),), left)
    dims = tuple(tuple(axis for axis in leaves(group) if axis not in gone) for group in array.dims)
    return Array(total, dims)


def _all_matched(groups: Sequence[tuple[Group, Group]]) -> list[list[Pair]]:
    """Pairs of every dim; a later dim may split the axes of an earlier one, hence twice."""
    for left, right in groups:
        matched(left, right)
    return [matched(left, right) for left, right in groups]


def combined(
    draft: Draft,
    kind: str,
    left: Array,
    right: Array,
    *,
    name: str | None = None,
    attributes: Mapping[str, Value] | None = None,
) -> Array:
    """Output of an elementwise op of two arrays that broadcast.

    Parameters
    ----------
    draft : Draft
        Gets the op, and sums that take away real dims of size one.
    kind : str
        Row of the op table with two inputs, such as `add`, `mul` or `prelu`.
    left, right : Array
        Operands in order; dims are matched from the last one, as in NumPy.
    name : str, optional
        Name of the op within its module; None: its kind.
    attributes : mapping, optional
        Attributes of the op; None: it has none.

    Raises
    ------
    ShapeError
        Sizes differ and neither is one, dims are taken apart in two ways, or samples would meet.
    """
    left, right = _unit_free(draft, left, right)
    rank = max(len(left.dims), len(right.dims))
    left_dims = ((),) * (rank - len(left.dims)) + left.dims
    right_dims = ((),) * (rank - len(right.dims)) + right.dims
    pairs = _all_matched(list(zip(left_dims, right_dims, strict=True)))
    joined = _Joined(left, right)
    dims = tuple(tuple(joined.add(pair) for pair in row) for row in pairs)
    slots = _ordered_slots(joined)
    output = draft.make(kind, joined.operands(), slots, name=name, attributes=attributes)
    return Array(output, dims)


def _unit_free(draft: Draft, left: Array, right: Array) -> tuple[Array, Array]:
    """Both arrays, without real dims of size one that would be broadcast."""
    if left.shape == right.shape and len(left.tensor.leaves()) == len(right.tensor.leaves()):
        return left, right
    return without_units(draft, left), without_units(draft, right)


def _ordered_slots(joined: _Joined) -> list[OperandSlot]:
    """The output's slots in the order of the operand that has most of them."""
    tokens = {slot.token: slot for slot in joined.out.values()}
    first, second = joined.slots
    order = [*first, *second] if len(first) >= len(second) else [*second, *first]
    ordered: dict[Token, OperandSlot] = {}
    for slot in order:
        if slot.token in tokens:
            ordered.setdefault(slot.token, tokens[slot.token])
    return list(ordered.values())


def product(
    draft: Draft,
    left: Array,
    right: Array,
    equation: tuple[str, str, str],
    *,
    name: str | None = None,
) -> Array:
    """Product of two arrays, summed over the letters that the output lacks.

    Parameters
    ----------
    draft : Draft
        Gets the `matmul`, and what has to be summed or broadcast before it.
    left, right : Array
        Factors; a letter that one alone has is summed over in it first where the output lacks it.
    equation : (str, str, str)
        Letters of the dims of left, right and output, one a dim, none twice in one of them.
    name : str, optional
        Name of the op within its module; None: matmul.

    Raises
    ------
    ShapeError
        Dims of one letter do not match, or samples would meet.
    """
    left, right = without_units(draft, left), without_units(draft, right)
    left_letters, right_letters, out_letters = equation
    left = _sum_alone(draft, left, left_letters, right_letters + out_letters)
    left_letters = "".join(x for x in left_letters if x in right_letters + out_letters)
    right = _sum_alone(draft, right, right_letters, left_letters + out_letters)
    right_letters = "".join(x for x in right_letters if x in left_letters + out_letters)
    gone = [
        letter
        for letter in dict.fromkeys(left_letters + right_letters)
        if letter not in out_letters
    ]
    left = materialize_axes(draft, left, [left.dims[left_letters.index(letter)] for letter in gone])
    right = materialize_axes(
        draft, right, [right.dims[right_letters.index(letter)] for letter in gone]
    )
    letters = list(dict.fromkeys(out_letters + left_letters + right_letters))
    groups = [
        (
            left.dims[left_letters.index(letter)] if letter in left_letters else (),
            right.dims[right_letters.index(letter)] if letter in right_letters else (),
        )
        for letter in letters
    ]
    rows = _all_matched(groups)
    joined = _Joined(left, right)
    groups_by_letter: dict[str, Group] = {}
    for letter, pairs in zip(letters, rows, strict=True):
        if letter in out_letters:
            groups_by_letter[letter] = tuple(joined.add(pair) for pair in pairs)
        else:
            for pair in pairs:
                joined.add(pair, keep=False)
    slots = [
        joined.out[x] for letter in out_letters for x in groups_by_letter[letter] if x in joined.out
    ]
    _label_product(joined)
    output = draft.make("matmul", joined.operands(), slots, name=name)
    return Array(output, tuple(groups_by_letter[letter] for letter in out_letters))


def _label_product(joined: _Joined) -> None:
    """Label contracted dims k, those of a weight alone n."""
    out = {slot.token for slot in joined.out.values()}
    left = {slot.token for slot in joined.slots[0]}
    for slot in (*joined.slots[0], *joined.slots[1]):
        if slot.axes[0].role is None and slot.axes[0].extent.root().hint is None:
            if slot.token not in out:
                slot.token.label = "k"
            elif slot.token not in left:
                slot.token.label = "n"


def _sum_alone(draft: Draft, array: Array, letters: str, elsewhere: str) -> Array:
    gone = [index for index, letter in enumerate(letters) if letter not in elsewhere]
    return reduced(draft, array, gone, keep=False) if gone else array


def reduced(draft: Draft, array: Array, dims: Sequence[int], *, keep: bool) -> Array:
    """Sum over dims; one along which the tensor is the same counts as often as it is long.

    Parameters
    ----------
    draft : Draft
        Gets a `sum`, a `scale`, both or none.
    array : Array
        Its dims as the program sees them, which `dims` count.
    dims : sequence of int
        Indexes, counted from the end if below zero; none of them the batch.
    keep : bool
        The dims stay, with size one, as in PyTorch's `keepdim`.

    Raises
    ------
    ShapeError
        It would compute across samples.
    """
    places = {dim % len(array.dims) for dim in dims}
    if any(axis.role == BATCH for place in places for axis in leaves(array.dims[place])):
        raise ShapeError("it computes across samples")
    gone = [x for place in places for x in leaves(array.dims[place]) if array.real(x)]
    times = prod(
        array.dims[place][i].size for place in places for i in range(len(array.dims[place]))
    )
    times //= prod(axis.size for axis in gone)
    total = summed_axes(draft, array, gone) if gone else array
    kept_dims = tuple(
        () if place in places else group
        for place, group in enumerate(total.dims)
        if keep or place not in places
    )
    total = Array(total.tensor, kept_dims)
    return scaled(draft, total, times) if times != 1 else total


def scaled(draft: Draft, array: Array, factor: float) -> Array:
    """Array multiplied by a number; by 1, the array itself.

    Parameters
    ----------
    draft : Draft
        Gets the `scale`.
    array : Array
        Its tensor is read element by element; the dims stay.
    factor : float
        The number, known when the model is imported.
    """
    return array if factor == 1 else pointwise(draft, "scale", array, {"factor": float(factor)})


def materialize_axes(draft: Draft, array: Array, groups: Sequence[Group]) -> Array:
    """Array whose tensor really has the axes of some dims along which it is the same.

    Parameters
    ----------
    draft : Draft
        Gets a `broadcast`, unless no axis is missing.
    array : Array
        Its dims stay as they are.
    groups : sequence of tuple of TensorAxis
        Dims of `array`, or parts of them.

    Raises
    ------
    ShapeError
        The tensor would have the batch twice.
    """
    have = {axis: OperandSlot(Token(), (axis,)) for axis in array.tensor.leaves()}
    missing = [x for group in groups for x in leaves(group) if x not in have]
    if not missing:
        return array
    both = have | {axis: OperandSlot(Token(), (axis,)) for axis in missing}
    out = [both[x] for group in array.dims for x in leaves(group) if x in both]
    read = StepOperand(array.tensor, tuple(have.values()))
    return Array(draft.make("broadcast", (read,), out), array.dims)


def along(
    draft: Draft,
    kind: str,
    array: Array,
    dim: int,
    label: str,
    attributes: Mapping[str, Value] | None = None,
) -> Array:
    """Apply an op along one dim of this label, which comes last in what is made.

    Parameters
    ----------
    draft : Draft
        Gets one op of this kind.
    kind : str
        Kind of an op that keeps the shape.
    array : Array
        Its dims stay as they are.
    dim : int
        The dim along which the op works.
    label : str
        What the op table calls that dim.
    attributes : mapping, optional
        Of the op.
    """
    array = materialize_axes(draft, array, (array.dims[dim],))
    slots = slots_along(array, array.dims[dim], *tokens(label))
    read = StepOperand(array.tensor, slots)
    return Array(draft.make(kind, (read,), slots, attributes=attributes, ordered=True), array.dims)


def slots_along(array: Array, group: Group, token: Token) -> tuple[OperandSlot, ...]:
    """Slots of a tensor's axes, one for each but those of a dim, which stand last together.

    Parameters
    ----------
    array : Array
        The operand.
    group : tuple of TensorAxis
        One of its dims.
    token : Token
        Label of that dim.
    """
    inside = leaves(group)
    lead = (axis for axis in array.tensor.leaves() if axis not in inside)
    return (*(OperandSlot(Token(), (axis,)) for axis in lead), OperandSlot(token, inside))


def narrowed(draft: Draft, array: Array, dim: int, start: int, size: int) -> Array:
    """Array with `size` places of a dim from `start` on; the dim stays.

    Parameters
    ----------
    draft : Draft
        Gets a `narrow`, unless the tensor is the same along what is cut or all places stay.
    array : Array
        Its other dims stay as they are.
    dim : int
        Index as the program sees dims, counted from the end if below zero.
    start : int
        First place, from 0.
    size : int
        Number of places, 1 or more; start + size is not beyond the dim (this is not checked).

    Raises
    ------
    ShapeError
        Samples would be cut out of the batch of the tensor.
    """
    dim %= len(array.dims)
    group = leaves(array.dims[dim])
    if start == 0 and size == size_of(group):
        return array
    outer = [axis for axis in group if axis.size > 1]
    inner = size_of(outer[1:])
    if len(outer) > 1 and start % inner == 0 and size % inner == 0:
        cut, rest, start, size = outer[:1], outer[1:], start // inner, size // inner
    else:
        cut, rest = outer, []
    if not any(array.real(axis) for axis in cut):
        narrow_group = (fresh(size), *rest) if size > 1 else tuple(rest)
        return Array(array.tensor, (*array.dims[:dim], narrow_group, *array.dims[dim + 1 :]))
    array = materialize_axes(draft, array, (tuple(cut),))
    narrow_axis = fresh(size)
    inputs: list[OperandSlot] = []
    outputs: list[OperandSlot] = []
    for axis in array.tensor.leaves():
        if axis is cut[0]:
            inputs.append(OperandSlot(Token(is_whole=True, single=True), tuple(cut)))
            outputs.append(OperandSlot(Token(is_whole=True, single=True), (narrow_axis,)))
        elif axis not in cut:
            inputs.append(OperandSlot(Token(), (axis,)))
            outputs.append(OperandSlot(inputs[-1].token, (axis,)))
    read = StepOperand(array.tensor, tuple(inputs))
    tensor = draft.make("narrow", (read,), outputs, attributes={"start": start})
    piece = Array(tensor, (*array.dims[:dim], (narrow_axis, *rest), *array.dims[dim + 1 :]))
    return summed_axes(draft, piece, (narrow_axis,)) if size == 1 else piece
