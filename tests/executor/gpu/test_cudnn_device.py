"""A device that picks among a library and kernels, before a step is captured."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from millrace.executor.cuda.binding import bind, leaves
from millrace.executor.cuda.calls import Call, Clear, CopyCall, KernelAlternatives, Operand
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu import cupy_device
from millrace.executor.gpu.cudnn import issuing
from millrace.executor.gpu.cudnn.library import CudnnLibrary
from millrace.executor.gpu.cupy_device import CupyDevice
from millrace.executor.gpu.gemm import tuning
from millrace.executor.gpu.gemm.tuning import Tuner
from millrace.executor.kernels.context import Array, whole_shard
from tests.executor.cuda.call_trees import last_options, operands_of
from tests.executor.cuda.calling import context_of, loaded, to_device
from tests.executor.examples.attention import Form
from tests.executor.gpu.cudnn_in_memory import Cudnn
from tests.executor.gpu.cupy_in_memory import Cupy, install

CAUSAL = {"causal": True, "scale": 0.5}
SHAPE = (1, 128, 2, 8)
STATISTICS = whole_shard(SHAPE[:-1], "float32")
ROWS = whole_shard(SHAPE, "bfloat16")


def operand_at(address: int) -> Operand:
    return Operand("address", 0, address)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Cupy:
    in_memory = install(monkeypatch)
    monkeypatch.setattr(cupy_device, "WORKSPACE_BYTES", 1 << 10)
    monkeypatch.setattr(issuing, "RESERVE_BYTES", 0)
    return in_memory


@pytest.fixture
def cudnn(cupy: Cupy) -> Cudnn:
    return Cudnn(cupy.work.do)


@pytest.fixture
def device(cudnn: Cudnn) -> CupyDevice:
    return CupyDevice(0, lambda: None, lambda: CudnnLibrary(cudnn))  # type: ignore[arg-type,return-value]


class PlacedAttention:
    """Attention on a device, causal, over operands in its memory."""

    def __init__(self, device: CupyDevice) -> None:
        self._device = device
        context = context_of(
            "attention", Form(attributes=CAUSAL).labels[0], [ROWS] * 3, [ROWS, STATISTICS], CAUSAL
        )
        calls = make_calls(context)
        rng = np.random.default_rng(0)
        self.input_arrays = [to_device(rng.standard_normal(SHAPE), "bfloat16") for _ in range(3)]
        self.reads = [device.allocate(array.nbytes) for array in self.input_arrays]
        for address, array in zip(self.reads, self.input_arrays, strict=True):
            device.to_device(address, array)
        self.writes = [device.allocate(2 * ROWS.size), device.allocate(4 * STATISTICS.size)]
        places = {
            "read": self.reads,
            "write": self.writes,
            "workspace": [device.allocate(calls.workspace_bytes)],
            "table": [device.allocate(table.nbytes) for table in calls.tables],
        }
        (call,) = calls.of(0)
        placed = bind(
            call,
            lambda operand: operand_at(places[operand.role][operand.number] + operand.offset_bytes),
        )
        assert isinstance(placed, KernelAlternatives)
        # Ours makes a sign that can be told from what the library makes.
        self.choice = KernelAlternatives(
            (*placed.options[:-1], (Clear(operand_at(self.writes[0]), 2 * ROWS.size),))
        )

    def results(self) -> tuple[Array, Array]:
        out, statistics = np.empty(SHAPE, np.uint16), np.empty(SHAPE[:-1], np.float32)
        for array, address in zip((out, statistics), self.writes, strict=True):
            self._device.to_host(array.reshape(-1).view(np.uint8), address)
        return loaded(out, "bfloat16"), statistics

    def expected(self) -> Sequence[Array]:
        exact = [loaded(array, "bfloat16").astype(np.float64) for array in self.input_arrays]
        return Form(attributes=CAUSAL).forward(*exact)


def test_a_choice_is_by_the_library_where_it_can_and_is_replayed(
    device: CupyDevice, cudnn: Cudnn
) -> None:
    placed, stream = PlacedAttention(device), device.stream()
    device.prepare(placed.choice, stream)
    before = device.library_bytes
    device.begin_capture(stream)
    device.issue(placed.choice, stream)
    graph = device.end_capture(stream)
    assert not placed.results()[0].any(), "captured, not carried out"
    device.replay(graph, stream)
    for array, expected_array in zip(placed.results(), placed.expected(), strict=True):
        np.testing.assert_allclose(array, expected_array, atol=2e-2)
    assert (before, device.library_bytes) == (0, cudnn.workspace_bytes)
    assert cudnn.stream == stream
    device.close()
    assert cudnn.handles == []


def test_without_a_library_the_last_way_is_taken(cupy: Cupy) -> None:
    device = CupyDevice(0, lambda: None)  # type: ignore[arg-type,return-value]
    placed, stream = PlacedAttention(device), device.stream()
    device.to_device(placed.writes[0], np.full(4, 9, np.uint8))
    device.issue(placed.choice, stream)
    assert not placed.results()[0].any()
    assert device.library_bytes == 0


@pytest.mark.parametrize("spoil", ["reason", "workspace", "version"])
def test_what_the_library_refuses_goes_to_the_next_way(
    spoil: str, device: CupyDevice, cudnn: Cudnn
) -> None:
    placed, stream = PlacedAttention(device), device.stream()
    ways = len(placed.choice.options)
    assert ways == 3
    if spoil == "reason":
        cudnn.reason = "heads"
    elif spoil == "workspace":
        cudnn.workspace_bytes = device.free_bytes() + 1
    else:
        cudnn.version = 92500  # This version takes a logsumexp that is turned over before.
    device.prepare(placed.choice, stream)
    (ways,) = device.picked().values()
    assert ways == {"cudnn + our movement" if spoil == "version" else "clear": 1}


def test_an_operand_that_is_not_aligned_goes_to_the_last_way(device: CupyDevice) -> None:
    placed = PlacedAttention(device)
    away = bind(placed.choice, lambda operand: operand_at(operand.offset_bytes + 8))
    assert isinstance(away, KernelAlternatives)
    device.prepare(away, device.stream())
    assert device._choices.chosen_calls(away) == away.options[-1]
    device.prepare(placed.choice, device.stream())
    assert device._choices.chosen_calls(placed.choice) == placed.choice.options[0]


@pytest.mark.parametrize(("fastest", "scratch_bytes"), [(0, 64), (2, 0)])
def test_the_fastest_way_is_taken_and_the_scratch_of_others_given_back(
    fastest: int,
    scratch_bytes: int,
    cupy: Cupy,
    cudnn: Cudnn,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(tuning, "CACHE_BYTES", 1 << 12)
    tuner = Tuner(tmp_path)
    products = SimpleNamespace(version=1, close=lambda: None)
    device = CupyDevice(0, lambda: products, lambda: CudnnLibrary(cudnn), tuner)  # type: ignore[arg-type,return-value]
    placed, stream = PlacedAttention(device), device.stream()
    allocations = len(cupy.cuda.runtime.buffers)
    # Of the second way a kernel was not loaded: what fails has no turn.
    turns = [[9.0, 1.0 if way == fastest else 2.0] for way in (0, 2)]
    times = iter([time for turn in turns for time in turn])
    monkeypatch.setattr(cupy.cuda.runtime, "eventElapsedTime", lambda start, end: next(times))
    device.prepare(placed.choice, stream)
    assert len(cupy.cuda.runtime.buffers) == allocations
    assert list(times) == []
    (pick,) = tuner.used.picks.values()  # type: ignore[union-attr]
    assert (pick.taken, pick.duration_ns) == (str(fastest), 1_000_000)
    device.prepare(PlacedAttention(device).choice, stream)
    device.issue(placed.choice, stream)
    assert device._choices.chosen_calls(placed.choice) == placed.choice.options[fastest]
    assert placed.results()[0].any() == (fastest < 2)
    assert device.library_bytes == scratch_bytes


def test_a_choice_that_is_captured_before_it_was_prepared_is_refused(device: CupyDevice) -> None:
    placed, stream = PlacedAttention(device), device.stream()
    device.begin_capture(stream)
    with pytest.raises(ExecutorError, match=r"3 ways was captured before .* attention b 1"):
        device.issue(placed.choice, stream)


def test_all_ways_of_a_choice_are_bound_and_walked() -> None:
    inner: Call = KernelAlternatives(
        ((Clear(operand_at(1), 1),), (Clear(operand_at(2), 1), Clear(operand_at(3), 1)))
    )
    outer = KernelAlternatives(
        ((CopyCall(operand_at(4), operand_at(5), 1),), (inner, Clear(operand_at(6), 1)))
    )
    assert [operand.offset_bytes for operand in operands_of(outer)] == [4, 5, 1, 2, 3, 6]
    moved = bind(outer, lambda operand: operand_at(operand.offset_bytes + 10))
    assert [operand.offset_bytes for operand in operands_of(moved)] == [14, 15, 11, 12, 13, 16]
    assert len(list(leaves(outer, inner))) == 8
    assert list(last_options(outer)) == [
        Clear(operand_at(2), 1),
        Clear(operand_at(3), 1),
        Clear(operand_at(6), 1),
    ]
