"""Checkpoints: variables and optimizer state as shards of whole tensors, read under any plan.

A checkpoint is a folder `step-00000020` of NumPy files, one per shard, and a manifest that says
where in its tensor each shard lies. Ranks write shards into `step-00000020.partial` as their
optimizers finish the step, and last a mark with the checksums of their files; when all marks have
come the parent adds the manifest and renames the folder, so that a checkpoint is either whole or
not there. Where the parent is killed before that, the next run does it: until a run has ended,
`manifest.draft` beside its checkpoints says what it writes. Shards that several ranks hold are
written by the one at coordinate 0.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from millrace.executor.errors import CheckpointError, ExecutorError, reason_of, saving
from millrace.executor.kernels.context import BITS
from millrace.executor.shards import RankValues
from millrace.executor.values.manifest import (
    MANIFEST,
    Manifest,
    SavedShard,
    decoded_manifest,
    read_manifest,
    shard_file,
    step_folder,
    step_of,
    written_shard,
)
from millrace.executor.values.shard_files import (
    check_content,
    check_size,
    read_shard,
    write_shard,
)
from millrace.models.graph import to_json
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.clusters import machine_cores

DRAFT = "manifest.draft"
PARTIAL = ".partial"
CHECKSUMS = msgspec.json.Decoder(dict[str, str])


class Saver:
    """Writer of one rank's shards when its optimizers have made a step that is to be kept.

    What no actor writes, frozen variables, is written with the totals of the step.

    Parameters
    ----------
    folder
        Where checkpoints lie.
    state
        The rank.
    last_step, every
        Keep the state after this run's last step, and after every `every` steps unless 0; both
        counted over all runs.

    Raises
    ------
    ExecutorError
        The file system refuses (from what saves); names the file and the reason.
    """

    def __init__(self, folder: Path, state: RankValues, *, last_step: int, every: int) -> None:
        self._folder, self._state = folder, state
        self._last_step, self._every = last_step, every
        self._writes: dict[int, list[tuple[int, str]]] = {}
        written = {port.register for actor in state.program.actors for port in actor.outputs}
        written.update(register for actor in state.program.actors for register in actor.state)
        still = [
            register for register in range(len(state.program.registers)) if register not in written
        ]
        for index, actor in enumerate(state.program.actors):
            registers = [*actor.state, *(port.register for port in actor.outputs)]
            if actor.kind == "step_totals":
                registers += still
            for register in registers:
                register_info = state.program.registers[register]
                shard = (
                    written_shard(state.graph, state.rank, register_info)
                    if register_info.initial
                    else None
                )
                if shard is not None:
                    file = shard_file(register_info.tensor, shard.offsets)
                    self._writes.setdefault(index, []).append((register, file))
        self._left: dict[int, int] = {}
        self._checksums: dict[int, dict[str, str]] = {}

    def fired(self, actor: int, firing: int) -> None:
        """Take note that `actor` has run (called before anyone may overwrite its outputs)."""
        writes = self._writes.get(actor)
        step = self._state.run_state.first_step + firing + 1
        if writes is None or not self._due(step):
            return
        folder = self._folder / f"{step_folder(step)}{PARTIAL}"
        checksums = self._checksums.setdefault(step, {})
        with saving(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for register, file in writes:
            register_info = self._state.program.registers[register]
            values = self._state.value(register, (firing + 1) % register_info.slots)
            with saving(folder / file):
                checksums[file] = write_shard(folder / file, values, register_info.dtype)
        left = self._left.setdefault(step, len(self._writes)) - 1
        self._left[step] = left
        if left == 0:
            mark = _mark(folder, self._state.rank)
            draft = mark.with_suffix(".draft")
            with saving(mark):
                draft.write_bytes(to_json(self._checksums.pop(step)))
                draft.replace(mark)

    def save(self, step: int) -> None:
        """Write all shards after a step of this run, nothing being under way."""
        for actor in self._writes:
            self.fired(actor, step)

    def keeps(self, step: int) -> bool:
        """True if the state after a step (counted from this run's first) is to be kept."""
        return self._due(self._state.run_state.first_step + step + 1)

    def _due(self, step: int) -> bool:
        return step == self._last_step or (self._every > 0 and step % self._every == 0)


@contextmanager
def locked_folder(folder: Path, contents: Manifest) -> Iterator[None]:
    """Hold a folder of checkpoints for one run: made, locked, and with room for what it writes.

    What an earlier run that was killed had written whole becomes a checkpoint, here and at the
    end; the rest of it is removed.

    Parameters
    ----------
    folder
        Where checkpoints lie.
    contents
        What the run's ranks write together.

    Raises
    ------
    CheckpointError
        Nothing can be written there.
    ExecutorError
        Another run saves there, or the disk is too full.
    """
    lock = None
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            _lock(folder, lock)
            _settle(folder)
            _check_names(folder)
            _check_room(folder, contents.size_bytes)
            (folder / DRAFT).write_bytes(to_json(contents))
        except OSError as error:
            cause = ExecutorError if error.errno in (ENOSPC, EDQUOT) else CheckpointError
            raise cause(f"cannot save in `{folder}`: {reason_of(error)}") from None
        try:
            yield
        finally:
            with suppress(OSError, ExecutorError):  # else the next run does it
                _settle(folder)
    finally:
        if lock is not None:
            os.close(lock)


def _lock(folder: Path, handle: int) -> None:
    """Lock a folder until the handle is closed, where its file system has locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ExecutorError(
            f"another run saves in `{folder}`: wait until it has ended, or give another folder"
        ) from None
    except OSError:
        return


def _check_room(folder: Path, size_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if size_bytes > free_bytes:
        raise ExecutorError(
            f"cannot save in `{folder}`: no space left on device for {size_bytes / 2**20:,.1f} "
            f"MiB ({free_bytes / 2**20:,.1f} MiB are free)"
        )


def _check_names(folder: Path) -> None:
    """Refuse what is no folder where a checkpoint would lie, before there is anything to lose."""
    for path in sorted(folder.glob("step-*")):
        step = step_of(path.name.removesuffix(PARTIAL))
        if step is not None and (path.is_symlink() or not path.is_dir()):
            raise CheckpointError(
                f"`{path}` has the name of a checkpoint and is no folder: remove or rename it"
            )


def _settle(folder: Path) -> None:
    """Make checkpoints of what is whole, and remove what else a run has begun to write."""
    draft = folder / DRAFT
    with suppress(CheckpointError):  # there is none, or a host crashed while it was written
        commit_finished(folder, decoded_manifest(draft))
    for partial in _partials(folder):
        shutil.rmtree(partial)
    draft.unlink(missing_ok=True)


def commit_finished(folder: Path, contents: Manifest) -> list[Path]:
    """Make checkpoints of the partial ones that every rank has written; return them.

    Raises ExecutorError where the file system refuses.
    """
    ranks = {shard.rank for tensor in contents.tensors.values() for shard in tensor.shards}
    checkpoints = []
    for partial in _partials(folder):
        marks = [_mark(partial, rank) for rank in ranks]
        if not all(mark.exists() for mark in marks):
            continue
        final = partial.with_suffix("")
        with saving(final):
            checksums: dict[str, str] = {}
            try:
                for mark in marks:
                    checksums |= CHECKSUMS.decode(mark.read_bytes())
            except (msgspec.DecodeError, ValueError):  # what a host that crashed left
                continue
            manifest = _completed(contents, step_of(final.name) or 0, checksums)
            (partial / MANIFEST).write_bytes(to_json(manifest))
            if final.exists():
                shutil.rmtree(final)
            partial.rename(final)
            for mark in marks:
                (final / mark.name).unlink()
        checkpoints.append(final)
    return checkpoints


def _completed(contents: Manifest, step: int, checksums: dict[str, str]) -> Manifest:
    """Manifest of a step, from the checksums by the names of files."""
    replace = msgspec.structs.replace
    tensors = {}
    for name, tensor in contents.tensors.items():
        shards = tuple(
            replace(shard, checksum=checksums.get(shard_file(name, shard.offsets), ""))
            for shard in tensor.shards
        )
        tensors[name] = replace(tensor, shards=shards)
    return replace(contents, step=step, tensors=tensors)


def _partials(folder: Path) -> list[Path]:
    """Folders that ranks have begun to write, by step; nothing else that is called alike."""
    return sorted(
        path
        for path in folder.glob(f"step-*{PARTIAL}")
        if step_of(path.stem) is not None and path.is_dir() and not path.is_symlink()
    )


def _mark(partial: Path, rank: int) -> Path:
    return partial / f"rank.{rank}.done"


def find_checkpoint(folder: Path) -> Path:
    """Checkpoint of the last step in `folder`; CheckpointError where there is none."""
    checkpoints = _checkpoints(folder)
    if not checkpoints:
        raise CheckpointError(f"no checkpoint in `{folder}`: run without --resume first")
    return checkpoints[-1]


def _checkpoints(folder: Path) -> list[Path]:
    paths = [path for path in folder.glob("step-*") if step_of(path.name) is not None]
    return sorted(
        (path for path in paths if path.is_dir()), key=lambda path: step_of(path.name) or 0
    )


def checked_checkpoint(folder: Path, graph: ActorGraph, model: str) -> tuple[Path, Manifest]:
    """Last checkpoint in `folder` and its manifest, every byte of it checked.

    Parameters
    ----------
    folder
        Where checkpoints lie.
    graph, model
        What is to go on from it.

    Raises
    ------
    CheckpointError
        There is none, it does not fit the model, or it is not as it was written; names the file,
        and the last step to which one can go back.
    """
    path = find_checkpoint(folder)
    try:
        manifest = read_manifest(path)
        manifest.check(graph, model)
        check_shards(path, manifest)
    except CheckpointError as error:
        earlier = next(filter(_is_whole, reversed(_checkpoints(folder)[:-1])), None)
        if earlier is None or _is_whole(path):
            raise
        raise CheckpointError(
            f"{error}; remove or rename `{path}`, and --resume goes on from step "
            f"{step_of(earlier.name)}"
        ) from None
    return path, manifest


def _is_whole(checkpoint: Path) -> bool:
    try:
        check_shards(checkpoint, read_manifest(checkpoint))
    except CheckpointError:
        return False
    return True


def check_shards(checkpoint: Path, manifest: Manifest) -> None:
    """Raise CheckpointError unless every shard is as it was written, and finite.

    All files are read, as many at once as there are cores; first their sizes are compared.
    """
    shards = [
        (checkpoint / shard_file(name, shard.offsets), tensor.dtype, shard.shape, shard.checksum)
        for name, tensor in sorted(manifest.tensors.items())
        for shard in tensor.shards
    ]
    for path, dtype, shape, _ in shards:
        check_size(path, dtype, shape)
    pool = ThreadPoolExecutor(machine_cores())
    try:
        for _ in pool.map(lambda shard: check_content(*shard), shards):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


def load_checkpoint(checkpoint: Path, state: RankValues) -> None:
    """Fill a rank's variables and optimizer state from a checkpoint, however it was split."""
    manifest = read_manifest(checkpoint)
    for index, register in enumerate(state.program.registers):
        if register.initial:
            saved = manifest.tensors[register.tensor]
            start = state.shard(register).offsets
            values = np.empty(register.shape, BITS.get(register.dtype, register.dtype))
            for shard in saved.shards:
                file = checkpoint / shard_file(register.tensor, shard.offsets)
                _copy_overlap(file, saved.dtype, shard, start, values)
            state.write(index, 0, values)


def _copy_overlap(
    path: Path, dtype: str, shard: SavedShard, start: tuple[int, ...], target: NDArray[Any]
) -> None:
    """Copy what a shard's file and `target`, which begins at `start`, have in common."""
    source, into = [], []
    for has, size, wants, room in zip(shard.offsets, shard.shape, start, target.shape, strict=True):
        first, end = max(has, wants), min(has + size, wants + room)
        if first >= end:
            return
        source.append(slice(first - has, end - has))
        into.append(slice(first - wants, end - wants))
    np.copyto(target[tuple(into)], read_shard(path, dtype, shard.shape)[tuple(source)])
