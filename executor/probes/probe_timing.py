"""Timing: the work of each rank for `millrace profile`.

Started as `python -m mpi4py -m millrace.executor.probes.probe_timing FOLDER`.

As many ranks as there are cores time kernels at once, each with the BLAS threads it has in a run,
while the others wait. Then one group of each size times collectives and transfers, driven by the
same threads and the same communicator as in a run: the time of one is a whole turn of a chain in
which the next begins when the last has ended, hand-offs and polite waits included.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import cycle
from mmap import mmap
from pathlib import Path
from statistics import median
from time import perf_counter_ns

import msgspec
import numpy as np

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels import make_kernel
from millrace.executor.kernels.context import Array
from millrace.executor.probes.probe_graphs import group_graph, group_sizes, pair_graph, ring_graph
from millrace.executor.probes.profiled_kernels import KernelCase, cases
from millrace.executor.rank import RankMemory
from millrace.executor.recording import Recorder
from millrace.executor.threaded import RankDriver
from millrace.executor.transport.communicator import Done, Failed
from millrace.executor.transport.mpi import World, join_world
from millrace.executor.transport.shared import share_memory
from millrace.executor.worker import be_rank, run_rank
from millrace.planner.actors.graph import Actor, ActorGraph
from millrace.planner.actors.protocol import Fire

CACHE_BYTES = 64 * 2**20  # arrays are taken in turn from as many copies as no cache holds
COPIES_MAX = 64
CALLS_MAX = 200
BANDWIDTH_BYTES = 32 * 2**20
IDLE_ACTORS, IDLE_STEPS = 16, 60

Points = dict[str, list[tuple[int, int]]]


class ProbeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request of the parent: what to time, and for how long."""

    cores: int
    kernel_ns: int  # how long to repeat each kernel


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Timings of one rank; ranks beyond the cores time no kernels."""

    launch_ns: int = 0
    memory_bandwidth_bytes_per_s: float = 0.0
    kernels: Points = {}
    collectives: Points = {}


def main(arguments: Sequence[str]) -> None:
    """Time what this rank is asked to time."""

    def life(folder: Path) -> None:
        order = msgspec.json.decode((folder / "order.json").read_bytes(), type=ProbeRequest)
        world = join_world()
        world.barrier()
        timings = Timings()
        if world.rank < order.cores:
            timings = Timings(
                launch_ns=time_launch(),
                memory_bandwidth_bytes_per_s=time_copy(),
                kernels=time_kernels(order.kernel_ns),
            )
        world.barrier()
        timings = msgspec.structs.replace(timings, collectives=time_collectives(world, folder))
        (folder / f"timings.{world.rank}.json").write_bytes(msgspec.json.encode(timings))
        world.barrier()

    be_rank(arguments, life)


def time_kernels(patience_ns: int) -> Points:
    """Time every probe; points are (work, duration in nanoseconds) in the order of the probes."""
    points: Points = {}
    with np.errstate(all="ignore"):
        for case in cases():
            duration_ns = time_case(case, patience_ns)
            points.setdefault(case.table, []).append((case.work, duration_ns))
    return points


def time_case(case: KernelCase, patience_ns: int) -> int:
    """Median duration of one call [ns], over about `patience_ns` of calls.

    Calls take turns on copies of the arrays, so that, as in a run, no cache holds them, and all
    lie in shared memory, whose small pages cost a strided kernel up to half its speed.
    """
    kernel = make_kernel(case.context)
    inputs = case.inputs()
    size_bytes = sum(array.nbytes for array in (*inputs, *case.outputs()))
    sets = [_shared_set(case, inputs)]
    start_ns = perf_counter_ns()
    kernel(0, *sets[0])
    first_ns = perf_counter_ns() - start_ns
    # the first call is the slowest: four times as many as it promises will not be outrun
    calls = 4 * patience_ns // max(first_ns, 1) + 1
    copies = min(max(1, CACHE_BYTES // max(size_bytes, 1)), COPIES_MAX, calls)
    sets.extend(_shared_set(case, inputs) for _ in range(copies - 1))
    durations: list[int] = []
    spent_ns = 0
    for firing, operands in zip(range(CALLS_MAX), cycle(sets), strict=False):
        start_ns = perf_counter_ns()
        kernel(firing, *operands)
        durations.append(perf_counter_ns() - start_ns)
        spent_ns += durations[-1]
        if spent_ns > patience_ns:
            break
    return round(median(durations))


def _shared_set(case: KernelCase, inputs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Copy of the inputs and of the outputs, in shared memory."""
    return (
        [in_shared_memory(array) for array in inputs],
        [in_shared_memory(array) for array in case.outputs()],
    )


