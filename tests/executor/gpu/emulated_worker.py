"""A process of a run on an emulated device: `millrace.executor.gpu.gpu_worker` but for the device.

`EMULATED_BYTES` says how much memory the device has, `EMULATED_FAULT` a source whose kernels it
refuses to launch, `EMULATED_DEATH` one at whose launch the process is killed, `EMULATED_HANG` one
whose kernels never end.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from millrace.executor.cuda.calls import Call, Launch
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.gpu_worker import main, train_and_record
from millrace.executor.gpu.watchdog import PATIENCE, Patience
from millrace.executor.job import RunJob
from millrace.executor.transport.mpi import World
from tests.executor.gpu.emulated_device import EmulatedDevice

TOTAL_BYTES = 2**32


class HangingDevice(EmulatedDevice):
    """A device on whose streams work may lie that never ends."""

    def hang(self, stream: int) -> None:
        """Put such work on a stream."""
        self._put(stream, "hang", None)

    def _ready(self) -> list[Any]:
        return [stream for stream in super()._ready() if self._streams[stream][0][0] != "hang"]


class FaultyDevice(HangingDevice):
    """A device that refuses the kernels of one source, and is killed at those of another.

    Those of a third never end.
    """

    def __init__(
        self, source: str, total_bytes: int = TOTAL_BYTES, deadly: str = "", endless: str = ""
    ) -> None:
        super().__init__(total_bytes=total_bytes)
        self._refused, self._deadly, self._endless = source, deadly, endless

    def issue(self, call: Call, stream: int) -> None:
        if isinstance(call, Launch) and call.source == self._refused:
            raise ExecutorError("an illegal address was read")
        if isinstance(call, Launch) and call.source == self._deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        if isinstance(call, Launch) and call.source == self._endless:
            self.hang(stream)
        super().issue(call, stream)


def run(job: RunJob, folder: Path, world: World) -> None:
    device = FaultyDevice(
        os.environ.get("EMULATED_FAULT", ""),
        int(os.environ.get("EMULATED_BYTES", TOTAL_BYTES)),
        os.environ.get("EMULATED_DEATH", ""),
        endless := os.environ.get("EMULATED_HANG", ""),
    )
    patience = Patience(first_s=0.01) if endless else PATIENCE
    train_and_record(job, folder, world, device, None, patience=patience)


if __name__ == "__main__":
    main(sys.argv, run)
