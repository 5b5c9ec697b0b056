"""Manifest: the document of a checkpoint, and all that can be checked without reading a shard.

It says which tensors a checkpoint holds, where in its tensor each shard lies and what the bytes of
its file add up to. What it says is refused unless the shards tile their tensors, so that no element
is missing and none is there twice.
"""

import re
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Annotated
from urllib.parse import quote
from zlib import crc32

import msgspec

from millrace.executor.errors import CheckpointError
from millrace.models.documents import read_document
from millrace.models.graph import ITEMSIZE
from millrace.planner.actors.graph import ActorGraph, Register
from millrace.planner.sbp import parse_nd_sbp, shard_offsets

SCHEMA_VERSION = 3  # 2: checksums, and files named by their tensors and offsets; 3: `trained_on`
SCHEMA_VERSION_MIN = 2
MANIFEST = "manifest.json"
PARTIAL = ".partial"
MANIFEST_BYTES_MAX = 2**28
STEPS_MAX = 2**31 - 1
Natural = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
Size = Annotated[int, msgspec.Meta(ge=1, lt=2**62)]


class SavedShard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of a tensor that begins at `offsets`, as `rank` wrote it."""

    rank: Natural
    offsets: tuple[Natural, ...]
    shape: tuple[Size, ...]
    checksum: str = ""


class SavedTensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole tensor, how it was split, and its shards."""

    shape: tuple[Size, ...]
    dtype: str
    sbp: str
    shards: tuple[SavedShard, ...]


class TrainedOn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Samples of a step of training: what draws them, and how many there are.

    Attributes
    ----------
    seed
        Seed of the order of samples.
    data, data_digest
        What the samples are, in a few words, and a digest of some of them (`data_digest`).
    global_batch
        Samples of a step.
    """

    seed: Annotated[int, msgspec.Meta(ge=0)]
    data: str
    data_digest: str
    global_batch: Size

    def differences(self, now: "TrainedOn") -> tuple[str, ...]:
        """Sentences on what a run that goes on from here does otherwise."""
        sentences = []
        if now.seed != self.seed:
            sentences.append(
                f"the checkpoint was trained with seed {self.seed}, and this run has seed "
                f"{now.seed}: its samples come in another order"
            )
        if now.data != self.data:
            sentences.append(
                f"the checkpoint was trained on {self.data}, and this run is on {now.data}"
            )
        elif now.data_digest != self.data_digest:
            sentences.append(
                f"the checkpoint was trained on {self.data}, which has other content now"
            )
        if now.global_batch != self.global_batch:
            sentences.append(
                f"the checkpoint was trained with a global batch of {self.global_batch}, and this "
                f"plan has {now.global_batch}: its samples are others than without the break"
            )
        return tuple(sentences)


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Contents of a checkpoint; `step` counts the steps made.

    Version 2 does not say what it was `trained_on`.
    """

    schema_version: Annotated[int, msgspec.Meta(ge=SCHEMA_VERSION_MIN, le=SCHEMA_VERSION)] = (
        SCHEMA_VERSION
    )
    model: str
    plan_digest: str
    step: Annotated[int, msgspec.Meta(ge=0, le=STEPS_MAX)]
    tensors: dict[str, SavedTensor]
    trained_on: TrainedOn | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all values."""
        return sum(prod(tensor.shape) * ITEMSIZE[tensor.dtype] for tensor in self.tensors.values())

    def check(self, graph: ActorGraph, model: str) -> None:
        """Raise CheckpointError unless it holds every variable and state of `graph`."""
        if model != self.model:
            raise CheckpointError(f"the checkpoint is of model `{self.model}`, not of `{model}`")
        for program in graph.programs:
            for register in persistent_registers(program.registers):
                saved = self.tensors.get(register.tensor)
                if saved is None:
                    raise CheckpointError(
                        f"the checkpoint has no `{register.tensor}`: train with the optimizer that "
                        f"wrote it"
                    )
                if saved.shape != register.global_shape:
                    raise CheckpointError(
                        f"`{register.tensor}` has shape {saved.shape} in the checkpoint and "
                        f"{register.global_shape} in the plan"
                    )
                if saved.dtype != register.dtype:
                    raise CheckpointError(
                        f"`{register.tensor}` is {saved.dtype} in the checkpoint and "
                        f"{register.dtype} in the plan: plan with the precision that wrote it"
                    )


def manifest_of(
    graph: ActorGraph,
    *,
    model: str,
    plan_digest: str,
    step: int = 0,
    trained_on: TrainedOn | None = None,
) -> Manifest:
    """Manifest of what the ranks of `graph` write together, checksums left out."""
    tensors: dict[str, SavedTensor] = {}
    for program in graph.programs:
        for register in persistent_registers(program.registers):
            saved = tensors.get(register.tensor)
            shards = [
                shard
                for rank in program.ranks
                if (shard := written_shard(graph, rank, register)) is not None
            ]
            tensors[register.tensor] = SavedTensor(
                shape=register.global_shape,
                dtype=register.dtype,
                sbp=register.sbp,
                shards=(*(saved.shards if saved else ()), *shards),
            )
    return Manifest(
        model=model, plan_digest=plan_digest, step=step, tensors=tensors, trained_on=trained_on
    )


def persistent_registers(registers: tuple[Register, ...]) -> Iterator[Register]:
    """Registers with a value before the first step: variables and optimizer state."""
    return (register for register in registers if register.initial)


def written_shard(graph: ActorGraph, rank: int, register: Register) -> SavedShard | None:
    """Shard of `register` that `rank` writes; None where another rank writes the same.

    Ranks with equal shards take turns by the names of tensors, so that each writes its part.
    """
    sbp, coordinate = parse_nd_sbp(register.sbp), graph.coordinate(rank)
    turn = crc32(register.tensor.encode("utf-8", "surrogatepass"))
    for axis_sbp, size, axis_coordinate in zip(sbp, graph.axis_sizes, coordinate, strict=True):
        if not axis_sbp.is_split:
            turn, axis_turn = divmod(turn, size)
            if axis_turn != axis_coordinate:
                return None
    offsets = shard_offsets(register.global_shape, sbp, graph.axis_sizes, coordinate)
    return SavedShard(rank=rank, offsets=offsets, shape=register.shape)


def staged_bytes(graph: ActorGraph, rank: int) -> int:
    """Bytes of all that a rank writes, which it copies first where it writes in the background."""
    registers = graph.programs[graph.program_of(rank)].registers
    return sum(
        prod(register.shape) * ITEMSIZE[register.dtype]
        for register in persistent_registers(registers)
        if written_shard(graph, rank, register) is not None
    )


def shard_file(tensor: str, offsets: tuple[int, ...]) -> str:
    """Name of a shard's file, which has no `/` whatever the tensor is called.

    Examples
    --------
    >>> shard_file("h.0/w", (8, 0))
    'h.0%2Fw@8-0.npy'
    """
    return f"{quote(tensor, safe='')}@{'-'.join(map(str, offsets))}.npy"


def step_folder(step: int) -> str:
    """Name of the folder of a checkpoint."""
    return f"step-{step:08d}"


def partial_folder(folder: Path, step: int) -> Path:
    """Folder in which the ranks write what is to be a checkpoint."""
    return folder / f"{step_folder(step)}{PARTIAL}"


def mark_of(partial: Path, rank: int) -> Path:
    """File by which a rank says that it has written its shards: their checksums by file."""
    return partial / f"rank.{rank}.done"


def step_of(name: str) -> int | None:
    """Step of a checkpoint's folder of this name; None where it is no such name."""
    match = re.fullmatch(r"step-([0-9]{8,10})", name)
    return int(match[1]) if match and step_folder(int(match[1])) == name else None


