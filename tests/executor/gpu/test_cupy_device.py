import ast
import inspect

import numpy as np
import pytest

from millrace.executor.cuda.binding import bind
from millrace.executor.cuda.calls import (
    CallTensor,
    Clear,
    Collective,
    CopyCall,
    Launch,
    Matrices,
    Operand,
    ProductCall,
    read,
)
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.cuda.kernels.multi_tensor.moves import cast
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu import cuda_graphs, cupy_device
from millrace.executor.gpu.cupy_device import CupyDevice
from millrace.executor.gpu.device import DeviceDriver, address_of
from millrace.executor.kernels.context import whole_shard
from tests.executor.cuda.calling import context_of
from tests.executor.cuda.emulation.machine import COMPILER
from tests.executor.gpu import cupy_in_memory
from tests.executor.gpu.cupy_in_memory import CONTEXT_BYTES, TOTAL_BYTES, Cupy, install
from tests.extras import optional


class NotingProducts:
    """A library of products that notes what is asked of it."""

    def __init__(self) -> None:
        self.planned: list[tuple] = []
        self.ran: list[tuple] = []
        self.closed = False

    def plan(self, product, workspace_bytes):
        self.planned.append((product, workspace_bytes))
        return len(self.planned)

    def run(self, planned, product, workspace, stream):
        self.ran.append((planned, product, workspace, stream))

    def close(self):
        self.closed = True


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Cupy:
    in_memory = install(monkeypatch)
    monkeypatch.setattr(cupy_device, "WORKSPACE_BYTES", 1 << 10)
    return in_memory


@pytest.fixture
def products() -> NotingProducts:
    return NotingProducts()


@pytest.fixture
def device(cupy: Cupy, products: NotingProducts) -> CupyDevice:
    return CupyDevice(1, lambda: products)


def operand_at(address: int) -> Operand:
    return Operand("address", 0, address)


def bytes_at(device: CupyDevice, address: int, count: int) -> list[int]:
    content = np.empty(count, np.uint8)
    device.to_host(content, address)
    return content.tolist()


def square(address: int) -> Matrices:
    return Matrices(operand_at(address), "bfloat16", 4, 1, 16)


def test_only_bound_operands_have_an_address() -> None:
    assert address_of(operand_at(1 << 40)) == 1 << 40
    with pytest.raises(ExecutorError, match=r"read\(2\), which is not bound"):
        address_of(read(2))


def test_it_has_everything_that_a_device_has_with_the_same_parameters(device: DeviceDriver) -> None:
    for name, asked in inspect.getmembers(DeviceDriver, inspect.isfunction):
        if name.startswith("_"):
            continue
        signature = inspect.signature(getattr(CupyDevice, name))
        assert list(signature.parameters) == list(inspect.signature(asked).parameters), name
    for name in DeviceDriver.__annotations__:
        assert hasattr(device, name), name


def test_it_knows_what_was_taken_before_and_what_is_free(device: CupyDevice, cupy: Cupy) -> None:
    assert cupy.cuda.runtime.device == 1
    assert (device.name, device.total_bytes) == ("memory", TOTAL_BYTES)
    assert device.context_bytes == CONTEXT_BYTES
    device.allocate(1 << 10)
    assert device.free_bytes() == TOTAL_BYTES - CONTEXT_BYTES - (1 << 10)


def test_memory_is_zero_and_copies_go_both_ways(device: CupyDevice) -> None:
    address = device.allocate(8)
    assert bytes_at(device, address, 8) == [0] * 8
    device.to_device(address, np.arange(16, dtype=np.uint8)[::2])
    assert bytes_at(device, address, 8) == [0, 2, 4, 6, 8, 10, 12, 14]
    with pytest.raises(ExecutorError, match="contiguous"):
        device.to_host(np.empty(16, np.uint8)[::2], address)


