"""Cost of a firing, and a pipeline of four ranks beside its ideal.

Run `python -m benchmarks.executor.firing` from the root of the repository; ten seconds.

Prints how long a firing takes where actors do nothing: a ring on one rank, each actor of which
waits for the one before it, in the driver of a run, with spans recorded and without. Then the step
of a pipeline of four ranks whose ops sleep for so many milliseconds (so that they need no core, of
which there may be fewer), beside what 1F1B would take if ops were as long as they were in the
median, and firings and messages took no time.
"""

import ctypes
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import get_ident
from time import perf_counter_ns, sleep
from typing import Annotated

import numpy as np
import typer

from benchmarks.executor.meeting_graphs import one_f_one_b, op_ends, pipeline_graph
from millrace.executor.hosts.rank_runs import run_ranks
from millrace.executor.probes.probe_graphs import ring_graph
from millrace.executor.processes import bind_to_cores
from millrace.executor.rank import RankMemory
from millrace.executor.recording import Recorder, load_recording
from millrace.executor.threaded import RankDriver
from millrace.executor.transport.mpi import join_world
from millrace.executor.transport.shared import share_memory
from millrace.executor.transport.stand_in import StandInCommunicator
from millrace.executor.worker import be_rank, run_rank
from millrace.planner.actors.protocol import Fire

RING, RING_STEPS, ROUNDS = 16, 1000, 7
PR_SET_TIMERSLACK = 29  # linux/prctl.h of Linux 6.18, read 2026-11
STAGES, STEPS, MESSAGE_BYTES = 4, 8, 2**18


class IdleWork:
    """Work that does nothing."""

    def run(self, fire: Fire) -> None:
        """Do nothing."""


class SleepingWork:
    """Work whose every firing sleeps.

    Parameters
    ----------
    op_ms
        How long.
    """

    def __init__(self, op_ms: float) -> None:
        self._op_s = op_ms * 1e-3
        self._prompt: set[int] = set()
        self.slept_ns: list[int] = []

    def run(self, fire: Fire) -> None:
        """Sleep; Linux may wake a thread so much later as it says, by default 50 µs."""
        if get_ident() not in self._prompt:
            self._prompt.add(get_ident())
            ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)
        start_ns = perf_counter_ns()
        sleep(self._op_s)
        self.slept_ns.append(perf_counter_ns() - start_ns)


def firing_us(*, spans: bool) -> float:
    """Microseconds of a firing of an actor that does nothing; the median of some rounds."""
    graph = ring_graph(RING)
    rounds = []
    for _ in range(ROUNDS):
        memory = RankMemory(graph, 0)
        driver = RankDriver(
            memory.program,
            0,
            RING_STEPS,
            work=IdleWork(),
            communicator=StandInCommunicator(memory),
            recorder=Recorder(memory.program, RING_STEPS, spans=spans),
            failed=_failed,
        )
        start_ns = perf_counter_ns()
        driver.start()
        driver.join()
        rounds.append((perf_counter_ns() - start_ns) / (RING * RING_STEPS))
    return median(rounds) / 1e3


def _failed(rank: int, fire: Fire | None, error: BaseException) -> None:
    raise error


def pipeline_ms(op_ms: float, microbatches: int) -> tuple[float, float]:
    """Milliseconds of a step of the slowest rank, and of an op: medians of some steps."""
    with TemporaryDirectory(prefix="millrace-firing-") as name:
        folder = Path(name)
        (folder / "ops").write_text(f"{op_ms} {microbatches}")
        run_ranks("benchmarks.executor.firing", STAGES, folder)
        ends_ns = [load_recording(folder / f"{rank}.npz").step_end_ns for rank in range(STAGES)]
        slept_ns = [ns for rank in range(STAGES) for ns in np.load(folder / f"{rank}.npy")]
    last_ns = [max(times) for times in zip(*ends_ns, strict=True)]
    steps_ns = [after - before for before, after in pairwise(last_ns)]
    return float(median(steps_ns[1:])) / 1e6, float(median(slept_ns)) / 1e6


def ideal_step_ms(op_ms: float, microbatches: int) -> float:
    """Milliseconds of a step in which ops alone take time."""
    orders = [one_f_one_b(stage, STAGES, microbatches) for stage in range(STAGES)]
    return max(op_ends(orders).values()) * op_ms


def live(folder: Path) -> None:
    """Run the pipeline's steps as the rank that this process is."""
    op_ms, microbatches = map(float, (folder / "ops").read_text().split())
    world = join_world()
    bind_to_cores(world.rank, world.size)
    graph = pipeline_graph(STAGES, int(microbatches), MESSAGE_BYTES)
    shared = share_memory(graph, world)
    memory = RankMemory(graph, world.rank, None if shared is None else shared.blocks[world.rank])
    work = SleepingWork(op_ms)
    recording = run_rank(memory, work, world, folder, shared=shared, steps=STEPS, spans=False)
    recording.save(folder / f"{world.rank}.npz")
    np.save(folder / f"{world.rank}.npy", work.slept_ns)
    world.barrier()


def main(
    op_ms: Annotated[float, typer.Option(help="How long an op of the pipeline sleeps.")] = 5.0,
    microbatches: Annotated[int, typer.Option(help="Microbatches of a step.")] = 8,
) -> None:
    """Time firings and the pipeline."""
    for spans in (False, True):
        words = "with spans recorded" if spans else "without spans"
        print(f"firing of an empty actor, {words}: {firing_us(spans=spans):.1f} µs")
    step_ms, slept_ms = pipeline_ms(op_ms, microbatches)
    ideal_ms = ideal_step_ms(slept_ms, microbatches)
    print(
        f"pipeline of {STAGES} ranks, {microbatches} microbatches, ops of {op_ms:g} ms, which took "
        f"{slept_ms:.2f}: step {step_ms:.1f} ms, ideal {ideal_ms:.1f} ms, "
        f"{step_ms / ideal_ms - 1:+.1%}"
    )


if __name__ == "__main__":
    if len(sys.argv) == 2 and Path(sys.argv[1]).is_dir():
        be_rank(sys.argv, live)
    else:
        typer.run(main)
