"""Inputs of a file: their sizes, what they read of the data, and those whose values are known."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from millrace.models.errors import ModelError
from millrace.models.importers.onnx.onnx_file import GraphInput, OnnxSource
from millrace.models.importers.onnx.values import Array
from millrace.models.importers.onnx.weights import embedded_rows


class Read(NamedTuple):
    """Source of an `input` op, and its number of different ids (0: floating)."""

    name: str
    values: int


def prescribed(entry: GraphInput, shape: tuple[int, ...]) -> Array | None:
    """Return the values that an input has for one whole sequence; None where it reads data."""
    if not describes_sequence(entry):
        return None
    plain = entry.name.lower()
    if "position" in plain:
        return np.broadcast_to(np.arange(shape[-1], dtype="int64"), shape)
    return np.full(shape, 1 if "mask" in plain else 0, "int64")


def describes_sequence(entry: GraphInput) -> bool:
    """True if an input is a mask, positions or token types: facts about data, not data."""
    plain = entry.name.lower()
    return not entry.floating and any(
        word in plain for word in ("mask", "position", "type", "segment")
    )


def fixed_batch(source: OnnxSource) -> int | None:
    """Return the batch that the inputs fix, None where they leave it open.

    Raises
    ------
    ModelError
        There is no input, one has no dims, or their first dims differ.
    """
    if not source.inputs:
        raise ModelError(f"graph `{source.name}` has no inputs; a model to train reads data")
    firsts = {entry.name: entry.dims[0] if entry.dims else 0 for entry in source.inputs}
    for name, first in firsts.items():
        if first == 0:
            raise ModelError(f"input `{name}` is a single number; its first dim is to be the batch")
    sizes = {first for first in firsts.values() if isinstance(first, int)}
    if len(sizes) > 1 or (sizes and len(sizes) != len(set(firsts.values()))):
        raise ModelError(f"the inputs have different first dims ({firsts}); it is to be the batch")
    return next(iter(sizes), None)


class Inputs:
    """Inputs of a file together: the data they read, and the length of their sequence.

    Parameters
    ----------
    source : OnnxSource
        Content of the file.
    seq_len : int or None
        Tokens of a sample, where it was asked for.

    Attributes
    ----------
    data : tuple of GraphInput
        Those that read data, and are read.

    Raises
    ------
    ModelError
        The length does not fit what the file fixes.
    """

    def __init__(self, source: OnnxSource, seq_len: int | None) -> None:
        self._source = source
        self._rows = embedded_rows(source)
        self._decoder = any("decoder" in entry.name.lower() for entry in source.inputs)
        read = {name for node in source.nodes for name in node.inputs}
        self.data = tuple(
            entry for entry in source.inputs if entry.name in read and not describes_sequence(entry)
        )
        self.seq_len = _seq_len(source, seq_len)

    @property
    def targets(self) -> str:
        """Source of the targets of a sequence."""
        return "decoder_targets" if self._decoder else "targets"

    def source_of(self, entry: GraphInput) -> Read:
        """Source of the data that an input reads; inputs of one kind read data of their own."""
        kind = self._kind(entry)
        kinds = [self._kind(other) for other in self.data]
        source = kind if kinds.count(kind) < 2 else f"input.{entry.name}"
        return Read(source, 0 if entry.floating else self._rows.get(entry.name, 0))

    def _kind(self, entry: GraphInput) -> str:
        if entry.floating:
            return "images" if len(entry.dims) == 4 else "features"
        if not self._decoder:
            return "tokens"
        return "decoder_tokens" if "decoder" in entry.name.lower() else "source_tokens"

    def shape(self, entry: GraphInput, batch: int) -> tuple[int, ...]:
        """Return the sizes of an input; raises ModelError where one is open."""
        return (batch, *self._sizes(entry))

    def has_sequence(self, entry: GraphInput) -> bool:
        """True if the second dim of an input is the sequence."""
        if len(entry.dims) < 2:
            return False
        return not entry.floating or entry.dims[1] in _sequence_names(self._source)

    def _sizes(self, entry: GraphInput) -> Iterator[int]:
        for axis, dim in enumerate(entry.dims[1:], 1):
            sequence = self.has_sequence(entry) and axis == 1
            if isinstance(dim, int):
                yield dim
            elif self.seq_len is not None and (sequence or dim in _sequence_names(self._source)):
                yield self.seq_len
            else:
                advice = (
                    "give a sequence length (--seq-len)"
                    if sequence
                    else "export the model with a fixed one"
                )
                raise ModelError(
                    f"input `{entry.name}`: dim {axis} (`{dim}`) has no size; {advice}"
                )


def _sequence_names(source: OnnxSource) -> set[str]:
    """Symbolic names of second dims of integer inputs."""
    return {
        dim
        for entry in source.inputs
        if not entry.floating
        for dim in entry.dims[1:2]
        if isinstance(dim, str) and dim
    }


def _seq_len(source: OnnxSource, asked: int | None) -> int | None:
    """Tokens of a sample: what integer inputs fix, or what is asked for."""
    seconds = [dim for entry in source.inputs if not entry.floating for dim in entry.dims[1:2]]
    fixed = {dim for dim in seconds if isinstance(dim, int)}
    if asked is None:
        return max(fixed, default=None)
    if asked < 1:
        raise ModelError(f"a sequence of {asked} tokens was asked for; give one or more")
    if not seconds and asked != 1:
        raise ModelError(f"the model has no sequence: leave its length out, {asked} was given")
    if fixed and fixed != {asked}:
        sizes = " and ".join(str(size) for size in sorted(fixed))
        raise ModelError(
            f"the file fixes sequences of {sizes} tokens, {asked} were asked for; leave the length "
            f"out or export the model with an open one"
        )
    return asked
