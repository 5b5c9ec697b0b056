"""Faults that a rank plants into itself: slower kernels, or later meetings of one link."""

from collections.abc import Callable, Sequence
from time import sleep, thread_time_ns
from typing import Any

import numpy as np

from millrace.executor import rank as rank_module
from millrace.executor.kernels import Kernel, KernelContext
from millrace.executor.transport.chunk_arrays import ChunkArrays
from millrace.executor.transport.routes import Step

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
    original = ChunkArrays.reduce
    delayed: dict[int, int] = {}  # last firing by meeting actor

    def reduce(self: ChunkArrays, actor: int, step: Step) -> None:
        exchange, firing = self._memory.exchanges[actor][0], self.fire(actor).firing
        transfer = exchange.kind in ("send", "recv")
        is_over_link = exchange.members == link if transfer else set(link) <= set(exchange.members)
        if rank == link[1] and is_over_link and delayed.get(actor) != firing:
            delayed[actor] = firing
            sleep(delay_s)
        original(self, actor, step)

    ChunkArrays.reduce = reduce  # type: ignore[method-assign]
