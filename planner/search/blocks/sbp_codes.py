"""SBP codes: nd-SBPs as small integers, and the shards that each makes on many meshes at once.

One axis is a digit (B, P(sum), P(max), S(0), S(1) …), an nd-SBP the number that its digits make,
the outermost axis first. Shapes: U states, N axes, K rows (a mesh and a microbatch each).
"""

from collections.abc import Sequence

import numpy as np

from millrace.models.arrays import Bools, Ints
from millrace.planner.sbp import BROADCAST, PARTIAL_MAX, PARTIAL_SUM, NdSbp, Sbp, split

RADIX = 64  # leaves room for 61 dims, and for 10 axes in 64 bits; importers cut dims into many
REPLICATED, SUM, MAX, FIRST_DIM = 0, 1, 2, 3


def digit(sbp: Sbp) -> int:
    """Digit of the SBP on one axis."""
    if sbp.is_split:
        return FIRST_DIM + sbp.dim
    if sbp == BROADCAST:
        return REPLICATED
    return SUM if sbp == PARTIAL_SUM else MAX


def number_of(sbp: NdSbp) -> int:
    """Number of an nd-SBP."""
    number = 0
    for axis_sbp in sbp:
        number = number * RADIX + digit(axis_sbp)
    return number


def sbp_of(state: int, axes: int) -> NdSbp:
    """Nd-SBP of a number.

    Parameters
    ----------
    state : int
        Number as `number_of` makes it: one digit per axis, the outermost first.
    axes : int
        Number of mesh axes; digits beyond them are left out.

    Examples
    --------
    >>> sbp_of(number_of((split(1), BROADCAST)), 2) == (split(1), BROADCAST)
    True
    """
    axis_sbps: list[Sbp] = []
    for axis_digit in digits(np.array([state]), axes)[:, 0].tolist():
        unsplit_sbps = {REPLICATED: BROADCAST, SUM: PARTIAL_SUM, MAX: PARTIAL_MAX}
        axis_sbps.append(
            unsplit_sbps[axis_digit]
            if axis_digit in unsplit_sbps
            else split(axis_digit - FIRST_DIM)
        )
    return tuple(axis_sbps)


def digits(states: Ints, axes: int) -> Ints:
    """Digits of states: [N, U].

    Parameters
    ----------
    states : int array (U,)
        Numbers of nd-SBPs.
    axes : int
        Number N of mesh axes; the first row is that of the outermost.
    """
    powers = RADIX ** np.arange(axes - 1, -1, -1)
    return states[None, :] // powers[:, None] % RADIX


def numbers(by_axis: Sequence[Ints]) -> Ints:
    """States that these digits per axis make: [U]."""
    total = np.zeros_like(by_axis[0]) if by_axis else np.zeros(1, np.int64)
    for axis_digits in by_axis:
        total = total * RADIX + axis_digits
    return total


def shards(states: Ints, sizes: Ints) -> Ints:
    """Number of shards into which each state cuts a tensor: [U, K], for axis sizes [N, K]."""
    split_here = digits(states, len(sizes)) >= FIRST_DIM
    factors = np.where(split_here[:, :, None], sizes[:, None, :], 1)
    product: Ints = factors.prod(axis=0)
    return product


def divisible(states: Ints, dims: Ints, sizes: Ints) -> Bools:
    """True where a state cuts every dim evenly: [U, K], for dims [D, K] and axis sizes [N, K]."""
    by_axis = digits(states, len(sizes))
    fits = np.ones((len(states), sizes.shape[1]), np.bool_)
    for dim in range(len(dims)):
        here = by_axis == FIRST_DIM + dim
        if here.any():
            cut = np.where(here[:, :, None], sizes[:, None, :], 1).prod(axis=0)
            fits &= dims[dim] % cut == 0
    dims_exist: Bools = np.all(by_axis < FIRST_DIM + len(dims), axis=0)
    fits &= dims_exist[:, None]
    return fits


def padded_sizes(states: Ints, dims: Ints, sizes: Ints) -> Ints:
    """Elements of the largest shard of each state: [U, K], for dims [D, K] and sizes [N, K]."""
    by_axis = digits(states, len(sizes))
    elements = np.ones((len(states), sizes.shape[1]), np.int64)
    for dim in range(len(dims)):
        here = by_axis == FIRST_DIM + dim
        cut = np.where(here[:, :, None], sizes[:, None, :], 1).prod(axis=0)
        elements *= -(-dims[dim] // cut)
    return elements


def gathers(sources: Ints, targets: Ints, axes: int) -> Bools:
    """True where a target is what gathering alone makes of a source: [A, B]."""
    before, after = digits(sources, axes)[:, :, None], digits(targets, axes)[:, None]
    gathered = (before == after) | ((before >= FIRST_DIM) & (after == REPLICATED))
    only: Bools = gathered.all(axis=0) & (before != after).any(axis=0)
    return only


def is_partial(states: Ints, axes: int) -> Bools:
    """True where any axis of a state is partial: [U]."""
    by_axis = digits(states, axes)
    partial: Bools = ((by_axis == SUM) | (by_axis == MAX)).any(axis=0)
    return partial
