"""Samples are the same whoever reads them; bad data is refused in one clear sentence."""

from pathlib import Path

import numpy as np
import pytest

from millrace.executor.data import Blobs, TokenWindows, open_dataset
from millrace.executor.data.corpus import Corpus
from millrace.executor.errors import DataError
from millrace.executor.kernels.context import Array, Dataset, SampleSource
from millrace.executor.values.initial import initial_value
from millrace.models.builder import GraphBuilder
from millrace.models.spec import ModelSpec, graph_spec

SEQ_LEN = 16


def gpt(vocab: int = 256) -> ModelSpec:
    config = {
        "layers": 1, "hidden": 8, "heads": 2, "ffn_hidden": 16, "vocab": vocab, "positions": SEQ_LEN
    }  # fmt: skip
    return ModelSpec(name="tiny", family="gpt", config=config, seq_len=SEQ_LEN)


def mlp() -> ModelSpec:
    config = {"inputs": 12, "columns": 4, "hidden": 8, "layers": 1, "classes": 3}
    return ModelSpec(name="tiny", family="mlp", config=config)


def source(name: str, shape: tuple[int, ...], *region: slice) -> SampleSource:
    full = tuple(slice(0, size) for size in shape)
    return SampleSource(name=name, values=0, shape=shape, region=region or full)


def read(data: Dataset, name: str, samples: list[int], *region: slice) -> Array:
    shape = (3, 4) if name == "features" else () if name == "classes" else (SEQ_LEN,)
    return data.read(source(name, shape, *region), np.array(samples))


def test_the_default_corpus_is_python_source_read_as_bytes():
    data = open_dataset(None, gpt(), seed=0)
    assert isinstance(data, TokenWindows)
    assert len(data.corpus.tokens) > 2**20
    assert data.description == "text: the Python standard library"
    assert b"import" in data.corpus.tokens.tobytes()


def test_targets_are_the_tokens_one_further(tmp_path: Path):
    (tmp_path / "text").write_bytes(bytes(range(200)))
    data = open_dataset(str(tmp_path / "text"), gpt(), seed=3)
    tokens, targets = read(data, "tokens", [0, 1, 2]), read(data, "targets", [0, 1, 2])
    np.testing.assert_array_equal(targets, tokens + 1)
    assert tokens.dtype == np.int32


def test_a_sample_does_not_depend_on_who_reads_it(tmp_path: Path):
    (tmp_path / "text").write_bytes(bytes(range(200)))
    data = open_dataset(str(tmp_path / "text"), gpt(), seed=3)
    batch = read(data, "tokens", [5, 6, 7, 8])
    np.testing.assert_array_equal(read(data, "tokens", [7]), batch[2:3])
    np.testing.assert_array_equal(read(data, "tokens", [6, 8], slice(4, 8)), batch[1::2, 4:8])


