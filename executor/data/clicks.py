"""Synthetic click logs: which advertisements were clicked, by a hidden rule that can be learned."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millrace.executor.data.sample_rng import CLASS_KEYS, generator
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
        drawn = [self._draw(sample) for sample in samples.tolist()]
        if source.name == "clicks":
            return self._clicks(drawn)
        index = _SOURCES.index(source.name)
        return np.stack([sample[index] for sample in drawn])[:, source.region[0]]

    def _draw(self, sample: int) -> tuple[Array, Array, float]:
        """Ids, numbers and a uniform number of one sample."""
        drawn = generator(self.seed, sample)
        bounds = np.arange(self.fields + 1, dtype=np.int64) * self.rows // max(self.fields, 1)
        sizes = np.maximum(np.diff(bounds), 1)
        ranks = np.exp(drawn.random(self.fields) * np.log(sizes + 1.0)).astype(np.int64)
        ids = bounds[:-1] + np.clip(ranks, 1, sizes) - 1
        numbers = drawn.standard_normal(self.numbers, np.float32)
        return ids.astype(np.int32), numbers, float(drawn.random())

    def _clicks(self, drawn: list[tuple[Array, Array, float]]) -> NDArray[np.int32]:
        weights = generator(self.seed, CLASS_KEYS).standard_normal(self.numbers) * _NUMBER_WEIGHT
        ids, numbers, chance = (np.array(part) for part in zip(*drawn, strict=True))
        logits = _BIAS + _ID_WEIGHT * self._id_weights(ids).sum(1) + numbers @ weights
        return np.asarray(chance < 1 / (1 + np.exp(-logits)), np.int32)

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
