"""A corpus: one long sequence of token ids, read from text, a folder of it, or a file of ids.

Text is read as bytes for a vocabulary of 256; a `.bin` file holds token ids, whatever the
vocabulary, and models of any other vocabulary need one. Without a path
the text is the Python standard library's own source files, which every machine has.
"""

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millrace.executor.errors import DataError

BYTE_VALUES = 256
CORPUS_BYTES_MAX = 8 * 2**20
"""Standard library text that is read when no path is given: its first 8 MiB in order of names."""
UINT16_VOCAB_MAX = 65536
"""Token ids of a vocabulary up to this size are stored as uint16, of a larger one as uint32."""

_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "__pycache__"}
_NUMPY = b"\x93NUMPY"  # what a .npy file begins with
_TELLING_TOKENS = 16  # of so many ids every second is not 0 by chance
_CHECKED_TOKENS = 2**22  # ids checked when a file is opened; the others when they are read


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Token ids in their order, and where they come from.

    Parameters
    ----------
    tokens
        The whole sequence (often mapped from a file).
    vocab
        Size of the vocabulary; ids are below it.
    origin
        Where the sequence comes from, for messages.
    """

    tokens: NDArray[np.unsignedinteger]
    vocab: int
    origin: str

    def checked(self, ids: NDArray[Any]) -> NDArray[Any]:
        """Token ids as given; raises DataError when one of them does not fit the vocabulary."""
        if ids.size and int(ids.max()) >= self.vocab:
            text = ", or, if it is text, name it otherwise than .bin"
            raise DataError(
                f"{self.origin} holds token id {int(ids.max())}, the model's vocabulary is "
                f"{self.vocab}: tokenise it for this model, or take a model with a larger "
                f"vocabulary{text if self.vocab == BYTE_VALUES else ''}"
            )
        return ids


def open_corpus(path: str | None, vocab: int, sample_tokens: int, takes: str) -> Corpus:
    """Text a model trains on.

    Parameters
    ----------
    path
        A file or folder of text, or a `.bin` file of token ids; None: the standard library's
        source files.
    vocab
        Size of the model's vocabulary.
    sample_tokens, takes
        How many tokens a sample takes, and what they are, for the message when there are fewer.

    Raises
    ------
    DataError
        Nothing is there, it is empty, too short for one sample, or does not fit the vocabulary.
    """
    if path is None:
        origin = "the Python standard library"
        tokens = _standard_library(vocab)
    else:
        origin = f"`{path}`"
        tokens = _read_path(Path(path), vocab)
    if len(tokens) < sample_tokens:
        raise DataError(
            f"{origin} holds {len(tokens)} tokens, a sample takes {sample_tokens} ({takes}): give "
            f"more text or a shorter --seq-len"
        )
    corpus = Corpus(tokens=tokens, vocab=vocab, origin=origin)
    corpus.checked(tokens[:_CHECKED_TOKENS])
    return corpus


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
    if vocab != BYTE_VALUES or (path.suffix == ".bin" and path.is_file()):
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
    """Bytes of the files, joined, up to `limit`; files with a zero byte are no text."""
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
    with path.open("rb") as file:
        if file.read(len(_NUMPY)) == _NUMPY:
            raise DataError(
                f"`{path}` is an array as numpy.save writes it: expected token ids and nothing "
                f"before them, as `ids.astype({dtype.name!r}).tofile(path)` writes them"
            )
    ids = np.memmap(path, dtype.newbyteorder("<"), mode="r")
    some = ids[:_CHECKED_TOKENS]
    if len(some) >= _TELLING_TOKENS and some.any() and not some[1::2].any():
        raise DataError(
            f"`{path}`: every second token id is 0, as where ids of {2 * dtype.itemsize} bytes are "
            f"read as ids of {dtype.itemsize}: a vocabulary of {vocab} needs {dtype.name}"
        )
    return ids