def test_samples_follow_from_the_seed(tmp_path: Path):
    (tmp_path / "text").write_bytes(bytes(range(200)))
    drawn = [
        read(open_dataset(str(tmp_path / "text"), gpt(), seed=seed), "tokens", list(range(9)))
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()


def test_windows_reach_both_ends_of_the_text(tmp_path: Path):
    (tmp_path / "text").write_bytes(bytes(range(SEQ_LEN + 3)))
    data = open_dataset(str(tmp_path / "text"), gpt(), seed=0)
    starts = set(read(data, "tokens", list(range(60)))[:, 0].tolist())
    assert starts == {0, 1, 2}


def test_a_folder_is_its_text_files_in_order_of_names(tmp_path: Path):
    (tmp_path / "b.txt").write_bytes(b"second")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.txt").write_bytes(b"first, and so on; ")
    (tmp_path / "c.png").write_bytes(b"\0\1\2")
    (tmp_path / ".hidden").write_bytes(b"no")
    data = open_dataset(str(tmp_path), gpt(), seed=0)
    assert isinstance(data, TokenWindows)
    assert data.corpus.tokens.tobytes() == b"first, and so on; second"


@pytest.mark.parametrize(("vocab", "dtype"), [(1000, np.uint16), (70_000, np.uint32)])
def test_token_files_hold_ids_as_wide_as_the_vocabulary_needs(
    tmp_path: Path, vocab: int, dtype: type
):
    ids = np.arange(300) + vocab - 300
    ids.astype(dtype).tofile(tmp_path / "ids.bin")
    data = open_dataset(str(tmp_path / "ids.bin"), gpt(vocab), seed=0)
    tokens = read(data, "tokens", [0, 1])
    np.testing.assert_array_equal(np.diff(tokens, axis=1), 1)
    assert tokens.min() >= vocab - 300


def test_blobs_are_the_same_in_parts_and_classes_have_centres():
    data = open_dataset(None, mlp(), seed=0)
    assert isinstance(data, Blobs)
    samples = list(range(400))
    features, classes = read(data, "features", samples), read(data, "classes", samples)
    assert set(classes.tolist()) == {0, 1, 2}
    corner = read(data, "features", [7], slice(1, 2), slice(0, 2))
    np.testing.assert_array_equal(corner, features[7:8, 1:2, 0:2])
    means = np.stack([features[classes == label].mean(0) for label in range(3)])
    spread = np.abs(means[0] - means[1]).max()
    assert spread > 4 / np.sqrt(100)  # four deviations of a mean over about a hundred samples


def token_file(path: Path, ids: list[int]) -> str:
    np.array(ids, np.uint16).tofile(path)
    return str(path)


def test_what_is_wrong_with_data_is_said(tmp_path: Path):
    short, empty, odd = tmp_path / "short", tmp_path / "empty", tmp_path / "odd.bin"
    short.write_bytes(b"x" * SEQ_LEN)
    empty.write_bytes(b"")
    odd.write_bytes(b"xyz")
    large = token_file(tmp_path / "large.bin", [7] * 50 + [1000])
    cases = [
        (str(tmp_path / "nowhere"), gpt(), "nowhere` is not there"),
        (str(short), gpt(), "holds 16 tokens, a sample takes 17"),
        (str(empty), gpt(), "holds no text"),
        (str(odd), gpt(1000), "has 3 bytes: expected token ids of 2 bytes each"),
        (str(short), gpt(1000), "needs one .bin file of uint16 token ids"),
        (large, gpt(1000), "holds token id 1000, the model's vocabulary is 1000"),
        (None, gpt(100), "read as bytes, for a vocabulary of 256 or more"),
        (str(short), mlp(), "trains on synthetic classifier data"),
    ]
    for path, spec, message in cases:
        with pytest.raises(DataError, match=message):
            open_dataset(path, spec, seed=0)


def reading(**inputs: tuple[str, tuple[int, ...], int]) -> ModelSpec:
    """Model of inputs by name: source, shape of a sample, ids."""
    builder = GraphBuilder(name="own", batch=1, tokens_per_sample=1)
    builder.begin_block("data")
    for name, (source, shape, values) in inputs.items():
        dims = " ".join(f"{name}{dim}" for dim in range(len(shape)))
        builder.input(name, f"b {dims}", (1, *shape), source=source, values=values)
    return graph_spec(builder.build(), "fp32")


TOKENS = ("tokens", (8,), 320)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            {"ids": TOKENS, "labels": ("targets", (8,), 5)},
            "reads `tokens` of 320 ids and predicts `targets` of 5: text has no such labels",
        ),
        (
            {"ids": TOKENS, "labels": ("targets", (8, 2), 320)},
            r"reads `targets` in samples of shape \[8, 2\], which no data has; there is data of "
            r"tokens \[t\], targets \[t\]",
        ),
        ({"ids": TOKENS, "labels": ("targets", (9,), 320)}, r"samples of shape \[9\]"),
        (
            {"x": ("features", (4,), 0), "labels": ("clicks", (3,), 2)},
            r"reads `clicks` in samples of shape \[3\], which no data has",
        ),
        (
            {"x": ("images", (8, 8, 1), 0), "mask": ("classes", (8, 8), 5)},
            r"reads `classes` in samples of shape \[8, 8\]",
        ),
        ({"left": TOKENS, "right": TOKENS}, "two inputs of source `tokens`"),
        ({"halves": ("segments", (8,), 2)}, "reads segments without `masked_tokens`"),
        ({"source": ("source_tokens", (8,), 320)}, "without `decoder_tokens`"),
    ],
)
def test_inputs_that_no_data_has_are_refused_before_a_run(
    inputs: dict[str, tuple[str, tuple[int, ...], int]], message: str
):
    with pytest.raises(DataError, match=message):
        open_dataset(None, reading(**inputs), seed=0)


