"""Synthetic click logs: which advertisements were clicked, by a hidden rule that can be learned."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from millrace.executor.data.sample_rng import class_normals, generator
from millrace.executor.errors import DataError
from millrace.executor.kernels.context import Array, SampleSource

_SOURCES = ("categories", "features", "clicks")
_BIAS = -1.0  # of the hidden rule: clicks are the rarer answer
_ID_WEIGHT = 0.5  # an id's part of the logit lies between minus and plus this
_NUMBER_WEIGHT = 0.3  # deviation of the weights of numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticClicks:
    """Made-up clicks: ids of categories, numbers, and an answer drawn from a logistic model.

    Field f of F has the rows from f V / F to (f + 1) V / F of a table of V for its own; within
    them the n-th id is about 1 / n as frequent as the first (Zipf's law). Numbers are normal. The
    logit of a click adds up a hidden weight per id and a multiple of every number.

    Parameters
    ----------
    fields, numbers
        Ids and numbers of a sample.
    rows
        Rows of the table that all fields share.
    seed
        Seed of samples and of the hidden model.
    """

    fields: int
    numbers: int
    rows: int
    seed: int

    @property
    def description(self) -> str:
        """Name of the data that a run trains on, for the reader."""
        return (
            f"synthetic click logs ({self.fields} fields of ids below {self.rows}, {self.numbers} "
            f"numbers)"
        )

    def read(self, source: SampleSource, samples: NDArray[np.int64]) -> Array:
        """Ids [samples, region of f], numbers [samples, region of x] or clicks [samples].

        Raises
        ------
        DataError
            The source is another one.
        """
        if source.name not in _SOURCES:
            raise DataError(
                f"synthetic click logs hold {', '.join(_SOURCES)}; the model reads `{source.name}`"
            )
        log = _log_of(self, samples.tobytes())
        if source.name == "clicks":
            return self._clicks(log)
        values = log.ids if source.name == "categories" else log.numbers
        return values[:, source.region[0]]

    def _clicks(self, log: "_ClickLog") -> NDArray[np.int32]:
        weights = class_normals(self.seed, 0, (self.numbers,)) * _NUMBER_WEIGHT
        logits = _BIAS + _ID_WEIGHT * self._id_weights(log.ids).sum(1) + log.numbers @ weights
        return np.asarray(log.chances < 1 / (1 + np.exp(-logits)), np.int32)

    def _id_weights(self, ids: Array) -> NDArray[np.float64]:
        """Numbers between -1 and 1 that follow from an id, without a table as large as the model's.

        The mixing function of Steele et al., "Fast splittable pseudorandom number generators",
        OOPSLA 2014, with its constants of variant 13.
        """
        bits = ids.astype(np.uint64) + np.uint64(1) + (np.uint64(self.seed) << np.uint64(32))
        bits = bits * np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits ^= bits >> np.uint64(31)
        return (bits >> np.uint64(11)).astype(np.float64) / 2**52 - 1


class _ClickLog(NamedTuple):
    """Ids [samples, fields], numbers [samples, numbers] and a uniform number [samples] of each."""

    ids: NDArray[np.int32]
    numbers: NDArray[np.float32]
    chances: NDArray[np.float64]


@lru_cache(maxsize=2)
def _log_of(clicks: SyntheticClicks, samples: bytes) -> _ClickLog:
    """Log of these samples (bytes of int64): the sources of a microbatch read one after another."""
    keys = np.frombuffer(samples, np.int64).tolist()
    uniform = np.empty((len(keys), clicks.fields))
    numbers = np.empty((len(keys), clicks.numbers), np.float32)
    chances = np.empty(len(keys))
    for row, key in enumerate(keys):
        drawn = generator(clicks.seed, key)
        uniform[row] = drawn.random(clicks.fields)
        numbers[row] = drawn.standard_normal(clicks.numbers, np.float32)
        chances[row] = drawn.random()
    bounds = np.arange(clicks.fields + 1, dtype=np.int64) * clicks.rows // max(clicks.fields, 1)
    sizes = np.maximum(np.diff(bounds), 1)
    ranks = np.exp(uniform * np.log(sizes + 1.0)).astype(np.int64)
    ids = bounds[:-1] + np.clip(ranks, 1, sizes) - 1
    return _ClickLog(ids.astype(np.int32), numbers, chances)