def test_pinned_memory_is_zero_and_seen_by_the_device(device: CupyDevice, cupy: Cupy) -> None:
    address, view = device.allocate_host(4)
    assert view.tolist() == [0] * 4
    view[:] = 9
    assert bytes_at(device, address, 4) == [9] * 4
    assert cupy.cuda.runtime.flags == [3], "portable and mapped"


def test_too_much_memory_is_refused_with_figures(device: CupyDevice) -> None:
    with pytest.raises(ExecutorError, match=r"4\.00 GiB are asked for, and 0\.06 GiB of its 0\.06"):
        device.allocate(1 << 32)


def test_clear_and_copy_are_replayed_not_done_while_captured(device: CupyDevice) -> None:
    stream, source, target = device.stream(), device.allocate(4), device.allocate(4)
    device.to_device(source, np.full(4, 5, np.uint8))
    device.begin_capture(stream)
    device.issue(CopyCall(operand_at(source), operand_at(target), 4), stream)
    device.issue(Clear(operand_at(source), 4), stream)
    graph = device.end_capture(stream)
    assert bytes_at(device, target, 4) == [0] * 4
    device.replay(graph, stream)
    assert bytes_at(device, target, 4) == [5] * 4
    assert bytes_at(device, source, 4) == [0] * 4


def test_a_stream_that_waits_for_a_captured_one_is_captured_too(device: CupyDevice) -> None:
    first, second = device.stream(), device.stream(-1)
    source, target = device.allocate(1), device.allocate(1)
    device.to_device(source, np.full(1, 3, np.uint8))
    forked, joined = device.event(), device.event()
    device.begin_capture(first)
    device.record(forked, first)
    device.wait(second, forked)
    device.issue(CopyCall(operand_at(source), operand_at(target), 1), second)
    device.record(joined, second)
    device.wait(first, joined)
    graph = device.end_capture(first)
    assert bytes_at(device, target, 1) == [0]
    device.replay(graph, first)
    assert bytes_at(device, target, 1) == [3]


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
def test_a_kernel_runs_with_pointers_values_and_shared_memory(
    device: CupyDevice, cupy: Cupy
) -> None:
    rows, columns = 3, 40
    generator = np.random.default_rng(0)
    values = [generator.standard_normal(s) for s in ((rows, columns), columns, columns)]
    shards = [whole_shard(value.shape, "float64") for value in values]
    outputs = [shards[0], *(whole_shard((rows,), "float64") for _ in range(2))]
    (call,) = make_calls(
        context_of("layer_norm", "b d, d, d -> b d, b, b", shards, outputs)
    ).of(0)  # fmt: skip
    reads = [device.allocate(value.nbytes) for value in values]
    writes = [device.allocate(8 * shard.size) for shard in outputs]
    for address, value in zip(reads, values, strict=True):
        device.to_device(address, value)
    places = {"read": reads, "write": writes}
    assert isinstance(call, Launch)
    bind = call._replace(
        args=tuple(
            operand_at(places[arg.role][arg.number]) if isinstance(arg, Operand) else arg
            for arg in call.args
        )
    )
    stream = device.stream()
    with pytest.raises(ExecutorError, match="was not loaded"):
        device.issue(bind, stream)
    device.load({call.source: [call.function]})
    device.load({call.source: [call.function]})
    device.issue(bind, stream)
    assert cupy.shared_bytes[call.function] == (0, 48 << 10)
    for size_bytes in (1 << 10, 96 << 10, 64 << 10):
        device.issue(bind._replace(shared_bytes=size_bytes), stream)
        allowed = (48 if size_bytes == 1 << 10 else 96) << 10
        assert cupy.shared_bytes[call.function] == (size_bytes, allowed)
    output = np.empty((rows, columns))
    device.to_host(output, writes[0])
    x, gamma, beta = values
    centred = x - x.mean(-1, keepdims=True)
    right = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gamma + beta
    np.testing.assert_allclose(output, right, atol=1e-12)


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
def test_a_kernel_takes_many_pointers_by_value(device: CupyDevice) -> None:
    sizes = (3, 70, 1)
    values = [np.arange(size, dtype=np.float32) + size for size in sizes]
    sources, targets = ([device.allocate(4 * size) for size in sizes] for _ in range(2))
    for address, value in zip(sources, values, strict=True):
        device.to_device(address, value)
    calls = cast(
        [
            (
                CallTensor(operand_at(source), "float32", size),
                CallTensor(operand_at(target), "float32", size),
            )
            for source, target, size in zip(sources, targets, sizes, strict=True)
        ]
    )
    table = device.allocate(calls.tables[0].nbytes)
    device.to_device(table, calls.tables[0])
    (launch,) = (
        bind(call, lambda o: operand_at(table) if o.role == "table" else o) for call in calls.of(0)
    )
    assert isinstance(launch, Launch)
    device.load({launch.source: [launch.function]})
    device.issue(launch, device.stream())
    for address, value in zip(targets, values, strict=True):
        array = np.empty_like(value)
        device.to_host(array, address)
        np.testing.assert_array_equal(array, value)


