"""Faults that a rank plants into itself: slower kernels, or later meetings of one link."""

from collections.abc import Callable, Iterator, Sequence
from time import sleep, thread_time_ns
from typing import Any

import numpy as np

from millrace.executor import rank as rank_module
from millrace.executor.kernels import Kernel, KernelContext
from millrace.executor.transport import shared
from millrace.planner.actors.protocol import Fire

LANE_ITEMS = 16_384  # NumPy lets other threads run while it multiplies so many


def plant(rank: int, fault: dict[str, Any]) -> None:
    """Plant a fault into this process.

    Parameters
    ----------
    rank
        The rank that this process is.
    fault
        `op` and `factor`: ops of this kind take so many times as long on every rank. `rank` and
        `factor`: all ops of that rank do. `link` and `delay_s`: what is received from the first
        rank by the second begins to move so much later.
    """
    if "op" in fault:
        _slow_kernels(lambda context: bool(context.kind == fault["op"]), fault["factor"])
    elif "link" in fault:
        _delay_meetings(rank, tuple(fault["link"]), fault["delay_s"])
    elif fault["rank"] == rank:
        _slow_kernels(lambda context: True, fault["factor"])


def _slow_kernels(slowed: Callable[[KernelContext], bool], factor: float) -> None:
    """Let kernels compute on, without an effect, for as long as the factor asks."""
    original = rank_module.make_kernel
    lane = np.ones(LANE_ITEMS, np.float32)

    def make(context: KernelContext) -> Kernel:
        kernel = original(context)
        if not slowed(context):
            return kernel

        def slow(firing: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            before_ns = thread_time_ns()
            kernel(firing, inputs, outputs)
            over_ns = thread_time_ns()
            until_ns = over_ns + (factor - 1) * (over_ns - before_ns)
            while thread_time_ns() < until_ns:
                np.multiply(lane, lane, out=lane)

        return slow

    rank_module.make_kernel = make


def _delay_meetings(rank: int, link: tuple[int, ...], delay_s: float) -> None:
    """Let meetings over a link wait once all members are there; the second rank does."""
    communicator = shared.SharedCommunicator
    original = communicator._parts

    def parts(self: Any, fire: Fire) -> Iterator[None]:
        exchange = self._memory.exchanges[fire.actor][0]
        transfer = exchange.kind in ("send", "recv")
        if rank == link[1] and (
            (exchange.kind == "recv" and exchange.members == link)
            or (not transfer and set(link) <= set(exchange.members))
        ):
            seat = self._seats[fire.actor]
            while not seat.all_others(shared.CAME, fire.firing):
                yield
            sleep(delay_s)
        yield from original(self, fire)

    communicator._parts = parts  # type: ignore[method-assign]
