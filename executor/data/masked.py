"""Masked text for a model that fills in what is missing (BERT).

A sample of T ids is two halves of text; the second follows the first or, every other time, is
taken from anywhere. Of its positions `masked` are to be predicted: 80 % of them show the mask, 10 %
a random id, 10 % what was there. No separators are put in: all ids are the corpus's own.

Notes
-----
Devlin et al., "BERT", arXiv 1810.04805 (2018), section 3.1 and appendix A.1.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millrace.executor.data.corpus import Corpus
from millrace.executor.data.sample_rng import generator
from millrace.executor.errors import DataError
from millrace.executor.kernels.context import Array, SampleSource

SHOWN_AS_MASK = 0.8
SHOWN_AS_IT_IS = 0.1
NOT_PREDICTED = -1

_SOURCES = ("masked_tokens", "masked_targets", "segments", "next_sentence")


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedText:
    """Two halves of text with ids hidden.

    Parameters
    ----------
    corpus
        The text, at least as long as one sample.
    seed
        Seed of positions and masks.
    masked
        Positions to predict in each sample.
    mask_id
        The id that stands for a hidden one: 0 for bytes, as text holds no zero byte.
    random_halves
        Whether the second half is from anywhere in every other sample; else it always follows.
    among
        The positions to predict are among the first so many; 0: anywhere.
    """

    corpus: Corpus
    seed: int
    masked: int
    mask_id: int
    random_halves: bool
    among: int = 0

    @property
    def description(self) -> str:
        """Name of the data that a run trains on, for the reader."""
        return f"text with ids hidden: {self.corpus.origin}"

    def read(self, source: SampleSource, samples: NDArray[np.int64]) -> Array:
        """Region of t of every sample [samples, region], or one class of each [samples].

        `masked_tokens` are the ids with some hidden; `masked_targets` the ids to predict, -1
        elsewhere; `segments` 0 in the first half and 1 in the second (0 throughout where the model
        knows one segment); `next_sentence` 0 where the second half follows the first, else 1.

        Raises
        ------
        DataError
            The source is another one, or an id does not fit the vocabulary.
        """
        if source.name == "next_sentence":
            drawn = (self._from_anywhere(generator(self.seed, n)) for n in samples.tolist())
            return np.fromiter(drawn, np.int32, len(samples))
        if source.name not in _SOURCES:
            raise DataError(
                f"{self.corpus.origin}, masked, holds {', '.join(_SOURCES)}; the model reads "
                f"`{source.name}`"
            )
        (length,) = source.shape
        (region,) = source.region
        if source.name == "segments":
            second = np.arange(length) >= _first_half(length)
            ids = np.minimum(second, source.values - 1).astype(np.int32)
            return np.repeat(ids[None, region], len(samples), 0)
        sample_ids = np.empty((len(samples), region.stop - region.start), np.int32)
        for row, sample in enumerate(samples.tolist()):
            shown, targets = self._masked(sample, length)
            sample_ids[row] = (shown if source.name == "masked_tokens" else targets)[region]
        return self.corpus.checked(sample_ids)

    def _from_anywhere(self, drawn: np.random.Generator) -> bool:
        """True if the second half does not follow; it is the first draw of a sample."""
        return bool(drawn.integers(2)) and self.random_halves

    def _masked(self, sample: int, length: int) -> tuple[Array, Array]:
        """Ids that a sample shows, and those that are to be predicted in it."""
        drawn = generator(self.seed, sample)
        tokens, first = self.corpus.tokens, _first_half(length)
        elsewhere = self._from_anywhere(drawn)
        start = int(drawn.integers(len(tokens) - length + 1))
        second = start + first
        if elsewhere:
            second = int(drawn.integers(len(tokens) - (length - first) + 1))
        halves = (tokens[start : start + first], tokens[second : second + length - first])
        ids = np.concatenate(halves).astype(np.int32)
        places = drawn.permutation(self.among or length)[: self.masked]
        targets = np.full(length, NOT_PREDICTED, np.int32)
        targets[places] = ids[places]
        rule = drawn.random(self.masked)
        shown = drawn.integers(self.corpus.vocab, size=self.masked, dtype=np.int32)
        shown[rule < SHOWN_AS_MASK] = self.mask_id
        as_it_is = rule >= 1 - SHOWN_AS_IT_IS
        shown[as_it_is] = ids[places][as_it_is]
        ids[places] = shown
        return ids, targets


def _first_half(length: int) -> int:
    return (length + 1) // 2
