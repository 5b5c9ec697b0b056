"""CuPy device: a GPU by CuPy's runtime bindings, compiler and kernels, and none of its arrays.

CuPy's own allocator, arrays and `@` are not used: memory is laid out at compile time, and a
captured step may neither allocate nor call cuBLAS through CuPy (it refuses that, version 14.2).
"""

import ctypes
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millrace.executor.cuda.calls import (
    Argument,
    Attention,
    AttentionGrad,
    Bucket,
    Call,
    Clear,
    Collective,
    Convolution,
    CopyCall,
    KernelAlternatives,
    Launch,
    Operand,
    Pointers,
    ProductCall,
)
from millrace.executor.cuda.compiling import OPTIONS
from millrace.executor.cuda.source_text import source_text
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.cuda_graphs import CapturedGraph
from millrace.executor.gpu.cudnn.issuing import LibraryCalls, NeuralLibrary
from millrace.executor.gpu.device import Bytes, address_of
from millrace.executor.gpu.gemm.tuning import ProductLibraryProtocol, StreamWorkspace, Tuner
from millrace.executor.gpu.kernel_selection import Can, Choices, first_supported

WORKSPACE_BYTES = 32 * 2**20  # NVIDIA's advice for cuBLAS on Hopper and later (cuBLAS 13 guide)
SUCCESS, OUT_OF_MEMORY, NOT_READY = 0, 2, 600  # cudaError_t, CUDA 13 runtime API
LOG_LINES = 20  # lines of the compiler's log that an error shows
SHARED_BYTES = 48 * 1024  # dynamic shared memory that a kernel has unasked (CUDA C++ guide)


