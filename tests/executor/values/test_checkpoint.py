"""Checkpoints: written whole or not at all, read under another split, refused where they differ."""

from pathlib import Path

import numpy as np
import pytest

from millrace.executor.errors import CheckpointError
from millrace.executor.kernels import RunState
from millrace.executor.rank import RankState
from millrace.executor.values.checkpoint import (
    Saver,
    commit_finished,
    find_checkpoint,
    load_checkpoint,
    manifest_of,
    read_manifest,
    remove_partial,
)
from millrace.planner.actors.graph import Actor, ActorGraph, Leave, Port, Program, Queue, Register
from millrace.planner.mesh import Axis

SHAPE = (8, 4)
W = np.arange(32.0).reshape(SHAPE)


def optimizer_graph(sbp: str, sizes: tuple[int, int], name: str = "w") -> ActorGraph:
    """One `sgd` with momentum on a variable split as `sbp`; nobody reads the gradient."""
    axes = tuple(Axis(name=n, size=size) for n, size in zip("ab", sizes, strict=True))
    rows = {"B": 8, "S": 8}
    local = (
        rows["S"] // (sizes[0] if sbp.startswith("(S(0)") else 1),
        4 // (sizes[1] if sbp.endswith("S(1))") else 1),
    )
    common = {"global_shape": SHAPE, "sbp": sbp, "shape": local, "dtype": "float64"}
    scalar = {"global_shape": (), "sbp": "(B, B)", "shape": (), "dtype": "float64"}
    totals = {"global_shape": (3,), "sbp": "(B, B)", "shape": (3,), "dtype": "float64"}
    kinds = [
        (name, common, 1),
        (f"{name}.velocity", common, 1),
        ("grad", common, 0),
        ("totals", totals, 0),
        ("rate", scalar, 0),
    ]
    registers = tuple(
        Register(name=n, tensor=n, initial=i, offset_bytes=256 * k, slot_bytes=256, **fields)
        for k, (n, fields, i) in enumerate(kinds)
    )
    update = Actor(
        name=f"{name}.sgd",
        kind="sgd",
        queues=(0,),
        inputs=tuple(Port(register=r) for r in (2, 3, 4)),
        outputs=(Port(register=0),),
        firings=1,
        labels="k n, k n, z!,  -> k n",
        attributes={"momentum": 0.9},
        state=(1,),
        in_place=True,
    )
    program = Program(
        name="stage 0",
        stage=0,
        ranks=tuple(range(sizes[0] * sizes[1])),
        registers=registers,
        actors=(update,),
        queues=(Queue(name="compute", leave=Leave.COMPLETED, order=(0,)),),
    )
    return ActorGraph(name="optimizer", axes=axes, programs=(program,))


def states_of(graph: ActorGraph, first_step: int = 0) -> list[RankState]:
    run = {"seed": 0, "dataset": None, "global_batch": 1, "microbatches": 1, "batch": 1}
    return [
        RankState(graph, rank, RunState(first_step=first_step, **run))
        for rank in range(graph.ranks)
    ]


def save(graph: ActorGraph, folder: Path, *, skip: tuple[int, ...] = ()) -> list[Path]:
    """Save W and twice W as the state after step 3."""
    for state in states_of(graph, first_step=2):
        state.load(0, W)
        state.load(1, 2 * W)
        if state.rank not in skip:
            Saver(folder, state, last_step=3, every=0).fired(0, 0)
    return commit_finished(folder, manifest_of(graph, model="m", plan_digest="p"))


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
    (made,) = save(optimizer_graph(sbp, sizes), tmp_path)
    assert find_checkpoint(tmp_path) == made
    graph = optimizer_graph(other, other_sizes)
    manifest = read_manifest(made)
    manifest.check(graph, "m")
    assert manifest.step == 3
    expected = states_of(graph)
    for state, wanted in zip(states_of(graph), expected, strict=True):
        wanted.load(0, W)
        wanted.load(1, 2 * W)
        load_checkpoint(made, state)
        for register in (0, 1):
            views = state.arena.views[register][0], wanted.arena.views[register][0]
            np.testing.assert_array_equal(*views)


def test_a_checkpoint_that_a_rank_has_not_written_is_not_there(tmp_path: Path) -> None:
    assert save(optimizer_graph("(S(0), B)", (4, 1)), tmp_path, skip=(2,)) == []
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        find_checkpoint(tmp_path)
    remove_partial(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_copies_of_a_shard_are_written_once(tmp_path: Path) -> None:
    (made,) = save(optimizer_graph("(B, S(1))", (2, 2)), tmp_path)
    files = sorted(path.name for path in made.glob("*.npy"))
    assert files == ["w.velocity@0-0.npy", "w.velocity@0-2.npy", "w@0-0.npy", "w@0-2.npy"]


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    graph = optimizer_graph("(S(0), B)", (4, 1))
    (made,) = save(graph, tmp_path)
    manifest = read_manifest(made)
    with pytest.raises(CheckpointError, match="of model `m`, not of `other`"):
        manifest.check(graph, "other")
    with pytest.raises(CheckpointError, match="has no `v`"):
        manifest.check(optimizer_graph("(S(0), B)", (4, 1), name="v"), "m")
    (made / "manifest.json").write_text('{"schema_version": 1, "modl": 3}')
    with pytest.raises(CheckpointError, match="modl"):
        read_manifest(made)
