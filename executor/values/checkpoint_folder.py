"""A folder of checkpoints while a run saves in it: locked, and what is whole made a checkpoint.

Ranks write shards into `step-00000020.partial` as their optimizers finish the step, and last a mark
with the checksums of their files; when all marks have come the parent adds the manifest and renames
the folder. Where the parent is killed before that, the next run does it: until a run has ended,
`manifest.draft` beside its checkpoints says what it writes. A shard that several ranks hold is
written by one of them. Every file is on the disk before the name is.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EDQUOT, ENOSPC
from pathlib import Path

import msgspec

from millrace.executor.errors import CheckpointError, ExecutorError, reason_of
from millrace.executor.values.manifest import (
    MANIFEST,
    PARTIAL,
    Manifest,
    decoded_manifest,
    mark_of,
    shard_file,
    step_of,
)
from millrace.executor.values.shard_files import sync_folder, write_synced
from millrace.models.graph import to_json

DRAFT = "manifest.draft"
CHECKSUMS = msgspec.json.Decoder(dict[str, str])


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
            with suppress(OSError):  # else the next run does it
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
    for partial in partials_in(folder):
        shutil.rmtree(partial)
    draft.unlink(missing_ok=True)


def commit_finished(folder: Path, contents: Manifest) -> list[Path]:
    """Make checkpoints of the partial ones that every rank has written; return them."""
    committed = (commit(partial, contents) for partial in partials_in(folder))
    return [checkpoint for checkpoint in committed if checkpoint is not None]


def commit(partial: Path, contents: Manifest) -> Path | None:
    """Make a checkpoint of a partial one; None where a rank has not written its shards.

    Raises OSError where the file system refuses.
    """
    ranks = {shard.rank for tensor in contents.tensors.values() for shard in tensor.shards}
    marks = [mark_of(partial, rank) for rank in ranks]
    if not all(mark.exists() for mark in marks):
        return None
    checksums: dict[str, str] = {}
    try:
        for mark in marks:
            checksums |= CHECKSUMS.decode(mark.read_bytes())
    except (msgspec.DecodeError, ValueError):  # what a host that crashed left
        return None
    final = partial.with_suffix("")
    manifest = _completed(contents, step_of(final.name) or 0, checksums)
    write_synced(partial / MANIFEST, to_json(manifest))
    sync_folder(partial)
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    sync_folder(final.parent)
    for mark in marks:
        (final / mark.name).unlink()
    return final


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


def partials_in(folder: Path) -> list[Path]:
    """Folders that ranks have begun to write, by step; nothing else that is called alike."""
    return sorted(
        path
        for path in folder.glob(f"step-*{PARTIAL}")
        if step_of(path.stem) is not None and path.is_dir() and not path.is_symlink()
    )
