"""The door to cuDNN: when it opens, what it tells the front end, and what it is not asked for."""

import inspect
import re
import sys
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from millrace.executor.cuda.binding import bound_library
from millrace.executor.cuda.calls import (
    Attention,
    AttentionGrad,
    Convolution,
    LibraryCall,
    Operand,
    Strided,
)
from millrace.executor.cuda.kernels.images.convolution_library import (
    FORWARD,
    GRAD_INPUT,
    GRAD_WEIGHT,
    convolution_call,
)
from millrace.executor.cuda.kernels.images.windows import ConvolutionSizes, Dim
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.cudnn import cudnn_graphs
from millrace.executor.gpu.cudnn.cudnn_graphs import post_padding
from millrace.executor.gpu.cudnn.cudnn_loading import cudnn_library
from millrace.executor.gpu.cudnn.issuing import RESERVE_BYTES, SHARE, LibraryCalls
from millrace.executor.gpu.cudnn.library import CudnnLibrary
from millrace.executor.gpu.cudnn.limits import refusal
from tests.executor.cuda.emulation.machine import to_stored, to_wide
from tests.executor.cuda.emulation.networks import carry_out, reach_bytes, strided_memory
from tests.executor.gpu import cudnn_in_memory
from tests.executor.gpu.cudnn_in_memory import Cudnn
from tests.extras import optional

ENOUGH = 1 << 20


@pytest.fixture
def cudnn() -> Cudnn:
    return Cudnn()


@pytest.fixture
def library(cudnn: Cudnn) -> CudnnLibrary:
    return CudnnLibrary(cudnn)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, cudnn: Cudnn) -> Cudnn:
    monkeypatch.setitem(sys.modules, "cudnn", cudnn)  # type: ignore[arg-type]
    return cudnn


def tensor(dtype: str, *strides: int) -> Strided:
    return Strided(Operand("address"), dtype, strides)


def attention(dtype: str = "bfloat16", *, turned: bool = False, **changes: object) -> Attention:
    """Attention of 2 samples, 4 heads, 2 of keys, 128 queries and keys, in the op's order."""
    b, h, g, t, s, d, u = 2, 4, 2, 128, 128, 8, 16
    return Attention(
        q=tensor(dtype, t * h * d, d, h * d, 1),
        k=tensor(dtype, s * g * d, d, g * d, 1),
        v=tensor(dtype, s * g * u, u, g * u, 1),
        out=tensor(dtype, t * h * u, u, h * u, 1),
        logsumexp=tensor("float32", *((t * h, 1, h) if not turned else (h * t, t, 1))),
        b=b, h=h, g=g, t=t, s=s, d=d, u=u, scale=0.5,
    )._replace(**changes)  # fmt: skip


def attention_grad(**changes: object) -> AttentionGrad:
    forward = attention(**changes)  # type: ignore[arg-type]
    return AttentionGrad(forward, dout=forward.out, dq=forward.q, dk=forward.k, dv=forward.v)


SIZES = ConvolutionSizes(
    b=2, g=2, c=3, n=4, y=Dim(7, 4, 3, 2, 1, 1), x=Dim(6, 6, 3, 1, 2, 2), dtype="float16"
)


def convolution(direction: str, **changes: object) -> Convolution:
    operands = Operand("address"), Operand("address"), Operand("address")
    return convolution_call(direction, SIZES, operands, "fp16")._replace(**changes)


CALLS: dict[str, LibraryCall] = {
    "plain": attention(),
    "causal": attention("float16", ahead=1),
    "window": attention(ahead=1, behind=20),
    "band": attention(ahead=30, behind=20, turned=True),
    "grad": attention_grad(ahead=1),
    "grad of a band": attention_grad(dtype="float16", ahead=9, behind=20, turned=True),
    **{direction: convolution(direction) for direction in (FORWARD, GRAD_INPUT, GRAD_WEIGHT)},
    "uneven": convolution(FORWARD, image_size=(9, 6)),
}


