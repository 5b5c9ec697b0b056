"""Initial values of variables: the whole tensor, from the seed and its name alone.

Every rank draws the whole and keeps its shard, so that the values do not depend on the plan.
"""

from collections.abc import Mapping
from hashlib import sha256

import numpy as np

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import BITS, Array


def initial_value(
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    attributes: Mapping[str, int | float | str | bool],
    seed: int,
) -> Array:
    """Value of a variable before the first step.

    Normal values are drawn in float32 whatever the dtype, so that runs in float32 and float64
    start at the same point.

    Parameters
    ----------
    name, shape, dtype
        Those of the whole tensor; of bfloat16 the bits are returned.
    attributes
        The variable op's: `init` is normal (with deviation `std`), zeros or ones.
    seed
        Seed of the run.

    Raises
    ------
    ExecutorError
        `init` is none of the three.
    """
    init = attributes.get("init", "zeros")
    if init == "zeros":
        return stored(np.zeros(shape, np.float32), dtype)
    if init == "ones":
        return stored(np.ones(shape, np.float32), dtype)
    if init != "normal":
        raise ExecutorError(f"variable `{name}`: init `{init}` is not normal, zeros or ones")
    key = int.from_bytes(sha256(name.encode()).digest()[:8], "little")
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, key], dtype=np.uint64)))
    values = generator.standard_normal(shape, dtype=np.float32)
    values *= np.float32(attributes.get("std", 1.0))
    return stored(values, dtype)


def stored(values: Array, dtype: str) -> Array:
    """Values as a register of `dtype` keeps them; of bfloat16 the bits, rounded to even.

    Examples
    --------
    >>> [f"{one:#06x}" for one in stored(np.array([1, -2.5, 1.00390625]), "bfloat16")]
    ['0x3f80', '0xc020', '0x3f80']
    """
    if dtype not in BITS:
        return values.astype(dtype, copy=False)
    wide = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (wide + (0x7FFF + (wide >> 16 & 1))) >> 16
    return rounded.astype(BITS[dtype])
