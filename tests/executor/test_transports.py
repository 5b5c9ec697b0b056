"""Meetings between processes: shared memory and messages move the same data as one process does."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from millrace.executor.errors import ExecutorError
from millrace.executor.hosts.rank_runs import run_ranks
from millrace.executor.transport.mpi import join_world
from tests.executor.actor_graphs import boxed, handed_on, in_a_bucket, split_matmul, to_json
from tests.executor.sources import ROOT
from tests.executor.test_in_process import ONE_AXIS, TWO, run, value

RANK = f"""
import json, os, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
import msgspec
from millrace.executor.kernels import RunState
from millrace.executor.transport.mpi import join_world
from millrace.executor.rank import RankState
from millrace.executor.transport.shared import share_memory
from millrace.executor.worker import give_up, run_rank
from millrace.planner.actors.graph import ActorGraph
from tests.executor.sources import WaveData

folder = Path(sys.argv[1])
rank = int(os.environ["PMI_RANK"])
try:
    world = join_world()
    found = {{}}
    for path in sorted(folder.glob("*.graph")):
        graph = msgspec.json.decode(path.read_bytes(), type=ActorGraph)
        for transport in ("shared", "messages", "both", "uneven"):
            shared = share_memory(graph, world) if transport != "messages" else None
            if shared is not None:
                assert shared.hosts == (0, 0, 0, 0)
                shared.hosts = {{"both": (0, 0, 2, 2), "uneven": (0, 1, 1, 0)}}.get(
                    transport, shared.hosts
                )
            run = RunState(seed=0, dataset=WaveData(), global_batch=8, microbatches=2, batch=4)
            block = shared.blocks[rank] if shared else None
            state = RankState(graph, rank, run, block)
            run_rank(state, state, world, folder, shared=shared, steps=3, spans=False)
            names = [register.name for register in state.program.registers]
            for name in names:
                if name.startswith("y"):
                    views = state.arena.views[names.index(name)]
                    place = f"{{path.stem}} {{transport}} {{name}}"
                    found[place] = [view.tolist() for view in views]
    (folder / f"found.{{rank}}").write_text(json.dumps(found))
    world.barrier()
except BaseException as error:
    give_up(folder, rank, None, error)
"""


def test_every_transport_moves_to_the_bit_what_one_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, large = (8, 4, 12), (64, 4, 96)
    graphs = {
        "matmul": split_matmul(4, microbatches=2),
        "all_reduce": boxed(shape, ONE_AXIS, "all_reduce", ("tp",), ["P(sum)", "B"]),
        "in pieces": boxed(large, ONE_AXIS, "all_reduce", ("tp",), ["P(sum)", "B"]),
        "in place": boxed(large, ONE_AXIS, "all_reduce", ("tp",), ["P(sum)", "B"], in_place=True),
        "one axis": boxed(large, TWO, "all_reduce", ("dp",), ["(P(sum), S(1))", "(B, S(1))"]),
        "gather rows": boxed(shape, ONE_AXIS, "all_gather", ("tp",), ["S(0)", "B"]),
        "gather": boxed(shape, TWO, "all_gather", ("tp",), ["(S(1), S(1))", "(S(1), B)"]),
        "scatter": boxed(
            shape, TWO, "reduce_scatter", ("dp", "tp"), ["(P(sum), P(sum))", "(S(1), S(1))"]
        ),
        "turn": boxed(shape, ONE_AXIS, "all_to_all", ("tp",), ["S(2)", "S(1)"]),
        "rotate": boxed(shape, ONE_AXIS, "rotate", ("tp",), ["S(0)", "S(0)"]),
        "rotate both": boxed(shape, TWO, "rotate", ("dp", "tp"), ["(S(1), S(1))"] * 2),
        "hand on": handed_on((6, 5)),
        "reductions": in_a_bucket(
            [shape, large, (8,), (96, 96)], ONE_AXIS, "all_reduce", ("tp",), [("P(sum)", "B")] * 4
        ),
        "gathers": in_a_bucket(
            [shape, large, (8,)],
            ONE_AXIS,
            "all_gather",
            ("tp",),
            [("S(1)", "B")] * 2 + [("S(0)", "B")],
        ),
        "scatters": in_a_bucket(
            [shape, large],
            TWO,
            "reduce_scatter",
            ("dp",),
            [("(P(sum), S(1))", "(S(0), S(1))"), ("(P(sum), S(0))", "(S(2), S(0))")],
        ),
    }
    folder = tmp_path / "job"
    folder.mkdir()
    for name, graph in graphs.items():
        (folder / f"{name}.graph").write_bytes(to_json(graph))
    (tmp_path / "transport_rank.py").write_text(RANK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run_ranks("transport_rank", 4, folder)
    moved_by_rank = [json.loads((folder / f"found.{rank}").read_text()) for rank in range(4)]
    for name, graph in graphs.items():
        for state in run(graph, steps=3, batch=4, microbatches=2):
            for result in (register.name for register in state.program.registers):
                if not result.startswith("y"):
                    continue
                expected = [value(state, result, slot).tolist() for slot in (0, 1)]
                for transport in ("shared", "messages", "both", "uneven"):
                    received = moved_by_rank[state.rank][f"{name} {transport} {result}"]
                    assert received == expected, (name, transport)


class Unbound(ModuleType):
    """mpi4py 4.1 where the library that it binds is missing; older ones raise ImportError."""

    rc = SimpleNamespace()

    def __getattr__(self, name):
        if name == "MPI":
            raise RuntimeError("cannot load MPI library\nlibmpi.so.12: cannot open shared object")
        raise AttributeError(name)


def test_an_mpi_that_was_installed_without_its_library_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", Unbound("mpi4py"))
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    with pytest.raises(ExecutorError, match=r"no libmpi\.so\.12, .* -m pip install .* mpich"):
        join_world()
