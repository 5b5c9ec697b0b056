"""The items of `facts.py` that check our own device, library by library.

Legend: M N K of products, B batch, H heads, T tokens, D head dim, R rows of layer norm.
"""

import os
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from millrace.executor.cuda.binding import bind as placed
from millrace.executor.cuda.calls import (
    Clear,
    Collective,
    CopyCall,
    Launch,
    Matrices,
    Operand,
    ProductCall,
)
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.gpu.cupy_device import CupyDevice
from millrace.executor.kernels import RunState
from millrace.executor.kernels.context import KernelContext, whole_shard

Figures = dict[str, object]
REPEATS = 7  # timings, of which the median is given
AT_ONCE = 10  # calls of one timing, in one graph
PRODUCT = 8192  # M = N = K, as published rates have it
ATTENTION = (4, 16, 2048, 128)  # B, H, T, D
ROWS = (8192, 4096)  # R and features


def device() -> CupyDevice:
    """First GPU, with cuBLASLt's products where they are asked for."""
    from millrace.executor.gpu.gemm.cublaslt import ProductLibrary

    return CupyDevice(0, ProductLibrary)


def bound(address: int) -> Operand:
    """Operand that is bound to an address in device memory."""
    return Operand("address", 0, address)


def bfloat16(values: np.ndarray) -> np.ndarray:
    """Values rounded to bfloat16, as uint16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widened(values: np.ndarray) -> np.ndarray:
    """Values of bfloat16 bits, as float32."""
    return (values.astype(np.uint32) << 16).view(np.float32)


def put(on: CupyDevice, array: np.ndarray) -> int:
    """Address of a copy in device memory."""
    address = on.allocate(array.nbytes)
    on.to_device(address, array)
    return address


def host_copy(on: CupyDevice, address: int, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Copy of device memory."""
    values = np.empty(shape, dtype)
    on.to_host(values, address)
    return values


def settle(on: CupyDevice, stream: int) -> None:
    """Wait for a stream."""
    event = on.event()
    on.record(event, stream)
    on.synchronize(event)


def captured(on: CupyDevice, stream: int, work: Callable[[], None]) -> object:
    """Do work once, then capture it."""
    work()
    settle(on, stream)
    on.begin_capture(stream)
    work()
    return on.end_capture(stream)


def milliseconds(on: CupyDevice, stream: int, work: Callable[[], None]) -> float:
    """Median time of `work` inside a replayed graph, in ms."""

    def several() -> None:
        for _ in range(AT_ONCE):
            work()

    graph = captured(on, stream, several)
    start, end = on.event(timed=True), on.event(timed=True)
    times_ms = []
    for _ in range(REPEATS):
        on.record(start, stream)
        on.replay(graph, stream)
        on.record(end, stream)
        on.synchronize(end)
        times_ms.append(on.elapsed_ns(start, end) / 1e6 / AT_ONCE)
    return statistics.median(times_ms)


def memory() -> Figures:
    """Zeros, blocking and asynchronous copies, pinned memory that kernels see."""
    on = device()
    stream, size = on.stream(), 256 * 2**20
    first, second = on.allocate(size), on.allocate(size)
    address, view = on.allocate_host(size)
    assert not host_copy(on, first, (4096,), np.uint8).any(), "memory is not zero"
    view[:] = np.arange(size, dtype=np.uint32).astype(np.uint8)
    on.copy_async(first, address, size, stream)
    on.issue(CopyCall(bound(first), bound(second), size), stream)
    on.issue(Clear(bound(first), size), stream)
    settle(on, stream)
    assert np.array_equal(host_copy(on, second, (size,), np.uint8), view), "a copy is not the same"
    assert not host_copy(on, first, (size,), np.uint8).any(), "cleared memory is not zero"
    rates: Figures = {"pinned_address_is_the_hosts": address == view.ctypes.data}
    for name, target, source in (
        ("to_device", first, address),
        ("to_host", address, first),
        ("on_device", second, first),
    ):

        def copy(target: int = target, source: int = source) -> None:
            on.copy_async(target, source, size, stream)

        rates[f"{name}_bytes_per_s"] = round(size / milliseconds(on, stream, copy) * 1e3)
    on.close()
    return rates