def in_shared_memory(array: Array) -> Array:
    """Copy of an array that lies where a run's arena does, every page written to."""
    block = mmap(-1, max(array.nbytes, 1))
    copy = np.frombuffer(block, array.dtype, array.size).reshape(array.shape)
    np.copyto(copy, array)
    return copy


def time_copy() -> float:
    """Bytes read and written per second by a copy that no cache holds."""
    source, target = (np.ones(BANDWIDTH_BYTES // 8) for _ in range(2))
    durations = []
    for _ in range(5):
        start_ns = perf_counter_ns()
        np.copyto(target, source)
        durations.append(perf_counter_ns() - start_ns)
    return 2 * BANDWIDTH_BYTES / median(durations) * 1e9


def time_launch() -> int:
    """Nanoseconds that the driver adds to a kernel: the time of one firing that does nothing."""
    graph = ring_graph(IDLE_ACTORS)
    program = graph.programs[0]
    recorder = Recorder(program, IDLE_STEPS, spans=False)

    def failed(rank: int, fire: Fire | None, error: BaseException) -> None:
        raise error

    driver = RankDriver(
        program,
        0,
        IDLE_STEPS,
        work=_Nothing(),
        communicator=_Nobody(),
        recorder=recorder,
        failed=failed,
    )
    driver.start()
    driver.join()
    steps = np.diff(recorder.step_end_ns)
    return round(float(np.median(steps)) / IDLE_ACTORS)


class _Nothing:
    """Work that does nothing."""

    def run(self, fire: Fire) -> None:
        """Do nothing."""


class _Nobody:
    """The communicator of a rank that meets nobody."""

    def start(self, failed: Failed) -> None:
        """Do nothing."""

    def post(self, rank: int, fire: Fire, done: Done) -> None:
        """Refuse: there is nobody to meet."""
        raise ExecutorError("met without a communicator", rank=rank)

    def close(self) -> None:
        """Do nothing."""


def time_collectives(world: World, folder: Path) -> Points:
    """Time every collective over groups of every size, and transfers; keys `kind/group_size`."""
    points: Points = {}
    for size in group_sizes(world.size):
        for actor, turn_ns in _turns(group_graph(world.size, size), world, folder):
            if (meeting := actor.meeting) is not None:
                kind_points = points.setdefault(f"{meeting.kind}/{size}", [])
                kind_points.append((meeting.message_bytes, turn_ns))
    if world.size > 1:
        for actor, turn_ns in _turns(pair_graph(world.size), world, folder):
            if actor.meeting is not None and actor.meeting.kind == "recv":
                # a turn goes there and back
                kind_points = points.setdefault("send/2", [])
                kind_points.append((actor.meeting.message_bytes, turn_ns // 2))
    return points


def _turns(graph: ActorGraph, world: World, folder: Path) -> Iterator[tuple[Actor, int]]:
    """Run a graph and yield every actor of this rank with the median time between its ends."""
    shared = share_memory(graph, world)
    block = None if shared is None else shared.blocks[world.rank]
    memory = RankMemory(graph, world.rank, block)
    recording = run_rank(memory, _Nothing(), world, folder, shared=shared, steps=1, spans=True)
    world.barrier()  # ranks that had nothing to do wait here, where waiting is polite
    offset = 0
    for actor in memory.program.actors:
        ends_ns = recording.ends_ns[offset : offset + actor.firings]
        offset += actor.firings
        yield actor, round(float(np.median(np.diff(ends_ns))))


if __name__ == "__main__":
    main(sys.argv)
