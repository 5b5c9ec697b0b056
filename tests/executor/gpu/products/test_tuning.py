"""Tuning: candidates are timed on copies, the fastest is kept, and kept picks are taken."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from millrace.executor.cuda.binding import bind
from millrace.executor.cuda.calls import Clear, KernelAlternatives, Operand, ProductCall
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu import cupy_device
from millrace.executor.gpu.cupy_device import CupyDevice
from millrace.executor.gpu.gemm import cublaslt, tuning
from millrace.executor.gpu.gemm.cublaslt import ProductLibrary, key_of
from millrace.executor.gpu.gemm.cublaslt_types import DESC_EPILOGUE, EPILOGUE_DEFAULT
from millrace.executor.gpu.gemm.tuning import Tuner, copy_of, fastest
from millrace.executor.gpu.gemm.tuning_cache import (
    Pick,
    Picks,
    agreed,
    load_picks,
    picks_path,
    save_picks,
)
from millrace.executor.gpu.kernel_selection import key_of_choice
from tests.executor.gpu.cupy_in_memory import Cupy, install
from tests.executor.gpu.products.cublaslt_in_memory import ALGORITHMS, CublasLtInMemory
from tests.executor.gpu.products.test_epilogues import EPILOGUES, product_of

WORKSPACE_BYTES = 1 << 10
BEST = 2  # the algorithm that the clock below favours


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Cupy:
    in_memory = install(monkeypatch)
    monkeypatch.setattr(cupy_device, "WORKSPACE_BYTES", WORKSPACE_BYTES)
    monkeypatch.setattr(tuning, "CACHE_BYTES", 1 << 12)
    return in_memory


@pytest.fixture
def in_memory_library(monkeypatch: pytest.MonkeyPatch, cupy: Cupy) -> CublasLtInMemory:
    """The library, and a clock by which its second algorithm is the fastest."""
    library = CublasLtInMemory()
    monkeypatch.setattr(cublaslt, "open_library", lambda: library)
    monkeypatch.setattr(
        cupy.cuda.runtime,
        "eventElapsedTime",
        lambda start, end: 1.0 if library.ran[-1] == BEST else 1.2,
    )
    return library


def device_with(tuner: Tuner | None) -> CupyDevice:
    return CupyDevice(0, ProductLibrary, tuner=tuner)


def carried_out(device: CupyDevice, product: ProductCall) -> None:
    stream = device.stream()
    device.prepare(product, stream)
    device.issue(product, stream)


@pytest.mark.parametrize("name", EPILOGUES)
def test_the_fastest_runs_and_timing_touches_nothing_of_the_run(
    in_memory_library: CublasLtInMemory, tmp_path: Path, name: str
) -> None:
    product, arrays = product_of(name, "bfloat16", "bfloat16", batch=2)
    before = {part: array.copy() for part, array in arrays.items()}
    device = device_with(Tuner(tmp_path))
    stream = device.stream()
    device.prepare(product, stream)
    assert set(in_memory_library.ran) == set(range(1, ALGORITHMS + 1))
    for part, array in arrays.items():
        np.testing.assert_array_equal(array, before[part], err_msg=part)
    timed = len(in_memory_library.ran)
    device.issue(product, stream)
    assert in_memory_library.ran[timed:] == [BEST]
    assert not np.array_equal(arrays["d"], before["d"])


def test_scratch_is_given_back(
    in_memory_library: CublasLtInMemory, cupy: Cupy, tmp_path: Path
) -> None:
    device = device_with(Tuner(tmp_path))
    stream = device.stream()
    product, _ = product_of("plain", "float32", "float32")
    before = len(cupy.cuda.runtime.buffers)
    device.prepare(product, stream)
    assert len(cupy.cuda.runtime.buffers) == before + 1, "the workspace of the stream"


def test_what_is_kept_is_taken_without_timing(
    in_memory_library: CublasLtInMemory, tmp_path: Path
) -> None:
    product, _ = product_of("bias and gelu", "bfloat16", "bfloat16")
    first = Tuner(tmp_path)
    carried_out(device_with(first), product)
    first.save()
    timed = len(in_memory_library.ran)
    carried_out(device_with(second := Tuner(tmp_path)), product)
    assert in_memory_library.ran[timed:] == [BEST]
    assert second.used == first.used
    (pick,) = first.used.picks.values()
    assert (pick.duration_ns, len(pick.taken)) == (1_000_000, 128)


def test_without_a_tuner_the_first_algorithm_runs(in_memory_library: CublasLtInMemory) -> None:
    product, _ = product_of("plain", "float32", "float32")
    carried_out(device_with(None), product)
    assert (in_memory_library.ran, in_memory_library.requested_counts) == ([1], [1])


def test_a_pick_that_the_library_refuses_is_found_anew(
    in_memory_library: CublasLtInMemory, tmp_path: Path
) -> None:
    product, _ = product_of("plain", "float32", "float32")
    key = key_of(product, WORKSPACE_BYTES)
    unknown = Pick(taken=bytes([9, *[0] * 63]).hex(), duration_ns=1)
    save_picks(tmp_path, Picks(device="memory", library_version=131000, picks={key: unknown}))
    carried_out(device_with(tuner := Tuner(tmp_path)), product)
    assert in_memory_library.ran[-1] == BEST
    assert tuner.used.picks[key] != unknown


@pytest.mark.parametrize("limit", ["no time", "no room"])
def test_where_nothing_can_be_timed_the_first_algorithm_runs(
    in_memory_library: CublasLtInMemory, tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner = Tuner(tmp_path, seconds=0.0 if limit == "no time" else 20.0)
    if limit == "no room":
        monkeypatch.setattr(tuning, "CACHE_BYTES", 1 << 30)
    product, _ = product_of("plain", "float32", "float32")
    carried_out(device_with(tuner), product)
    assert in_memory_library.ran == [1]
    assert not tuner.used.picks
    tuner.save()
    assert not list(tmp_path.iterdir()), "another run times it"


def test_ranks_take_the_pick_of_the_lowest_and_time_nothing_more(
    in_memory_library: CublasLtInMemory, tmp_path: Path
) -> None:
    product, _ = product_of("plain", "float32", "float32")
    other, _ = product_of("bias", "float32", "float32")
    device = device_with(tuner := Tuner(tmp_path))
    carried_out(device, product)
    key = key_of(product, WORKSPACE_BYTES)
    third = Pick(taken=bytes([3, *[0] * 63]).hex(), duration_ns=7)
    elsewhere = Picks(device="memory", library_version=131000, picks={key: third})
    tuner.settle(agreed([elsewhere, tuner.used], 1))
    device.plan_again()
    timed = len(in_memory_library.ran)
    device.issue(product, device.stream())
    carried_out(device, other)
    assert in_memory_library.ran[timed:] == [3, 1]


PICK = Pick(taken="0" * 128, duration_ns=5)


def of(device: str, version: int = 1, **picks: int) -> Picks:
    picks_by_name = {
        name: msgspec.structs.replace(PICK, duration_ns=duration_ns)
        for name, duration_ns in picks.items()
    }
    return Picks(device=device, library_version=version, picks=picks_by_name)


def test_agreement_is_per_product_and_among_devices_of_one_kind() -> None:
    ranks = [of("x", p=1), None, of("x", p=2, q=3), of("y", p=4), of("x", 2, p=5)]
    assert agreed(ranks, 0) == agreed(ranks, 2) == of("x", p=1, q=3)
    assert agreed(ranks, 1) is None
    assert agreed(ranks, 3) == of("y", p=4)
    assert agreed(ranks, 4) == of("x", 2, p=5)


def test_what_was_kept_first_stays(tmp_path: Path) -> None:
    save_picks(tmp_path, of("x", p=1))
    save_picks(tmp_path, of("x", p=2, q=3))
    save_picks(tmp_path, of("y", p=4))
    assert load_picks(tmp_path, "x", 1) == of("x", p=1, q=3)
    assert load_picks(tmp_path, "y", 1) == of("y", p=4)
    assert load_picks(tmp_path, "x", 2) == of("x", 2)
    picks_path(tmp_path, "x", 1).write_text('{"device": "x", "misspelt": 1}')
    assert load_picks(tmp_path, "x", 1) == of("x")


def test_a_candidate_far_behind_has_one_turn_and_one_that_fails_none() -> None:
    turns: list[int] = []
    times = {1: 100, 2: 200, 4: 90}

    def timed_ns(candidate: int) -> int:
        turns.append(candidate)
        if candidate not in times:
            raise ExecutorError("refused")
        return times[candidate]

    best = fastest([1, 2, 3, 4], timed_ns, deadline_ns=sys.maxsize)  # type: ignore[list-item]
    assert best == (4, 90)
    assert [turns.count(candidate) for candidate in (1, 2, 3, 4)] == [6, 2, 1, 6]
    assert fastest([3], timed_ns, deadline_ns=0) is None  # type: ignore[list-item]
    turns.clear()
    fastest([1, 4], timed_ns, deadline_ns=0)  # type: ignore[list-item]
    assert turns == [1, 1, 4, 4]


def test_copies_are_as_aligned_and_share_what_was_shared() -> None:
    product, _ = product_of("all of gelu", "bfloat16", "bfloat16")
    places = iter((4096 + 16, 8192 + 2, 64, 640, 72, 80))
    where: dict[Operand, Operand] = {}

    def place(operand: Operand) -> Operand:
        return where.setdefault(operand, Operand("address", 0, next(places)))

    product = bind(product, place)  # type: ignore[assignment]
    product = product._replace(c=product.c._replace(operand=product.d.operand))
    copied, size_bytes = copy_of(product)
    for name, part in copied.parts.items():
        old, new = product.parts[name].operand.offset_bytes, part.operand.offset_bytes
        assert old % 256 == new % 256
        assert new < size_bytes
    assert copied.c.operand == copied.d.operand
    assert len({part.operand for part in copied.parts.values()}) == len(copied.parts) - 1


@pytest.mark.parametrize("supported", [True, False])
def test_an_epilogue_that_the_library_lacks_is_done_in_turn(
    in_memory_library: CublasLtInMemory, supported: bool, tmp_path: Path
) -> None:
    product, arrays = product_of("gelu with aux", "bfloat16", "bfloat16")
    if not supported:
        in_memory_library.refused.add(160)
    clear = Clear(product.d.operand, 2)
    device = device_with(Tuner(tmp_path))
    stream = device.stream()
    choice = KernelAlternatives(((product,), (product.plain, clear)))
    before = arrays["aux"].copy()
    device.prepare(choice, stream)
    device.issue(choice, stream)
    assert np.array_equal(arrays["aux"], before) == (not supported)
    assert (arrays["d"][0] == 0) == (not supported)


@pytest.fixture
def slow_epilogues(
    in_memory_library: CublasLtInMemory, cupy: Cupy, monkeypatch: pytest.MonkeyPatch
) -> tuple[ProductCall, KernelAlternatives]:
    """A product and its choice: with an epilogue, or with what follows on it as one more call."""
    last: list[int] = []
    multiply = in_memory_library.cublasLtMatmul

    def noted(handle: int, descriptor: Any, *rest: Any) -> int:
        last[:] = [in_memory_library.things[descriptor.value].get(DESC_EPILOGUE, EPILOGUE_DEFAULT)]
        return multiply(handle, descriptor, *rest)

    monkeypatch.setattr(in_memory_library, "cublasLtMatmul", noted, raising=False)
    monkeypatch.setattr(
        cupy.cuda.runtime,
        "eventElapsedTime",
        lambda start, end: 1.0 if last == [EPILOGUE_DEFAULT] else 2.0,
    )
    product, _ = product_of("gelu with aux", "bfloat16", "bfloat16")
    return product, KernelAlternatives(((product,), (product.plain, Clear(product.d.operand, 2))))


def ways(device: CupyDevice) -> list[dict[str, int]]:
    return list(device.picked().values())


def test_the_way_that_is_faster_is_taken_and_kept(
    in_memory_library: CublasLtInMemory,
    slow_epilogues: tuple[ProductCall, KernelAlternatives],
    tmp_path: Path,
) -> None:
    product, choice = slow_epilogues
    device = device_with(tuner := Tuner(tmp_path))
    device.prepare(choice, device.stream())
    assert ways(device) == [{"cublaslt + clear": 1}]
    key = key_of_choice(choice)
    assert tuner.used.picks[key] == Pick(taken="1", duration_ns=1_000_000)
    tuned = {key_of(call, WORKSPACE_BYTES) for call in (product, product.plain)}
    assert set(tuner.used.picks) == {key, *tuned}, "products of both ways are tuned before"
    tuner.save()
    timed = len(in_memory_library.ran)
    again = device_with(Tuner(tmp_path))
    again.prepare(choice, again.stream())
    assert ways(again) == [{"cublaslt + clear": 1}]
    assert len(in_memory_library.ran) == timed


def test_ranks_take_the_way_of_the_lowest(
    in_memory_library: CublasLtInMemory,
    slow_epilogues: tuple[ProductCall, KernelAlternatives],
    tmp_path: Path,
) -> None:
    _, choice = slow_epilogues
    device = device_with(tuner := Tuner(tmp_path))
    stream = device.stream()
    device.prepare(choice, stream)
    fused = {key_of_choice(choice): Pick(taken="0", duration_ns=7)}
    elsewhere = Picks(device="memory", library_version=131000, picks=fused)
    tuner.settle(agreed([elsewhere, tuner.used], 1))
    timed = len(in_memory_library.ran)
    device.plan_again()
    assert ways(device) == [{"cublaslt fused": 1}]
    device.begin_capture(stream)
    device.issue(choice, stream)
    device.replay(device.end_capture(stream), stream)
    assert len(in_memory_library.ran) == timed + 1
    other = KernelAlternatives((*choice.options[::-1],))
    device.prepare(other, stream)
    assert len(in_memory_library.ran) == timed + 1, "nothing is timed any more"


@pytest.mark.parametrize("limit", ["no tuner", "no time", "no room", "not supported"])
def test_where_ways_cannot_be_timed_the_first_that_is_supported_is_taken(
    in_memory_library: CublasLtInMemory,
    slow_epilogues: tuple[ProductCall, KernelAlternatives],
    tmp_path: Path,
    limit: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, choice = slow_epilogues
    tuner = Tuner(tmp_path, seconds=0.0 if limit == "no time" else 20.0)
    if limit == "no room":
        monkeypatch.setattr(tuning, "CACHE_BYTES", 1 << 30)
    if limit == "not supported":
        in_memory_library.refused.add(160)
    device = device_with(None if limit == "no tuner" else tuner)
    device.prepare(choice, device.stream())
    refused = limit == "not supported"
    assert ways(device) == [{"cublaslt + clear" if refused else "cublaslt fused": 1}]
    assert bool(in_memory_library.ran) == refused, "the product of the only way"
    if limit != "no tuner":
        assert key_of_choice(choice) not in tuner.used.picks