class Places:
    """Memory of the tensors of a call, full of numbers."""

    def __init__(self, call: LibraryCall) -> None:
        rng = np.random.default_rng(0)
        self.rooms = []
        for tensor, sizes in zip(call.tensors, call.sizes, strict=True):
            item = 4 if tensor.dtype == "float32" else 2
            values = rng.standard_normal(reach_bytes(tensor, sizes) // item).astype(np.float32)
            self.rooms.append(to_stored(values, tensor.dtype))
        self.addresses = tuple(room.ctypes.data for room in self.rooms)

    def placed(self, call: LibraryCall) -> LibraryCall:
        addresses = iter(self.addresses)
        return bound_library(call, lambda operand: Operand("address", 0, next(addresses)))

    def carry_out(self, call: LibraryCall) -> None:
        arrays = [
            strided_memory(address, tensor, sizes)
            for address, tensor, sizes in zip(self.addresses, call.tensors, call.sizes, strict=True)
        ]
        carry_out(call, arrays, to_wide, to_stored)


@pytest.mark.parametrize("name", CALLS)
def test_a_plan_computes_its_call(name: str, library: CudnnLibrary, cudnn: Cudnn) -> None:
    call = CALLS[name]
    expected, actual = Places(call), Places(call)
    expected.carry_out(call)
    planned = library.plan(call, ENOUGH)
    assert planned is not None
    scratch = np.zeros(cudnn.workspace_bytes, np.uint8)
    library.run(planned, actual.addresses, scratch.ctypes.data, 7)
    assert cudnn.stream == 7
    changed = 0
    for room, expected_room, before in zip(
        actual.rooms, expected.rooms, Places(call).rooms, strict=True
    ):
        np.testing.assert_array_equal(room, expected_room)
        changed += not np.array_equal(room, before)
    assert changed == {Attention: 2, AttentionGrad: 3, Convolution: 1}[type(call)]


@pytest.mark.parametrize("deterministic", [False, True])
def test_kernels_that_compute_in_less_or_if_asked_in_no_fixed_order_are_left_out(
    installed: Cudnn, deterministic: bool
) -> None:
    library = cudnn_library({}, deterministic=deterministic)
    assert library is not None
    unordered = ["NONDETERMINISTIC"] * deterministic
    library.plan(convolution(FORWARD), ENOUGH)
    assert installed.graphs[-1].notes == [*cudnn_graphs.NOTES, *unordered]
    library.plan(convolution(FORWARD, arithmetic="fp32"), ENOUGH)
    assert installed.graphs[-1].notes == [*cudnn_graphs.NOTES, *unordered, "TENSOR_CORE"]
    for call, told in ((attention(), None), (attention_grad(), deterministic)):
        library.plan(call, ENOUGH)
        assert (installed.graphs[-1].notes, installed.graphs[-1].deterministic) == ([], told)


def test_what_the_library_has_no_plan_for_is_kept_with_its_words(
    library: CudnnLibrary, cudnn: Cudnn
) -> None:
    cudnn.reason = "head dim"
    assert library.plan(attention(), ENOUGH) is None
    assert library.refused == {attention(): "head dim"}
    cudnn.reason = None
    assert library.plan(attention(ahead=1), cudnn.workspace_bytes - 1) is None
    assert library.plan(attention(ahead=1), cudnn.workspace_bytes) is not None


@pytest.mark.parametrize(
    ("call", "version", "reason"),
    [
        (attention(), 92600, None),
        (attention(), 92500, "order b h t"),
        (attention(turned=True), 92500, None),
        (attention_grad(), 92500, "order b h t"),
        (attention(t=64), 92600, "64 queries and 128 keys"),
        (attention_grad(s=192), 92600, "128 queries and 192 keys"),
        (attention(d=12), 92600, "heads of 12 and 16"),
        (attention(u=264), 92600, "heads of 8 and 264"),
        (attention("float32"), 92600, "float32"),
        (convolution(FORWARD), 91200, None),
        (convolution(FORWARD, image=tensor("float64", 1, 1, 1, 1)), 92600, "dtype"),
    ],
)
def test_known_faults_are_not_asked_for(call: LibraryCall, version: int, reason: str) -> None:
    refused = refusal(call, version)
    assert refused is None if reason is None else reason in str(refused)


def test_padding_behind_is_that_before_where_it_makes_as_many_places() -> None:
    assert post_padding(convolution(FORWARD)) == (1, 2)
    assert post_padding(convolution(FORWARD, image_size=(9, 6), output_size=(4, 6))) == (0, 2)
    assert post_padding(convolution(FORWARD, image_size=(8, 6), output_size=(5, 6))) == (2, 2)


class CountedMemory:
    """A device's memory, which is only counted."""

    def __init__(
        self, total_bytes: int = ENOUGH * SHARE, taken_bytes: int = -RESERVE_BYTES
    ) -> None:
        self.total_bytes, self.taken_bytes = total_bytes, taken_bytes
        self.allocations: list[int] = []

    def free_bytes(self) -> int:
        return self.total_bytes - self.taken_bytes - sum(self.allocations)

    def allocate(self, size_bytes: int) -> int:
        self.allocations.append(size_bytes)
        return 4096 * len(self.allocations)

    def free(self, address: int) -> None:
        assert address == 4096 * len(self.allocations), "only the last is given back here"
        self.allocations.pop()


class Noting:
    """A library whose plans take `b h t s 2` bytes, or as many as there are queries."""

    def __init__(self, *, squares: bool = False) -> None:
        self.limits: list[int] = []
        self.ran: list[tuple[int, int]] = []
        self.closed, self._squares = False, squares

    def plan(self, call: LibraryCall, workspace_bytes: int) -> SimpleNamespace | None:
        self.limits.append(workspace_bytes)
        assert isinstance(call, Attention)
        needed = 2 * call.b * call.h * call.t * call.s if self._squares else call.t
        fits = call.d == 8 and needed <= workspace_bytes
        return SimpleNamespace(workspace_bytes=needed) if fits else None

    def run(
        self, planned: SimpleNamespace, addresses: tuple[int, ...], workspace: int, stream: int
    ) -> None:
        self.ran.append((workspace, stream))

    def close(self) -> None:
        self.closed = True


def test_a_stream_has_one_workspace_as_large_as_any_of_its_calls_needs() -> None:
    memory, library = CountedMemory(), Noting()
    calls = LibraryCalls(memory, lambda: library)
    for queries, stream in ((128, 1), (512, 1), (256, 1), (128, 2)):
        calls.prepare(attention(t=queries), stream)
    assert memory.allocations == [], "not before it is known how large"
    calls.issue(attention(t=256), 1, captured=False)
    assert memory.allocations == [512, 128]
    assert calls.workspace_bytes == 640
    calls.issue(attention(t=512), 1, captured=True)
    calls.issue(attention(t=128), 2, captured=True)
    first_address, second_address = 4096, 4096 * 2
    assert library.ran == [(first_address, 1), (first_address, 1), (second_address, 2)]
    assert library.limits == [ENOUGH] * 3, "calls that differ in places alone share a plan"
    calls.close()
    assert library.closed


def test_a_workspace_is_never_taken_while_a_stream_is_captured() -> None:
    memory = CountedMemory()
    calls = LibraryCalls(memory, Noting)
    with pytest.raises(ExecutorError, match=r"prepared .* attention b 2 h 4"):
        calls.issue(attention(), 1, captured=True)
    calls.prepare(attention(), 1)
    calls.reserve()
    calls.issue(attention(), 1, captured=True)
    with pytest.raises(ExecutorError, match="captured before it was prepared"):
        calls.issue(attention(t=256), 1, captured=True)
    assert memory.allocations == [128]


def test_a_call_is_supported_where_it_is_planned_and_aligned() -> None:
    calls = LibraryCalls(CountedMemory(), Noting)
    assert calls.supports(attention())
    assert not calls.supports(attention(d=16))
    away = bound_library(attention(), lambda operand: Operand("address", 0, 8))
    assert not calls.supports(away)
    assert not LibraryCalls(CountedMemory(), lambda: None).supports(attention())
    with pytest.raises(ExecutorError, match="no attention b 2"):
        LibraryCalls(CountedMemory(), lambda: None).prepare(attention(), 1)


def test_what_was_only_tried_leaves_no_scratch_behind() -> None:
    memory = CountedMemory()
    calls = LibraryCalls(memory, Noting)
    calls.prepare(attention(), 1)
    with calls.trial():
        calls.issue(attention(t=512), 1, captured=False)
        assert memory.allocations == [512]
    assert (memory.allocations, calls.workspace_bytes) == ([], 0)
    calls.reserve()
    with calls.trial():
        calls.issue(attention(), 1, captured=False)
    assert (memory.allocations, calls.workspace_bytes) == ([128], 128)


# 32 heads of four samples over 4,096 places take these bytes backward where sums have one order.
LLAMA = attention(b=4, h=32, t=4096, s=4096)
LLAMA_BYTES = 4 * 2**30
H100, H200 = 79 * 2**30, 140 * 2**30


@pytest.mark.parametrize(
    ("total_bytes", "free_bytes", "limit"),
    [
        (H100, 40 * 2**30, H100 // 8),
        (H200, 100 * 2**30, H200 // 8),
        (H100, LLAMA_BYTES + RESERVE_BYTES, LLAMA_BYTES),
        (H100, LLAMA_BYTES + RESERVE_BYTES - 1, LLAMA_BYTES - 1),
        (LLAMA_BYTES * 8 - 8, LLAMA_BYTES * 6, LLAMA_BYTES - 1),
        (H100, 0, 0),
    ],
)
def test_a_call_may_take_an_eighth_of_all_memory_and_leaves_what_others_need(
    total_bytes: int, free_bytes: int, limit: int
) -> None:
    library = Noting(squares=True)
    calls = LibraryCalls(CountedMemory(total_bytes, total_bytes - free_bytes), lambda: library)
    assert calls.supports(LLAMA) == (limit >= LLAMA_BYTES)
    assert library.limits == [limit]


def test_what_a_stream_needs_anyway_is_room_for_its_other_calls() -> None:
    memory = CountedMemory(H100, H100 - LLAMA_BYTES - RESERVE_BYTES)
    library = Noting(squares=True)
    calls = LibraryCalls(memory, lambda: library)
    calls.prepare(LLAMA, 1)
    calls.reserve()
    assert memory.free_bytes() == RESERVE_BYTES
    calls.issue(LLAMA._replace(ahead=1), 1, captured=False)
    assert memory.allocations == [LLAMA_BYTES]


def test_it_is_opened_where_it_is_installed_and_not_turned_off(installed: Cudnn) -> None:
    library = cudnn_library({})
    assert library is not None
    assert library.version == 92600
    assert cudnn_library({"MILLRACE_CUDNN": "on"}) is not None
    assert cudnn_library({"MILLRACE_CUDNN": "off"}) is None
    with pytest.raises(ExecutorError, match="MILLRACE_CUDNN is 'no': set it to one of auto, on"):
        cudnn_library({"MILLRACE_CUDNN": "no"})
    assert len(installed.handles) == 2
    library.close()
    assert len(installed.handles) == 1


def lacks_library(cudnn: Cudnn) -> None:
    def missing() -> int:
        raise RuntimeError("Unable to find symbol cudnnGetVersion")

    cudnn.backend_version = missing  # type: ignore[method-assign]


def lacks_device(cudnn: Cudnn) -> None:
    def missing() -> int:
        raise RuntimeError("cudaGetDeviceCount")

    cudnn.create_handle = missing  # type: ignore[method-assign]


def is_old(cudnn: Cudnn) -> None:
    cudnn.version = 91103


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lacks_library, "cuDNN itself was not found"),
        (lacks_device, "cuDNN finds no device"),
        (is_old, r"9\.12\.0 or later is needed, found 9\.11\.3"),
    ],
)
def test_what_is_missing_is_told_where_it_must_be_there(
    spoil: Callable[[Cudnn], None], words: str, installed: Cudnn
) -> None:
    spoil(installed)
    assert cudnn_library({}) is None
    with pytest.raises(ExecutorError, match=f"MILLRACE_CUDNN is on, but .*{words}"):
        cudnn_library({"MILLRACE_CUDNN": "on"})


