"""Pairs of a text and its continuation, for a model of an encoder and a decoder (T5)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millrace.executor.data.corpus import Corpus
from millrace.executor.data.sample_rng import generator
from millrace.executor.errors import DataError
from millrace.executor.kernels.context import Array, SampleSource

FIRST_ID = 0
"""Id that the decoder reads first: T5's padding id, which starts every target there too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPairs:
    """Windows of text: the source, and the targets that follow it.

    Parameters
    ----------
    corpus
        The text, at least as long as one sample.
    seed
        Seed of the positions.
    source_length, target_length
        Tokens of the source and of the targets.
    """

    corpus: Corpus
    seed: int
    source_length: int
    target_length: int

    @property
    def description(self) -> str:
        """Name of the data that a run trains on, for the reader."""
        return f"text and its continuation: {self.corpus.origin}"

    def read(self, source: SampleSource, samples: NDArray[np.int64]) -> Array:
        """Ids [samples, region].

        `source_tokens` are the window's first `source_length` ids, `decoder_targets` those that
        follow, `decoder_tokens` the targets moved one further behind id 0.

        Raises
        ------
        DataError
            The source is another one, or an id does not fit the vocabulary.
        """
        begins = {
            "source_tokens": 0,
            "decoder_targets": self.source_length,
            "decoder_tokens": self.source_length - 1,
        }
        if source.name not in begins:
            raise DataError(
                f"{self.corpus.origin}, in pairs, holds {', '.join(begins)}; the model reads "
                f"`{source.name}`"
            )
        (region,) = source.region
        ids = np.empty((len(samples), region.stop - region.start), np.int32)
        for row, sample in enumerate(samples.tolist()):
            start = self._position(sample) + begins[source.name]
            ids[row] = self.corpus.tokens[start + region.start : start + region.stop]
        if source.name == "decoder_tokens" and region.start == 0:
            ids[:, :1] = FIRST_ID
        return self.corpus.checked(ids)

    def _position(self, sample: int) -> int:
        positions = len(self.corpus.tokens) - self.source_length - self.target_length + 1
        return int(generator(self.seed, sample).integers(positions))
