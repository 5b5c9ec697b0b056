"""Text in windows, for a model that predicts the next token."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millrace.executor.data.corpus import Corpus
from millrace.executor.data.sample_rng import generator
from millrace.executor.errors import DataError
from millrace.executor.kernels.context import Array, SampleSource
from millrace.models.spec import base_source


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWindows:
    """Windows of a long sequence of token ids, at positions drawn per sample.

    A sample is a window of T + 1 tokens: `tokens` are its first T, `targets` its last T. Sources
    that lie further on in the data (`millrace.models.spec.ahead`) lengthen it.

    Parameters
    ----------
    corpus
        The whole sequence.
    seed
        Seed of the positions.
    further
        Tokens that a window has beyond T + 1.
    """

    corpus: Corpus
    seed: int
    further: int = 0

    @property
    def description(self) -> str:
        """Name of the data that a run trains on, for the reader."""
        return f"text: {self.corpus.origin}"

    def read(self, source: SampleSource, samples: NDArray[np.int64]) -> Array:
        """Token or target ids [samples, region of t].

        Raises
        ------
        DataError
            The source is neither tokens nor targets, or an id does not fit the vocabulary.
        """
        name, further = base_source(source.name)
        if name not in ("tokens", "targets") or further > self.further:
            raise DataError(
                f"{self.corpus.origin} holds tokens and targets; the model reads `{source.name}`"
            )
        (length,) = source.shape
        (region,) = source.region
        shift = further + 1 if name == "targets" else further
        ids = np.empty((len(samples), region.stop - region.start), np.int32)
        for row, sample in enumerate(samples.tolist()):
            start = self.position(sample, length) + shift
            ids[row] = self.corpus.tokens[start + region.start : start + region.stop]
        return self.corpus.checked(ids)

    def position(self, sample: int, length: int) -> int:
        """Position at which the window of a sample of `length` tokens starts."""
        return int(generator(self.seed, sample).integers(self._starts(length)))

    def _starts(self, length: int) -> int:
        """Positions at which a window can start."""
        return len(self.corpus.tokens) - length - self.further
