"""SBP: how a logical tensor lies on the devices of one mesh axis, and nd-SBP over several.

`S(d)` splits dim d, `B` gives every device the whole, `P(sum)` and `P(max)` leave partial values
that add up (or whose maximum is) the whole. An nd-SBP is one of these per mesh axis, applied from
the outer axis to the inner: `(S(0), S(0))` on a 2 × 4 mesh cuts dim 0 in two, then each half in
four. Written `S(0)` on one axis and `(S(0), B)` on several; OneFlow's notation.
"""

import re
from functools import lru_cache
from math import prod
from typing import NamedTuple

from millrace.planner.errors import PlanError


class Sbp(NamedTuple):
    """One of S(dim), B, P(sum), P(max)."""

    kind: str  # "S", "B", "P"
    dim: int = -1
    reduction: str = ""

    def __str__(self) -> str:
        return {"S": f"S({self.dim})", "B": "B", "P": f"P({self.reduction})"}[self.kind]

    @property
    def is_split(self) -> bool:
        """True for S(dim)."""
        return self.kind == "S"

    @property
    def is_partial(self) -> bool:
        """True for P(sum) and P(max)."""
        return self.kind == "P"


BROADCAST = Sbp("B")
PARTIAL_SUM = Sbp("P", reduction="sum")
PARTIAL_MAX = Sbp("P", reduction="max")

NdSbp = tuple[Sbp, ...]


def split(dim: int) -> Sbp:
    """S(dim)."""
    return Sbp("S", dim)


_AXIS_SBP = re.compile(r"\s*(?:S\((\d+)\)|(B)|P\((sum|max)\))\s*")


@lru_cache(maxsize=65536)
def parse_nd_sbp(text: str) -> NdSbp:
    """Read `S(0)` or `(S(0), B)`; raises PlanError on anything else."""
    inner = text.strip()
    if inner == "()":
        return ()
    body = inner[1:-1] if inner.startswith("(") and inner.endswith(")") else inner
    sbps: list[Sbp] = []
    for piece in body.split(","):
        match = _AXIS_SBP.fullmatch(piece)
        if match is None:
            raise PlanError(f"`{text}` is not an sbp: expected S(d), B, P(sum) or P(max)")
        dim, broadcast, reduction = match.groups()
        sbps.append(
            split(int(dim)) if dim else BROADCAST if broadcast else Sbp("P", reduction=reduction)
        )
    return tuple(sbps)


@lru_cache(maxsize=65536)
def format_nd_sbp(sbp: NdSbp) -> str:
    """Write an nd-SBP the one way it is written everywhere."""
    return str(sbp[0]) if len(sbp) == 1 else "(" + ", ".join(map(str, sbp)) + ")"


@lru_cache(maxsize=65536)
def local_shape(shape: tuple[int, ...], sbp: NdSbp, axis_sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of one device's shard of a tensor of `shape`.

    Parameters
    ----------
    shape : tuple of int
        Shape of the whole tensor.
    sbp : NdSbp
        One SBP per mesh axis, outer first; B and P leave the shape as it is.
    axis_sizes : tuple of int
        Devices along each mesh axis, as many numbers as SBPs.

    Raises
    ------
    PlanError
        A split dim does not exist or does not divide evenly over its axes.
    """
    local = list(shape)
    for axis, (axis_sbp, size) in enumerate(zip(sbp, axis_sizes, strict=True)):
        if axis_sbp.is_split and axis_sbp.dim < len(local):
            if local[axis_sbp.dim] % size:
                raise PlanError(
                    f"{axis_sbp} splits dim {axis_sbp.dim} (size {local[axis_sbp.dim]}) over axis "
                    f"{axis} ({size}): not divisible"
                )
            local[axis_sbp.dim] //= size
    return padded_shape(shape, sbp, axis_sizes)


@lru_cache(maxsize=65536)
def padded_shape(
    shape: tuple[int, ...], sbp: NdSbp, axis_sizes: tuple[int, ...]
) -> tuple[int, ...]:
    """Shape of the largest shard of a tensor, to which the others are padded.

    Parameters
    ----------
    shape, sbp, axis_sizes
        As `local_shape` has them, but dims need not divide.

    Raises
    ------
    PlanError
        A split dim does not exist.

    Examples
    --------
    >>> padded_shape((4096, 5), (split(0), BROADCAST), (24, 2))
    (171, 5)
    """
    local = list(shape)
    for axis_sbp, size in zip(sbp, axis_sizes, strict=True):
        if axis_sbp.is_split:
            if axis_sbp.dim >= len(local):
                raise PlanError(f"{axis_sbp} on a tensor with {len(local)} dims")
            local[axis_sbp.dim] = -(-local[axis_sbp.dim] // size)
    return tuple(local)


def shard_offsets(
    shape: tuple[int, ...], sbp: NdSbp, axis_sizes: tuple[int, ...], coordinate: tuple[int, ...]
) -> tuple[int, ...]:
    """Global index of the first element, per dim, of the shard at a mesh coordinate.

    Parameters
    ----------
    shape : tuple of int
        Shape of the whole tensor; split dims divide (`local_shape` checks it, this does not).
    sbp : NdSbp
        One SBP per mesh axis, outer first.
    axis_sizes : tuple of int
        Devices along each mesh axis.
    coordinate : tuple of int
        Position of the device along each mesh axis, from 0.

    Returns
    -------
    tuple of int
        One per dim of `shape`; 0 for dims that are not split.
    """
    offsets = [0] * len(shape)
    local = list(shape)
    for axis_sbp, size, position in zip(sbp, axis_sizes, coordinate, strict=True):
        if axis_sbp.is_split:
            local[axis_sbp.dim] //= size
            offsets[axis_sbp.dim] += position * local[axis_sbp.dim]
    return tuple(offsets)


@lru_cache(maxsize=65536)
def local_size(shape: tuple[int, ...], sbp: NdSbp, axis_sizes: tuple[int, ...]) -> int:
    """Number of elements of one device's shard, as `padded_shape` has it.

    Parameters
    ----------
    shape : tuple of int
        Shape of the whole tensor.
    sbp : NdSbp
        One SBP per mesh axis, outer first; B and P keep all elements.
    axis_sizes : tuple of int
        Devices along each mesh axis, as many numbers as SBPs.

    Raises
    ------
    PlanError
        A split dim does not exist.
    """
    return prod(padded_shape(shape, sbp, axis_sizes))
