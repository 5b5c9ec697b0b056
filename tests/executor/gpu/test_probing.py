"""profile on a GPU: what is timed, where it lies, and the device that costs read of it."""

from collections.abc import Iterator
from itertools import count

import msgspec
import pytest

from millrace.executor.cuda.calls import Collective
from millrace.executor.cuda.kernels.kernel_table import CALLS
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.nccl import LaneGroup
from millrace.executor.gpu.probing import probe_arena, stopwatch
from millrace.executor.gpu.probing.gpu_timing import (
    ROUNDS,
    GpuTimings,
    by_weight,
    measured_device,
    not_reached,
    time_gpu,
)
from millrace.executor.gpu.probing.probe_arena import CaseArena, arena_bytes, build_timed_case
from millrace.executor.gpu.probing.stopwatch import IDLE_FUNCTION, Stopwatch
from millrace.executor.gpu.probing.transfers import (
    BOXING,
    MESSAGE_BYTES,
    collective_points,
    groups_of,
)
from millrace.executor.probes.probe_rounds import Points
from millrace.executor.probes.probe_sizes import CPU_SCALES, GPU_SCALES
from millrace.executor.probes.profiled_kernels import DTYPES, MULTIPLIED, PROBES, cases
from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import build_training
from millrace.planner.cluster import Device
from millrace.planner.clusters import parse_cluster, validate
from millrace.planner.costs import op_duration_ns
from millrace.planner.errors import ClusterError
from millrace.simulator import predict
from tests.executor.cuda.emulation.machine import COMPILER
from tests.executor.gpu.emulated_device import TICK_NS, EmulatedDevice
from tests.plan_requests import plan_of
from tests.small_models import NAMES, small

TOKENS = ({"b": 1, "t": 8, "h": 2, "d": 16},)
SCALES = {
    "features": (),
    "pictures": (),
    "clicks": (),
    "tokens": TOKENS, "few": TOKENS, "ends": TOKENS, "logits": TOKENS, "lookups": TOKENS,
    "turned": ({"b": 1, "t": 8, "h": 2, "d": 32},),
    "heads": ({"b": 1, "t": 8, "h": 2, "d": 16}, {"b": 1, "t": 8, "h": 2, "d": 32}),
    "scalars": ({"z": 3},),
    "weights": ({"k": 8, "n": 8},),
    "products": ({"b": 1, "t": 8, "k": 8, "n": 8}, {"b": 1, "t": 8, "k": 8, "n": 32}),
    "images": ({"b": 1, "c": 4, "y": 8, "x": 8, "j": 4, "i": 4},),
    "filters": ({"b": 1, "c": 3, "n": 4, "q": 3, "p": 3, "y": 8, "x": 8, "j": 8, "i": 8},),
    "points": ({"b": 1, "c": 8, "n": 4, "q": 1, "p": 1, "y": 8, "x": 8, "j": 8, "i": 8},),
    "routes": ({"b": 1, "t": 8, "d": 16, "e": 4, "k": 2, "c": 8},),
    "boxing": ({"bytes": 4096},),
}  # fmt: skip


@pytest.fixture(scope="module")
def measured() -> Iterator[Device]:
    """Profile of an emulated device, on which every call takes a microsecond."""
    if COMPILER is None:
        pytest.skip("needs g++")
    with pytest.MonkeyPatch.context() as few:
        few.setattr(probe_arena, "COPIES_MAX", 2)
        few.setattr(stopwatch, "CALLS_MAX", 4)
        timings = time_gpu(EmulatedDevice(), multiprocessors=8, seconds=0.0, scales=SCALES)
        yield measured_device([timings], "emulated")


def test_every_kind_has_a_table_of_every_precision_that_it_computes_in(measured: Device) -> None:
    narrowed = {probe.kind for probe in PROBES if probe.is_narrowed}
    for precision in ("fp32", "bf16", "fp16"):
        names = [name for name in measured.kernels if name.endswith(f"@{precision}")]
        assert {name.partition("@")[0].partition("/")[0] for name in names} == narrowed
    fast = {name for name in measured.kernels if name.endswith("@tf32")}
    assert fast == {f"{kind}@tf32" for kind in MULTIPLIED}
    alone = {name for name in measured.kernels if "@" not in name}
    assert alone == {probe.kind for probe in PROBES} - narrowed | {"slice", "pad"}
    assert {"attention/16@bf16", "attention_grad/32@fp16"} <= set(measured.kernels)


def test_a_profile_holds_what_a_call_takes_in_a_graph(measured: Device) -> None:
    assert measured.launch_ns == TICK_NS
    assert measured.kernels["gelu@bf16"] == ((2 * 2 * 8 * 16, TICK_NS),)
    calls = {name: points[0][1] for name, points in measured.kernels.items()}
    assert calls["layer_norm_grad_weight@fp16"] == 2 * TICK_NS  # slabs, and their sum
    assert measured.flops_per_s == dict.fromkeys(DTYPES, 2 * 8 * 8 * 32 / (TICK_NS / 1e9))
    assert (measured.memory_bytes, measured.multiprocessors) == (2**32, 8)
    assert measured.memory_bandwidth_bytes_per_s > 0
    assert set(measured.collectives) == {"host/1"}
    assert (measured.name, measured.source) == ("emulated device", "emulated")


