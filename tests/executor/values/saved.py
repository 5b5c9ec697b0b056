"""A variable and its momentum, split over ranks of this process, and the checkpoints they write."""

from pathlib import Path
from typing import Any

import numpy as np

from millrace.executor.kernels import RunState
from millrace.executor.rank import RankState
from millrace.executor.values.checkpoint import load_checkpoint
from millrace.executor.values.checkpoint_folder import commit_finished
from millrace.executor.values.manifest import Manifest, manifest_of
from millrace.executor.values.saver import Saver
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


def contents(graph: ActorGraph) -> Manifest:
    return manifest_of(graph, model="m", plan_digest="p")


def save(
    graph: ActorGraph, folder: Path, *, skip: tuple[int, ...] = (), step: int = 3, value: Any = W
) -> list[Path]:
    """Save a value and twice that as the state after a step."""
    write_shards(graph, folder, skip, step, value)
    return commit_finished(folder, contents(graph))


def write_shards(
    graph: ActorGraph, folder: Path, skip: tuple[int, ...], step: int, value: Any
) -> None:
    """Write the files of a step as the ranks do by themselves, but for those in `skip`."""
    for state in states_of(graph, first_step=step - 1):
        state.load(0, value)
        state.load(1, 2 * value)
        if state.rank not in skip:
            Saver(folder, state, last_step=step, every=0, job_folder=folder).fired(0, 0)


def loaded(checkpoint: Path, graph: ActorGraph) -> list[Any]:
    """Every rank's variable and state."""
    states = states_of(graph)
    for state in states:
        load_checkpoint(checkpoint, state)
    return [state.value(register, 0).copy() for state in states for register in (0, 1)]
