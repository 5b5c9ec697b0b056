"""Data: samples by number, the same ones whichever rank asks.

A run numbers its samples 0, 1, 2, …; every value of a sample follows from the run's seed and that
number by a counter-based generator (Philox). So a rank reads just its rows and its part of the
sequence and gets what it would find in the whole batch, and a resumed run goes on where the
earlier one stopped.

Text is read as bytes for a vocabulary of 256, else as a `.bin` file of token ids. Without a path
the text is the Python standard library's own source files, which every machine has. A classifier
gets synthetic blobs.
"""

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from executor.errors import DataError
from executor.kernels.context import Array, Dataset, Source
from models.spec import ModelSpec
from models.zoo import catalogue

BYTE_VALUES = 256
CORPUS_BYTES_MAX = 8 * 2**20
"""Standard library text that is read when no path is given: its first 8 MiB in order of names."""
UINT16_VOCAB_MAX = 65536
"""Token ids of a vocabulary up to this size are stored as uint16, of a larger one as uint32."""

_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "__pycache__"}
_CHECKED_TOKENS = 2**22  # ids checked when a file is opened; the others when they are read
_CLASS_CENTRES = 2**63  # keys from here on draw centres of classes, those below draw samples


def _generator(seed: int, key: int) -> np.random.Generator:
    """Return the generator of one sample (or class): a Philox stream keyed by seed and number."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, key], dtype=np.uint64)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWindows:
    """Windows of a long sequence of token ids, at positions drawn per sample.

    A sample is a window of T + 1 tokens: `tokens` are its first T, `targets` its last T.

    Parameters
    ----------
    tokens
        The whole sequence (often mapped from a file).
    vocab
        Size of the vocabulary; ids are below it.
    seed
        Seed of the positions.
    origin
        Where the sequence comes from, for messages.
    """

    tokens: NDArray[np.unsignedinteger]
    vocab: int
    seed: int
    origin: str

    def read(self, source: Source, samples: NDArray[np.int64]) -> Array:
        """Return token or target ids [samples, region of t].

        Raises
        ------
        DataError
            The source is neither tokens nor targets, or an id does not fit the vocabulary.
        """
        if source.name not in ("tokens", "targets"):
            raise DataError(
                f"{self.origin} holds tokens and targets; the model reads `{source.name}`"
            )
        (length,) = source.shape
        (region,) = source.region
        shift = 1 if source.name == "targets" else 0
        found = np.empty((len(samples), region.stop - region.start), np.int32)
        for row, sample in enumerate(samples.tolist()):
            start = self.position(sample, length) + shift
            found[row] = self.tokens[start + region.start : start + region.stop]
        if found.size and int(found.max()) >= self.vocab:
            raise _too_large(self.origin, int(found.max()), self.vocab)
        return found

    def position(self, sample: int, length: int) -> int:
        """Return where the window of a sample of `length` tokens starts."""
        return int(_generator(self.seed, sample).integers(len(self.tokens) - length))


@dataclass(frozen=True, slots=True, kw_only=True)
class Blobs:
    """Synthetic data for a classifier: points around one random centre per class.

    Sample n belongs to a random class; its features are the class's centre (deviation 1/4) plus
    noise (deviation 1).
    """

    classes: int
    seed: int

    def read(self, source: Source, samples: NDArray[np.int64]) -> Array:
        """Return class ids [samples] or features [samples, region…].

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
        found = np.empty((len(samples), *shape), np.float32)
        for row, sample in enumerate(samples.tolist()):
            label, generator = self._draw(sample)
            values = _generator(self.seed, _CLASS_CENTRES + label).standard_normal(source.shape)
            values = values / 4 + generator.standard_normal(source.shape)
            found[row] = values[source.region]
        return found

    def _draw(self, sample: int) -> tuple[int, np.random.Generator]:
        """Return the class of a sample and the generator from which its noise follows."""
        generator = _generator(self.seed, sample)
        return int(generator.integers(self.classes)), generator


def open_dataset(path: str | None, spec: ModelSpec, seed: int) -> Dataset:
    """Return the samples a model trains on.

    Parameters
    ----------
    path
        A file or folder of text, or a `.bin` file of token ids; None: the standard library's
        source files (or, for a classifier, synthetic blobs).
    spec
        The model, whose inputs say what is read.
    seed
        Seed of the run; a negative one is refused.

    Raises
    ------
    DataError
        Nothing is there, it is empty, too short for one sample, or does not fit the model.
    """
    if seed < 0:
        raise DataError(f"seed is {seed}: give one of 0 or more")
    values = _sources(spec)
    if "tokens" in values:
        return _token_windows(path, values["tokens"], spec.seq_len, seed)
    if path is not None:
        raise DataError(
            f"`{path}`: model `{spec.name}` trains on synthetic classifier data; leave the path out"
        )
    return Blobs(classes=values.get("classes", 1), seed=seed)


