"""Timing: the work of each rank for `millrace profile`.

Started as `python -m mpi4py -m millrace.executor.probes.probe_timing FOLDER`.

As many ranks as there are cores time kernels at once, each with the BLAS threads it has in a run,
while the others wait. Then one group of each size times collectives and transfers, driven by the
same threads and the same communicator as in a run: the time of one is a whole turn of a chain in
which the next begins when the last has ended, hand-offs and polite waits included. That is a round;
there are as many as `millrace.executor.probes.probe_rounds` asks for.
"""

import os
import sys
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from itertools import cycle
from math import ceil
from mmap import mmap
from pathlib import Path
from statistics import fmean, median
from time import monotonic, perf_counter_ns, process_time, thread_time_ns

import msgspec
import numpy as np

from millrace.executor.arena import ALIGNMENT_BYTES
from millrace.executor.errors import ExecutorError
from millrace.executor.hosts.local_ranks import BLAS_THREADS
from millrace.executor.kernels import make_kernel
from millrace.executor.kernels.context import Array
from millrace.executor.probes.machine_load import (
    MachineLoad,
    core_times,
    frequency_share,
    load_between,
)
from millrace.executor.probes.probe_graphs import group_graph, group_sizes, pair_graph, ring_graph
from millrace.executor.probes.probe_rounds import ROUNDS_MIN, Points, agree, combined, spreads
from millrace.executor.probes.profiled_kernels import KernelCase, cases
from millrace.executor.processes import bind_to_cores
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
# A step is a sum of calls, whose times lean to one side: their median would promise too little. The
# longest tenth was interrupted.
USUAL_SHARE = 0.9
VARIED_NS, VARIED_CALLS = (
    100_000,
    5,
)  # Shorter calls vary by nothing that adds up; of few none knows.
BANDWIDTH_BYTES = 32 * 2**20
IDLE_ACTORS, IDLE_STEPS = 16, 20
FILLED_BYTES = 4 * 2**20  # more than the caches of a core hold


class ProbeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request of the parent: what to time, and for how long.

    Without `tables` all kernels are timed, and collectives between groups of every size; with them
    kernels of these tables and collectives between all ranks.
    """

    cores: int
    kernel_ns: int  # how long to repeat each kernel in a round
    limit_s: float = 0.0  # no round is begun that would end later
    tables: tuple[str, ...] = ()


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Timings of one rank, of the median round; ranks beyond the cores time no kernels.

    `spreads` has how far rounds differed, of every probe by table, where there were several. The
    loads are what rank 0 saw of others while the rounds ran.
    """

    launch_ns: int = 0
    memory_bandwidth_bytes_per_s: float = 0.0
    kernels: Points = {}
    jitter: float = 0.0
    collectives: Points = {}
    spreads: dict[str, list[float]] = {}
    rounds: int = 1
    load: MachineLoad | None = None
    frequency: float | None = None


def main(arguments: Sequence[str]) -> None:
    """Time what this rank is asked to time."""

    def life(folder: Path) -> None:
        order = msgspec.json.decode((folder / "order.json").read_bytes(), type=ProbeRequest)
        world, cores = join_world(), os.sched_getaffinity(0)
        bind_to_cores(world.rank, world.size)
        world.barrier()
        timings = time_rounds(world, folder, order, cores)
        (folder / f"timings.{world.rank}.json").write_bytes(msgspec.json.encode(timings))
        world.barrier()

    be_rank(arguments, life)


def time_rounds(world: World, folder: Path, order: ProbeRequest, cores: Collection[int]) -> Timings:
    """Timings over as many rounds as it takes until those of all ranks agree.

    The load is that of the job's `cores`.
    """
    start_s, ours_s, cores_before = monotonic(), process_time(), core_times(cores)
    rounds: list[Timings] = []
    frequencies: list[float] = []
    while True:
        began_s = monotonic()
        rounds.append(time_round(world, folder, order))
        frequencies.extend(share for share in (frequency_share(),) if share is not None)
        timed = [timings.kernels | timings.collectives for timings in rounds]
        differences = spreads(timed) if len(rounds) > 1 else {}
        now_s = monotonic()
        is_late = 2 * now_s - began_s - start_s > order.limit_s
        has_agreed = len(rounds) >= ROUNDS_MIN and agree(differences, len(rounds))
        verdicts = world.communicator.allgather((is_late, has_agreed))
        if any(late for late, _ in verdicts) or all(agreed for _, agreed in verdicts):
            break
    ours = world.communicator.allgather(process_time() - ours_s)
    return Timings(
        launch_ns=round(median(timings.launch_ns for timings in rounds)),
        memory_bandwidth_bytes_per_s=median(t.memory_bandwidth_bytes_per_s for t in rounds),
        kernels=combined([timings.kernels for timings in rounds]),
        jitter=median(timings.jitter for timings in rounds),
        collectives=combined([timings.collectives for timings in rounds]),
        spreads=differences,
        rounds=len(rounds),
        load=load_between(cores_before, core_times(cores), sum(ours)),
        frequency=median(frequencies) if frequencies else None,
    )


def time_round(world: World, folder: Path, order: ProbeRequest) -> Timings:
    """Timings of one round: kernels in as many ranks as there are cores, then collectives."""
    timings = Timings()
    if world.rank < order.cores:
        kernels, jitter = time_kernels(order.kernel_ns, order.tables)
        timings = Timings(
            launch_ns=time_launch(),
            memory_bandwidth_bytes_per_s=time_copy(),
            kernels=kernels,
            jitter=jitter,
        )
    world.barrier()
    sizes = group_sizes(world.size)[-1:] if order.tables else group_sizes(world.size)
    collectives = time_collectives(world, folder, sizes)
    return msgspec.structs.replace(timings, collectives=collectives)