def test_a_source_that_does_not_compile_is_named_with_the_compilers_words(
    device: CupyDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cupy_device, "source_text", lambda stem: "broken")
    with pytest.raises(ExecutorError, match=r"`sources/x\.cu` does not compile .*\n.*\"broken\""):
        device.load({"x": ["f<float>"]})


def test_products_are_planned_once_and_have_a_workspace_per_stream(
    device: CupyDevice, products: NotingProducts
) -> None:
    first, second = device.stream(), device.stream()
    a, b, d = (device.allocate(32) for _ in range(3))
    call = ProductCall(square(a), square(b), square(d), 4, 4, 4, 1, "bf16")
    device.prepare(call, first)
    for stream in (first, second, second):
        device.issue(call, stream)
    assert products.planned == [(call, 1 << 10)]
    assert [ran[:2] for ran in products.ran] == [(1, call)] * 3
    assert [ran[3] for ran in products.ran] == [first, second, second]
    assert products.ran[0][2] != products.ran[1][2] == products.ran[2][2]
    device.close()
    assert products.closed


def test_a_product_that_is_captured_before_it_is_prepared_is_refused(device: CupyDevice) -> None:
    stream, address = device.stream(), device.allocate(32)
    call = ProductCall(*[square(address)] * 3, 4, 4, 4, 1, "bf16")
    device.begin_capture(stream)
    with pytest.raises(ExecutorError, match=r"\[4, 4\] and \[4, 4\] was captured before"):
        device.issue(call, stream)


def test_collectives_are_not_the_devices(device: CupyDevice) -> None:
    with pytest.raises(ExecutorError, match="all_reduce is for a communicator"):
        device.issue(
            Collective("all_reduce", operand_at(0), operand_at(0), 1, "float32"), device.stream()
        )


def test_a_failure_on_the_device_is_told_by_every_question(device: CupyDevice, cupy: Cupy) -> None:
    event = device.event()
    cupy.cuda.runtime.status = 600
    assert not device.done(event)
    device.check()
    cupy.cuda.runtime.status = 700
    for ask in (lambda: device.done(event), lambda: device.synchronize(event), device.check):
        with pytest.raises(ExecutorError, match=r"failed on GPU 1 \(memory\): cudaError 700"):
            ask()


def test_a_copy_that_meets_an_earlier_failure_says_so(device: CupyDevice, cupy: Cupy) -> None:
    address = device.allocate(1)
    cupy.cuda.runtime.status = 700
    with pytest.raises(ExecutorError, match=r"failed on GPU 1 .* CUDA_LAUNCH_BLOCKING=1"):
        device.to_device(address, np.zeros(1, np.uint8))


