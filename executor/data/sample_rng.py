"""Sample RNG: a counter-based stream of a sample's own, from the seed and its number."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

CLASS_KEYS = 2**63
"""Keys from here on draw what belongs to a class, those below what belongs to a sample."""


def generator(seed: int, key: int) -> np.random.Generator:
    """Generator of one sample (or class): a Philox stream keyed by seed and number."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, key], dtype=np.uint64)))


@lru_cache(maxsize=1024)
def class_normals(seed: int, label: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Normal numbers of a class, which its samples share: drawn once and not to be written to."""
    numbers = np.asarray(generator(seed, CLASS_KEYS + label).standard_normal(shape))
    numbers.flags.writeable = False
    return numbers


@lru_cache(maxsize=1024)
def class_normals_fp32(seed: int, label: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Normal numbers of a class in float32, from a shorter stream than those in float64."""
    drawn = generator(seed, CLASS_KEYS + label)
    numbers = np.asarray(drawn.standard_normal(shape, np.float32))
    numbers.flags.writeable = False
    return numbers