def time_kernels(patience_ns: int, tables: Container[str] = ()) -> tuple[Points, float]:
    """Points of every probe, or of some tables, in the order of the probes, and how calls vary."""
    points: Points = {}
    deviations: list[float] = []
    arena = ProbeArena()
    with np.errstate(all="ignore"):
        for case in cases():
            if not tables or case.table in tables:
                durations = time_case(case, patience_ns, arena)
                usual = sorted(durations)[: ceil(USUAL_SHARE * len(durations))]
                duration_ns = round(fmean(usual))
                for table in case.tables:
                    points.setdefault(table, []).append((case.work, duration_ns))
                if duration_ns >= VARIED_NS and len(durations) >= VARIED_CALLS:
                    deviations.append(float(np.std(durations)) / fmean(durations))
    return points, median(deviations) if deviations else 0.0


def time_case(case: KernelCase, patience_ns: int, arena: "ProbeArena") -> list[int]:
    """Durations of calls [ns], for about `patience_ns`.

    Calls take turns on copies of the arrays, so that, as in a run, no cache holds them, and all lie
    in shared memory, whose small pages cost a strided kernel up to half its speed. Where BLAS has
    one thread, time without a core does not count: who took it may be gone when a plan is run.
    """
    kernel = make_kernel(case.context)
    inputs, outputs = case.inputs(), case.outputs()
    size_bytes = sum(map(aligned_bytes, (*inputs, *outputs)))
    arena.clear(max(CACHE_BYTES, size_bytes))
    sets = [arena.operands(inputs, outputs)]
    start_ns = perf_counter_ns()
    kernel(0, *sets[0])
    first_ns = perf_counter_ns() - start_ns
    # the first call is the slowest: four times as many as it promises will not be outrun
    calls = 4 * patience_ns // max(first_ns, 1) + 1
    copies = min(max(1, CACHE_BYTES // max(size_bytes, 1)), COPIES_MAX, calls)
    sets.extend(arena.operands(inputs, outputs) for _ in range(copies - 1))
    durations: list[int] = []
    spent_ns = 0
    is_single = os.environ.get(BLAS_THREADS) == "1"
    for firing, operands in zip(range(CALLS_MAX), cycle(sets), strict=False):
        core_ns, start_ns = thread_time_ns(), perf_counter_ns()
        kernel(firing, *operands)
        duration_ns = perf_counter_ns() - start_ns
        core_ns = thread_time_ns() - core_ns
        durations.append(min(duration_ns, core_ns) if is_single else duration_ns)
        spent_ns += duration_ns
        if spent_ns > patience_ns:
            break
    return durations


class ProbeArena:
    """Memory in which operands of probes lie as registers do in a run's arena.

    It is shared memory, every page written to, and is filled again for every probe.
    """

    def __init__(self) -> None:
        self._block = np.zeros(0, np.uint8)
        self._used_bytes = 0

    def clear(self, size_bytes: int) -> None:
        """Make room for so many bytes; what lies there is overwritten."""
        if self._block.size < size_bytes:
            self._block = np.frombuffer(mmap(-1, size_bytes), np.uint8)
            self._block.fill(0)
        self._used_bytes = 0

    def operands(
        self, inputs: Iterable[Array], outputs: Iterable[Array]
    ) -> tuple[list[Array], list[Array]]:
        """Copies of the inputs and of the outputs."""
        return list(map(self._copy, inputs)), list(map(self._copy, outputs))

    def _copy(self, array: Array) -> Array:
        start, self._used_bytes = self._used_bytes, self._used_bytes + aligned_bytes(array)
        part = self._block[start : start + array.nbytes]
        copy: Array = part.view(array.dtype).reshape(array.shape)
        np.copyto(copy, array)
        return copy


def aligned_bytes(array: Array) -> int:
    """Bytes that an array takes in an arena."""
    return -(-array.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


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
    """Nanoseconds that the driver adds to a kernel, once kernels have filled the caches.

    It is the time of one firing that writes to a large array, less that of the writing.
    """
    graph = ring_graph(IDLE_ACTORS)
    program = graph.programs[0]
    recorder = Recorder(program, IDLE_STEPS, spans=False)

    def failed(rank: int, fire: Fire | None, error: BaseException) -> None:
        raise error

    work = _CacheFiller()
    driver = RankDriver(
        program,
        0,
        IDLE_STEPS,
        work=work,
        communicator=_Nobody(),
        recorder=recorder,
        failed=failed,
    )
    driver.start()
    driver.join()
    steps = np.diff(recorder.step_end_ns)
    filling = np.asarray(work.spent_ns, float).reshape(IDLE_STEPS, IDLE_ACTORS).sum(1)[1:]
    return round(float(np.median(steps - filling)) / IDLE_ACTORS)


class _CacheFiller:
    """Work that leaves nothing of the driver in a core's caches, and knows how long it took."""

    def __init__(self) -> None:
        self._array = np.zeros(FILLED_BYTES // 8)
        self.spent_ns: list[int] = []

    def run(self, fire: Fire) -> None:
        """Write to all of the array."""
        start_ns = perf_counter_ns()
        np.add(self._array, 1.0, out=self._array)
        self.spent_ns.append(perf_counter_ns() - start_ns)


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


def time_collectives(world: World, folder: Path, sizes: Iterable[int]) -> Points:
    """Time every collective over groups of these sizes, and transfers; keys `kind/group_size`."""
    points: Points = {}
    for size in sizes:
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