def test_a_refused_call_is_a_failure_of_the_device(
    device: CupyDevice, cupy: Cupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise cupy_in_memory.CUDADriverError("CUDA_ERROR_INVALID_VALUE")

    monkeypatch.setattr(cupy.cuda.runtime, "memsetAsync", refuse)
    with pytest.raises(ExecutorError, match="CUDA_ERROR_INVALID_VALUE"):
        device.issue(Clear(operand_at(64), 4), device.stream())


def test_a_spoilt_capture_names_the_way_without_graphs(device: CupyDevice, cupy: Cupy) -> None:
    stream = device.stream()
    device.begin_capture(stream)
    cupy.work.spoilt = True
    with pytest.raises(ExecutorError, match=r"could not be captured on GPU 1 .* --eager"):
        device.end_capture(stream)


def test_a_graph_keeps_priorities_and_goes_with_its_last_reference(
    device: CupyDevice, cupy: Cupy
) -> None:
    runtime, stream = cupy.cuda.runtime, device.stream()
    device.begin_capture(stream)
    graph = device.end_capture(stream)
    assert runtime.instantiated == [8], "per-node priorities"
    assert not runtime.graphs
    assert list(runtime.executables) == [graph.handle]
    runtime.status = 700  # a context that has failed destroys nothing, and may not say so here
    del graph
    assert not runtime.executables


def test_a_graph_that_the_driver_refuses_names_the_way_without_graphs(
    device: CupyDevice, cupy: Cupy
) -> None:
    stream = device.stream()
    device.begin_capture(stream)
    cupy.work.unlaunchable = True
    with pytest.raises(ExecutorError, match=r"cuGraphInstantiateWithFlags returned .*1; --eager"):
        device.end_capture(stream)
    assert not cupy.cuda.runtime.graphs


def test_times_are_whole_nanoseconds(device: CupyDevice) -> None:
    start, end = device.event(timed=True), device.event(timed=True)
    assert device.elapsed_ns(start, end) == 4_000_000


def test_ranges_are_named_while_they_last(device: CupyDevice, cupy: Cupy) -> None:
    with device.range("block.0.norm"), device.range("its launch"):
        assert cupy.names == ["block.0.norm", "its launch"]
    assert cupy.names == []


def test_closing_gives_everything_back(device: CupyDevice, cupy: Cupy) -> None:
    device.allocate(8)
    device.allocate_host(8)
    device.close()
    assert not cupy.cuda.runtime.buffers


def test_closing_after_a_failure_leaves_the_first_error_to_be_told(
    device: CupyDevice, cupy: Cupy
) -> None:
    def lend_and_fail() -> None:
        try:
            with device.scratch(8):
                cupy.cuda.runtime.status = 700
                raise ExecutorError("this was first")
        finally:
            device.close()

    with pytest.raises(ExecutorError, match="this was first"):
        lend_and_fail()


def test_a_failure_that_nobody_has_told_is_told_by_closing(device: CupyDevice, cupy: Cupy) -> None:
    cupy.cuda.runtime.status = 700
    with pytest.raises(ExecutorError, match=r"failed on GPU 1 \(memory\): cudaError 700"):
        device.close()


def test_every_name_that_is_asked_of_cupy_is_there() -> None:
    cupy = optional("cupy", "cuda")
    owners = {"runtime", "_runtime"}
    asked = {
        node.attr
        for module in (cupy_device, cuda_graphs)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Attribute)
        and getattr(node.value, "id", getattr(node.value, "attr", None)) in owners
    }
    assert len(asked) > 15
    assert not [name for name in sorted(asked) if not hasattr(cupy.cuda.runtime, name)]
    assert cupy.cuda.compiler.CompileException
    assert issubclass(cupy.cuda.driver.CUDADriverError, RuntimeError)
    assert {"kernel", "max_dynamic_shared_size_bytes"} <= set(dir(cupy.RawKernel))
    for value in ("memcpyDefault", "hostAllocPortable", "hostAllocMapped"):
        assert getattr(cupy.cuda.runtime, value) == getattr(cupy_in_memory.Runtime, value)