def kernel() -> Figures:
    """Layer norm of ours: eager and replayed, equal bits, against NumPy; launches of both kinds."""
    on = device()
    stream, generator = on.stream(), np.random.default_rng(0)
    x, gamma, beta = (
        generator.standard_normal(shape, np.float32) for shape in (ROWS, ROWS[1:], ROWS[1:])
    )
    call, y = layer_norm(on, x, gamma, beta)
    began = time.perf_counter()
    on.load({call.source: [call.function]})
    compiled_s = time.perf_counter() - began
    on.issue(call, stream)
    settle(on, stream)
    eager = host_copy(on, y, ROWS, np.float32)
    centred = x - x.mean(-1, keepdims=True)
    right = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gamma + beta
    worst = float(np.abs(eager - right).max())
    assert worst < 1e-4, f"layer norm is off by {worst}"
    graph = captured(on, stream, lambda: on.issue(call, stream))
    on.issue(Clear(bound(y), eager.nbytes), stream)
    on.replay(graph, stream)
    settle(on, stream)
    assert np.array_equal(host_copy(on, y, ROWS, np.float32), eager), "a replay gives other bits"
    time_ms = milliseconds(on, stream, lambda: on.issue(call, stream))
    small, _ = layer_norm(on, *(np.ones(shape, np.float32) for shape in ((1, 64), 64, 64)))
    on.load({small.source: [small.function]})
    began = time.perf_counter()
    for _ in range(1000):
        on.issue(small, stream)
    issued_us = (time.perf_counter() - began) * 1e3
    settle(on, stream)
    replayed_us = milliseconds(on, stream, lambda: on.issue(small, stream)) * 1e3
    on.close()
    return {
        "compile_s": round(compiled_s, 3),
        "error": worst,
        "layer_norm_ms": time_ms,
        "bytes_per_s": round(2 * eager.nbytes / time_ms * 1e3),
        "eager_launch_us": round(issued_us, 2),
        "kernel_of_a_graph_us": round(replayed_us, 2),
    }


def layer_norm(
    on: CupyDevice, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray
) -> tuple[Launch, int]:
    """Layer norm of float32 rows, and the address where its result will lie."""
    rows, columns = x.shape
    shards = [whole_shard(shape, "float32") for shape in ((rows, columns), (columns,), (rows,))]
    context = KernelContext(
        kind="layer_norm",
        name="layer_norm",
        labels="r d, d, d -> r d, r, r",
        attributes={"epsilon": 1e-5},
        inputs=(shards[0], shards[1], shards[1]),
        outputs=(shards[0], shards[2], shards[2]),
        run=RunState(seed=0, dataset=None, global_batch=1, microbatches=1, batch=1),
    )
    places = {
        "read": [put(on, x), put(on, gamma), put(on, beta)],
        "write": [y := on.allocate(x.nbytes), on.allocate(4 * rows), on.allocate(4 * rows)],
    }
    (call,) = (
        placed(operand_call, lambda operand: bound(places[operand.role][operand.number]))
        for operand_call in make_calls(context).of(0)
    )
    assert isinstance(call, Launch)
    return call, y


def product() -> Figures:
    """A bf16 product by cuBLASLt into memory that was there before, captured and replayed."""
    on = device()
    stream, generator = on.stream(), np.random.default_rng(1)
    a, b = (bfloat16(generator.standard_normal((512, 512), np.float32)) for _ in range(2))
    call, d = square_product(on, a, b)
    graph = captured(on, stream, lambda: on.issue(call, stream))
    on.issue(Clear(bound(d), a.nbytes), stream)
    on.replay(graph, stream)
    settle(on, stream)
    result, right = widened(host_copy(on, d, a.shape, np.uint16)), widened(a) @ widened(b)
    worst = float((np.abs(result - right) / np.abs(right).max()).max())
    assert worst < 2**-8, f"the product is off by {worst} of its largest value"
    a, b = (bfloat16(generator.standard_normal((PRODUCT,) * 2, np.float32)) for _ in range(2))
    call, _ = square_product(on, a, b)
    time_ms = milliseconds(on, stream, lambda: on.issue(call, stream))
    on.check()
    on.close()
    return {
        "error": worst,
        "product_ms": time_ms,
        "tflops_per_s": round(2 * PRODUCT**3 / time_ms / 1e9, 1),
    }


def square_product(on: CupyDevice, a: np.ndarray, b: np.ndarray) -> tuple[ProductCall, int]:
    """Product of bf16 squares in device memory, and the address where its result will lie."""
    size, d = len(a), on.allocate(a.nbytes)
    sides = (
        Matrices(bound(address), "bfloat16", size, 1, size * size)
        for address in (put(on, a), put(on, b), d)
    )
    return ProductCall(*sides, size, size, size, 1, "bf16"), d