class CupyDevice:
    """One GPU; `millrace.executor.gpu.device.DeviceDriver` says what its methods do.

    Parameters
    ----------
    index
        Number of the GPU among those that this process sees.
    products
        Makes the library of products, when the GPU is current.
    networks
        Opens the library of neural networks likewise; returns None where none is to be used.
    tuner
        Chooses by timing: the algorithms of products, and among the ways of computing one thing.
        None: the algorithms that the library puts first, and the first way that the GPU can take.
    """

    def __init__(
        self,
        index: int,
        products: Callable[[], ProductLibraryProtocol],
        networks: Callable[[], NeuralLibrary | None] = lambda: None,
        tuner: Tuner | None = None,
    ) -> None:
        import cupy

        self.index = index
        self._cupy = cupy
        self._runtime = runtime = cupy.cuda.runtime
        self._refusals = (runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError)
        runtime.setDevice(index)
        free, total = runtime.memGetInfo()  # makes the context
        self.total_bytes = int(total)
        self.context_bytes = int(total - free)
        properties = runtime.getDeviceProperties(index)
        self.name = str(properties["name"].decode())
        self.multiprocessors = int(properties["multiProcessorCount"])
        self._streams: dict[int, Any] = {}
        self._events: dict[int, Any] = {}
        self._memory: list[int] = []
        self._host_memory: list[int] = []
        self._functions: dict[tuple[str, str], Any] = {}
        self._attributes: dict[tuple[str, str], Any] = {}  # CuPy's kernels, which hold them
        self._shared_bytes: dict[tuple[str, str], int] = {}  # bytes that a function has asked for
        self._make_products, self._tuner = products, tuner
        self._products: ProductLibraryProtocol | None = None
        self._planned: dict[ProductCall, Any] = {}
        self._workspaces: dict[int, int] = {}
        self._networks = LibraryCalls(self, networks)
        self._choices = Choices(self._supports, self._choose)
        self._capturing: int | None = None
        self._own_stream = self.stream()

    def use(self) -> None:
        """Make this GPU the one that the calling thread works on."""
        self._runtime.setDevice(self.index)

    def free_bytes(self) -> int:
        """Bytes of memory that nobody holds now."""
        return int(self._runtime.memGetInfo()[0])

    def allocate(self, size_bytes: int) -> int:
        """Address of zeros in newly allocated device memory."""
        size_bytes = max(size_bytes, 1)
        try:
            address = int(self._runtime.malloc(size_bytes))
        except self._runtime.CUDARuntimeError as error:
            raise self._short(size_bytes, error) from error
        self._memory.append(address)
        self._runtime.memsetAsync(address, 0, size_bytes, self._own_stream)
        self._finish()
        return address

    def free(self, address: int) -> None:
        """Give back what was allocated, when all work is done."""
        self._runtime.deviceSynchronize()
        self._runtime.free(address)
        self._memory.remove(address)

    def allocate_host(self, size_bytes: int) -> tuple[int, Bytes]:
        """Zeros in new pinned host memory: their address on the device, and a view of them."""
        runtime, size_bytes = self._runtime, max(size_bytes, 1)
        flags = runtime.hostAllocPortable | runtime.hostAllocMapped
        try:
            address = int(runtime.hostAlloc(size_bytes, flags))
        except runtime.CUDARuntimeError as error:
            raise ExecutorError(f"no {size_bytes} bytes of pinned host memory: {error}") from error
        self._host_memory.append(address)
        view = np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))
        view[:] = 0
        # With unified addressing, which every 64-bit Linux has, both sides know it by one address.
        return int(runtime.pointerGetAttributes(address).devicePointer), view

    def to_device(self, address: int, array: NDArray[Any]) -> None:
        """Copy an array to device memory.

        A plain `cudaMemcpy` may return while pageable memory is still on its way, and streams like
        ours do not wait for it.
        """
        contiguous = np.ascontiguousarray(array)
        self.copy_async(address, contiguous.ctypes.data, contiguous.nbytes, self._own_stream)
        self._finish()

    def to_host(self, array: NDArray[Any], address: int) -> None:
        """Fill a contiguous array from device memory."""
        if not (array.flags.c_contiguous and array.flags.writeable):
            raise ExecutorError("to_host fills contiguous arrays: give it a copy")
        self.copy_async(array.ctypes.data, address, array.nbytes, self._own_stream)
        self._finish()

    def copy_async(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Copy bytes in the order of a stream, whatever memories they lie in."""
        runtime = self._runtime
        runtime.memcpyAsync(target, source, size_bytes, runtime.memcpyDefault, stream)

    def stream(self, priority: int = 0) -> int:
        """Make a stream that waits for no other; a lower number goes first."""
        stream = self._cupy.cuda.Stream(non_blocking=True, priority=priority)
        self._streams[int(stream.ptr)] = stream
        return int(stream.ptr)

    def event(self, timed: bool = False) -> int:
        """Make an event; who synchronizes with it sleeps, and leaves its core to other ranks."""
        event = self._cupy.cuda.Event(block=True, disable_timing=not timed)
        self._events[int(event.ptr)] = event
        return int(event.ptr)

    def record(self, event: int, stream: int) -> None:
        """Let an event happen when all that the stream was given by now is done."""
        self._runtime.eventRecord(event, stream)

    def wait(self, stream: int, event: int) -> None:
        """Let a stream go on only after what the event was last recorded for."""
        self._runtime.streamWaitEvent(stream, event)

    def done(self, event: int) -> bool:
        """True if what the event was recorded for is done."""
        # CuPy's own `Event.done` takes an error for "not yet".
        return self._ready(self._runtime.eventQuery(event))

    def synchronize(self, event: int) -> None:
        """Wait until the event has happened."""
        try:
            self._runtime.eventSynchronize(event)
        except self._runtime.CUDARuntimeError as error:
            raise self._failed(error) from error

    def elapsed_ns(self, start: int, end: int) -> int:
        """Nanoseconds between two events that have happened; ticks are half a microsecond."""
        milliseconds: float = self._runtime.eventElapsedTime(start, end)
        return round(milliseconds * 1e6)

    def load(self, functions: Mapping[str, Collection[str]]) -> None:
        """Compile kernels of ours, once; CuPy keeps the results on disk."""
        for source, names in sorted(functions.items()):
            missing = [name for name in sorted(names) if (source, name) not in self._functions]
            if not missing:
                continue
            try:
                module = self._cupy.RawModule(
                    code=source_text(source),
                    options=OPTIONS,
                    backend="nvrtc",
                    name_expressions=missing,
                )
                for name in missing:
                    self._attributes[source, name] = module.get_function(name)
                    self._functions[source, name] = self._attributes[source, name].kernel
            except self._cupy.cuda.compiler.CompileException as error:
                compiler_log = "\n".join(str(error).splitlines()[:LOG_LINES])
                raise ExecutorError(
                    f"`sources/{source}.cu` does not compile for {self.name}:\n{compiler_log}"
                ) from error

    def prepare(self, call: Call, stream: int) -> None:
        """Plan what a library carries out, and reserve its workspace; pick one way of a choice."""
        match call:
            case ProductCall():
                self._prepare_product(call, stream)
            case Attention() | AttentionGrad() | Convolution():
                self._networks.prepare(call, stream)
            case KernelAlternatives():
                for option_call in self._choices.pick(call, stream):
                    self.prepare(option_call, stream)

    def picked(self) -> dict[str, dict[str, int]]:
        """Number of choices that took each way, by what they compute."""
        return self._choices.picked()

    def _choose(self, choice: KernelAlternatives, can: Can, stream: int) -> int:
        if self._tuner is None:
            return first_supported(choice, can, stream)
        return self._tuner.choose(self._library(), choice, can, self, stream)

    def _supports(self, call: Call) -> bool:
        if isinstance(call, Attention | AttentionGrad | Convolution):
            return self._networks.supports(call)
        if isinstance(call, ProductCall):
            return self._library().supports(call, WORKSPACE_BYTES)
        return True

    @property
    def library_bytes(self) -> int:
        """Memory that the workspaces of libraries take."""
        return WORKSPACE_BYTES * len(self._workspaces) + self._networks.workspace_bytes

    def _prepare_product(self, call: ProductCall, stream: int) -> None:
        if stream not in self._workspaces:
            self._workspaces[stream] = self.allocate(WORKSPACE_BYTES)
        if call not in self._planned:
            self._planned[call] = self._plan(call, stream)

    def plan_again(self) -> None:
        """Choose and plan once more all that was prepared: the picks of the tuner have changed."""
        for choice, stream in self._choices.forget().items():
            self.prepare(choice, stream)
        for call in self._planned:
            self._planned[call] = self._plan(call, next(iter(self._workspaces)))

    def _library(self) -> ProductLibraryProtocol:
        """The library of products, opened when it is first asked something."""
        if self._products is None:
            self._products = self._make_products()
        return self._products

    def _plan(self, call: ProductCall, stream: int) -> Any:
        """Plan a product, on a stream that has a workspace."""
        if self._tuner is None:
            return self._library().plan(call, WORKSPACE_BYTES)
        room = StreamWorkspace(self._workspaces[stream], WORKSPACE_BYTES)
        return self._tuner.plan(self._library(), call, self, stream, room)

    @contextmanager
    def scratch(self, size_bytes: int) -> Iterator[int]:
        """Lend memory that is given back, when all work is done, at the end of the `with`.

        So is what libraries took meanwhile for calls that were only tried.
        """
        address = self.allocate(size_bytes)
        try:
            with self._networks.trial():
                yield address
        finally:
            with self._first_told():
                self.free(address)

    def issue(self, call: Call, stream: int) -> None:
        """Carry out one bound call in the order of a stream."""
        try:
            self._carry_out(call, stream)
        except self._refusals as error:
            raise self._failed(error) from error
        except ExecutorError:
            if self._capturing is None:
                self.check()  # a library refuses everything behind a kernel that has failed
            raise

    def _carry_out(self, call: Call, stream: int) -> None:
        match call:
            case Launch():
                self._launch(call, stream)
            case ProductCall():
                self._multiply(call, stream)
            case Clear():
                self._runtime.memsetAsync(address_of(call.target), 0, call.size_bytes, stream)
            case CopyCall():
                source, target = address_of(call.source), address_of(call.target)
                self.copy_async(target, source, call.size_bytes, stream)
            case Attention() | AttentionGrad() | Convolution():
                self._networks.issue(call, stream, captured=self._capturing is not None)
            case KernelAlternatives():
                if self._capturing is None:
                    self.prepare(call, stream)
                for option_call in self._choices.chosen_calls(call):
                    self._carry_out(option_call, stream)
            case Collective() | Bucket():
                kind = call.kind if isinstance(call, Collective) else "a bucket"
                raise ExecutorError(f"{kind} is for a communicator, not for the device")

    def _launch(self, call: Launch, stream: int) -> None:
        function = self._functions.get((call.source, call.function))
        if function is None:
            raise ExecutorError(f"kernel `{call.function}` of `{call.source}` was not loaded")
        args = tuple(_by_value(arg) for arg in call.args)
        name, shared_bytes = (call.source, call.function), call.shared_bytes
        if shared_bytes > self._shared_bytes.get(name, SHARED_BYTES):
            self._attributes[name].max_dynamic_shared_size_bytes = shared_bytes
            self._shared_bytes[name] = shared_bytes
        stream_of = self._streams[stream]
        function(call.grid, call.block, args, shared_mem=shared_bytes, stream=stream_of)

    def _multiply(self, call: ProductCall, stream: int) -> None:
        if self._capturing is None:
            self._prepare_product(call, stream)
        planned = self._planned.get(call)
        if planned is None or stream not in self._workspaces or self._products is None:
            raise ExecutorError(
                f"a product of [{call.m}, {call.k}] and [{call.k}, {call.n}] was captured before "
                f"it was prepared on its stream"
            )
        self._products.run(planned, call, self._workspaces[stream], stream)

    def begin_capture(self, stream: int) -> None:
        """Record what is issued from now on.

        The mode is thread-local: NCCL's threads and our watchdog make calls of their own meanwhile,
        which would end a global capture; a relaxed one would let this thread allocate unnoticed,
        and such memory would be given away again before the graph is replayed.
        """
        self._networks.reserve()
        self._runtime.streamBeginCapture(stream, self._runtime.streamCaptureModeThreadLocal)
        self._capturing = stream

    def end_capture(self, stream: int) -> CapturedGraph:
        """Graph of what was captured, already sent to the device."""
        self._capturing = None
        try:
            return CapturedGraph(self._runtime, stream)
        except (*self._refusals, ExecutorError) as error:
            raise ExecutorError(
                f"a step could not be captured on GPU {self.index} ({self.name}): {error}; --eager "
                f"runs it without a graph"
            ) from error

    def replay(self, graph: CapturedGraph, stream: int) -> None:
        """Carry out a graph in the order of a stream."""
        try:
            graph.launch(stream)
        except self._refusals as error:
            raise self._failed(error) from error

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Name what is issued inside, as an NVTX range."""
        nvtx = self._cupy.cuda.nvtx
        nvtx.RangePush(name)
        try:
            yield
        finally:
            nvtx.RangePop()

    def check(self) -> None:
        """Raise if anything issued before has failed: such an error stays with the context."""
        self._ready(self._runtime.streamQuery(self._own_stream))

    def close(self) -> None:
        """Wait for all work and give back all memory, streams and events."""
        with self._first_told():
            self._give_back()

    def _give_back(self) -> None:
        memory, host_memory = self._memory, self._host_memory
        self._memory, self._host_memory = [], []
        self._runtime.deviceSynchronize()
        if self._products is not None:
            self._products.close()
            self._products = None
        self._networks.close()
        self._planned.clear()
        self._events.clear()
        self._streams.clear()
        for address in memory:
            self._runtime.free(address)
        for address in host_memory:
            self._runtime.freeHost(address)

    @contextmanager
    def _first_told(self) -> Iterator[None]:
        """Raise what the device says only where no other error is on its way.

        A kernel's error stays with the context: whatever is called in a `finally` says it again,
        and would hide the error that came first and knows more.
        """
        under_way = sys.exception()
        try:
            yield
        except self._refusals as error:
            if under_way is None:
                raise self._failed(error) from error

    def _finish(self) -> None:
        """Wait for the device's own stream."""
        try:
            self._runtime.streamSynchronize(self._own_stream)
        except self._refusals as error:
            raise self._failed(error) from error

    def _ready(self, status: int) -> bool:
        """Read the status of a query, which CuPy hands on unchecked."""
        if status in (SUCCESS, NOT_READY):
            return bool(status == SUCCESS)
        raise self._failed(self._runtime.CUDARuntimeError(status))

    def _failed(self, error: BaseException) -> ExecutorError:
        return ExecutorError(
            f"a kernel or copy failed on GPU {self.index} ({self.name}): {error}; run with --eager "
            f"and CUDA_LAUNCH_BLOCKING=1 to learn which"
        )

    def _short(self, size_bytes: int, error: Any) -> ExecutorError:
        if error.status != OUT_OF_MEMORY:
            return self._failed(error)
        free, total, asked = (
            f"{size / 2**30:.2f} GiB" for size in (self.free_bytes(), self.total_bytes, size_bytes)
        )
        return ExecutorError(
            f"GPU {self.index} ({self.name}): {asked} are asked for, and {free} of its {total} are "
            f"free: use more GPUs, smaller microbatches or --recompute full"
        )


def _by_value(argument: Argument) -> Any:
    """Argument that CuPy (14.2, `_pointer`) passes by value: a scalar or an array of size one.

    A pointer goes as the eight bytes of an integer, and a struct of pointers as one element.
    """
    if isinstance(argument, Pointers):
        addresses = np.array([address_of(operand) for operand in argument.operands], np.uint64)
        return addresses.view(np.dtype((np.void, addresses.nbytes)))
    return np.uint64(address_of(argument)) if isinstance(argument, Operand) else argument
