"""Measurements of a run folded into a device's tables."""

import msgspec
import numpy as np

from millrace.planner.clusters import device
from millrace.planner.costs import OpFirings, op_durations_ns
from millrace.planner.costs.measured_tables import (
    MeasuredOp,
    corrected,
    with_collectives,
    with_measured,
)
from millrace.planner.costs.tables.op_forms import form_table, op_form
from millrace.planner.costs.tables.shape_tables import is_measured

PROFILED = msgspec.structs.replace(
    device("cpu-core"),
    kernels={
        "matmul": ((1000, 10_000), (10**9, 10**8)),
        "gelu": ((1024, 2000), (4096, 5000)),
        "relu": ((1024, 1000), (8192, 4000)),
    },
    collectives={"all_reduce/2": ((1024, 15_000), (8192, 40_000))},
)
FORWARD, BACKWARD = "b t k, k n -> b t n", "b t k, b t n -> k n"


def product(labels: str, size: int) -> OpFirings:
    sizes = {label: np.array([size]) for label in "btkn"} | {"t": np.array([1])}
    return OpFirings("matmul", labels, {}, sizes, np.array([12 * size * size]), "fp32")


def elementwise(kind: str, moved: int) -> OpFirings:
    return OpFirings(kind, "b t d -> b t d", {}, {}, np.array([moved]), "fp32")


def test_forms_do_not_depend_on_names() -> None:
    assert op_form(FORWARD) == op_form("b s h d, h d n -> b s n") == "a b, b c -> a c"
    assert op_form(BACKWARD) != op_form(FORWARD)
    assert form_table("input", "-> b", {"source": "targets+1"}) == "input/targets"


def test_a_table_keeps_its_course_beyond_what_was_measured() -> None:
    points, ratios = corrected(((10, 100), (1000, 1000)), [(100.0, 632, 1)])
    assert ratios == [2.0]
    assert points == ((10, 200), (100, 632), (1000, 2000))


def test_ops_that_take_longer_for_less_work_keep_what_they_take_together() -> None:
    measured = [(10.0, 300, 2), (20.0, 90, 1), (30.0, 400, 1)]
    points, _ = corrected((), measured)
    assert points == ((10, 230), (20, 230), (30, 400))


def test_a_measured_op_takes_what_it_took() -> None:
    changed = with_measured(PROFILED, [MeasuredOp(product(FORWARD, 64), 777_000)])
    assert op_durations_ns(product(FORWARD, 64), changed).tolist() == [777_000]
    ratio = 777_000 / op_durations_ns(product(FORWARD, 64), PROFILED)[0]
    for other in (product(FORWARD, 256), product(BACKWARD, 64)):
        moved = op_durations_ns(other, changed)[0] / op_durations_ns(other, PROFILED)[0]
        assert abs(moved / ratio - 1) < 0.01


def test_a_kind_without_a_table_gets_one() -> None:
    changed = with_measured(PROFILED, [MeasuredOp(elementwise("tanh", 4096), 9000)])
    assert op_durations_ns(elementwise("tanh", 4096), changed).tolist() == [9000]
    assert op_durations_ns(elementwise("gelu", 4096), changed).tolist() == [5000]


def test_collectives_are_folded_in_as_well() -> None:
    changed = with_collectives(PROFILED, {"all_reduce/2": ((1024, 30_000), (1024, 30_000))})
    (first, last) = changed.collectives["all_reduce/2"]
    assert first == (1024, 30_000)
    assert 40_000 < last[1] < 80_000  # eight times as large a message is nearly as much slower


def test_what_starting_takes_moves_itself_alone_on_a_gpu() -> None:
    gpu = msgspec.structs.replace(
        device("a100-sxm-80gb"), kernels={"gelu": ((1024, 2_000), (10**8, 10**5))}
    )
    changed = with_measured(gpu, [MeasuredOp(elementwise("gelu", 2048), 6_000)])
    assert op_durations_ns(elementwise("gelu", 2048), changed).tolist() == [6_000]
    assert op_durations_ns(elementwise("gelu", 10**8), changed)[0] < 1.25 * 10**5


