"""Calls on operands in device memory: fired, then captured and replayed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from millrace.executor.cuda.binding import bind
from millrace.executor.cuda.calls import Call, Calls, Operand
from millrace.executor.gpu.device import DeviceDriver
from millrace.executor.kernels.context import Array, Shard
from tests.executor.cuda.calling import empty

ALIGNMENT = 256
RUBBISH = 0x4D


class DeviceBench:
    """A piece of device memory from which operands are cut, and a stream."""

    def __init__(self, device: DeviceDriver, size_bytes: int = 2**26) -> None:
        self.device, self.stream = device, device.stream()
        self._base, self._size = device.allocate(size_bytes), size_bytes
        self._used = 0
        self._event = device.event()

    def clear(self) -> None:
        """Begin again."""
        self._used = 0

    def room(self, size_bytes: int) -> int:
        """Address of that many bytes."""
        address = self._base + self._used
        self._used += -(-max(size_bytes, 1) // ALIGNMENT) * ALIGNMENT
        assert self._used <= self._size, "the bench is too small"
        return address

    def put(self, array: Array) -> int:
        """Address of a copy of an array."""
        address = self.room(array.nbytes)
        if array.size:
            self.device.to_device(address, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return address

    def take(self, address: int, like: Array) -> Array:
        """An array from device memory."""
        array = np.empty_like(like)
        if array.size:
            self.device.to_host(array.reshape(-1).view(np.uint8), address)
        return array

    def settle(self) -> None:
        """Wait for the stream."""
        self.device.record(self._event, self.stream)
        self.device.synchronize(self._event)

    def fire(self, calls: Sequence[Call]) -> None:
        """Issue calls and wait for them."""
        for call in calls:
            self.device.issue(call, self.stream)
        self.settle()

    def replay(self, calls: Sequence[Call]) -> None:
        """Capture calls, replay them and wait."""
        self.device.begin_capture(self.stream)
        for call in calls:
            self.device.issue(call, self.stream)
        graph = self.device.end_capture(self.stream)
        self.device.replay(graph, self.stream)
        self.settle()


def carry_out(
    bench: DeviceBench, calls: Calls, inputs: Sequence[Array], outputs: Sequence[Shard]
) -> list[Array]:
    """Outputs of a firing, as stored; the same when it is replayed.

    `inputs` are as a device holds them.
    """
    bench.clear()
    blank = [empty(shard) for shard in outputs]
    places: dict[str, list[int]] = {
        "read": [bench.put(array) for array in inputs],
        "write": [bench.put(array) for array in blank],
        "table": [bench.put(array) for array in calls.tables],
        "workspace": [bench.put(np.full(calls.workspace_bytes + 64, RUBBISH, np.uint8))],
        "control": [bench.put(np.zeros(128, np.uint8))],
    }

    def place(operand: Operand) -> Operand:
        address = places[operand.role][operand.number] + operand.offset_bytes
        return Operand("address", 0, address)

    located = [bind(call, place) for call in calls.of(0)]
    for call in located:
        bench.device.prepare(call, bench.stream)
    bench.fire(located)
    fired = [
        bench.take(address, array) for address, array in zip(places["write"], blank, strict=True)
    ]
    for address, array in zip(places["write"], blank, strict=True):
        if array.size:
            bench.device.to_device(address, array.reshape(-1).view(np.uint8))
    bench.replay(located)
    for address, array in zip(places["write"], fired, strict=True):
        same: Any = bench.take(address, array).tobytes() == array.tobytes()
        assert same, "a replay gives other bits than the first firing"
    return fired
