"""A device on the CPU with the manners of CUDA: lazy in-order streams, events, captured graphs.

Nothing runs when it is issued; when the host waits for something, streams go on in a random order
that honours only what was recorded and waited for. So a missing wait shows as wrong numbers, and
what a capture would refuse (work that was not forked from the captured stream, or not joined to it)
is refused here too.
"""

import random
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from millrace.executor.cuda.calls import Call, KernelAlternatives, Operand
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.kernel_selection import Can, Choices
from tests.executor.cuda.emulation.machine import Emulator

TICK_NS = 1000  # duration of every piece of work


class EmulatedDevice:
    """One device; `seed` decides the order in which streams, threads and blocks go on.

    `checked`: every access of memory by a kernel is checked; `option`: which option of a choice is
    taken (`Emulator`).
    """

    name = "emulated device"
    library_bytes = 0

    def __init__(
        self,
        seed: int = 0,
        total_bytes: int = 2**32,
        *,
        checked: bool = False,
        option: int = -1,
    ) -> None:
        self._seed, self._checked, self._option = seed, checked, option
        self._choices = Choices(lambda call: True, self._option_of)
        self.total_bytes, self.context_bytes = total_bytes, 0
        self._random = random.Random(seed)
        self._memory: list[np.ndarray] = []
        self._ranges: list[tuple[int, int]] = []  # ranges that were allocated
        self._held_bytes = 0
        self._streams: dict[Any, deque[tuple[str, Any]]] = {}
        self._tokens: dict[int, int] = {}  # event -> what it was last recorded as
        self._done: dict[int, int] = {}  # token -> when
        self._token_count = self._event_count = 0
        self._clock_ns = 0
        self._capture: list[tuple[Any, str, Any]] | None = None
        self._captured_from: Any = None
        self._emulator: Emulator | None = None
        self.allocations = 0

    def free_bytes(self) -> int:
        return self.total_bytes - self._held_bytes

    def allocate(self, size_bytes: int) -> int:
        self.allocations += 1
        self._held_bytes += size_bytes
        room = np.zeros(size_bytes + 256, np.uint8)
        self._memory.append(room)
        begin = room.ctypes.data + -room.ctypes.data % 256
        self._ranges.append((begin, begin + size_bytes))
        return begin

    def allocate_host(self, size_bytes: int) -> tuple[int, np.ndarray]:
        room = np.zeros(size_bytes + 256, np.uint8)
        self._memory.append(room)
        begin = -room.ctypes.data % 256
        first = room.ctypes.data + begin
        self._ranges.append((first, first + size_bytes))
        view = room[begin : begin + size_bytes]
        return view.ctypes.data if size_bytes else first, view

    def to_device(self, address: int, array: np.ndarray) -> None:
        self._drain()
        _bytes_at(address, array.nbytes)[:] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)

    def to_host(self, array: np.ndarray, address: int) -> None:
        self._drain()
        array.reshape(-1).view(np.uint8)[:] = _bytes_at(address, array.nbytes)

    def copy_async(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        self._put(stream, "copy", (target, source, size_bytes))

    def stream(self, priority: int = 0) -> int:
        number = len(self._streams)
        self._streams[number] = deque()
        return number

    def event(self, timed: bool = False) -> int:
        self._event_count += 1
        return self._event_count

    def record(self, event: int, stream: int) -> None:
        self._token_count += 1
        self._tokens[event] = self._token_count
        self._put(stream, "record", self._token_count)

    def wait(self, stream: int, event: int) -> None:
        if event in self._tokens:
            self._put(stream, "wait", self._tokens[event])

    def done(self, event: int) -> bool:
        """True if the event has happened; streams go on until it has, or until nothing can."""
        token = self._tokens.get(event, -1)
        while token not in self._done and self._ready():
            self._go_on()
        return token in self._done

    def synchronize(self, event: int) -> None:
        assert self._capture is None, "a host may not wait while it captures"
        token = self._tokens[event]
        while token not in self._done:
            self._go_on()

    def elapsed_ns(self, start: int, end: int) -> int:
        return self._done[self._tokens[end]] - self._done[self._tokens[start]]

    def load(self, functions: Mapping[str, Collection[str]]) -> None:
        self._emulator = Emulator(functions, self._seed, checked=self._checked, option=self._option)

    def prepare(self, call: Call, stream: int) -> None:
        if isinstance(call, KernelAlternatives):
            for option_call in self._choices.pick(call, stream):
                self.prepare(option_call, stream)

    def picked(self) -> dict[str, dict[str, int]]:
        return self._choices.picked()

    def _option_of(self, choice: KernelAlternatives, can: Can, stream: int) -> int:
        """The option that the emulator takes."""
        options = range(len(choice.options))
        return options[self._option if self._option < len(options) else -1]

    def issue(self, call: Call, stream: int) -> None:
        self._put(stream, "call", call)

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        yield

    def begin_capture(self, stream: int) -> None:
        assert self._capture is None
        self._capture, self._captured_from = [], stream

    def end_capture(self, stream: int) -> list[tuple[Any, str, Any]]:
        assert self._capture is not None
        assert stream == self._captured_from
        graph, self._capture = self._capture, None
        recorded = {what for _, kind, what in graph if kind == "record"}
        waited = {
            what
            for captured_stream, kind, what in graph
            if kind == "wait" and captured_stream == stream
        }
        last: dict[Any, tuple[str, Any]] = {}
        for captured_stream, kind, what in graph:
            if captured_stream not in last and captured_stream != stream and kind != "wait":
                raise ExecutorError(f"stream {captured_stream} was not forked from the capture")
            if kind == "wait" and what not in recorded:
                raise ExecutorError("a capture waits for work outside of it")
            last[captured_stream] = (kind, what)
        for captured_stream, (kind, what) in last.items():
            if captured_stream != stream and not (kind == "record" and what in waited):
                raise ExecutorError(f"stream {captured_stream} was not joined")
        return graph

    def replay(self, graph: list[tuple[Any, str, Any]], stream: int) -> None:
        self._token_count += 1
        begin = self._token_count
        self._put(stream, "record", begin)
        fresh: dict[int, int] = {}
        streams: dict[Any, tuple[Any, ...]] = {}
        for captured_stream, kind, what in graph:
            if captured_stream not in streams:
                streams[captured_stream] = ("graph", begin, captured_stream)
                self._streams[streams[captured_stream]] = deque([("wait", begin)])
            if kind == "record":
                self._token_count += 1
                fresh[what] = self._token_count
            payload = fresh[what] if kind in ("record", "wait") else what
            self._streams[streams[captured_stream]].append((kind, payload))
        for inner in streams.values():
            self._token_count += 1
            self._streams[inner].append(("record", self._token_count))
            self._put(stream, "wait", self._token_count)

    def check(self) -> None:
        """Do nothing: nothing fails late here."""

    def close(self) -> None:
        self._drain()
        self._memory.clear()
        self._held_bytes = 0

    def _put(self, stream: Any, kind: str, what: Any) -> None:
        if self._capture is not None:
            self._capture.append((stream, kind, what))
        else:
            self._streams[stream].append((kind, what))

    def _drain(self) -> None:
        while any(self._streams.values()):
            self._go_on()

    def _ready(self) -> list[Any]:
        """Streams whose next piece of work waits for nothing."""
        return [
            stream
            for stream, queue in self._streams.items()
            if queue and (queue[0][0] != "wait" or queue[0][1] in self._done)
        ]

    def _go_on(self) -> None:
        """Let one stream, picked at random, do its next piece of work."""
        ready = self._ready()
        assert ready, "all streams wait for something that never happens"
        stream = self._random.choice(ready)
        kind, what = self._streams[stream].popleft()
        if not self._streams[stream] and isinstance(stream, tuple):
            del self._streams[stream]
        if kind == "record":
            self._done[what] = self._clock_ns
        elif kind == "call":
            assert self._emulator is not None
            self._clock_ns += TICK_NS
            self._emulator.run(what, _address, self._ranges)
        elif kind == "copy":
            target, source, size_bytes = what
            _bytes_at(target, size_bytes)[:] = _bytes_at(source, size_bytes)


def _address(operand: Operand) -> int:
    assert operand.role == "address", operand
    return operand.offset_bytes


def _bytes_at(address: int, size_bytes: int) -> np.ndarray:
    import ctypes

    return np.frombuffer((ctypes.c_uint8 * size_bytes).from_address(address), np.uint8)
