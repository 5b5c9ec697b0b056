"""CuPy as far as the device calls it (version 14.2, name for name), in memory of this host.

Kernels run on the emulator. Work is done when it is issued, except while its stream is captured.
"""

import ctypes
import sys
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from millrace.executor.cuda.calls import Launch, Operand, Pointers
from millrace.executor.gpu import cuda_graphs
from tests.executor.cuda.emulation.machine import Emulator

TOTAL_BYTES, CONTEXT_BYTES = 1 << 26, 1 << 20


class CUDARuntimeError(RuntimeError):
    """An error with the runtime's number."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


class CUDADriverError(RuntimeError):
    """An error of a launch."""


class CompileException(Exception):  # noqa: N818 - as CuPy has it
    """Error with the compiler's words."""


class StreamWork:
    """Work of streams: done at once, or recorded while they are captured."""

    def __init__(self) -> None:
        self.recorded: list | None = None
        self.captured: set[int] = set()
        self.recorded_events: set[int] = set()
        self.spoilt = self.unlaunchable = False

    def do(self, stream: int, work) -> None:
        if stream in self.captured:
            self.recorded.append(work)
        else:
            work()


class Runtime:
    """The module `cupy.cuda.runtime`."""

    CUDARuntimeError = CUDARuntimeError
    memcpyDefault, hostAllocPortable, hostAllocMapped = 4, 1, 2  # noqa: N815 - as CuPy has them
    streamCaptureModeThreadLocal = 1  # noqa: N815

    def __init__(self, work: StreamWork) -> None:
        self._work, self.buffers, self.device, self.status = work, {}, None, 0
        self.flags: list[int] = []
        self.numbers = count(1 << 8)
        self.graphs: dict[int, list] = {}  # captured, not yet destroyed
        self.executables: dict[int, list] = {}
        self.instantiated: list[int] = []  # flags, graph by graph
        self.uploaded: set[int] = set()

    def setDevice(self, index):  # noqa: N802
        self.device = index

    def memGetInfo(self):  # noqa: N802
        held_bytes = sum(buffer.nbytes for buffer in self.buffers.values())
        return TOTAL_BYTES - CONTEXT_BYTES - held_bytes, TOTAL_BYTES

    def getDeviceProperties(self, index):  # noqa: N802
        return {"name": b"memory", "multiProcessorCount": 4}

    def malloc(self, size):
        if self._work.captured:
            raise CUDARuntimeError(900)
        if size > self.memGetInfo()[0]:
            raise CUDARuntimeError(2)
        buffer = np.full(size, 0x4D, np.uint8)
        self.buffers[buffer.ctypes.data] = buffer
        return buffer.ctypes.data

    def free(self, address):
        del self.buffers[address]

    def hostAlloc(self, size, flags):  # noqa: N802
        self.flags.append(flags)
        return self.malloc(size)

    freeHost = free  # noqa: N815

    def pointerGetAttributes(self, address):  # noqa: N802
        return SimpleNamespace(devicePointer=address)

    def memsetAsync(self, address, value, size, stream):  # noqa: N802
        self._work.do(stream, lambda: ctypes.memset(address, value, size))

    def memcpyAsync(self, target, source, size, kind, stream):  # noqa: N802
        assert kind == self.memcpyDefault
        self._work.do(stream, lambda: ctypes.memmove(target, source, size))

    def streamBeginCapture(self, stream, mode):  # noqa: N802
        assert mode == self.streamCaptureModeThreadLocal
        self._work.captured, self._work.recorded = {stream}, []

    def streamEndCapture(self, stream):  # noqa: N802
        assert stream in self._work.captured
        self._work.captured = set()
        if self._work.spoilt:
            raise CUDARuntimeError(901)
        graph = next(self.numbers)
        self.graphs[graph] = self._work.recorded
        return graph

    def cuGraphInstantiateWithFlags(self, pointer, graph, flags):  # noqa: N802 - of the driver
        pointer._obj.value = handle = next(self.numbers)
        self.executables[handle] = self.graphs[graph]
        self.instantiated.append(flags)
        return 1 if self._work.unlaunchable else 0

    def graphDestroy(self, graph):  # noqa: N802
        del self.graphs[graph]

    def graphUpload(self, handle, stream):  # noqa: N802
        assert handle in self.executables
        self.uploaded.add(handle)

    def graphLaunch(self, handle, stream):  # noqa: N802
        assert handle in self.uploaded
        for work in self.executables[handle]:
            work()

    def graphExecDestroy(self, handle):  # noqa: N802
        del self.executables[handle]
        self.uploaded.discard(handle)
        if self.status:
            raise CUDARuntimeError(self.status)

    def eventRecord(self, event, stream):  # noqa: N802
        if stream in self._work.captured:
            self._work.recorded_events.add(event)

    def streamWaitEvent(self, stream, event):  # noqa: N802
        if event in self._work.recorded_events:
            self._work.captured.add(stream)

    def eventQuery(self, event):  # noqa: N802
        return self.status

    streamQuery = eventQuery  # noqa: N815

    def eventSynchronize(self, event):  # noqa: N802
        if self.status:
            raise CUDARuntimeError(self.status)

    streamSynchronize = eventSynchronize  # noqa: N815

    def deviceSynchronize(self):  # noqa: N802
        self.eventSynchronize(None)

    def eventElapsedTime(self, start, end):  # noqa: N802
        return 0.25 * (end - start)


