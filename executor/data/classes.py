"""Classes of synthetic points, for a classifier of features."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millrace.executor.data.sample_rng import class_normals, generator
from millrace.executor.errors import DataError
from millrace.executor.kernels.context import Array, SampleSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Blobs:
    """Synthetic data for a classifier: points around one random centre per class.

    Sample n belongs to a random class; its features are the class's centre (deviation 1/4) plus
    noise (deviation 1).
    """

    classes: int
    seed: int

    @property
    def description(self) -> str:
        """Name of the data that a run trains on, for the reader."""
        return f"synthetic points around {self.classes} centres"

    def read(self, source: SampleSource, samples: NDArray[np.int64]) -> Array:
        """Class ids [samples] or features [samples, region…].

        Raises
        ------
        DataError
            The source is neither features nor classes.
        """
        if source.name == "classes":
            return np.array([self._draw(sample)[0] for sample in samples.tolist()], np.int32)
        if source.name != "features":
            raise DataError(
                f"the synthetic classifier data holds features and classes; the model reads "
                f"`{source.name}`"
            )
        shape = tuple(part.stop - part.start for part in source.region)
        features = np.empty((len(samples), *shape), np.float32)
        for row, sample in enumerate(samples.tolist()):
            label, noise = self._draw(sample)
            centre = class_normals(self.seed, label, source.shape)
            values = centre / 4 + noise.standard_normal(source.shape)
            features[row] = values[source.region]
        return features

    def _draw(self, sample: int) -> tuple[int, np.random.Generator]:
        """Class of a sample and the generator from which its noise follows."""
        drawn = generator(self.seed, sample)
        return int(drawn.integers(self.classes)), drawn