def test_a_profile_says_how_far_its_rounds_differ(measured: Device) -> None:
    assert measured.measured is not None
    assert (measured.measured.rounds, measured.measured.spread) == (ROUNDS, 0.0)
    assert measured.measured.others is None  # nobody asked
    assert set(measured.kernel_bytes) == {
        name for name in measured.kernels if name.startswith("attention")
    }


def test_a_profile_whose_time_is_up_has_what_matters_most_and_prices_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if COMPILER is None:
        pytest.skip("needs g++")
    monkeypatch.setattr(probe_arena, "COPIES_MAX", 2)
    monkeypatch.setattr(stopwatch, "CALLS_MAX", 4)
    ticks = count()  # a second for every question, one before every case
    everything = sorted(
        (case for precision in DTYPES for case in cases(SCALES, precision)), key=by_weight
    )
    products = sum(case.context.kind == MULTIPLIED[0] for case in everything)
    timings = time_gpu(
        EmulatedDevice(),
        seconds=0.0,
        scales=SCALES,
        limit_s=products + 3,
        clock=lambda: float(next(ticks)),
    )
    assert timings.missed == tuple(case.table for case in everything[products + 3 :])
    tables = {f"matmul@{precision}" for precision in DTYPES}
    assert set(timings.kernels) == tables | {case.table for case in everything[products:][:3]}
    assert {"attention/16@bf16", "attention/32@bf16"} < set(timings.kernels)
    device = measured_device([timings], "in a hurry")
    assert device.measured is not None
    assert (device.measured.rounds, device.measured.spread) == (1, None)
    assert set(device.flops_per_s) == set(DTYPES)
    assert set(device.kernels) == set(timings.kernels) - set(timings.missed) | tables
    for precision in ("bf16", "fp32"):
        plan = plan_of(small("gpt", precision), parse_cluster("local-gpu:1", device), micro_batch=4)
        assert predict(plan, fidelity="op").step_time_ns > 0


def test_one_kernel_is_timed_however_short_the_time_is(monkeypatch: pytest.MonkeyPatch) -> None:
    if COMPILER is None:
        pytest.skip("needs g++")
    monkeypatch.setattr(probe_arena, "COPIES_MAX", 2)
    monkeypatch.setattr(stopwatch, "CALLS_MAX", 4)
    timings = time_gpu(
        EmulatedDevice(), seconds=0.0, scales=SCALES, limit_s=0.0, precisions=["fp32"]
    )
    assert set(timings.kernels) == {"matmul@fp32"}
    assert not_reached([timings]).startswith(f"{len(timings.missed)} kernels were not reached, so ")


def test_what_no_rank_has_reached_is_told_by_its_tables() -> None:
    def timings(missed: tuple[str, ...], kernels: Points) -> GpuTimings:
        return GpuTimings(
            name="one",
            memory_bytes=1,
            multiprocessors=1,
            launch_ns=1,
            memory_bandwidth_bytes_per_s=1.0,
            kernels=kernels,
            collectives={},
            missed=missed,
        )

    some, more = {"mul@bf16": [(1, 1)]}, {"mul@bf16": [(1, 1)], "relu@bf16": [(1, 1)]}
    slow = timings(("mul@bf16", "relu@bf16", "relu@bf16", "top_k@bf16"), some)
    fast = timings(("relu@bf16", "top_k@bf16"), more)
    assert not_reached([slow, timings((), more)]) == ""
    said = "2 kernels were not reached, so by rates are priced: relu@bf16, top_k@bf16"
    assert not_reached([slow, fast]) == said


def test_costs_read_the_table_of_the_precision(measured: Device) -> None:
    kernels = measured.kernels | {"gelu@bf16": ((512, 7_000),), "gelu@fp32": ((1024, 9_000),)}
    told = msgspec.structs.replace(measured, kernels=kernels)
    for dtype, expected in (("bfloat16", 7_000), ("float32", 9_000), ("float16", TICK_NS)):
        shapes, dtypes = ((8, 16),), (dtype,)
        duration_ns = op_duration_ns("gelu", "t d -> t d", {}, shapes, shapes, dtypes, dtypes, told)
        assert duration_ns == expected


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_plan_for_the_gpu_of_this_machine_simulates(measured: Device, precision: str) -> None:
    cluster = parse_cluster("local-gpu:1", measured)
    assert (cluster.devices, cluster.cores_per_node) == (1, None)
    assert cluster.host is not None
    plan = plan_of(small("gpt", precision), cluster, micro_batch=4)
    prediction = predict(plan, fidelity="op")
    assert prediction.step_time_ns > 0


