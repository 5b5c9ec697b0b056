"""Array algebra on a draft: broadcasting, products, sums, slices and joins.

Everything a traced op needs comes down to these; they pair the axes of operands dim by dim, so
that what must be split alike is.
"""

from collections.abc import Mapping, Sequence
from math import prod

from millrace.models.importers.torch_export.draft import (
    Array,
    Draft,
    Operand,
    Slot,
    Token,
    Value,
    fresh,
    pointwise,
    real_leaves,
)
from millrace.models.importers.torch_export.extents import (
    Axis,
    Group,
    ShapeError,
    leaves,
    paired,
    size_of,
)
from millrace.models.labels import BATCH

Pair = tuple[Axis | None, Axis | None]


def matched(left: Group, right: Group) -> list[Pair]:
    """Pairs of leaf axes of two dims that broadcast; None where a dim has size one."""
    if size_of(left) == 1 and size_of(right) == 1:
        mine, yours = leaves(left), leaves(right)
        if len(mine) == len(yours):
            return list(zip(mine, yours, strict=True))
        return [(axis, None) for axis in mine] + [(None, axis) for axis in yours]
    if size_of(right) == 1:
        return [(axis, None) for axis in leaves(left)]
    if size_of(left) == 1:
        return [(None, axis) for axis in leaves(right)]
    return list(paired(left, right))


class _Joined:
    """Two operands whose axes are paired, and the axes of what comes out."""

    def __init__(self, left: Array, right: Array) -> None:
        self.left, self.right = left, right
        self.slots: tuple[list[Slot], list[Slot]] = ([], [])
        self.out: dict[int, Slot] = {}
        self._real = tuple({id(x) for x in array.tensor.leaves()} for array in (left, right))

    def add(self, pair: Pair, kept: bool = True) -> Axis:
        """Take in a pair of axes and return the output's."""
        mine, yours = pair
        here = [
            axis is not None and id(axis) in real
            for axis, real in zip((mine, yours), self._real, strict=True)
        ]
        token = Token()
        for axis, real, slots in zip((mine, yours), here, self.slots, strict=True):
            if axis is not None and real:
                slots.append(Slot(token, (axis,)))
        chosen = mine if mine is not None and (here[0] or not here[1]) else yours
        if chosen is None:
            raise ShapeError("an op reads a dim that none of its operands has")
        if not kept:
            if here[0] != here[1]:
                raise ShapeError("a product sums over a dim that one factor is constant along")
            return chosen
        if id(chosen) in self.out:
            chosen = Axis(chosen.extent)
        if any(here):
            self.out[id(chosen)] = Slot(token, (chosen,))
        return chosen

    def operands(self) -> tuple[Operand, Operand]:
        """Both, as a step reads them."""
        return (
            Operand(self.left.tensor, tuple(self.slots[0])),
            Operand(self.right.tensor, tuple(self.slots[1])),
        )


def without_units(draft: Draft, array: Array) -> Array:
    """The same with dims of size one that the tensor really has summed away, but for the batch."""
    units = [x for x in array.tensor.leaves() if x.size == 1 and x.role != "b"]
    return summed_axes(draft, array, units) if units else array


def summed_axes(draft: Draft, array: Array, gone: Sequence[Axis]) -> Array:
    """Sum over real leaf axes, which leave the dims they were in."""
    drop = {id(axis) for axis in gone}
    operand = Operand(array.tensor, tuple(Slot(Token(), (axis,)) for axis in array.tensor.leaves()))
    slots = [slot for slot in operand.slots if id(slot.axes[0]) not in drop]
    made = draft.make("sum", (operand,), slots)
    dims = tuple(
        tuple(axis for axis in leaves(group) if id(axis) not in drop) for group in array.dims
    )
    return Array(made, dims)


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
    """Apply an elementwise op of two arrays that broadcast."""
    left, right = _unit_free(draft, left, right)
    rank = max(len(left.dims), len(right.dims))
    mine = ((),) * (rank - len(left.dims)) + left.dims
    yours = ((),) * (rank - len(right.dims)) + right.dims
    pairs = _all_matched(list(zip(mine, yours, strict=True)))
    joined = _Joined(left, right)
    dims = tuple(tuple(joined.add(pair) for pair in row) for row in pairs)
    slots = _ordered_slots(joined)
    made = draft.make(kind, joined.operands(), slots, name=name, attributes=attributes)
    return Array(made, dims)


def _unit_free(draft: Draft, left: Array, right: Array) -> tuple[Array, Array]:
    """Real dims of size one go where they would be broadcast."""
    if left.shape == right.shape and len(left.tensor.leaves()) == len(right.tensor.leaves()):
        return left, right
    return without_units(draft, left), without_units(draft, right)


def _ordered_slots(joined: _Joined) -> list[Slot]:
    """The output's slots in the order of the operand that has most of them."""
    tokens = {id(slot.token): slot for slot in joined.out.values()}
    first, second = joined.slots
    order = [*first, *second] if len(first) >= len(second) else [*second, *first]
    found: dict[int, Slot] = {}
    for slot in order:
        if id(slot.token) in tokens:
            found.setdefault(id(slot.token), tokens[id(slot.token)])
    return list(found.values())


