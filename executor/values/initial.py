"""Initial values of variables: the whole tensor, from the seed and its name alone.

Every rank draws the whole and keeps its shard, so that the values do not depend on the plan.
"""

from collections.abc import Mapping
from hashlib import sha256

import numpy as np

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array


def initial_value(
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    attributes: Mapping[str, int | float | str | bool],
    seed: int,
) -> Array:
    """Return the value of a variable before the first step.

    Normal values are drawn in float32 whatever the dtype, so that runs in float32 and float64
    start at the same point.

    Parameters
    ----------
    name, shape, dtype
        Those of the whole tensor.
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
        return np.zeros(shape, dtype)
    if init == "ones":
        return np.ones(shape, dtype)
    if init != "normal":
        raise ExecutorError(f"variable `{name}`: init `{init}` is not normal, zeros or ones")
    key = int.from_bytes(sha256(name.encode()).digest()[:8], "little")
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, key], dtype=np.uint64)))
    values = generator.standard_normal(shape, dtype=np.float32)
    values *= np.float32(attributes.get("std", 1.0))
    return values.astype(dtype, copy=False)
