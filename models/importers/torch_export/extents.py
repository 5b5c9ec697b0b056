"""Extents: lengths of the dims of traced tensors, and the parts that views split them into."""

from collections.abc import Sequence
from math import prod

from millrace.models.labels import BATCH, SEQUENCE


class ShapeError(Exception):
    """A view or an op whose dims cannot be told apart; the message says why."""


class Extent:
    """A length, perhaps split into parts from the outermost to the innermost."""

    __slots__ = ("_same", "hint", "parts", "role", "size")

    def __init__(self, size: int, role: str | None = None, hint: str | None = None) -> None:
        self.size = size
        self.role = role  # label b or t, whose meaning is fixed
        self.hint = hint  # a label that reads well
        self.parts: tuple[Extent, ...] | None = None
        self._same: Extent | None = None

    def root(self) -> "Extent":
        """Extent that stands for all that were found to be the same."""
        extent = self
        while extent._same is not None:
            extent = extent._same
        return extent

    def leaves(self) -> tuple["Extent", ...]:
        """Parts that are not split further, outermost first."""
        root = self.root()
        if root.parts is None:
            return (root,)
        return tuple(leaf for part in root.parts for leaf in part.leaves())

    def split(self, outer: int) -> None:
        """Split a leaf in two, the outer one of this size."""
        root = self.root()
        if root.role == BATCH:
            raise ShapeError(f"the batch dim ({root.size} samples) is split; keep it whole")
        root.parts = (Extent(outer), Extent(root.size // outer))

    def join(self, other: "Extent") -> None:
        """Let two extents of one size be split alike from now on."""
        own_root, other_root = self.root(), other.root()
        if own_root is other_root:
            return
        if own_root.parts is not None and other_root.parts is not None:
            align(own_root.leaves(), other_root.leaves())
            return
        survivor, merged = (
            (other_root, own_root) if own_root.parts is None else (own_root, other_root)
        )
        if survivor.role and merged.role and survivor.role != merged.role:
            raise ShapeError("the batch dim meets the sequence dim in one op")
        if survivor.parts is not None and merged.role == BATCH:
            raise ShapeError(f"the batch dim ({merged.size} samples) is split; keep it whole")
        if survivor.parts is None:
            survivor.role = survivor.role or merged.role
            survivor.hint = survivor.hint or merged.hint
        merged._same = survivor


def align(left: Sequence[Extent], right: Sequence[Extent]) -> None:
    """Split two rows of leaves until they match one to one, and join the pairs."""
    lefts, rights = list(left), list(right)
    while lefts and rights:
        a, b = lefts.pop(0), rights.pop(0)
        if a.root().parts is not None or b.root().parts is not None:
            lefts[:0], rights[:0] = a.leaves(), b.leaves()
        elif a.size == b.size:
            a.join(b)
        elif a.size > b.size and a.size % b.size == 0:
            a.split(b.size)
            lefts[:0], rights[:0] = a.leaves(), (b,)
        elif b.size > a.size and b.size % a.size == 0:
            b.split(a.size)
            lefts[:0], rights[:0] = (a,), b.leaves()
        else:
            raise ShapeError(f"dims of {a.size} and {b.size} are taken apart in two ways")
    if lefts or rights:
        raise ShapeError("dims of different sizes meet")


class TensorAxis:
    """A dim of a tensor; two tensors may share one."""

    __slots__ = ("_parts", "extent")

    def __init__(self, extent: Extent | int) -> None:
        self.extent = extent if isinstance(extent, Extent) else Extent(extent)
        self._parts: tuple[TensorAxis, ...] = ()

    @property
    def size(self) -> int:
        """Length of the dim."""
        return self.extent.size

    @property
    def role(self) -> str | None:
        """`b`, `t` or None: the role of the dim."""
        return self.extent.root().role

    def leaves(self) -> tuple["TensorAxis", ...]:
        """The axes of the leaves of the extent: the same objects every time."""
        parts = self.extent.root().parts
        if parts is None:
            return (self,)
        if not self._parts:
            self._parts = tuple(TensorAxis(part) for part in parts)
        return tuple(leaf for part in self._parts for leaf in part.leaves())


Group = tuple[TensorAxis, ...]


def leaves(axes: Sequence[TensorAxis]) -> Group:
    """The leaf axes of several axes, in order."""
    return tuple(leaf for axis in axes for leaf in axis.leaves())


def size_of(group: Sequence[TensorAxis]) -> int:
    """Length of a dim made of these axes."""
    return prod(axis.size for axis in group)


def paired(left: Group, right: Group) -> list[tuple[TensorAxis, TensorAxis]]:
    """Pairs of leaf axes of two dims of one size; both dims are split where the other is.

    Parameters
    ----------
    left, right : tuple of TensorAxis
        The axes that make up each dim, outermost first; those of size one are left out.

    Returns
    -------
    list of (TensorAxis, TensorAxis)
        Outermost first; the extents of a pair are split alike from now on, in all tensors.

    Raises
    ------
    ShapeError
        Their sizes differ, they are taken apart in two ways that do not fit, or the batch would be
        split or meets the sequence.
    """
    left_axes = [axis for axis in leaves(left) if axis.size > 1]
    right_axes = [axis for axis in leaves(right) if axis.size > 1]
    align([axis.extent for axis in left_axes], [axis.extent for axis in right_axes])
    return list(zip(leaves(left_axes), leaves(right_axes), strict=True))


def pair_all(dims: Sequence[tuple[Group, Group]]) -> None:
    """Split both dims of every pair alike; a later pair may split an earlier one, hence twice."""
    for _ in range(2):
        for left, right in dims:
            paired(left, right)


def regroup(axes: Sequence[TensorAxis], sizes: Sequence[int]) -> list[Group]:
    """Take a row of axes apart into dims of these sizes, splitting extents as needed.

    Raises
    ------
    ShapeError
        A dim would straddle two that do not divide each other.
    """
    queue = list(leaves(axes))
    groups: list[Group] = []
    for size in sizes:
        taken: list[TensorAxis] = []
        need = size
        while queue and (need > 1 or (queue[0].size == 1 and not taken)):
            axis = queue.pop(0)
            if axis.size > need:
                if axis.size % need:
                    raise ShapeError(f"a dim of {axis.size} is viewed as one of {need} and a rest")
                axis.extent.split(need)
                queue[:0] = axis.leaves()
                continue
            if need % axis.size:
                raise ShapeError(f"a dim of {size} is made of dims that do not divide it")
            need //= axis.size
            taken.append(axis)
        if need > 1:
            raise ShapeError(f"a view wants a dim of {size} that is not there")
        groups.append(tuple(taken))
    if queue:
        if any(axis.size > 1 for axis in queue):
            raise ShapeError("a view leaves dims over")
        if groups:
            groups[-1] += tuple(queue)
    return groups


def sequence_axis(axis: TensorAxis) -> None:
    """Say that an axis runs along the tokens, where nothing else is known of it."""
    root = axis.extent.root()
    if root.role is None and root.parts is None:
        root.role = SEQUENCE
