"""Probe worker: a rank of `millrace profile --device gpu`, which times the GPU of its number.

`python -m mpi4py -m millrace.executor.gpu.probing.probe_worker FOLDER`
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.availability import require_gpu
from millrace.executor.gpu.cudnn.cudnn_loading import cudnn_library
from millrace.executor.gpu.cupy_device import CupyDevice
from millrace.executor.gpu.gemm.cublaslt import ProductLibrary
from millrace.executor.gpu.gemm.tuning import Tuner
from millrace.executor.gpu.nccl import (
    NcclCommunicator,
    exchange_ids,
    set_environment,
    warm_up_bytes,
)
from millrace.executor.gpu.probing.device_state import ClockWatch, bus_id, busy_share
from millrace.executor.gpu.probing.gpu_timing import CollectiveProbes, GpuTimings, time_gpu
from millrace.executor.gpu.probing.transfers import groups_of
from millrace.executor.probes.machine_load import MachineLoad
from millrace.executor.transport.mpi import World, join_world
from millrace.executor.user_cache import cache_folder
from millrace.executor.worker import be_rank, give_up

TUNING_SHARE = 0.5  # share of the time for kernels, on top of it
LANES = 2  # NCCL gets as many channels as in a run with collectives on so many lanes


class GpuOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Order of the parent process to its ranks."""

    seconds: float
    limit_s: float | None


def main(arguments: Sequence[str]) -> None:
    """Time what this rank is asked to time."""

    def life(folder: Path) -> None:
        order = msgspec.json.decode((folder / "order.json").read_bytes(), type=GpuOrder)
        world = join_world()
        timings = _timed(world, order, folder)
        (folder / f"timings.{world.rank}.json").write_bytes(msgspec.json.encode(timings))
        world.barrier()

    be_rank(arguments, life)


def _timed(world: World, order: GpuOrder, folder: Path) -> GpuTimings:
    local = world.local_rank()
    require_gpu(local + 1)
    place = bus_id(local)
    others = busy_share(place)  # asked before this process computes
    tuner = Tuner(cache_folder(), seconds=order.seconds * TUNING_SHARE)
    device = CupyDevice(local, ProductLibrary, cudnn_library, tuner=tuner)
    communicator, meetings = None, None
    if world.size > 1:

        def failed(error: ExecutorError) -> None:
            give_up(folder, world.rank, error.actor, error)

        communicator = _communicator(world, device, failed)
        kinds = groups_of(world.rank, world.size)
        meetings = CollectiveProbes(world.rank, kinds, communicator, world.barrier)
    with ClockWatch(place) as clocks:
        timings = time_gpu(
            device,
            multiprocessors=device.multiprocessors,
            seconds=order.seconds,
            meetings=meetings,
            limit_s=order.limit_s,
        )
    load = None if others is None else MachineLoad(others=others, steal=0.0)
    timings = msgspec.structs.replace(timings, load=load, frequency=clocks.share)
    world.barrier()
    if local == 0:
        tuner.save()
    if communicator is not None:
        communicator.close()
    device.close()
    return timings


def _communicator(
    world: World, device: CupyDevice, failed: Callable[[ExecutorError], None]
) -> NcclCommunicator:
    """Make the communicators of a rank and carry out every kind once, before any is captured."""
    kinds = groups_of(world.rank, world.size)
    set_environment(world, LANES, device.multiprocessors)
    ids = exchange_ids(world, kinds)
    communicator = NcclCommunicator(world.rank, ids, use_device=device.use, failed=failed)
    stream, event = device.stream(), device.event()
    communicator.warm_up(kinds, device.allocate(warm_up_bytes(kinds)), stream)
    device.record(event, stream)
    device.synchronize(event)
    return communicator


if __name__ == "__main__":
    main(sys.argv)