def read_manifest(checkpoint: Path) -> Manifest:
    """Manifest of a checkpoint, which says what it holds; no shard is read.

    Raises
    ------
    CheckpointError
        The manifest is missing, malformed or of another version, its step is not the folder's, or
        its shards do not tile their tensors; names the file and the place.
    """
    path = checkpoint / MANIFEST
    manifest = decoded_manifest(path)
    if step_of(checkpoint.name) != manifest.step:
        raise CheckpointError(
            f"`{path}` is of step {manifest.step}, and its folder is called `{checkpoint.name}`"
        )
    for name, tensor in manifest.tensors.items():
        fault = _fault(tensor)
        if fault is not None:
            raise CheckpointError(f"`{path}`: `{name}` {fault}")
    return manifest


def decoded_manifest(path: Path) -> Manifest:
    """Manifest in a file; CheckpointError where it is none, or of another version."""
    return read_document(
        path, Manifest, "manifest", bytes_max=MANIFEST_BYTES_MAX, error=CheckpointError
    )


def _fault(tensor: SavedTensor) -> str | None:
    """Fault of a tensor's dtype or shards; None where there is none.

    Splitting over the axes of a mesh cuts every dim at the same places all along the others: the
    shards are the cells of a grid. So they tile the tensor exactly where the cuts of every dim
    follow on each other from end to end, and every cell is there once.
    """
    if tensor.dtype not in ITEMSIZE:
        return f"is {tensor.dtype}: expected one of {', '.join(ITEMSIZE)}"
    rank = len(tensor.shape)
    for shard in tensor.shards:
        if len(shard.offsets) != rank or len(shard.shape) != rank:
            return f"has shape {tensor.shape} and a shard of {shard.shape} at {shard.offsets}"
    if len({shard.offsets for shard in tensor.shards}) < len(tensor.shards):
        return "has two shards at the same offsets"
    cells = 1
    for dim, size in enumerate(tensor.shape):
        cuts = sorted({(shard.offsets[dim], shard.shape[dim]) for shard in tensor.shards})
        end = 0
        for offset, length in cuts:
            if offset != end:
                what = "lie over each other" if offset < end else "leave a gap"
                return f"has shards that {what} at {min(offset, end)} of dim {dim}"
            end = offset + length
        if end != size:
            return f"has shards up to {end} of dim {dim}, whose size is {size}"
        cells *= len(cuts)
    if cells != len(tensor.shards):
        return f"has {len(tensor.shards)} of the {cells} shards that it is split into"
    return None