def streams() -> Figures:
    """Two streams forked and joined by events inside one capture; an event that is not done yet."""
    on = device()
    first, second, size = on.stream(), on.stream(-1), 64 * 2**20
    first_copy, second_copy, third_copy = (on.allocate(size) for _ in range(3))
    on.to_device(first_copy, np.full(size, 7, np.uint8))
    forked, joined = on.event(), on.event()

    def work() -> None:
        on.record(forked, first)
        on.wait(second, forked)
        on.copy_async(second_copy, first_copy, size, second)
        on.record(joined, second)
        on.wait(first, joined)
        on.copy_async(third_copy, second_copy, size, first)

    graph = captured(on, first, work)
    on.issue(Clear(bound(third_copy), size), first)
    on.replay(graph, first)
    after = on.event()
    on.record(after, first)
    early = on.done(after)
    on.synchronize(after)
    assert on.done(after)
    assert host_copy(on, third_copy, (size,), np.uint8).min() == 7, "the branches did not wait"
    on.check()
    on.close()
    return {"done_at_once": early}


def nccl() -> Figures:
    """Every collective of one rank in a capture, each warmed up before."""
    from millrace.executor.gpu.nccl import (
        LaneGroup,
        NcclCommunicator,
        exchange_ids,
        set_environment,
    )

    on = device()
    world = SimpleNamespace(rank=0, communicator=SimpleNamespace(allgather=lambda value: [value]))
    set_environment(world, 1, on.multiprocessors)
    group, stream, count = LaneGroup((0,), "dp"), on.stream(), 1 << 20
    failures: list[Exception] = []
    began = time.perf_counter()
    communicator = NcclCommunicator(
        0, exchange_ids(world, [group]), use_device=on.use, failed=failures.append, timeout_s=45
    )
    init_s = time.perf_counter() - began
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "rotate")
    communicator.warm_up({group: kinds}, on.allocate(64), stream)
    settle(on, stream)
    values = bfloat16(np.random.default_rng(3).standard_normal(count, np.float32))
    send, recv, times = put(on, values), on.allocate(values.nbytes), {}
    for kind in kinds:
        call = Collective(kind, bound(send), bound(recv), count, "bfloat16")
        on.begin_capture(stream)
        communicator.issue(call, group, stream)
        graph = on.end_capture(stream)
        on.issue(Clear(bound(recv), values.nbytes), stream)
        on.replay(graph, stream)
        settle(on, stream)
        assert np.array_equal(host_copy(on, recv, values.shape, np.uint16), values), kind
        del graph
        times[f"{kind}_ms"] = milliseconds(
            on, stream, lambda call=call: communicator.issue(call, group, stream)
        )
    communicator.check()
    assert not failures, failures
    communicator.close()
    on.close()
    return {"init_s": round(init_s, 2), "max_ctas": os.environ["NCCL_MAX_CTAS"], **times}


def asynchronous_error() -> Figures:
    """A kernel that writes where nothing is: a wait, `done` and `check` all say so."""
    from millrace.executor.errors import ExecutorError

    on = device()
    stream = on.stream()
    call, y = layer_norm(on, *(np.ones(s, np.float32) for s in ((4, 64), 64, 64)))
    on.load({call.source: [call.function]})
    nowhere = placed(call, lambda operand: bound(64) if operand == bound(y) else operand)
    on.issue(nowhere, stream)
    event, heard = on.event(), {}
    on.record(event, stream)
    for name, ask in (
        ("synchronize", lambda: on.synchronize(event)),
        ("done", lambda: on.done(event)),
        ("check", on.check),
    ):
        try:
            ask()
        except ExecutorError as error:
            heard[name] = str(error)
    assert {"synchronize", "done", "check"} <= set(heard), f"only {sorted(heard)} said so"
    return heard


def no_memory() -> Figures:
    """More memory than there is: a sentence with figures, and the device goes on."""
    from millrace.executor.errors import ExecutorError

    on = device()
    try:
        on.allocate(2 * on.total_bytes)
    except ExecutorError as error:
        on.allocate(2**20)
        on.check()
        return {"said": str(error)}
    raise AssertionError("twice the memory of the device was found on it")


ITEMS: dict[str, Callable[[], Figures]] = {
    "memory": memory,
    "kernel": kernel,
    "product": product,
    "streams": streams,
    "nccl": nccl,
    "no_memory": no_memory,
    "asynchronous_error": asynchronous_error,
}
