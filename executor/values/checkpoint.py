"""Checkpoints: variables and optimizer state as shards of whole tensors, read under any plan.

A checkpoint is a folder `step-00000020` of NumPy files, one per shard, and a manifest that says
where in its tensor each shard lies. Ranks write shards into `step-00000020.partial` as their
optimizers finish the step; when all have come the parent adds the manifest and renames the folder,
so that a checkpoint is either whole or not there. Shards that several ranks hold are written by
the one at coordinate 0.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np
from numpy.typing import NDArray

from millrace.executor.errors import CheckpointError
from millrace.executor.kernels.context import BITS
from millrace.executor.shards import RankValues
from millrace.models.graph import to_json
from millrace.planner.actors.graph import ActorGraph, Register
from millrace.planner.sbp import parse_nd_sbp, shard_offsets

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"


class ShardFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file: the part of a tensor that begins at `offsets`, as `rank` wrote it."""

    file: str
    rank: int
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


class SavedTensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole tensor, how it was split, and the files that hold it."""

    shape: tuple[int, ...]
    dtype: str
    sbp: str
    shards: tuple[ShardFile, ...]


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a checkpoint holds; `step` counts the steps made."""

    schema_version: int = SCHEMA_VERSION
    model: str
    plan_digest: str
    step: int
    tensors: dict[str, SavedTensor]

    def check(self, graph: ActorGraph, model: str) -> None:
        """Raise CheckpointError unless it holds every variable and state of `graph`."""
        if model != self.model:
            raise CheckpointError(f"the checkpoint is of model `{self.model}`, not of `{model}`")
        for program in graph.programs:
            for register in _kept(program.registers):
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
                if saved.dtype != register.dtype and not BITS.keys().isdisjoint(
                    (saved.dtype, register.dtype)
                ):
                    raise CheckpointError(
                        f"`{register.tensor}` is {saved.dtype} in the checkpoint and "
                        f"{register.dtype} in the plan: freeze the variables that were frozen, and "
                        f"keep the precision"
                    )


def manifest_of(graph: ActorGraph, *, model: str, plan_digest: str, step: int = 0) -> Manifest:
    """Return what the ranks of `graph` write together."""
    tensors: dict[str, SavedTensor] = {}
    for program in graph.programs:
        for register in _kept(program.registers):
            tensors[register.tensor] = SavedTensor(
                shape=register.global_shape,
                dtype=register.dtype,
                sbp=register.sbp,
                shards=tuple(
                    shard
                    for rank in program.ranks
                    if (shard := _written(graph, rank, register)) is not None
                ),
            )
    return Manifest(model=model, plan_digest=plan_digest, step=step, tensors=tensors)


def _kept(registers: tuple[Register, ...]) -> Iterator[Register]:
    """Registers with a value before the first step: variables and optimizer state."""
    return (register for register in registers if register.initial)


def _written(graph: ActorGraph, rank: int, register: Register) -> ShardFile | None:
    """The shard of `register` that `rank` writes; None where another rank writes the same."""
    sbp, coordinate = parse_nd_sbp(register.sbp), graph.coordinate(rank)
    if any(not one.is_split and at for one, at in zip(sbp, coordinate, strict=True)):
        return None
    offsets = shard_offsets(register.global_shape, sbp, graph.axis_sizes, coordinate)
    name = quote(register.tensor, safe="")
    return ShardFile(
        file=f"{name}@{'-'.join(map(str, offsets))}.npy",
        rank=rank,
        offsets=offsets,
        shape=register.shape,
    )