def test_a_vocabulary_of_targets_may_be_padded():
    spec = reading(ids=("tokens", (8,), 256), labels=("targets", (8,), 320))
    assert open_dataset(None, spec, seed=0).corpus.vocab == 256


def test_a_bin_file_holds_ids_for_a_vocabulary_of_256_too(tmp_path: Path):
    ids = [(7 * position) % 256 for position in range(60)]
    data = open_dataset(token_file(tmp_path / "own.bin", ids), gpt(), seed=0)
    assert data.corpus.tokens.tolist() == ids
    (tmp_path / "text.bin").write_bytes(b"what is text may be called anything else")
    with pytest.raises(DataError, match="if it is text, name it otherwise than"):
        open_dataset(str(tmp_path / "text.bin"), gpt(), seed=0)


def test_ids_wider_than_the_vocabulary_needs_are_refused(tmp_path: Path):
    path = tmp_path / "wide.bin"
    np.arange(60, dtype=np.uint32).tofile(path)
    with pytest.raises(DataError, match="every second token id is 0, as where ids of 4 bytes"):
        open_dataset(str(path), gpt(1000), seed=0)
    with path.open("wb") as file:
        np.save(file, np.arange(60, dtype=np.uint16))
    with pytest.raises(DataError, match="is an array as numpy"):
        open_dataset(str(path), gpt(30_000), seed=0)


def test_an_id_beyond_the_first_millions_is_refused_when_read():
    corpus = Corpus(tokens=np.full(40, 9, np.uint16), vocab=9, origin="`ids.bin`")
    data = TokenWindows(corpus=corpus, seed=0)
    with pytest.raises(DataError, match="token id 9"):
        read(data, "tokens", [0])


def test_a_dataset_refuses_a_source_it_does_not_hold():
    corpus = Corpus(tokens=np.ones(40, np.uint8), vocab=9, origin="x")
    with pytest.raises(DataError, match="reads `features`"):
        read(TokenWindows(corpus=corpus, seed=0), "features", [0])
    with pytest.raises(DataError, match="reads `tokens`"):
        read(Blobs(classes=2, seed=0), "tokens", [0])


def test_initial_values_follow_from_seed_and_name_in_every_precision():
    draw = {"init": "normal", "std": 0.02}
    narrow = initial_value("w", (300, 40), "float32", draw, seed=1)
    wide = initial_value("w", (300, 40), "float64", draw, seed=1)
    np.testing.assert_array_equal(narrow, wide)
    assert (narrow != initial_value("x", (300, 40), "float32", draw, seed=1)).any()
    assert (narrow != initial_value("w", (300, 40), "float32", draw, seed=2)).any()
    assert narrow.std() == pytest.approx(0.02, rel=0.05)
    assert initial_value("g", (3,), "float32", {"init": "ones"}, seed=0).tolist() == [1, 1, 1]
    assert initial_value("b", (2,), "float64", {"init": "zeros"}, seed=0).tolist() == [0, 0]
