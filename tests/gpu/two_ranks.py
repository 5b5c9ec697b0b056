"""Two ranks on the first GPU meet by NCCL (2.30 or later): `mpiexec -n 2 python -m … FOLDER`."""

import sys

import numpy as np

from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.cupy_device import CupyDevice
from millrace.executor.gpu.gemm.cublaslt import ProductLibrary
from millrace.executor.gpu.nccl import (
    LaneGroup,
    NcclCommunicator,
    exchange_ids,
    set_environment,
    warm_up_bytes,
)
from millrace.executor.transport.mpi import join_world
from millrace.executor.worker import be_rank
from tests.gpu.members import KINDS, collective, received, sent
from tests.gpu.on_device import DeviceBench


def meet() -> None:
    """Carry out every kind, eagerly and captured, and compare with NumPy."""
    world, device = join_world(), CupyDevice(0, ProductLibrary)
    groups = {LaneGroup((0, 1), "dp"): set(KINDS), LaneGroup((0, 1), "transfer"): {"send", "recv"}}
    own_kinds = {"send"} if world.rank == 0 else {"recv"}
    kinds = {
        group: group_kinds if "all_reduce" in group_kinds else own_kinds
        for group, group_kinds in groups.items()
    }
    set_environment(world, len(kinds), device.multiprocessors)

    def failed(error: ExecutorError) -> None:
        raise error

    communicator = NcclCommunicator(
        world.rank, exchange_ids(world, kinds), use_device=device.use, failed=failed, timeout_s=40
    )
    bench = DeviceBench(device)
    communicator.warm_up(kinds, device.allocate(warm_up_bytes(kinds)), bench.stream)
    bench.settle()
    group, transfer = groups
    for kind in (*KINDS, "transfer"):
        call_kind = next(iter(own_kinds)) if kind == "transfer" else kind
        expected = received(kind, world.rank, 2)  # of a transfer, what rank 0 has
        output = np.zeros_like(expected)
        send, recv = bench.put(sent(kind, world.rank, 2)), bench.put(output)
        call = collective(call_kind, send, recv, "float32")
        where = transfer if kind == "transfer" else group
        for captured in (False, True):
            device.to_device(recv, np.zeros_like(expected).reshape(-1).view(np.uint8))
            if captured:
                device.begin_capture(bench.stream)
            communicator.issue(call, where, bench.stream, kind)
            if captured:
                graph = device.end_capture(bench.stream)
                device.replay(graph, bench.stream)
            bench.settle()
            if call_kind != "send":
                output = bench.take(recv, expected)
                np.testing.assert_array_equal(output, expected, err_msg=f"{kind} {captured}")
    world.barrier()
    communicator.close()
    device.close()


if __name__ == "__main__":
    be_rank(sys.argv, lambda folder: meet())
