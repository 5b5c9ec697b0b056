"""A process of a run on a GPU one of whose kernels is given an address where nothing is."""

import sys
from pathlib import Path

from millrace.executor.cuda.calls import Call, Launch, Operand
from millrace.executor.gpu.cupy_device import CupyDevice
from millrace.executor.gpu.gemm.cublaslt import ProductLibrary
from millrace.executor.gpu.gpu_worker import main, train_and_record
from millrace.executor.job import RunJob
from millrace.executor.transport.mpi import World

NOWHERE = Operand("address", 0, 64)


class FaultyGpu(CupyDevice):
    """A GPU whose layer norms are given an address outside of all memory."""

    def issue(self, call: Call, stream: int) -> None:
        if isinstance(call, Launch) and call.source == "layer_norm":
            args = tuple(NOWHERE if isinstance(arg, Operand) else arg for arg in call.args)
            call = call._replace(args=args)
        super().issue(call, stream)


def run(job: RunJob, folder: Path, world: World) -> None:
    train_and_record(job, folder, world, FaultyGpu(0, ProductLibrary), None)


if __name__ == "__main__":
    main(sys.argv, run)
