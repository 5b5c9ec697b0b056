"""NCCL on one GPU: a group of one member, and two ranks where NCCL lets them share a device."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.availability import require_nccl
from millrace.executor.gpu.nccl import (
    LaneGroup,
    NcclCommunicator,
    exchange_ids,
    set_environment,
    warm_up_bytes,
)
from millrace.executor.hosts.rank_runs import run_ranks
from tests.executor.cuda.calling import loaded, to_device
from tests.gpu.conftest import EMULATED
from tests.gpu.members import KINDS, collective, received, sent
from tests.gpu.on_device import DeviceBench

GROUP = LaneGroup((0,), "dp")
SHARED_SINCE = 23000  # NCCL_MULTI_RANK_GPU_ENABLE, NCCL 2.30 release notes


@pytest.fixture(scope="module")
def nccl(gpu: None) -> Any:
    if EMULATED:
        pytest.skip("NCCL needs a GPU")
    try:
        return require_nccl()
    except ExecutorError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def alone(nccl: Any, device: Any) -> Iterator[tuple[NcclCommunicator, DeviceBench]]:
    """The communicator of a group of one."""
    world: Any = SimpleNamespace(
        rank=0, communicator=SimpleNamespace(allgather=lambda value: [value])
    )
    set_environment(world, 1, device.multiprocessors)
    failures: list[ExecutorError] = []
    communicator = NcclCommunicator(
        0, exchange_ids(world, [GROUP]), use_device=device.use, failed=failures.append, timeout_s=60
    )
    bench = DeviceBench(device)
    kinds = {GROUP: KINDS}
    communicator.warm_up(kinds, device.allocate(warm_up_bytes(kinds)), bench.stream)
    bench.settle()
    yield communicator, bench
    communicator.check()
    assert not failures
    communicator.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("reduction", ["sum", "max"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_group_of_one_finds_what_it_sent_fired_and_replayed(
    kind: str, reduction: str, dtype: str, alone: tuple[NcclCommunicator, DeviceBench]
) -> None:
    communicator, bench = alone
    bench.clear()
    expected = received(kind, 0, 1, reduction)
    blank = to_device(np.zeros_like(expected), dtype)
    send, recv = bench.put(to_device(sent(kind, 0, 1), dtype)), bench.put(blank)
    call = collective(kind, send, recv, dtype, reduction)
    communicator.issue(call, GROUP, bench.stream, kind)
    bench.settle()
    np.testing.assert_array_equal(loaded(bench.take(recv, blank), dtype), expected)
    bench.device.to_device(recv, blank.reshape(-1).view(np.uint8))
    bench.device.begin_capture(bench.stream)
    communicator.issue(call, GROUP, bench.stream, kind)
    graph = bench.device.end_capture(bench.stream)
    for _ in range(2):
        bench.device.replay(graph, bench.stream)
    bench.settle()
    np.testing.assert_array_equal(loaded(bench.take(recv, blank), dtype), expected)


def test_two_ranks_on_one_gpu_meet(
    nccl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if nccl.get_version() < SHARED_SINCE:
        pytest.skip(f"NCCL {nccl.get_version()} takes one rank per GPU; 2.30 takes more")
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    run_ranks("tests.gpu.two_ranks", 2, tmp_path)