def install(patch: pytest.MonkeyPatch) -> "Cupy":
    """Put the module, and its runtime in place of the driver, where the device looks for them."""
    cupy = Cupy()
    patch.setitem(sys.modules, "cupy", cupy)  # type: ignore[arg-type]
    patch.setattr(cuda_graphs, "open_driver", lambda: cupy.cuda.runtime)
    return cupy


class Cupy:
    """The module `cupy`."""

    def __init__(self) -> None:
        self.work = work = StreamWork()
        self.names: list[str] = []
        self.handles = 16
        self.shared_bytes: dict[str, tuple[int, int]] = {}  # by launch: bytes taken, and allowed
        self.cuda = SimpleNamespace(
            runtime=Runtime(work),
            driver=SimpleNamespace(CUDADriverError=CUDADriverError),
            Stream=lambda non_blocking, priority: SimpleNamespace(ptr=self.handle()),
            Event=lambda block, disable_timing: SimpleNamespace(ptr=self.handle()),
            compiler=SimpleNamespace(CompileException=CompileException),
            nvtx=SimpleNamespace(RangePush=self.names.append, RangePop=self.names.pop),
        )

    def handle(self) -> int:
        self.handles += 16
        return self.handles

    def RawModule(self, *, code, options, backend, name_expressions):  # noqa: N802
        if "broken" in code:
            raise CompileException('error: identifier "broken" is undefined')
        (source,) = (stem for stem in ("layer_norm", "multi_tensor") if stem in code)
        emulator = Emulator({source: name_expressions})

        def function(name: str):
            def launch(grid, block, args, shared_mem, stream) -> None:
                bound = tuple(map(_argument, args))
                call = Launch(source, name, grid, block, bound, shared_mem)
                self.shared_bytes[name] = shared_mem, handle.max_dynamic_shared_size_bytes
                self.work.do(
                    stream.ptr, lambda: emulator.run(call, lambda operand: operand.offset_bytes)
                )

            handle = SimpleNamespace(kernel=launch, max_dynamic_shared_size_bytes=48 << 10)
            return handle

        return SimpleNamespace(get_function=function)


def _argument(arg):
    """Argument of a kernel, from what CuPy passes by value (14.2, `_pointer`)."""
    if isinstance(arg, np.ndarray):
        assert arg.size == 1, "an array of size one"
        return Pointers(
            tuple(_operand_at(address) for address in np.frombuffer(arg.tobytes(), np.uint64))
        )
    return _operand_at(arg) if isinstance(arg, np.uint64) else arg


def _operand_at(address: np.uint64) -> Operand:
    return Operand("address", 0, int(address))
