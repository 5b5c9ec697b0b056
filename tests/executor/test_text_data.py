"""Masked text and text with its continuation: what a sample holds, whoever reads which part."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from millrace.executor.data import MaskedText, TextPairs, open_dataset
from millrace.executor.data.corpus import Corpus
from millrace.executor.errors import DataError
from millrace.executor.kernels.context import Array, Dataset, SampleSource
from millrace.models.spec import ModelSpec

LENGTH = 20
MASKED = 6
CORPUS = Corpus(tokens=np.arange(1, 201, dtype=np.uint8), vocab=256, origin="counting")
SAMPLES = list(range(400))


def masked(seed: int = 0, *, random_halves: bool = True) -> MaskedText:
    return MaskedText(
        corpus=CORPUS, seed=seed, masked=MASKED, mask_id=0, random_halves=random_halves
    )


def pairs(seed: int = 0) -> TextPairs:
    return TextPairs(corpus=CORPUS, seed=seed, source_length=LENGTH, target_length=7)


def read(data: Dataset, name: str, samples: list[int], *region: slice, values: int = 256) -> Array:
    shape = () if name == "next_sentence" else (LENGTH,)
    if name.startswith("decoder"):
        shape = (7,)
    full = tuple(slice(0, size) for size in shape)
    source = SampleSource(name=name, values=values, shape=shape, region=region or full)
    return data.read(source, np.array(samples))


def original(data: MaskedText, samples: list[int]) -> Array:
    """Ids that stood there before some were hidden."""
    targets = read(data, "masked_targets", samples)
    return np.where(targets >= 0, targets, read(data, "masked_tokens", samples))


def test_as_many_places_as_asked_are_predicted_in_every_sample():
    targets = read(masked(), "masked_targets", SAMPLES)
    assert ((targets >= 0).sum(1) == MASKED).all()
    assert (targets[targets < 0] == -1).all()
    hit = (targets >= 0).mean(0)
    assert hit.min() > 0.2  # every place is chosen about as often: 6 of 20
    assert hit.max() < 0.4


def test_places_are_chosen_among_the_first_where_the_head_reads_no_others():
    data = dataclasses.replace(masked(), among=MASKED + 1)
    targets = read(data, "masked_targets", SAMPLES)
    assert ((targets[:, : MASKED + 1] >= 0).sum(1) == MASKED).all()
    assert (targets[:, MASKED + 1 :] == -1).all()


def test_a_hidden_id_shows_the_mask_or_another_id_or_itself():
    shown = read(masked(), "masked_tokens", SAMPLES)
    targets = read(masked(), "masked_targets", SAMPLES)
    shown, targets = shown[targets >= 0], targets[targets >= 0]
    deviation = np.sqrt(0.25 / len(targets))  # of a share, at most
    assert (shown == 0).mean() == pytest.approx(0.8, abs=4 * deviation)
    assert (shown == targets).mean() == pytest.approx(0.1, abs=4 * deviation)
    random = shown[(shown != 0) & (shown != targets)]
    assert random.max() > 200  # from the whole vocabulary, not from the text


def test_the_second_half_follows_in_half_of_the_samples_and_says_so():
    data = masked()
    text, labels = original(data, SAMPLES), read(data, "next_sentence", SAMPLES)
    assert (np.diff(text[:, : LENGTH // 2]) == 1).all()
    assert (np.diff(text[:, LENGTH // 2 :]) == 1).all()
    follows = text[:, LENGTH // 2] == text[:, LENGTH // 2 - 1] + 1
    assert follows[labels == 0].all()
    assert follows[labels == 1].mean() < 0.05  # by chance
    assert labels.mean() == pytest.approx(0.5, abs=0.1)


def test_without_the_next_sentence_the_second_half_always_follows():
    text = original(masked(random_halves=False), SAMPLES)
    assert (np.diff(text) == 1).all()


def test_segments_tell_the_halves_apart_where_the_model_knows_two():
    expected = [0] * (LENGTH // 2) + [1] * (LENGTH // 2)
    assert read(masked(), "segments", [3, 4], values=2).tolist() == [expected] * 2
    assert read(masked(), "segments", [3], values=1).tolist() == [[0] * LENGTH]
    assert read(masked(), "segments", [3], slice(8, 12), values=2).tolist() == [[0, 0, 1, 1]]


def test_targets_follow_the_source_and_are_read_one_place_later():
    source = read(pairs(), "source_tokens", SAMPLES)
    targets = read(pairs(), "decoder_targets", SAMPLES)
    before = read(pairs(), "decoder_tokens", SAMPLES)
    assert (np.diff(np.concatenate([source, targets], 1)) == 1).all()
    assert (before[:, 0] == 0).all()
    np.testing.assert_array_equal(before[:, 1:], targets[:, :-1])
    assert source.min() == 1
    assert targets.max() == 200


SOURCES = {
    "masked_tokens": masked,
    "masked_targets": masked,
    "source_tokens": pairs,
    "decoder_tokens": pairs,
    "decoder_targets": pairs,
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_part_of_a_sample_is_that_part_of_the_whole(name: str):
    data = SOURCES[name]()
    batch = read(data, name, [5, 6, 7, 8])
    np.testing.assert_array_equal(read(data, name, [7]), batch[2:3])
    np.testing.assert_array_equal(read(data, name, [6, 8], slice(3, 7)), batch[1::2, 3:7])
    np.testing.assert_array_equal(read(data, name, [5], slice(0, 2)), batch[:1, :2])


@pytest.mark.parametrize("name", SOURCES)
def test_samples_follow_from_the_seed(name: str):
    first, again, other = (read(SOURCES[name](seed), name, SAMPLES[:9]) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def bert(**changes: int | bool) -> ModelSpec:
    sizes = {"layers": 1, "hidden": 8, "heads": 2, "ffn_hidden": 16, "vocab": 256}
    config = sizes | {"positions": LENGTH} | changes
    return ModelSpec(name="tiny", family="bert", config=config, seq_len=LENGTH)


def t5() -> ModelSpec:
    sizes = {"layers": 1, "hidden": 8, "heads": 2, "head_dim": 4, "ffn_hidden": 16, "vocab": 256}
    return ModelSpec(name="tiny", family="t5", config=sizes, seq_len=LENGTH)


def test_a_model_gets_the_data_its_inputs_ask_for(tmp_path: Path):
    path = tmp_path / "text"
    path.write_bytes(bytes(range(1, 201)))
    data = open_dataset(str(path), bert(masked=5, mask_id=7), seed=0)
    assert isinstance(data, MaskedText)
    assert (data.masked, data.mask_id, data.random_halves) == (5, 7, True)
    data = open_dataset(str(path), bert(next_sentence=False), seed=0)
    assert isinstance(data, MaskedText)
    assert (data.masked, data.mask_id, data.random_halves) == (3, 0, False)
    data = open_dataset(str(path), t5(), seed=0)
    assert isinstance(data, TextPairs)
    assert (data.source_length, data.target_length) == (LENGTH, LENGTH)


def test_too_little_text_is_refused(tmp_path: Path):
    path = tmp_path / "text"
    path.write_bytes(b"x" * (LENGTH - 1))
    with pytest.raises(DataError, match="holds 19 tokens, a sample takes 20"):
        open_dataset(str(path), bert(), seed=0)
    with pytest.raises(DataError, match=r"a sample takes 40 \(the source and what follows it\)"):
        open_dataset(str(path), t5(), seed=0)


def test_the_least_text_is_one_sample():
    least = Corpus(tokens=np.arange(1, LENGTH + 1, dtype=np.uint8), vocab=256, origin="least")
    data = MaskedText(corpus=least, seed=0, masked=1, mask_id=0, random_halves=True)
    assert read(data, "masked_tokens", SAMPLES[:20]).shape == (20, LENGTH)
    data = TextPairs(corpus=least, seed=0, source_length=LENGTH - 7, target_length=7)
    assert read(data, "decoder_targets", [1]).tolist() == [list(range(LENGTH - 6, LENGTH + 1))]


def test_a_source_that_is_not_held_is_refused():
    with pytest.raises(DataError, match="reads `source_tokens`"):
        read(masked(), "source_tokens", [0])
    with pytest.raises(DataError, match="reads `masked_tokens`"):
        read(pairs(), "masked_tokens", [0])
