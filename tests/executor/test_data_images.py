"""Digits, synthetic patterns and synthetic clicks: the same in parts, with something to learn."""

import sys
from math import log

import numpy as np
import pytest

from millrace.executor.data import Digits, Patterns, SyntheticClicks, open_dataset
from millrace.executor.errors import DataError
from millrace.executor.kernels.context import Array, Dataset, SampleSource
from millrace.models.spec import ModelSpec
from tests.extras import optional

IMAGE = (3, 16, 12)


def resnet(classes: int) -> ModelSpec:
    config = {"block": "basic", "depths": (1,), "widths": (4,), "stem": 4, "classes": classes}
    return ModelSpec(name="tiny", family="resnet", config=config)


def face(identities: int) -> ModelSpec:
    config = {"network": "mobilefacenet", "width_percent": 10, "classes": identities}
    return ModelSpec(name="tiny", family="face", config=config)


def wide_deep() -> ModelSpec:
    config = {"vocab": 1000, "fields": 4, "numbers": 3, "hidden": 8, "layers": 1}
    return ModelSpec(name="tiny", family="wide_deep", config=config)


def channels_last(data: Dataset, *region: slice) -> Array:
    """A region y x c of images that the model reads in this order."""
    channels, *sides = IMAGE
    source = SampleSource(
        name="images", values=0, shape=(*sides, channels), region=region, channels_last=True
    )
    return data.read(source, np.array([4, 6]))


def read(data: Dataset, name: str, samples: list[int], *region: slice, seed: int = 0) -> Array:
    shapes = {"images": IMAGE, "categories": (4,), "features": (3,)}
    shape = shapes.get(name, ())
    everything = tuple(slice(0, size) for size in shape)
    source = SampleSource(name=name, values=0, shape=shape, region=region or everything)
    return data.read(source, np.array(samples))


def check_parts(data: Dataset, name: str, *region: slice) -> None:
    """Check that two samples and a region of them are what the whole batch holds."""
    batch = read(data, name, [3, 4, 5, 6])
    part = read(data, name, [4, 6], *region)
    assert part.dtype == batch.dtype == (np.float32 if name in ("images", "features") else np.int32)
    np.testing.assert_array_equal(part, batch[[1, 3]][(slice(None), *region)])


@pytest.mark.parametrize(("classes", "occur"), [(3, 3), (10, 10), (1000, 10)])
def test_image_classifiers_train_on_real_digits(classes: int, occur: int) -> None:
    optional("sklearn", "data")
    data = open_dataset(None, resnet(classes), 0)
    assert isinstance(data, Digits)
    assert "scikit-learn's handwritten digits" in data.description
    assert f"{occur} classes" in data.description
    assert set(read(data, "classes", list(range(300)))) == set(range(occur))
    check_parts(data, "images", slice(1, 3), slice(5, 9), slice(2, 12))
    check_parts(data, "classes")


def test_digits_are_enlarged_by_nearest_neighbour_alike_in_every_channel() -> None:
    optional("sklearn", "data")
    data = open_dataset(None, resnet(10), 0)
    assert isinstance(data, Digits)
    image = read(data, "images", [0])[0]
    np.testing.assert_array_equal(image[0], image[2])
    np.testing.assert_array_equal(image[0, 0::2], image[0, 1::2])
    assert (data.images == image[0, ::2][:, [0, 2, 3, 5, 6, 8, 9, 11]]).all((1, 2)).any()
    assert data.images.mean() == pytest.approx(0, abs=1e-4)
    assert data.images.std() == pytest.approx(1, rel=1e-4)


def test_without_scikit_learn_images_are_synthetic_and_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    data = open_dataset(None, resnet(1000), 0)
    assert isinstance(data, Patterns)
    assert data.description == "synthetic images (a random pattern for each of 10 classes)"


