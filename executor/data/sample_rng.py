"""Random numbers of a sample: a counter-based stream of its own, from the seed and its number."""

import numpy as np

CLASS_KEYS = 2**63
"""Keys from here on draw what belongs to a class, those below what belongs to a sample."""


def generator(seed: int, key: int) -> np.random.Generator:
    """Generator of one sample (or class): a Philox stream keyed by seed and number."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, key], dtype=np.uint64)))
