"""GPU worker: one process of a run on GPUs.

Started as `python -m mpi4py -m millrace.executor.gpu.gpu_worker JOB_FOLDER`, it holds one rank,
whose device is the one of that number on its node; or, where the job says so, all ranks as streams
of one device (loopback).
"""

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter_ns

import msgspec

from millrace.executor.drift.step_log import StepLog, log_path
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.availability import require_gpu
from millrace.executor.gpu.collectives import NcclCollectives
from millrace.executor.gpu.cudnn.cudnn_loading import cudnn_library
from millrace.executor.gpu.cupy_device import CupyDevice
from millrace.executor.gpu.device import DeviceDriver
from millrace.executor.gpu.device_run import DeviceRun
from millrace.executor.gpu.driver import Collectives
from millrace.executor.gpu.gemm.cublaslt import ProductLibrary
from millrace.executor.gpu.gemm.tuning import Tuner
from millrace.executor.gpu.gemm.tuning_cache import agreed
from millrace.executor.gpu.watchdog import PATIENCE, Patience
from millrace.executor.job import RunJob, read_job
from millrace.executor.kernels import RunState
from millrace.executor.progress import FILE, write_progress
from millrace.executor.recording import Recording
from millrace.executor.supervision.rank_board import RankBoard, board_path
from millrace.executor.transport.mpi import World, join_world
from millrace.executor.user_cache import cache_folder
from millrace.executor.values.loading import load_values, run_state
from millrace.executor.values.saver import saver_of
from millrace.executor.worker import be_rank, give_up

Run = Callable[[RunJob, Path, World], None]


def run_on_gpu(job: RunJob, folder: Path, world: World) -> None:
    """Train this process's rank, or all of a job in loopback, on a GPU of this node."""
    local = world.local_rank()
    require_gpu(local + 1)
    networks = partial(cudnn_library, deterministic=job.deterministic)
    tuner = None if job.deterministic else Tuner(cache_folder())
    device = CupyDevice(local, ProductLibrary, networks, tuner=tuner)
    collectives = None
    if not job.loopback and job.graph.ranks > 1:

        def failed(error: ExecutorError) -> None:
            give_up(folder, world.rank, error.actor, error)

        collectives = NcclCollectives(job.graph, world, device, failed)

    def prepared() -> None:
        if tuner is not None:
            tuner.settle(agreed(world.communicator.allgather(tuner.used), world.rank))
            device.plan_again()
            if local == 0:
                tuner.save()

    train_and_record(job, folder, world, device, collectives, prepared)
    if collectives is not None:
        collectives.close()
    device.close()


def main(arguments: Sequence[str], run: Run = run_on_gpu) -> None:
    """Run the process that MPI says this is; tests give a `run` with another device."""

    def life(folder: Path) -> None:
        job = read_job(folder)
        world = join_world()
        expected = 1 if job.loopback else job.graph.ranks
        if world.size != expected:
            raise ExecutorError(f"{expected} processes are planned, but {world.size} were started")
        run(job, folder, world)

    be_rank(arguments, life)


def nothing_more() -> None:
    """Leave calls as they were prepared."""


def train_and_record(
    job: RunJob,
    folder: Path,
    world: World,
    device: DeviceDriver,
    collectives: Collectives | None,
    prepared: Callable[[], None] = nothing_more,
    patience: Patience = PATIENCE,
) -> None:
    """Train the ranks of this process and write what they recorded into the job's folder.

    `prepared` is called when the device has prepared every call, before the first is issued.
    """
    ranks = range(job.graph.ranks) if job.loopback else (world.rank,)
    runs = {rank: run_state(job) for rank in ranks}
    for recording in train(job, folder, device, runs, collectives, world, prepared, patience):
        recording.save(folder / f"rank.{recording.rank}.npz")
    world.barrier()


def train(
    job: RunJob,
    folder: Path,
    device: DeviceDriver,
    runs: Mapping[int, RunState],
    collectives: Collectives | None,
    world: World,
    prepared: Callable[[], None] = nothing_more,
    patience: Patience = PATIENCE,
) -> list[Recording]:
    """Train the ranks of one device as a job says, and return what each recorded.

    The ranks of the world wait for each other before the first step, and where a checkpoint was
    written: one that writes longer than others is not taken for hung.
    """
    run = DeviceRun(device, job.graph, runs, collectives)
    prepared()
    boards = [RankBoard(board_path(folder, rank), 0) for rank in runs]
    savers = []
    for values, board in zip(run.values.values(), boards, strict=True):
        load_values(job, values)
        if (saver := saver_of(job, values, folder, board.beat)) is not None:
            savers.append(saver)
    gc.freeze()
    first = next(iter(runs))
    logs = [StepLog(log_path(folder, rank), len(run.ranks[rank].program.actors)) for rank in runs]
    with (folder / FILE).open("ab", buffering=0) as lines:

        def step_done(step: int) -> None:
            for log, board in zip(logs, boards, strict=True):
                log.end_step(step, perf_counter_ns())
                board.beat()
            if first == 0 and len(runs[first].totals) > step:
                write_progress(lines, job.first_step + step, runs[first].totals[step])

        def save_and_wait(step: int) -> None:
            for saver in savers:
                saver.save(step)
            world.barrier()

        recordings = run.train(
            job.steps,
            world.origin_ns(),
            eager=job.eager,
            spans=job.spans,
            save=save_and_wait,
            is_saved=lambda step: any(saver.keeps(step) for saver in savers),
            step_done=step_done,
            patience=patience,
        )
    run.finish()
    for saver in savers:
        saver.finish()
    for board in boards:
        board.done()
    for rank, used in run.memory().items():
        (folder / f"memory.{rank}.json").write_bytes(msgspec.json.encode(used))
    return [
        replace(
            recording,
            totals=tuple(runs[recording.rank].totals),
            smallest_margin=runs[recording.rank].smallest_margin,
        )
        for recording in recordings
    ]


if __name__ == "__main__":
    main(sys.argv)
