"""Measurements of a run folded into a device's tables."""

import msgspec
import numpy as np

from millrace.planner.clusters import device
from millrace.planner.costs import OpFirings, op_durations_ns
from millrace.planner.costs.measured_tables import MeasuredOp, corrected, with_measured
from millrace.planner.costs.tables.op_forms import form_table, op_form

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
    changed = with_measured(PROFILED, [MeasuredOp(product(FORWARD, 64), 777_000)], {})
    assert op_durations_ns(product(FORWARD, 64), changed).tolist() == [777_000]
    ratio = 777_000 / op_durations_ns(product(FORWARD, 64), PROFILED)[0]
    for other in (product(FORWARD, 256), product(BACKWARD, 64)):
        moved = op_durations_ns(other, changed)[0] / op_durations_ns(other, PROFILED)[0]
        assert abs(moved / ratio - 1) < 0.01


def test_a_kind_without_a_table_gets_one() -> None:
    changed = with_measured(PROFILED, [MeasuredOp(elementwise("tanh", 4096), 9000)], {})
    assert op_durations_ns(elementwise("tanh", 4096), changed).tolist() == [9000]
    assert op_durations_ns(elementwise("gelu", 4096), changed).tolist() == [5000]


def test_collectives_are_folded_in_as_well() -> None:
    changed = with_measured(PROFILED, [], {"all_reduce/2": ((1024, 30_000), (1024, 30_000))})
    (first, last) = changed.collectives["all_reduce/2"]
    assert first == (1024, 30_000)
    assert 40_000 < last[1] < 80_000  # eight times as large a message is nearly as much slower
