"""Watchdog of a step: ranks that wait for each other in a collective would wait for ever.

NCCL says nothing of it on one node: each kernel waits in its place for blocks of others. What
differs between ranks (one never comes, or comes to another collective) only time can show.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from time import monotonic, sleep

from millrace.executor.gpu.device import DeviceDriver

# Ranks that are ready together fire the first step within seconds, code and scratch of libraries
# included; sanitizers and debuggers of kernels make it some tens of times longer.
FIRST_S = 300.0
LEAST_S = 60.0  # a rank's host may stall so long (its disk, its neighbours) and go on
STEPS = 20.0  # as many usual steps: heat or neighbours slow one down by far less
RECENT_STEPS = 100  # last steps, of which the median is taken
PAUSE_S_MIN, PAUSE_S_MAX = 50e-6, 50e-3  # shorter ones take a tenth of a core (`transport.mpi`)
PAUSE_SHARE = 1 / 16  # share of the time waited: an end is noticed at most so much later


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Time that the host waits for the end of a step before it takes the step for hung.

    `first_s` for the first step, then `least_s` and `steps` times the median of those before.
    """

    first_s: float = FIRST_S
    least_s: float = LEAST_S
    steps: float = STEPS

    def limit_s(self, ends_ns: Sequence[int]) -> float:
        """Limit in seconds of the step after some that ended then, the run's begin first.

        Examples
        --------
        >>> Patience().limit_s([0]), Patience().limit_s([0, 10**9, 3 * 10**9, 4 * 10**9])
        (300.0, 80.0)
        """
        recent = ends_ns[-RECENT_STEPS - 1 :]
        taken_ns = [end - begin for begin, end in pairwise(recent)]
        return self.least_s + self.steps * median(taken_ns) / 1e9 if taken_ns else self.first_s


PATIENCE = Patience()


def wait_for(device: DeviceDriver, event: int, limit_s: float) -> bool:
    """Wait until an event has happened, asleep between questions; False when the limit passes.

    Raises
    ------
    ExecutorError
        Something issued before has failed on the device.
    """
    begun_s = monotonic()
    while not device.done(event):
        waited_s = monotonic() - begun_s
        if waited_s > limit_s:
            return False
        sleep(min(max(waited_s * PAUSE_SHARE, PAUSE_S_MIN), PAUSE_S_MAX))
    return True
