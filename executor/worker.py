"""Worker: one rank of a run, `python -m mpi4py -m millrace.executor.worker JOB_FOLDER`."""

import gc
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from socket import gethostname

from millrace.executor.drift.step_log import StepLog, log_path
from millrace.executor.errors import ExecutorError
from millrace.executor.hosts.rank_failures import report_failure
from millrace.executor.hosts.rank_line import open_line, place_on_host
from millrace.executor.job import RunJob, read_job
from millrace.executor.processes import bind_to_cores, check_capacity
from millrace.executor.progress import FILE, write_progress
from millrace.executor.rank import RankMemory, RankState
from millrace.executor.recording import Recorder, Recording, StepDone
from millrace.executor.supervision.rank_board import RankBoard, board_path
from millrace.executor.threaded import RankDriver, RankWork
from millrace.executor.transport.communicator import Communicator
from millrace.executor.transport.mpi import World, join_world
from millrace.executor.transport.rank_communicator import RankCommunicator
from millrace.executor.transport.shared import SharedMemory, share_memory
from millrace.executor.transport.stand_in import StandInCommunicator
from millrace.executor.values.loading import load_values, run_state
from millrace.executor.values.saver import saver_of
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.protocol import Fire
from millrace.planner.errors import InfeasibleError


def main(arguments: Sequence[str]) -> None:
    """Run the rank that MPI says this process is."""

    def life(folder: Path) -> None:
        job, world = read_job(folder), join_world()
        bind_to_cores(*place_on_host())
        _run(job, folder, world)

    be_rank(arguments, life)


def be_rank(arguments: Sequence[str], life: Callable[[Path], None]) -> None:
    """Live the life of a rank in a job's folder, which the first argument names; failures too."""
    folder = Path(arguments[1])
    rank = int(os.environ.get("PMI_RANK", "0"))
    try:
        done = open_line(folder)
        life(folder)
        done()
    except BaseException as error:
        give_up(folder, rank, None, error)


def give_up(folder: Path, rank: int, actor: str | None, error: BaseException) -> None:
    """Say why, and end this process at once, which makes MPI end all others."""
    try:
        report_failure(folder, rank, actor, error)
        sys.stdout.flush()
    finally:
        # Not sys.exit: leaving would wait in MPI_Finalize for ranks that wait for us.
        os._exit(1)


def run_rank(
    memory: RankMemory,
    work: RankWork,
    world: World,
    folder: Path,
    *,
    shared: SharedMemory | None,
    steps: int,
    spans: bool,
    step_done: StepDone | None = None,
    step_log: StepLog | None = None,
    alone: bool = False,
    board: RankBoard | None = None,
) -> Recording:
    """Run this process's rank for `steps` steps, all other ranks doing the same.

    Ranks of a host meet in shared memory, others by messages; not at all `alone`.
    """
    program = memory.program

    def failed(rank: int, fire: Fire | None, error: BaseException) -> None:
        give_up(folder, rank, None if fire is None else memory.name(fire), error)

    communicator: Communicator
    if alone:
        communicator = StandInCommunicator(memory)
    else:
        communicator = RankCommunicator(memory.graph, memory, world, shared)
    recorder = Recorder(program, steps, spans=spans, step_done=step_done, step_log=step_log)
    driver = RankDriver(
        program,
        memory.rank,
        steps,
        work=work,
        communicator=communicator,
        recorder=recorder,
        failed=failed,
        board=board,
    )
    origin_ns = world.origin_ns()
    communicator.start(failed)
    driver.start()
    driver.join()
    communicator.close()
    return recorder.recording(memory.rank, origin_ns)


def _run(job: RunJob, folder: Path, world: World) -> None:
    run = run_state(job)
    if world.size != job.graph.ranks:
        raise ExecutorError(f"{job.graph.ranks} ranks are planned, but {world.size} were started")
    program = job.graph.programs[job.graph.program_of(world.rank)]
    board = RankBoard(board_path(folder, world.rank), len(program.actors))
    _check_memory(job.graph, world)
    shared = share_memory(job.graph, world)
    block = None if shared is None else shared.blocks[world.rank]
    state = RankState(job.graph, world.rank, run, block)
    load_values(job, state)
    saver = saver_of(job, state, folder, board.beat)
    if saver is not None:
        state.fired = saver.fired
    # What exists by now stays: the collector need not walk it again, in the middle of a step.
    gc.freeze()
    with (folder / FILE).open("ab", buffering=0) as lines:

        def step_done(step: int) -> None:
            if world.rank == 0 and len(run.totals) > step:
                write_progress(lines, job.first_step + step, run.totals[step])

        recording = run_rank(
            state,
            state,
            world,
            folder,
            shared=shared,
            steps=job.steps,
            spans=job.spans,
            step_done=step_done,
            step_log=StepLog(log_path(folder, world.rank), len(program.actors)),
            alone=job.alone,
            board=board,
        )
    if saver is not None:
        saver.finish()
    recording = replace(recording, totals=tuple(run.totals), smallest_margin=run.smallest_margin)
    recording.save(folder / f"rank.{world.rank}.npz")
    board.done()
    world.barrier()


def _check_memory(graph: ActorGraph, world: World) -> None:
    """Refuse ranks that this host cannot hold, of which the command knows nothing where it is not.

    The first rank of each host asks for all of them.
    """
    hosts = world.hosts()
    if len(set(hosts)) == 1 or hosts[world.rank] != world.rank:
        return
    ranks = [rank for rank, host in enumerate(hosts) if host == world.rank]
    try:
        check_capacity([graph.programs[graph.program_of(rank)].memory_bytes for rank in ranks])
    except InfeasibleError as error:
        raise InfeasibleError(f"host `{gethostname()}`: {error}") from None


if __name__ == "__main__":
    main(sys.argv)
