"""Checkpoints: written whole or not at all, read under another split, refused where they differ."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from millrace.executor.data import data_digest, open_dataset
from millrace.executor.errors import CheckpointError, ExecutorError
from millrace.executor.values.checkpoint import (
    checked_checkpoint,
    find_checkpoint,
    load_checkpoint,
)
from millrace.executor.values.checkpoint_folder import locked_folder
from millrace.executor.values.manifest import Manifest, SavedTensor, TrainedOn, read_manifest
from millrace.models.graph import to_json
from millrace.models.zoo.catalogue import model_spec
from tests.executor.values.saved import (
    W,
    contents,
    loaded,
    optimizer_graph,
    save,
    states_of,
    write_shards,
)

SPLITS = [
    ("(S(0), B)", (4, 1)),
    ("(S(0), S(1))", (2, 2)),
    ("(B, S(1))", (2, 2)),
    ("(B, B)", (2, 1)),
]


@pytest.mark.parametrize(("sbp", "sizes"), SPLITS)
@pytest.mark.parametrize(("other", "other_sizes"), SPLITS)
def test_what_one_split_wrote_another_reads(
    tmp_path: Path, sbp: str, sizes: tuple[int, int], other: str, other_sizes: tuple[int, int]
) -> None:
    (checkpoint,) = save(optimizer_graph(sbp, sizes), tmp_path)
    assert find_checkpoint(tmp_path) == checkpoint
    graph = optimizer_graph(other, other_sizes)
    path, manifest = checked_checkpoint(tmp_path, graph, "m")
    assert (path, manifest.step) == (checkpoint, 3)
    expected = states_of(graph)
    for state, wanted in zip(states_of(graph), expected, strict=True):
        wanted.load(0, W)
        wanted.load(1, 2 * W)
        load_checkpoint(checkpoint, state)
        for register in (0, 1):
            views = state.arena.views[register][0], wanted.arena.views[register][0]
            np.testing.assert_array_equal(*views)


def test_a_checkpoint_that_a_rank_has_not_written_is_not_there(tmp_path: Path) -> None:
    graph = optimizer_graph("(S(0), B)", (4, 1))
    with locked_folder(tmp_path, contents(graph)):
        assert save(graph, tmp_path, skip=(2,)) == []
        with pytest.raises(CheckpointError, match="no checkpoint in"):
            find_checkpoint(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("manifest_is_there", [False, True])
def test_what_a_killed_run_had_written_whole_is_taken_by_the_next(
    tmp_path: Path, manifest_is_there: bool
) -> None:
    """The parent had died before the manifest, or between it and the name; the plan differs."""
    graph, other = optimizer_graph("(S(0), B)", (4, 1)), optimizer_graph("(B, B)", (2, 1))
    write_shards(graph, tmp_path, (), 4, W)
    write_shards(graph, tmp_path, (1,), 5, 3 * W)
    (tmp_path / "manifest.draft").write_bytes(to_json(contents(graph)))
    if manifest_is_there:
        (tmp_path / "step-00000004.partial" / "manifest.json").write_text("{")
    with locked_folder(tmp_path, contents(other)):
        path, manifest = checked_checkpoint(tmp_path, other, "m")
        assert manifest.step == 4
        for array, expected in zip(loaded(path, other), (W, 2 * W) * 2, strict=True):
            np.testing.assert_array_equal(array, expected)
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-00000004"]
    assert not list(path.glob("*.done"))


def test_two_runs_do_not_save_in_one_folder(tmp_path: Path) -> None:
    manifest = contents(optimizer_graph("(B, B)", (1, 1)))
    with (
        locked_folder(tmp_path, manifest),
        pytest.raises(ExecutorError, match=f"another run saves in `{tmp_path}`"),
        locked_folder(tmp_path, manifest),
    ):
        pass
    with locked_folder(tmp_path, manifest):
        pass


@pytest.mark.parametrize("place", ["/proc/x", "file/below", "file"])
def test_a_folder_that_cannot_be_written_is_refused_by_name(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    manifest = contents(optimizer_graph("(B, B)", (1, 1)))
    with (
        pytest.raises(CheckpointError, match=f"cannot save in `.*{place}`: [a-z]"),
        locked_folder(tmp_path / place, manifest),
    ):
        pass


def test_a_disk_without_room_is_found_before_the_first_step(tmp_path: Path) -> None:
    tensor = SavedTensor(shape=(10**9, 10**9), dtype="float64", sbp="(B, B)", shards=())
    large = Manifest(model="m", plan_digest="p", step=0, tensors={"w": tensor})
    with (
        pytest.raises(ExecutorError, match=f"`{tmp_path}`: no space left on device for .* MiB"),
        locked_folder(tmp_path, large),
    ):
        pass


@pytest.mark.parametrize("name", ["step-00000098.partial", "step-00000098"])
def test_a_file_with_the_name_of_a_checkpoint_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with (
        pytest.raises(CheckpointError, match=f"{name}` has the name of a checkpoint and is no fol"),
        locked_folder(tmp_path, contents(optimizer_graph("(B, B)", (1, 1)))),
    ):
        pass
    (tmp_path / name).rename(tmp_path / "step-of-mine.partial")
    with locked_folder(tmp_path, contents(optimizer_graph("(B, B)", (1, 1)))):
        pass
    assert (tmp_path / "step-of-mine.partial").exists()


def test_copies_of_a_shard_are_written_once(tmp_path: Path) -> None:
    (checkpoint,) = save(optimizer_graph("(B, S(1))", (2, 2)), tmp_path)
    files = sorted(path.name for path in checkpoint.glob("*.npy"))
    assert files == ["w.velocity@0-0.npy", "w.velocity@0-2.npy", "w@0-0.npy", "w@0-2.npy"]


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    graph = optimizer_graph("(S(0), B)", (4, 1))
    (checkpoint,) = save(graph, tmp_path)
    manifest = read_manifest(checkpoint)
    with pytest.raises(CheckpointError, match="of model `m`, not of `other`"):
        manifest.check(graph, "other")
    with pytest.raises(CheckpointError, match="has no `v`"):
        manifest.check(optimizer_graph("(S(0), B)", (4, 1), name="v"), "m")
    (checkpoint / "manifest.json").write_text('{"schema_version": 2, "modl": 3}')
    with pytest.raises(CheckpointError, match="modl"):
        read_manifest(checkpoint)


def test_what_a_resume_does_otherwise_is_told_where_the_manifest_says_it(tmp_path: Path) -> None:
    graph = optimizer_graph("(B, B)", (1, 1))
    then = TrainedOn(seed=0, data="text: a.txt", data_digest="1", global_batch=8)
    now = TrainedOn(seed=3, data="text: b.txt", data_digest="2", global_batch=4)
    told = then.differences(now)
    assert [sentence.split("trained ")[1].split(",")[0] for sentence in told] == [
        "with seed 0",
        "on text: a.txt",
        "with a global batch of 8",
    ]
    assert then.differences(then) == ()
    (same_name,) = then.differences(msgspec.structs.replace(then, data_digest="2"))
    assert same_name == "the checkpoint was trained on text: a.txt, which has other content now"
    (checkpoint,) = save(graph, tmp_path)
    file = checkpoint / "manifest.json"
    document = msgspec.json.decode(file.read_bytes())
    del document["trained_on"]
    file.write_bytes(msgspec.json.encode(document | {"schema_version": 2}))
    assert read_manifest(checkpoint).trained_on is None


def test_the_digest_of_data_is_of_its_content_and_not_of_name_or_seed(tmp_path: Path) -> None:
    model = model_spec("gpt-demo", seq_len=32)
    files = [tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "c.txt"]
    for file, text in zip(files, ("once ", "once ", "upon "), strict=True):
        file.write_text(text * 1000)
    first, renamed, other = (
        data_digest(open_dataset(str(file), model, seed), model) for seed, file in enumerate(files)
    )
    assert first == renamed != other
