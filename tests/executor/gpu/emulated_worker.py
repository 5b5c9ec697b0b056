"""A process of a run on an emulated device: `executor.gpu.worker` but for the device.

`EMULATED_BYTES` says how much memory the device has, `EMULATED_FAULT` a source whose kernels it
refuses to launch, `EMULATED_DEATH` one at whose launch the process is killed.
"""

import os
import signal
import sys
from pathlib import Path

from executor.cuda.calls import Call, Launch
from executor.errors import ExecutorError
from executor.gpu.worker import main, train_and_record
from executor.job import Job
from executor.transport.mpi import World
from tests.executor.gpu.emulated_device import EmulatedDevice

TOTAL_BYTES = 2**32


class FaultyDevice(EmulatedDevice):
    """Refuses to launch the kernels of one source; at those of another its process is killed."""

    def __init__(self, source: str, total_bytes: int = TOTAL_BYTES, deadly: str = "") -> None:
        super().__init__(total_bytes=total_bytes)
        self._refused, self._deadly = source, deadly

    def issue(self, call: Call, stream: int) -> None:
        if isinstance(call, Launch) and call.source == self._refused:
            raise ExecutorError("an illegal address was read")
        if isinstance(call, Launch) and call.source == self._deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        super().issue(call, stream)


def run(job: Job, folder: Path, world: World) -> None:
    device = FaultyDevice(
        os.environ.get("EMULATED_FAULT", ""),
        int(os.environ.get("EMULATED_BYTES", TOTAL_BYTES)),
        os.environ.get("EMULATED_DEATH", ""),
    )
    train_and_record(job, folder, world, device, None)


if __name__ == "__main__":
    main(sys.argv, run)