class Saver:
    """Writes one rank's shards when its optimizer actors have made a step that is to be kept.

    What no actor writes, frozen variables, is written with the totals of the step.

    Parameters
    ----------
    folder
        Where checkpoints lie.
    state
        The rank.
    steps, every
        Keep the state after this run's last step, and after every `every` steps unless 0; both
        counted over all runs.
    """

    def __init__(self, folder: Path, state: RankValues, *, last_step: int, every: int) -> None:
        self._folder, self._state = folder, state
        self._last_step, self._every = last_step, every
        self._writes: dict[int, list[tuple[int, str]]] = {}
        written = {port.register for one in state.program.actors for port in one.outputs}
        written.update(register for one in state.program.actors for register in one.state)
        still = [at for at in range(len(state.program.registers)) if at not in written]
        for index, actor in enumerate(state.program.actors):
            registers = [*actor.state, *(port.register for port in actor.outputs)]
            if actor.kind == "step_totals":
                registers += still
            for register in registers:
                found = state.program.registers[register]
                shard = _written(state.graph, state.rank, found) if found.initial else None
                if shard is not None:
                    self._writes.setdefault(index, []).append((register, shard.file))
        self._left: dict[int, int] = {}

    def fired(self, actor: int, firing: int) -> None:
        """Take note that `actor` has run (called before anyone may overwrite its outputs)."""
        writes = self._writes.get(actor)
        step = self._state.run_state.first_step + firing + 1
        if writes is None or not self._due(step):
            return
        folder = self._folder / f"{_name(step)}.partial"
        folder.mkdir(parents=True, exist_ok=True)
        for register, file in writes:
            slots = self._state.program.registers[register].slots
            np.save(folder / file, self._state.value(register, (firing + 1) % slots))
        left = self._left.setdefault(step, len(self._writes)) - 1
        self._left[step] = left
        if left == 0:
            (folder / f"rank.{self._state.rank}.done").touch()

    def save(self, step: int) -> None:
        """Write all shards after a step of this run, nothing being under way."""
        for actor in self._writes:
            self.fired(actor, step)

    def keeps(self, step: int) -> bool:
        """Whether the state after a step (counted from this run's first) is to be kept."""
        return self._due(self._state.run_state.first_step + step + 1)

    def _due(self, step: int) -> bool:
        return step == self._last_step or (self._every > 0 and step % self._every == 0)


def commit_finished(folder: Path, contents: Manifest) -> list[Path]:
    """Make checkpoints of the partial ones that every rank has written; return them."""
    ranks = {shard.rank for tensor in contents.tensors.values() for shard in tensor.shards}
    made = []
    for partial in sorted(folder.glob("step-*.partial")):
        marks = [partial / f"rank.{rank}.done" for rank in ranks]
        if not all(mark.exists() for mark in marks):
            continue
        final = partial.with_suffix("")
        step = int(final.name.removeprefix("step-"))
        manifest = msgspec.structs.replace(contents, step=step)
        (partial / MANIFEST).write_bytes(to_json(manifest))
        for mark in marks:
            mark.unlink()
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
        made.append(final)
    return made


def remove_partial(folder: Path) -> None:
    """Remove what runs that ended early have begun to write."""
    for partial in folder.glob("step-*.partial"):
        shutil.rmtree(partial)


def find_checkpoint(folder: Path) -> Path:
    """Return the checkpoint of the last step in `folder`; CheckpointError where there is none."""
    found = sorted(path.parent for path in folder.glob(f"step-*/{MANIFEST}"))
    found = [path for path in found if path.suffix != ".partial"]
    if not found:
        raise CheckpointError(f"no checkpoint in `{folder}`: run without --resume first")
    return found[-1]


def read_manifest(checkpoint: Path) -> Manifest:
    """Return what a checkpoint holds.

    Raises
    ------
    CheckpointError
        The manifest is missing or malformed, or a file that it names is missing.
    """
    try:
        text = (checkpoint / MANIFEST).read_bytes()
        manifest = msgspec.json.decode(text, type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(f"`{checkpoint}` is no checkpoint: {error}") from None
    for name, tensor in manifest.tensors.items():
        for shard in tensor.shards:
            if not (checkpoint / shard.file).exists():
                raise CheckpointError(
                    f"checkpoint `{checkpoint}` lacks `{shard.file}`, a shard of `{name}`"
                )
    return manifest


def load_checkpoint(checkpoint: Path, state: RankValues) -> None:
    """Fill a rank's variables and optimizer state from a checkpoint, however it was split."""
    manifest = read_manifest(checkpoint)
    for index, register in enumerate(state.program.registers):
        if register.initial:
            start = state.shard(register).offsets
            values = np.empty(register.shape, BITS.get(register.dtype, register.dtype))
            for shard in manifest.tensors[register.tensor].shards:
                _copy_overlap(checkpoint / shard.file, shard, start, values)
            state.write(index, 0, values)


def _copy_overlap(
    path: Path, shard: ShardFile, start: tuple[int, ...], target: NDArray[Any]
) -> None:
    """Copy what a shard's file and `target`, which begins at `start`, have in common."""
    source, into = [], []
    for has, size, wants, room in zip(shard.offsets, shard.shape, start, target.shape, strict=True):
        first, end = max(has, wants), min(has + size, wants + room)
        if first >= end:
            return
        source.append(slice(first - has, end - has))
        into.append(slice(first - wants, end - wants))
    saved = np.load(path, mmap_mode="r")
    np.copyto(target[tuple(into)], saved[tuple(source)])


def _name(step: int) -> str:
    return f"step-{step:08d}"
