"""Checkpoints that are not as they were written are refused by name (`tests/test_readers.py`)."""

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from millrace.executor.errors import CheckpointError
from millrace.executor.values.checkpoint import checked_checkpoint
from millrace.executor.values.shard_files import write_shard
from tests.executor.values.saved import W, optimizer_graph, save

GRAPH = optimizer_graph("(S(0), S(1))", (2, 2))
FIRST = "w@0-0.npy"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The later of two checkpoints."""
    save(GRAPH, tmp_path, step=3)
    (path,) = save(GRAPH, tmp_path, step=7, value=W + 1)
    return path


def check(checkpoint: Path) -> None:
    checked_checkpoint(checkpoint.parent, optimizer_graph("(B, S(1))", (2, 2)), "m")


def edited(checkpoint: Path, change: Callable[[Any], object]) -> None:
    path = checkpoint / "manifest.json"
    document = msgspec.json.decode(path.read_bytes())
    change(document)
    path.write_bytes(msgspec.json.encode(document))


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 4
    path.write_bytes(content)


def swapped(checkpoint: Path) -> None:
    first, second = checkpoint / FIRST, checkpoint / "w@4-0.npy"
    first.rename(checkpoint / "aside")
    second.rename(first)
    (checkpoint / "aside").rename(second)


def linked(checkpoint: Path) -> None:
    shutil.copy(checkpoint / FIRST, checkpoint.parent / "elsewhere.npy")
    (checkpoint / FIRST).unlink()
    (checkpoint / FIRST).symlink_to(checkpoint.parent / "elsewhere.npy")


def resealed(checkpoint: Path, values: Any, dtype: str = "float64") -> None:
    """Put another array in the place of a shard, its checksum in the manifest: no accident."""
    checksum = write_shard(checkpoint / FIRST, values, dtype)
    edited(checkpoint, lambda d: d["tensors"]["w"]["shards"][0].update(checksum=checksum))


def shard(change: dict[str, Any]) -> Callable[[Path], None]:
    return partial(edited, change=lambda d: d["tensors"]["w"]["shards"][0].update(change))


def top(**fields: Any) -> Callable[[Path], None]:
    return partial(edited, change=lambda d: d.update(fields))


def of_w(**fields: Any) -> Callable[[Path], None]:
    return partial(edited, change=lambda d: d["tensors"]["w"].update(fields))


def written(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda checkpoint: (checkpoint / name).write_bytes(content)


HALF = np.full((4, 2), 0.5)
BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (
        lambda checkpoint: flipped(checkpoint / FIRST),
        f"{FIRST}` is not as it was written",
    ),
    "swapped shards": (swapped, r"w@.-0.npy` is not as it was written"),
    "no shards": (of_w(shards=[]), "`w` has shards up to 0 of dim 0, whose size is 8"),
    "a shard less": (
        partial(edited, change=lambda d: d["tensors"]["w"]["shards"].pop()),
        "`w` has 3 of the 4 shards",
    ),
    "a shard twice": (
        partial(edited, change=lambda d: d["tensors"]["w"]["shards"].append(d_first(d))),
        "`w` has two shards at the same offsets",
    ),
    "beyond its tensor": (shard({"offsets": [8, 0]}), "`w` has .*shards"),
    "over another": (shard({"shape": [5, 2]}), "`w` has shards that lie over each other at 0"),
    "short of another": (shard({"shape": [3, 2]}), "`w` has shards that lie over each other at 0"),
    "negative": (shard({"offsets": [-1, 0]}), "is not a manifest: Expected `int` >= 0"),
    "another rank": (shard({"offsets": [0]}), "`w` has shape .* and a shard of"),
    "immense": (of_w(shape=[2**60, 4]), "`w` has shape .* in the checkpoint|`w` has shards up to"),
    "another dtype": (of_w(dtype="float32"), "`w` is float32 in the checkpoint and float64"),
    "no dtype": (of_w(dtype="O"), "`w` is O: expected one of float64"),
    "a file elsewhere": (shard({"file": "../../etc/hostname"}), "unknown field `file`"),
    "a link": (linked, f"{FIRST}` is no file of its own"),
    "float32 in place of float64": (
        lambda checkpoint: np.save(checkpoint / FIRST, HALF.astype("float32")),
        f"{FIRST}` has 160 bytes, and a shard of shape .4, 2. in float64 has 192",
    ),
    "another shape, sealed": (
        lambda checkpoint: resealed(checkpoint, HALF.T),
        f"{FIRST}` does not begin as an array of float64, shape .4, 2.",
    ),
    "not a number, sealed": (
        lambda checkpoint: resealed(checkpoint, np.where(HALF, np.nan, 0)),
        f"{FIRST}` holds values that are not finite",
    ),
    "infinite, sealed": (
        lambda checkpoint: resealed(checkpoint, np.copysign(np.inf, HALF)),
        f"{FIRST}` holds values that are not finite",
    ),
    "of pickles": (
        lambda checkpoint: np.save(checkpoint / FIRST, np.array([print] * 8), allow_pickle=True),
        f"{FIRST}` has .* bytes",
    ),
    "empty": (written(FIRST, b""), f"{FIRST}` has 0 bytes"),
    "another version": (
        top(schema_version=99),
        "Expected `int` <= 3 - at `\\$.schema_version`; it is of another version",
    ),
    "no step": (top(step=-5), "Expected `int` >= 0 - at `\\$.step"),
    "a step too large": (top(step=2**62), "Expected `int` <= "),
    "the step of another": (top(step=3), "is of step 3, and its folder is called `step-00000007`"),
    "a bad byte in a key": (
        written("manifest.json", b'{"schema_version": 2, "\xc0": 1}'),
        "is not a manifest: it is not UTF-8 text",
    ),
    "another encoding": (
        written("manifest.json", "{}".encode("utf-16")),
        "is not a manifest: it is not UTF-8 text",
    ),
    "no end": (written("manifest.json", b"[" * 100_000), "is not a manifest: "),
    "no manifest": (
        lambda checkpoint: (checkpoint / "manifest.json").unlink(),
        "manifest.json` cannot be read: no such file",
    ),
    "no shard": (
        lambda checkpoint: (checkpoint / FIRST).unlink(),
        f"the checkpoint lacks `.*{FIRST}`",
    ),
    "a folder": (
        lambda checkpoint: [(checkpoint / FIRST).unlink(), (checkpoint / FIRST).mkdir()],
        f"{FIRST}` is no file of its own",
    ),
}


def d_first(document: Any) -> Any:
    return document["tensors"]["w"]["shards"][0]


@pytest.mark.parametrize("kind", BAD)
def test_a_corrupt_checkpoint_is_refused_by_name(checkpoint: Path, kind: str) -> None:
    """And the sentence says how to go on from the one before, unless only the plan is another."""
    corrupt, sentence = BAD[kind]
    check(checkpoint)
    corrupt(checkpoint)
    with pytest.raises(CheckpointError, match=sentence) as told:
        check(checkpoint)
    assert f"rename `{checkpoint}`, and --resume goes on from step 3" in str(told.value)
    checkpoint.rename(checkpoint.with_name("aside"))
    check(checkpoint)


def test_a_manifest_has_a_limit(checkpoint: Path) -> None:
    with (checkpoint / "manifest.json").open("r+b") as file:
        os.truncate(file.fileno(), 2**40)
    with pytest.raises(CheckpointError, match="expected at most 268435456 bytes"):
        check(checkpoint)
