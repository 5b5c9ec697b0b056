"""Probe arena: memory that all timed kernels take in turn, filled on the device.

A case has its operands in several copies, so that calls that take them in turn find none of them in
a cache; they share tables, scratch, staged samples and the rank's control block.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from millrace.executor.cuda.binding import bind
from millrace.executor.cuda.calls import Call, Calls, Operand, aligned
from millrace.executor.cuda.control import control_bytes
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.gpu.device import ADDRESS, DeviceDriver
from millrace.executor.gpu.operand_noise import CACHE_BYTES, NOISE_ELEMENTS, noise
from millrace.executor.kernels.context import Shard
from millrace.executor.probes.profiled_kernels import KernelCase
from millrace.models.ops import state_of
from millrace.planner.collectives import LOCAL_BOXING

COPIES_MAX = 32  # what is so small that these fit into a cache lies there in training too
STAGED_BYTES = 4  # bytes of a staged element: float32 or int32


class TimedCase(NamedTuple):
    """A case and its calls."""

    case: KernelCase
    calls: Calls

    @property
    def operands(self) -> tuple[Shard, ...]:
        """Shards that every copy holds: inputs, outputs, and state in the shape of the output."""
        context = self.case.context
        kind = context.kind
        states = 0 if kind in LOCAL_BOXING else len(state_of(kind, context.attributes))
        return (*context.inputs, *context.outputs, *context.outputs[:1] * states)

    @property
    def copy_bytes(self) -> int:
        """Bytes of one copy."""
        return sum(aligned(shard.size * shard.itemsize) for shard in self.operands)

    @property
    def shared_bytes(self) -> int:
        """Bytes of what all copies share."""
        tables = sum(aligned(table.nbytes) for table in self.calls.tables)
        return tables + aligned(self.calls.workspace_bytes) + 2 * self.half_bytes

    @property
    def half_bytes(self) -> int:
        """Bytes of half a stage."""
        context = self.case.context
        return aligned(STAGED_BYTES * context.outputs[0].size) if context.kind == "input" else 0


def build_timed_case(case: KernelCase) -> TimedCase:
    """A case with its calls."""
    return TimedCase(case, make_calls(case.context))


class CaseArena:
    """Room for every case, one after the other.

    Parameters
    ----------
    device
        The device that it is allocated on.
    size_bytes
        Size of the arena; `arena_bytes` says what some cases need.
    """

    def __init__(self, device: DeviceDriver, size_bytes: int) -> None:
        self._device, self.size_bytes = device, size_bytes
        self.base = device.allocate(size_bytes)
        self._stream, self._event = device.stream(), device.event()
        self._control = device.allocate(len(control_bytes(0, "fp32")))
        device.to_device(self._control, np.frombuffer(control_bytes(0, "fp32"), np.uint8))
        self._noise: dict[str, tuple[int, int]] = {}

    def place(self, timed_case: TimedCase) -> list[tuple[Call, ...]]:
        """Fill the arena for a case and return the bound calls of each of its copies."""
        copies = (self.size_bytes - timed_case.shared_bytes) // max(timed_case.copy_bytes, 1)
        copies = max(1, min(copies, COPIES_MAX, CACHE_BYTES // max(timed_case.copy_bytes, 1)))
        tables, end = [], self.base
        for table in timed_case.calls.tables:
            tables.append(end)
            self._device.to_device(end, np.ascontiguousarray(table))
            end += aligned(table.nbytes)
        workspace = end
        stage = workspace + aligned(timed_case.calls.workspace_bytes)
        begin = stage + 2 * timed_case.half_bytes
        self._spread(stage, 2 * timed_case.half_bytes, "int32")
        calls = []
        for copy in range(copies):
            places = self._copied(timed_case, begin + copy * timed_case.copy_bytes)
            bases: dict[str, Sequence[int]] = {
                **places,
                "table": tables,
                "workspace": (workspace,),
                "stage": (stage, stage + timed_case.half_bytes),
                "control": (self._control,),
            }

            def place(operand: Operand, bases: dict[str, Sequence[int]] = bases) -> Operand:
                base = bases[operand.role][operand.number]
                return Operand(ADDRESS, 0, base + operand.offset_bytes)

            calls.append(tuple(bind(call, place) for call in timed_case.calls.of(0)))
        self._wait()
        return calls

    def _copied(self, timed_case: TimedCase, begin: int) -> dict[str, Sequence[int]]:
        """Fill one copy of the operands; return where each lies, by role."""
        places = []
        for number, shard in enumerate(timed_case.operands):
            size_bytes = shard.size * shard.itemsize
            if number in timed_case.case.ids:
                self._device.to_device(begin, timed_case.case.numbers(number))
            else:
                self._spread(begin, size_bytes, shard.dtype)
            places.append(begin)
            begin += aligned(size_bytes)
        context = timed_case.case.context
        reads, writes = len(context.inputs), len(context.outputs)
        return {
            "read": places[:reads],
            "write": places[reads : reads + writes],
            "state": places[reads + writes :],
        }

    def _spread(self, address: int, size_bytes: int, dtype: str) -> None:
        """Fill with numbers from 0 to 1."""
        if not size_bytes:
            return
        source, most = self._noise_of(dtype)
        done = min(size_bytes, most)
        self._device.copy_async(address, source, done, self._stream)
        while done < size_bytes:
            more = min(done, size_bytes - done)
            self._device.copy_async(address + done, address, more, self._stream)
            done += more

    def _noise_of(self, dtype: str) -> tuple[int, int]:
        """Address of numbers of a dtype that operands are filled from, and their bytes."""
        if dtype not in self._noise:
            content = noise(dtype, NOISE_ELEMENTS)
            address = self._device.allocate(content.nbytes)
            self._device.to_device(address, content)
            self._noise[dtype] = address, content.nbytes
        return self._noise[dtype]

    def _wait(self) -> None:
        self._device.record(self._event, self._stream)
        self._device.synchronize(self._event)


def arena_bytes(cases: Sequence[TimedCase]) -> int:
    """Bytes that the largest of some cases needs, and all of them to miss a cache."""
    return max(
        timed_case.shared_bytes
        + timed_case.copy_bytes
        * max(1, min(COPIES_MAX, CACHE_BYTES // max(timed_case.copy_bytes, 1)))
        for timed_case in cases
    )
