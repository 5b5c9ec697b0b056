"""Operand noise: contents for operands of timed kernels, and bytes that no cache of a GPU holds.

Products of zeros would draw less power, and what lies in a cache would be read faster than in a
step.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

# More than any L2: 50 MB on H100, 126 MB on B200 (NVIDIA's data sheets, 2022-25).
CACHE_BYTES = 256 * 2**20
NOISE_ELEMENTS = 2**20


def noise(dtype: str, elements: int) -> NDArray[Any]:
    """Numbers from 0 to 1 as a device stores them; zeros of an integer dtype.

    Examples
    --------
    >>> noise("bfloat16", 4).dtype, noise("int32", 4).tolist()
    (dtype('uint16'), [0, 0, 0, 0])
    """
    values = np.random.default_rng(0).random(elements, dtype=np.float32)
    if dtype == "bfloat16":  # the upper half of a float32, cut
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)
