"""A dataset whose every value is known: for the tests of the drivers."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millrace.executor.kernels.context import SampleSource

ROOT = Path(__file__).resolve().parents[2]


class WaveData:
    """The value at an index of a sample is a sine of the sample's number and that index."""

    def read(self, source: SampleSource, samples: NDArray[np.int64]) -> NDArray[Any]:
        grids = np.ix_(samples, *(np.arange(part.start, part.stop) for part in source.region))
        return wave(source.name, *grids)


def wave(name: str, *grids: NDArray[np.int64]) -> NDArray[Any]:
    phase = sum((k + 1) * 0.37 * grid for k, grid in enumerate(grids))
    return np.sin(phase + len(name))


def source_values(name: str, shape: tuple[int, ...], first: int = 0) -> NDArray[Any]:
    """Values that a source of `shape` reads when its first sample is number `first`."""
    head, *rest = shape
    return wave(name, *np.ix_(np.arange(first, first + head), *(np.arange(n) for n in rest)))