def test_a_product_that_its_bytes_bound_says_nothing_of_products() -> None:
    gpu = msgspec.structs.replace(
        device("a100-sxm-80gb"), kernels={"matmul": ((10**3, 2_000), (10**9, 10**6))}
    )
    bound = product(FORWARD, 64)._replace(bytes=np.array([10**9]))
    assert with_measured(gpu, [MeasuredOp(bound, 400_000)]).kernels == gpu.kernels


def shaped(batch: int, columns: int) -> OpFirings:
    spans = {"b": np.array([batch]), "k": np.array([64]), "n": np.array([columns])}
    moved = np.array([4 * (batch * 64 + 64 * columns + batch * columns)])
    return OpFirings("matmul", "b k, k n -> b n", {}, spans, moved, "fp32", spans=spans)


def test_a_shape_takes_what_it_took_and_others_what_their_form_does() -> None:
    narrow, wide = MeasuredOp(shaped(64, 8), 90_000), MeasuredOp(shaped(8, 64), 30_000)
    changed = with_measured(PROFILED, [narrow, wide])
    assert op_durations_ns(narrow.firings, changed).tolist() == [90_000]
    assert op_durations_ns(wide.firings, changed).tolist() == [30_000]  # as many FLOPs
    spans = {"b": np.array([64, 8, 16]), "k": np.array([64]), "n": np.array([8, 64, 32])}
    moved = np.array([1, 1, 1])
    at_once = OpFirings("matmul", "b k, k n -> b n", {}, spans, moved, "fp32", spans=spans)
    durations = op_durations_ns(at_once, changed).tolist()
    assert durations[:2] == [90_000, 30_000]
    assert 30_000 < durations[2] < 90_000  # a shape that nothing measured


def test_a_shape_grows_with_work_as_its_form_does() -> None:
    changed = with_measured(PROFILED, [MeasuredOp(shaped(64, 8), 90_000)])
    again = with_measured(changed, [MeasuredOp(shaped(4096, 8), 4_000_000)])
    assert op_durations_ns(shaped(64, 8), again).tolist() == [90_000]
    for device_profile, batch in ((changed, 128), (again, 2)):
        durations = [op_durations_ns(shaped(b, 8), device_profile)[0] for b in (64, batch)]
        unshaped = msgspec.structs.replace(device_profile, shapes={})
        tabulated = [op_durations_ns(shaped(b, 8), unshaped)[0] for b in (64, batch)]
        assert abs(durations[1] / durations[0] / (tabulated[1] / tabulated[0]) - 1) < 0.01


def test_measured_shapes_are_told_from_others() -> None:
    changed = with_measured(PROFILED, [MeasuredOp(shaped(64, 8), 90_000)])
    assert is_measured(shaped(64, 8), changed)
    assert is_measured(shaped(80, 8), changed)
    assert not is_measured(shaped(640, 8), changed)
    assert not is_measured(shaped(64, 16), changed)
    assert is_measured(elementwise("gelu", 4096), changed)
    assert not is_measured(elementwise("gelu", 10**6), changed)


def test_flags_and_windows_make_shapes_of_their_own() -> None:
    sizes = {label: np.array([size]) for label, size in zip("bthds", (2, 8, 4, 16, 8), strict=True)}
    labels = "b t h d!, b s! h d!, b s! h d! -> b t h d!, b t h"
    moved = np.array([10_000])
    full, causal = (
        OpFirings("attention", labels, {"causal": flag}, sizes, moved, "fp32", spans=sizes)
        for flag in (False, True)
    )
    changed = with_measured(PROFILED, [MeasuredOp(causal, 50_000)])
    assert op_durations_ns(causal, changed).tolist() == [50_000]
    assert is_measured(causal, changed)
    assert not is_measured(full, changed)


def test_small_messages_say_nothing_of_large_ones() -> None:
    table = ((1024, 10_000), (4096, 12_000), (10**6, 100_000), (10**7, 10**6))
    profiled = msgspec.structs.replace(PROFILED, collectives={"all_reduce/2": table})
    messages = ((1024, 15_000), (1024, 15_000), (4096, 18_000), (10**6, 120_000))
    changed = with_collectives(profiled, {"all_reduce/2": messages})
    assert changed.collectives["all_reduce/2"][:3] == (
        (1024, 15_000),
        (4096, 18_000),
        (10**6, 120_000),
    )
