"""Images: scikit-learn's handwritten digits, or synthetic ones with a pattern per class.

The digits are 1,797 real images of 8x8, part of the optional package scikit-learn. A model of fewer
than ten classes gets the first digits only; of more than ten, the others never occur. They are
enlarged to the model's images by nearest neighbour, the same in every channel, and brought to mean
0 and deviation 1 over all pixels.

Notes
-----
Alpaydin and Kaynak, "Optical recognition of handwritten digits", UCI machine learning repository
(1998), whose test set scikit-learn ships.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from millrace.executor.data.sample_rng import class_normals_fp32, generator
from millrace.executor.errors import DataError
from millrace.executor.kernels.context import Array, Dataset, SampleSource

DIGITS = 10
PATTERN_SIDE = 8
"""Rows and columns of a class's pattern before it is enlarged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """Handwritten digits, drawn with repetition.

    Parameters
    ----------
    images
        Normalised pixels, n y x.
    labels
        The digit of each.
    seed
        Seed of the draws.
    """

    images: NDArray[np.float32]
    labels: NDArray[np.int32]
    seed: int

    @property
    def description(self) -> str:
        """Name of the data that a run trains on, for the reader."""
        kinds = len(np.unique(self.labels))
        return f"scikit-learn's handwritten digits ({len(self.images)} images, {kinds} classes)"

    def read(self, source: SampleSource, samples: NDArray[np.int64]) -> Array:
        """Digits [samples] or images [samples, region of c y x, or of y x c].

        Raises
        ------
        DataError
            The source is neither images nor classes.
        """
        drawn = [int(generator(self.seed, n).integers(len(self.images))) for n in samples.tolist()]
        if source.name == "classes":
            return self.labels[drawn]
        _check_images(source, self.description, "images and classes")
        form = _form(source)
        return form.ordered(_enlarged(self.images[drawn][:, None], form))


@dataclass(frozen=True, slots=True, kw_only=True)
class Patterns:
    """Synthetic images: a random pattern per class, and noise of the same deviation.

    Parameters
    ----------
    classes
        How many there are; each sample's is drawn.
    seed
        Seed of patterns, draws and noise.
    of
        What a class stands for: `classes` or, for faces, `identities`.
    """

    classes: int
    seed: int
    of: str = "classes"

    @property
    def description(self) -> str:
        """Name of the data that a run trains on, for the reader."""
        return f"synthetic images (a random pattern for each of {self.classes} {self.of})"

    def read(self, source: SampleSource, samples: NDArray[np.int64]) -> Array:
        """Class ids [samples] or images [samples, region of c y x, or of y x c].

        Raises
        ------
        DataError
            The source is neither images nor what the classes stand for.
        """
        if source.name == self.of:
            return np.array([self._draw(sample)[0] for sample in samples.tolist()], np.int32)
        _check_images(source, "synthetic image data", f"images and {self.of}")
        form = _form(source)
        shape = tuple(part.stop - part.start for part in form.region)
        images = np.empty((len(samples), *shape), np.float32)
        for row, sample in enumerate(samples.tolist()):
            label, drawn = self._draw(sample)
            noise = drawn.standard_normal(form.shape, np.float32)
            sides = (1, form.shape[0], PATTERN_SIDE, PATTERN_SIDE)
            pattern = class_normals_fp32(self.seed, label, sides)
            images[row] = _enlarged(pattern, form)[0] + noise[form.region]
        return form.ordered(images)

    def _draw(self, sample: int) -> tuple[int, np.random.Generator]:
        """Class of a sample and the generator from which its noise follows."""
        drawn = generator(self.seed, sample)
        return int(drawn.integers(self.classes)), drawn


def open_digits(classes: int, seed: int) -> Dataset:
    """Digits below `classes`; synthetic patterns where scikit-learn is not installed."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        return Patterns(classes=min(classes, DIGITS), seed=seed)
    pixels, labels = load_digits(return_X_y=True)
    images = pixels.reshape(-1, 8, 8)
    normed = ((images - images.mean()) / images.std()).astype(np.float32)
    has_class = labels < classes
    return Digits(images=normed[has_class], labels=labels[has_class].astype(np.int32), seed=seed)


def _check_images(source: SampleSource, data: str, contents: str) -> None:
    if source.name != "images":
        raise DataError(f"{data} holds {contents}; the model reads `{source.name}`")
    if len(source.shape) != 3:
        raise DataError(
            f"{data} holds images of channels, rows and columns; the model reads samples of "
            f"{len(source.shape)} dims"
        )


class _Form(NamedTuple):
    """A source's sample and its region as c y x, in whichever order the model reads them.

    An image has the same pixels in both orders.
    """

    shape: tuple[int, ...]
    region: tuple[slice, ...]
    channels_last: bool

    def ordered(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Bring images n c y x to the model's order."""
        return images.transpose(0, 2, 3, 1) if self.channels_last else images


def _form(source: SampleSource) -> _Form:
    shape, region = source.shape, source.region
    if source.channels_last:
        shape, region = (shape[2], *shape[:2]), (region[2], *region[:2])
    return _Form(shape, region, source.channels_last)


def _enlarged(images: NDArray[np.float32], form: _Form) -> NDArray[np.float32]:
    """Region of images n c y x, each pixel the nearest; one channel is all."""
    _, height, width = form.shape
    channels, rows, columns = (np.arange(part.start, part.stop) for part in form.region)
    if images.shape[1] == 1:
        channels = np.zeros_like(channels)
    rows, columns = rows * images.shape[2] // height, columns * images.shape[3] // width
    return images[:, channels[:, None, None], rows[:, None], columns]