def test_more_gpus_than_were_measured_together_are_refused(measured: Device) -> None:
    with pytest.raises(ClusterError, match=r"no collectives between 2 GPUs; run .*--ranks 2"):
        parse_cluster("local-gpu:2", measured)


def test_dtypes_of_the_probes_are_those_of_training_in_16_bits() -> None:
    trained: dict[str, set[tuple[str, ...]]] = {}
    for name in NAMES:
        for optimizer in ("adamw", "sgd"):
            training = TrainingSpec(optimizer=optimizer, clip_norm=1.0)
            graph = build_training(small(name, "bf16"), training, 4)
            tensors = graph.tensors_by_name
            for op in graph.ops:
                dtypes = tuple(tensors[tensor].dtype for tensor in op.inputs)
                trained.setdefault(op.kind, set()).add(dtypes)
    probed = {probe.kind: probe.dtypes("bfloat16") for probe in PROBES}
    for kind, dtypes in probed.items():
        if kind in trained and kind != "step_totals":  # It takes any number.
            assert dtypes in trained[kind], kind


@pytest.mark.parametrize("precision", list(DTYPES))
def test_every_probe_has_calls_at_the_sizes_of_a_gpu(precision: str) -> None:
    timed_cases = [build_timed_case(case) for case in cases(GPU_SCALES, precision)]
    assert {timed_case.case.context.kind for timed_case in timed_cases} <= set(CALLS)
    assert all(timed_case.case.work > 0 for timed_case in timed_cases)
    assert arena_bytes(timed_cases) < 2**31


def test_sizes_of_cpus_and_gpus_have_the_same_names() -> None:
    assert set(CPU_SCALES) == set(GPU_SCALES) == set(SCALES)
    assert {probe.scales for probe in PROBES} | {"boxing"} == set(CPU_SCALES)


def test_gpus_of_two_kinds_have_no_common_profile() -> None:
    timings = GpuTimings(
        name="one",
        memory_bytes=1,
        multiprocessors=1,
        launch_ns=1,
        memory_bandwidth_bytes_per_s=1.0,
        kernels={},
        collectives={},
    )
    with pytest.raises(ExecutorError, match="differ"):
        measured_device([timings, msgspec.structs.replace(timings, name="other")], "source")


class Ticking:
    """A communicator whose collectives are copies of nothing on the rank's own device."""

    def __init__(self, device: EmulatedDevice) -> None:
        self._device, self.issued = device, []

    def issue(self, call: Collective, group: LaneGroup, stream: int, actor: str = "") -> None:
        self.issued.append((call.kind, call.elements, group))
        self._device.issue(call, stream)


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_time_collectives_of_every_size_and_wait_alike(ranks: int) -> None:
    waits, tables = [], []
    for rank in range(ranks):
        device = EmulatedDevice()
        source, name = IDLE_FUNCTION
        device.load({source: {name}})
        communicator, calls = Ticking(device), []
        points_by_table = collective_points(
            rank,
            groups_of(rank, ranks),
            communicator,  # type: ignore[arg-type]
            Stopwatch(device, device.allocate(256)),
            device.allocate(256),
            lambda calls=calls: calls.append(1),
        )
        waits.append(len(calls))
        tables.append(points_by_table)
        for points in points_by_table.values():
            assert points == [(size, TICK_NS) for size in MESSAGE_BYTES]
    assert len(set(waits)) == 1
    sizes = [size for size in (2, 4) if ranks % size == 0]
    expected = {f"{kind}/{size}" for kind in BOXING for size in sizes}
    assert set(tables[-1]) - {"send/2"} == expected
    assert ("send/2" in tables[0]) == (ranks > 1)


def test_a_case_too_large_for_the_arena_has_one_copy_and_small_ones_several() -> None:
    if COMPILER is None:
        pytest.skip("needs g++")
    case = next(case for case in cases(SCALES, "bf16") if case.context.kind == "embedding")
    timed_case, device = build_timed_case(case), EmulatedDevice()
    assert (
        len(CaseArena(device, timed_case.shared_bytes + timed_case.copy_bytes).place(timed_case))
        == 1
    )
    several = CaseArena(device, timed_case.shared_bytes + 2 * timed_case.copy_bytes).place(
        timed_case
    )
    assert len(several) == 2
    assert len({str(calls) for calls in several}) == 2


def test_a_measured_gpu_is_a_valid_cluster(measured: Device) -> None:
    cluster = parse_cluster("local-gpu:1", measured)
    assert validate(cluster) == cluster
    wrong = msgspec.structs.replace(measured, kernels={"matmul@bf61": ((1, 1),)})
    with pytest.raises(ClusterError, match="`bf61` is none of fp64"):
        parse_cluster("local-gpu:1", wrong)