@pytest.mark.parametrize("data", [Patterns(classes=5, seed=1), open_dataset(None, resnet(10), 0)])
def test_images_have_the_same_pixels_whichever_way_their_channels_lie(data: Dataset) -> None:
    rows, columns, channels = slice(5, 9), slice(2, 12), slice(1, 3)
    last = channels_last(data, rows, columns, channels)
    first = read(data, "images", [4, 6], channels, rows, columns)
    np.testing.assert_array_equal(last, first.transpose(0, 2, 3, 1))


def test_faces_are_synthetic_and_of_every_identity() -> None:
    data = open_dataset(None, face(40), 0)
    assert isinstance(data, Patterns)
    assert data.description == "synthetic images (a random pattern for each of 40 identities)"
    identities = read(data, "identities", list(range(400)))
    assert set(identities) == set(range(40))
    check_parts(data, "images", slice(0, 2), slice(3, 16), slice(0, 7))
    check_parts(data, "identities")


def test_images_of_one_identity_are_nearer_than_those_of_two() -> None:
    data = Patterns(classes=5, seed=1)
    images, classes = read(data, "images", list(range(60))), read(data, "classes", list(range(60)))
    distance = ((images[:, None] - images[None]) ** 2).mean((2, 3, 4))
    same = classes[:, None] == classes[None]
    assert distance[same & ~np.eye(60, dtype=bool)].max() < distance[~same].min()


def test_clicks_are_synthetic_and_the_same_in_parts() -> None:
    data = open_dataset(None, wide_deep(), 0)
    assert isinstance(data, SyntheticClicks)
    expected = "synthetic click logs (4 fields of ids below 1000, 3 numbers)"
    assert data.description == expected
    check_parts(data, "categories", slice(1, 3))
    check_parts(data, "features", slice(2, 3))
    check_parts(data, "clicks")


def test_every_field_has_rows_of_its_own_and_few_ids_are_frequent() -> None:
    data = SyntheticClicks(fields=4, numbers=3, rows=1000, seed=0)
    ids = read(data, "categories", list(range(4000)))
    np.testing.assert_array_equal(ids // 250, np.arange(4)[None, :].repeat(4000, 0))
    first = [(ids % 250 == rank).mean() for rank in (0, 1, 3)]
    # the n-th has the share log((n + 1) / n) of log(251)
    expected = [log((n + 1) / n) / log(251) for n in (1, 2, 4)]
    assert first == pytest.approx(expected, rel=0.1)
    assert ids.max() > 990


def test_clicks_follow_a_rule_that_can_be_learned() -> None:
    """A logistic regression on numbers and frequent ids beats the best constant guess."""
    data = SyntheticClicks(fields=4, numbers=3, rows=40, seed=0)
    samples = list(range(3000))
    ids, numbers, clicks = (
        read(data, name, samples) for name in ("categories", "features", "clicks")
    )
    inputs = np.concatenate([np.eye(40)[ids].sum(1), numbers], 1)
    weights = np.zeros(43)
    for _ in range(300):
        chance = 1 / (1 + np.exp(-inputs @ weights))
        weights += 1e-3 * inputs.T @ (clicks - chance)
    rate = clicks.mean()
    constant = -rate * log(rate) - (1 - rate) * log(1 - rate)
    loss = -np.log(np.where(clicks == 1, chance, 1 - chance)).mean()
    assert 0.1 < rate < 0.5
    assert loss < constant - 0.03


@pytest.mark.parametrize("spec", [resnet(10), face(4), wide_deep()], ids=lambda spec: spec.family)
def test_samples_follow_from_the_seed(spec: ModelSpec) -> None:
    name = "categories" if spec.family == "wide_deep" else "images"
    drawn = [read(open_dataset(None, spec, seed), name, [0, 1, 2]) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()


@pytest.mark.parametrize("spec", [resnet(10), face(4), wide_deep()], ids=lambda spec: spec.family)
def test_data_without_a_file_refuses_a_path_and_a_source_it_does_not_hold(spec: ModelSpec) -> None:
    with pytest.raises(DataError, match="leave the path out"):
        open_dataset("text", spec, 0)
    with pytest.raises(DataError, match="the model reads `tokens`"):
        read(open_dataset(None, spec, 0), "tokens", [0])
