"""Rank that times an all_reduce by this transport, by MPI and by gloo, one after the other.

Started by `benchmarks.executor.collectives`, as a rank of a job or by mpiexec on several hosts; it
writes the median seconds of every way and size into the job's folder.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import msgspec
import numpy as np

from benchmarks.executor.meeting_graphs import meeting_graph
from millrace.executor.processes import bind_to_cores
from millrace.executor.rank import RankMemory
from millrace.executor.transport.mpi import SEGMENTS, World, join_world
from millrace.executor.transport.rank_communicator import RankCommunicator
from millrace.executor.transport.shared import share_memory
from millrace.executor.worker import be_rank, give_up
from millrace.planner.actors.protocol import Fire

QUESTION, ANSWER = "collectives.json", "seconds.json"
MEETING = 1  # the number of the meeting actor in its graph
Reduce = Callable[[], None]


class CollectiveSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes to time, in bytes, how often each in a row, and how many rounds of all ways."""

    sizes_bytes: tuple[int, ...]
    rounds: int
    batch_s: float
    ways: tuple[str, ...]


@contextmanager
def transport_way(world: World, size_bytes: int, folder: Path) -> Iterator[Reduce]:
    """All_reduce by the transport of a run: posted, and waited for as a rank's driver does."""
    graph = meeting_graph(world.size, size_bytes)
    shared = share_memory(graph, world)
    assert shared is not None, "ranks of one host share memory on Linux alone"
    memory = RankMemory(graph, world.rank, shared.blocks[world.rank])
    communicator = RankCommunicator(graph, memory, world, shared)
    done = threading.Semaphore(0)
    firing = 0

    def reduce() -> None:
        nonlocal firing
        communicator.post(
            world.rank, Fire(MEETING, firing, (0,), (0,)), lambda fire: done.release()
        )
        done.acquire()
        firing += 1

    cores = os.sched_getaffinity(0)
    bind_to_cores(world.rank, world.size)
    communicator.start(lambda rank, fire, error: give_up(folder, rank, "all_reduce", error))
    yield reduce
    communicator.close()
    # Ranks of MPI and gloo, which spin, are not bound: two of them on a core hold each other up.
    os.sched_setaffinity(0, cores)


@contextmanager
def mpi_way(world: World, size_bytes: int, folder: Path) -> Iterator[Reduce]:
    """All_reduce by MPI, in place."""
    values = np.zeros(size_bytes // 4, np.float32)
    yield lambda: world.communicator.Allreduce(world.mpi.IN_PLACE, values)


@contextmanager
def gloo_way(world: World, size_bytes: int, folder: Path) -> Iterator[Reduce]:
    """All_reduce by torch.distributed on gloo, in place."""
    import torch
    import torch.distributed as gloo

    if not gloo.is_initialized():
        torch.set_num_threads(1)
        gloo.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=world.rank, world_size=world.size
        )
    values = torch.zeros(size_bytes // 4)
    yield lambda: gloo.all_reduce(values)


WAYS = {"millrace": transport_way, "mpi": mpi_way, "gloo": gloo_way}


def batch_seconds(world: World, reduce: Reduce, count: int) -> float:
    """Seconds of one all_reduce of many in a row."""
    # A polite barrier would let others wait who still need this rank to move their data.
    world.communicator.Barrier()
    start_s = perf_counter()
    for _ in range(count):
        reduce()
    seconds = (perf_counter() - start_s) / count
    world.communicator.Barrier()
    return seconds


def timed(world: World, question: CollectiveSizes, folder: Path) -> dict[str, dict[int, float]]:
    """Median seconds over the rounds, of the slowest rank, by way and size."""
    seconds: dict[str, dict[int, float]] = {way: {} for way in question.ways}
    for size_bytes in question.sizes_bytes:
        rounds: dict[str, list[float]] = {way: [] for way in question.ways}
        for number in range(question.rounds + 1):
            for way in question.ways:
                with WAYS[way](world, size_bytes, folder) as reduce:
                    reduce()
                    reduce()
                    one_s = world.communicator.bcast(batch_seconds(world, reduce, 1))
                    count = min(max(1, int(question.batch_s / one_s)), 200)
                    batch_s = batch_seconds(world, reduce, count)
                    slowest_s = world.communicator.allreduce(batch_s, world.mpi.MAX)
                    if number:  # the first warms up
                        rounds[way].append(slowest_s)
        for way in question.ways:
            seconds[way][size_bytes] = float(np.median(rounds[way]))
    return seconds


def answer(folder: Path) -> None:
    """Time what the folder's question asks, and write it down."""
    # MPICH 5.0.2's all_reduce between four ranks hangs at its fifth call where MPI was asked for
    # less than MPI_THREAD_MULTIPLE, as `join_world` does, which calls no all_reduce.
    for name, setting in SEGMENTS.items():
        os.environ.setdefault(name, setting)
    from mpi4py import MPI  # noqa: F401

    question = msgspec.json.decode((folder / QUESTION).read_bytes(), type=CollectiveSizes)
    world = join_world()
    seconds = timed(world, question, folder)
    if world.rank == 0:
        (folder / ANSWER).write_bytes(msgspec.json.encode(seconds))
    world.barrier()


def main(arguments: list[str]) -> None:
    """Answer a folder's question, as a rank of a job or (`by-mpiexec`) of mpiexec."""
    if arguments[2:] == ["by-mpiexec"]:
        answer(Path(arguments[1]))
        return

    def life(folder: Path) -> None:
        answer(folder)
        if "torch" in sys.modules:
            os._exit(0)  # gloo's threads would wait for each other

    be_rank(arguments, life)


if __name__ == "__main__":
    main(sys.argv)