def test_a_missing_front_end_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cudnn", None)
    assert cudnn_library({}) is None
    with pytest.raises(ExecutorError, match=r"cannot be imported .* nvidia-cudnn-frontend"):
        cudnn_library({"MILLRACE_CUDNN": "on"})


def test_a_failure_names_the_call(library: CudnnLibrary, cudnn: Cudnn) -> None:
    planned = library.plan(attention(), ENOUGH)
    assert planned is not None

    def fail(**told: object) -> None:
        raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")

    cudnn.set_stream = fail  # type: ignore[method-assign]
    with pytest.raises(ExecutorError, match=r"attention b 2 h 4 .*EXECUTION_FAILED"):
        library.run(planned, (), 0, 1)


def parameters(function: object) -> list[str]:
    """Names of the parameters: of Python's own functions, or as pybind writes them down."""
    try:
        return list(inspect.signature(function).parameters)  # type: ignore[arg-type]
    except ValueError:
        lines = (function.__doc__ or "").splitlines()
        signatures = [line for line in lines if re.match(r"(\d\. )?\w+\(\w+:", line)]
        return [name for line in signatures for name in re.findall(r"[(,] ?(\w+):", line)]


@pytest.mark.parametrize("name", sorted(vars(cudnn_in_memory.CudnnGraph)))
def test_the_real_graph_has_what_the_one_in_memory_has(name: str) -> None:
    cudnn = optional("cudnn", "cuda")
    if name.startswith("_") and name != "__init__":
        return
    ours = [
        parameter
        for parameter in parameters(getattr(cudnn_in_memory.CudnnGraph, name))
        if parameter != "cudnn"
    ]
    theirs = parameters(getattr(cudnn.pygraph, name))
    by_name = [
        parameter
        for parameter in ours
        if parameter not in ("self", "modes", "limit", "notes", "policy")
    ]
    assert set(by_name) <= set(theirs), theirs


def test_the_real_module_has_what_the_one_in_memory_has(cudnn: Cudnn) -> None:
    real = optional("cudnn", "cuda")
    for name in ("data_type", "heur_mode", "build_plan_policy", "numerical_note"):
        members = {member.name for member in getattr(cudnn, name)}
        assert members <= set(getattr(real, name).__members__), name
    for name in ("backend_version", "create_handle", "destroy_handle", "pygraph"):
        assert callable(getattr(real, name))
    assert issubclass(real.cudnnGraphNotSupportedError, Exception)
    assert parameters(real.set_stream) == ["handle", "stream"]
    for name in vars(cudnn_in_memory.CudnnTensor):
        if name.startswith("set_"):
            assert hasattr(real.tensor, name)
