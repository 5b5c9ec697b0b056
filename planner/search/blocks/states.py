"""States: nd-SBPs as small integers, and what each leaves of a tensor on many meshes at once.

One axis is a digit (B, P(sum), P(max), S(0), S(1) …), an nd-SBP the number that its digits make,
the outermost axis first. Shapes: U states, N axes, K rows (a mesh and a microbatch each).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from millrace.planner.sbp import BROADCAST, PARTIAL_MAX, PARTIAL_SUM, NdSbp, Sbp, split

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

RADIX = 64  # of 61 dims, and of 10 axes in 64 bits; importers cut dims into many
WHOLE, SUM, MAX, FIRST_DIM = 0, 1, 2, 3


def digit(sbp: Sbp) -> int:
    """The digit of one axis."""
    if sbp.is_split:
        return FIRST_DIM + sbp.dim
    if sbp == BROADCAST:
        return WHOLE
    return SUM if sbp == PARTIAL_SUM else MAX


def number_of(sbp: NdSbp) -> int:
    """The number of an nd-SBP."""
    number = 0
    for one in sbp:
        number = number * RADIX + digit(one)
    return number


def sbp_of(state: int, axes: int) -> NdSbp:
    """The nd-SBP of a number.

    Examples
    --------
    >>> sbp_of(number_of((split(1), BROADCAST)), 2) == (split(1), BROADCAST)
    True
    """
    found: list[Sbp] = []
    for one in digits(np.array([state]), axes)[:, 0].tolist():
        known = {WHOLE: BROADCAST, SUM: PARTIAL_SUM, MAX: PARTIAL_MAX}
        found.append(known[one] if one in known else split(one - FIRST_DIM))
    return tuple(found)


def digits(states: Ints, axes: int) -> Ints:
    """Digits of states: [N, U]."""
    powers = RADIX ** np.arange(axes - 1, -1, -1)
    return states[None, :] // powers[:, None] % RADIX


def numbers(by_axis: Sequence[Ints]) -> Ints:
    """The states that digits per axis make."""
    total = np.zeros_like(by_axis[0]) if by_axis else np.zeros(1, np.int64)
    for one in by_axis:
        total = total * RADIX + one
    return total


def shards(states: Ints, sizes: Ints) -> Ints:
    """Into how many shards each state cuts a tensor: [U, K], for axis sizes [N, K]."""
    split_here = digits(states, len(sizes)) >= FIRST_DIM
    factors = np.where(split_here[:, :, None], sizes[:, None, :], 1)
    product: Ints = factors.prod(axis=0)
    return product


def divisible(states: Ints, dims: Ints, sizes: Ints) -> Bools:
    """Whether each state cuts every dim evenly: [U, K], for dims [D, K] and axis sizes [N, K]."""
    by_axis = digits(states, len(sizes))
    fits = np.ones((len(states), sizes.shape[1]), np.bool_)
    for dim in range(len(dims)):
        here = by_axis == FIRST_DIM + dim
        if here.any():
            cut = np.where(here[:, :, None], sizes[:, None, :], 1).prod(axis=0)
            fits &= dims[dim] % cut == 0
    known: Bools = np.all(by_axis < FIRST_DIM + len(dims), axis=0)
    fits &= known[:, None]
    return fits


def is_partial(states: Ints, axes: int) -> Bools:
    """Whether any axis of each state is partial: [U]."""
    by_axis = digits(states, axes)
    found: Bools = ((by_axis == SUM) | (by_axis == MAX)).any(axis=0)
    return found
