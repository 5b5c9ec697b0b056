"""Checkpoints: variables and optimizer state as shards of whole tensors, read under any plan.

A checkpoint is a folder `step-00000020` of NumPy files, one per shard, and a manifest that says
where in its tensor each shard lies. It is either whole or not there: ranks write it under another
name (`saver.py`), and the parent makes it a checkpoint when all have (`checkpoint_folder.py`).
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millrace.executor.errors import CheckpointError
from millrace.executor.kernels.context import BITS
from millrace.executor.shards import RankValues
from millrace.executor.values.manifest import (
    Manifest,
    SavedShard,
    read_manifest,
    shard_file,
    step_folder,
    step_of,
)
from millrace.executor.values.shard_files import check_content, check_size, read_shard
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.clusters import machine_cores


def find_checkpoint(folder: Path) -> Path:
    """Checkpoint of the last step in `folder`; CheckpointError where there is none."""
    checkpoints = checkpoints_in(folder)
    if not checkpoints:
        raise CheckpointError(f"no checkpoint in `{folder}`: run without --resume first")
    return checkpoints[-1]


def checkpoints_in(folder: Path) -> list[Path]:
    """Checkpoints in a folder, by step."""
    paths = [path for path in folder.glob("step-*") if step_of(path.name) is not None]
    return sorted(
        (path for path in paths if path.is_dir()), key=lambda path: step_of(path.name) or 0
    )


def checked_checkpoint(
    folder: Path, graph: ActorGraph, model: str, *, step: int | None = None
) -> tuple[Path, Manifest]:
    """Last checkpoint in `folder`, or that of a step, and its manifest, every byte of it checked.

    Parameters
    ----------
    folder
        Where checkpoints lie.
    graph, model
        What is to go on from it.
    step
        Steps made at the checkpoint; None: the last.

    Raises
    ------
    CheckpointError
        There is none, it does not fit the model, or it is not as it was written; names the file,
        and the last step to which one can go back.
    """
    path = find_checkpoint(folder) if step is None else folder / step_folder(step)
    try:
        manifest = read_manifest(path)
        manifest.check(graph, model)
        check_shards(path, manifest)
    except CheckpointError as error:
        earlier = next(filter(_is_whole, reversed(checkpoints_in(folder)[:-1])), None)
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