def product(
    draft: Draft,
    left: Array,
    right: Array,
    equation: tuple[str, str, str],
    *,
    name: str | None = None,
) -> Array:
    """Multiply and sum as `equation` says: the letters of left, right and output dims."""
    left, right = without_units(draft, left), without_units(draft, right)
    mine, yours, kept = equation
    left = _sum_alone(draft, left, mine, yours + kept)
    mine = "".join(x for x in mine if x in yours + kept)
    right = _sum_alone(draft, right, yours, mine + kept)
    yours = "".join(x for x in yours if x in mine + kept)
    gone = [letter for letter in dict.fromkeys(mine + yours) if letter not in kept]
    left = spread(draft, left, [left.dims[mine.index(letter)] for letter in gone])
    right = spread(draft, right, [right.dims[yours.index(letter)] for letter in gone])
    letters = list(dict.fromkeys(kept + mine + yours))
    groups = [
        (
            left.dims[mine.index(letter)] if letter in mine else (),
            right.dims[yours.index(letter)] if letter in yours else (),
        )
        for letter in letters
    ]
    rows = _all_matched(groups)
    joined = _Joined(left, right)
    found: dict[str, Group] = {}
    for letter, pairs in zip(letters, rows, strict=True):
        if letter in kept:
            found[letter] = tuple(joined.add(pair) for pair in pairs)
        else:
            for pair in pairs:
                joined.add(pair, kept=False)
    slots = [joined.out[id(x)] for letter in kept for x in found[letter] if id(x) in joined.out]
    _label_product(joined)
    made = draft.make("matmul", joined.operands(), slots, name=name)
    return Array(made, tuple(found[letter] for letter in kept))


def _label_product(joined: _Joined) -> None:
    """Contracted dims read k, those of a weight alone n."""
    out = {id(slot.token) for slot in joined.out.values()}
    left = {id(slot.token) for slot in joined.slots[0]}
    for slot in (*joined.slots[0], *joined.slots[1]):
        if slot.axes[0].role is None and slot.axes[0].extent.root().hint is None:
            if id(slot.token) not in out:
                slot.token.label = "k"
            elif id(slot.token) not in left:
                slot.token.label = "n"


def _sum_alone(draft: Draft, array: Array, letters: str, elsewhere: str) -> Array:
    gone = [index for index, letter in enumerate(letters) if letter not in elsewhere]
    return reduced(draft, array, gone, keep=False) if gone else array


def reduced(draft: Draft, array: Array, dims: Sequence[int], *, keep: bool) -> Array:
    """Sum over dims; one along which the tensor is the same counts as often as it is long."""
    places = {dim % len(array.dims) for dim in dims}
    if any(axis.role == BATCH for at in places for axis in leaves(array.dims[at])):
        raise ShapeError("it computes across samples")
    gone = [x for at in places for x in real_leaves(array, array.dims[at])]
    times = prod(array.dims[at][i].size for at in places for i in range(len(array.dims[at])))
    times //= prod(axis.size for axis in gone)
    found = summed_axes(draft, array, gone) if gone else array
    kept = tuple(
        () if at in places else group
        for at, group in enumerate(found.dims)
        if keep or at not in places
    )
    found = Array(found.tensor, kept)
    return scaled(draft, found, times) if times != 1 else found


def scaled(draft: Draft, array: Array, factor: float) -> Array:
    """Multiply by a number."""
    return array if factor == 1 else pointwise(draft, "scale", array, {"factor": float(factor)})


def spread(draft: Draft, array: Array, groups: Sequence[Group]) -> Array:
    """Let the tensor really have the axes of these dims along which it is the same."""
    have = {id(x) for x in array.tensor.leaves()}
    missing = [x for group in groups for x in leaves(group) if id(x) not in have]
    if not missing:
        return array
    slots = [Slot(Token(), (axis,)) for axis in array.tensor.leaves()]
    order = [x for group in array.dims for x in leaves(group)]
    both = {id(slot.axes[0]): slot for slot in slots}
    both |= {id(axis): Slot(Token(), (axis,)) for axis in missing}
    out = [both[id(axis)] for axis in order if id(axis) in both]
    made = draft.make("broadcast", (Operand(array.tensor, tuple(slots)),), out)
    return Array(made, array.dims)


def narrowed(draft: Draft, array: Array, dim: int, start: int, size: int) -> Array:
    """Take `size` places of a dim from `start` on."""
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
        kept = (fresh(size), *rest) if size > 1 else tuple(rest)
        return Array(array.tensor, (*array.dims[:dim], kept, *array.dims[dim + 1 :]))
    array = spread(draft, array, (tuple(cut),))
    made = fresh(size)
    inputs: list[Slot] = []
    outputs: list[Slot] = []
    for axis in array.tensor.leaves():
        if axis is cut[0]:
            inputs.append(Slot(Token(whole=True, single=True), tuple(cut)))
            outputs.append(Slot(Token(whole=True, single=True), (made,)))
        elif not any(axis is part for part in cut):
            inputs.append(Slot(Token(), (axis,)))
            outputs.append(Slot(inputs[-1].token, (axis,)))
    read = Operand(array.tensor, tuple(inputs))
    tensor = draft.make("narrow", (read,), outputs, attributes={"start": start})
    found = Array(tensor, (*array.dims[:dim], (made, *rest), *array.dims[dim + 1 :]))
    return summed_axes(draft, found, (made,)) if size == 1 else found