def _sources(spec: ModelSpec) -> dict[str, int]:
    """Return what the model's input ops read, and how many different ids each has."""
    graph = catalogue.build(spec, 1)
    return {
        str(op.attributes["source"]): int(op.attributes["values"])
        for op in graph.ops
        if op.kind == "input"
    }


def _token_windows(path: str | None, vocab: int, seq_len: int, seed: int) -> TokenWindows:
    if path is None:
        origin = "the Python standard library"
        tokens = _standard_library(vocab)
    else:
        origin = f"`{path}`"
        tokens = _read_path(Path(path), vocab)
    if len(tokens) < seq_len + 1:
        raise DataError(
            f"{origin} holds {len(tokens)} tokens, a sample takes {seq_len + 1} (the sequence and "
            f"one target more): give more text or a shorter --seq-len"
        )
    largest = int(tokens[:_CHECKED_TOKENS].max())
    if largest >= vocab:
        raise _too_large(origin, largest, vocab)
    return TokenWindows(tokens=tokens, vocab=vocab, seed=seed, origin=origin)


def _too_large(origin: str, token: int, vocab: int) -> DataError:
    return DataError(
        f"{origin} holds token id {token}, the model's vocabulary is {vocab}: tokenise it for "
        f"this model, or take a model with a larger vocabulary"
    )


def _standard_library(vocab: int) -> NDArray[np.unsignedinteger]:
    if vocab < BYTE_VALUES:
        raise DataError(
            f"the Python standard library is read as bytes, for a vocabulary of {BYTE_VALUES} or "
            f"more; the model's is {vocab}: give a .bin file of token ids with --data"
        )
    root = Path(sysconfig.get_path("stdlib"))
    files = (path for path in _files(root) if path.suffix == ".py")
    tokens = _bytes_of(files, CORPUS_BYTES_MAX)
    if not tokens.size:
        raise DataError(f"no source files under `{root}`: give text with --data")
    return tokens


def _read_path(path: Path, vocab: int) -> NDArray[np.unsignedinteger]:
    if not path.exists():
        raise DataError(
            f"`{path}` is not there: give a file or folder of text, or a .bin of token ids"
        )
    if vocab != BYTE_VALUES:
        return _token_file(path, vocab)
    if path.is_file() and path.stat().st_size:
        return np.memmap(path, np.uint8, mode="r")
    tokens = _bytes_of(_files(path), None) if path.is_dir() else np.empty(0, np.uint8)
    if not tokens.size:
        raise DataError(f"`{path}` holds no text: give a file or folder with some")
    return tokens


def _files(root: Path) -> Iterator[Path]:
    """Walk a folder in order of names, without hidden files, installed packages and caches."""
    for path in sorted(root.iterdir()):
        if path.name.startswith(".") or path.name in _SKIPPED_FOLDERS:
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        elif path.is_file():
            yield path


def _bytes_of(files: Iterator[Path], limit: int | None) -> NDArray[np.uint8]:
    """Return the files' bytes joined, up to `limit`; files with a zero byte are no text."""
    pieces = []
    size = 0
    for path in files:
        try:
            text = path.read_bytes()
        except OSError as error:
            raise DataError(f"`{path}` cannot be read: {error.strerror}") from None
        if b"\0" in text:
            continue
        pieces.append(text)
        size += len(text)
        if limit is not None and size >= limit:
            break
    return np.frombuffer(b"".join(pieces)[:limit], np.uint8)


def _token_file(path: Path, vocab: int) -> NDArray[np.unsignedinteger]:
    dtype = np.dtype(np.uint16 if vocab <= UINT16_VOCAB_MAX else np.uint32)
    if not path.is_file() or path.suffix != ".bin":
        raise DataError(
            f"`{path}`: a vocabulary of {vocab} needs one .bin file of {dtype.name} token ids "
            f"(text is read for a vocabulary of {BYTE_VALUES})"
        )
    size = path.stat().st_size
    if size == 0 or size % dtype.itemsize:
        raise DataError(
            f"`{path}` has {size} bytes: expected token ids of {dtype.itemsize} bytes each "
            f"({dtype.name}, little endian, nothing before them)"
        )
    return np.memmap(path, dtype.newbyteorder("<"), mode="r")
