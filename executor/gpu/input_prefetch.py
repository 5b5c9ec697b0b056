"""Input prefetch: the samples of the next step, read and copied while the step before runs.

The stage has two halves that steps take in turn. The host reads the samples of a step into its
own, pinned half; a copy stream moves them to the device's half as soon as the step before the last,
which had it, has ended; the next step waits for that copy.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millrace.executor.cuda.cuda_rank import RankCalls
from millrace.executor.gpu.device import DeviceDriver
from millrace.executor.gpu.memory import STAGING, DeviceRegions


class InputPrefetcher:
    """Stages the inputs of all ranks of a device.

    Parameters
    ----------
    device
        The device.
    ranks
        Its ranks.
    regions
        Their memory.
    """

    def __init__(
        self, device: DeviceDriver, ranks: Sequence[RankCalls], regions: DeviceRegions
    ) -> None:
        self._device, self._ranks, self._regions = device, ranks, regions
        self._stream = device.stream(0)
        self._copied = [device.event(timed=False) for _ in range(2)]
        self._used: list[Any] = [None, None]  # the events of the steps that had a half last

    def stage(self, step: int) -> Any:
        """Read the samples of a step (counted from this run's first) and copy them.

        Returns the event that the step waits for. The copy of the step that had this half before
        must have ended; the steps themselves need not.
        """
        device, half = self._device, step % 2
        if self._used[half] is not None:
            device.synchronize(self._copied[half])
            device.wait(self._stream, self._used[half])
        for calls in self._ranks:
            size_bytes = calls.sizes["stage"] // 2
            if not size_bytes:
                continue
            pinned = self._regions.view(STAGING, calls.rank)[half * size_bytes :][:size_bytes]
            _read(calls, step, pinned)
            device.copy_async(
                self._regions.address(calls.region_operand("stage", half * size_bytes)),
                self._regions.address(calls.region_operand(STAGING, half * size_bytes)),
                size_bytes,
                self._stream,
            )
        device.record(self._copied[half], self._stream)
        return self._copied[half]

    def used(self, step: int, event: Any) -> None:
        """Take note that `event` comes after all reads of a step."""
        self._used[step % 2] = event


def _read(calls: RankCalls, step: int, pinned: NDArray[np.uint8]) -> None:
    """Read the samples of a step of one rank into its half of the host's side."""
    for staged in calls.inputs:
        content = pinned[staged.offset_bytes : staged.offset_bytes + staged.size_bytes]
        values = content.view(staged.dtype).reshape(staged.shape)
        firings = calls.program.actors[staged.actor].firings
        staged.read(step * firings + staged.firing, (), (values,))
