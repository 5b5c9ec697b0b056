"""A mixture of experts on a device, against its formulas."""

import numpy as np
import pytest

from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array, whole_shard
from tests.executor.cuda.calling import Attributes, Operands, call, context_of, empty
from tests.executor.cuda.emulation.machine import COMPILER, Emulator
from tests.executor.cuda.example_cases import (
    ExampleCase,
    cases_of,
    check_all,
    emulator_of,
    parametrize_cases,
    selected_cases,
)
from tests.executor.examples.example import Example
from tests.executor.examples.experts import EXAMPLES, TOP_K
from tests.executor.kernel_calls import call as call_on_host

pytestmark = pytest.mark.skipif(COMPILER is None, reason="g++ compiles the kernels")

DISPATCH = "b t! d, b t! k!, b t! k! -> e b c! d"
COMBINE = "e b c! d, b t! k!, b t! k!, b t! k! -> b t! d"
MARGIN_BYTE = 56  # of `Control.margin_bits`: four i64, two doubles and one i64 lie before

MANY = [
    Example(
        kind="top_k", labels=TOP_K, attributes=attributes,
        sizes={"b": 2, "t": 37, "e": 70, "k": 5},
        derive=lambda scores: (np.round(scores, 1),),
    )
    for attributes in (
        {"capacity": 4, "groups": 1, "kept_groups": 1},
        {"capacity": 3, "groups": 35, "kept_groups": 34},
        {"capacity": 9, "groups": 5, "kept_groups": 5},
    )
]  # fmt: skip
CASES = cases_of((*EXAMPLES, *MANY))


@pytest.fixture(scope="module")
def emulator(request: pytest.FixtureRequest) -> Emulator:
    return emulator_of(selected_cases(CASES, request))


@parametrize_cases(CASES)
def test_kernels_compute_what_their_formulas_say(cases: list[ExampleCase], emulator: Emulator):
    check_all(cases, emulator)


@pytest.mark.parametrize("features", [3, 5, 6])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_rows_that_divide_into_no_wide_units_are_dispatched_too(features: int, dtype: str):
    x = np.arange(4.0 * features).reshape(1, 4, features)
    expert = np.array([[[1], [0], [1], [1]]], np.int32)
    place = np.array([[[0], [0], [1], [-1]]], np.int32)
    shards = [whole_shard(x.shape, dtype), *[whole_shard(expert.shape, "int32")] * 2]
    (sent,) = call(
        "dispatch", DISPATCH, [x, expert, place], [whole_shard((2, 1, 2, features), dtype)],
        input_shards=shards,
    )  # fmt: skip
    np.testing.assert_array_equal(sent[1, 0], x[0, [0, 2]])
    np.testing.assert_array_equal(sent[0, 0], [x[0, 1], np.zeros(features)])


def test_weights_may_be_wider_than_what_they_weigh():
    rng = np.random.default_rng(0)
    y = np.round(rng.standard_normal((2, 1, 2, 4)) * 8) / 8
    expert = np.array([[[1, 0], [0, 1]]], np.int32)
    place = np.array([[[0, 0], [1, 1]]], np.int32)
    weight = np.array([[[0.5, 0.25], [1, 2]]])
    chosen = [whole_shard(expert.shape, "int32")] * 2
    sides = whole_shard(y.shape, "bfloat16"), whole_shard((1, 2, 4), "bfloat16")
    wide = whole_shard(weight.shape, "float32")
    (out,) = call(
        "combine", COMBINE, [y, expert, place, weight], [sides[1]],
        input_shards=[sides[0], *chosen, wide],
    )  # fmt: skip
    expected = [
        0.5 * y[1, 0, 0] + 0.25 * y[0, 0, 0],
        y[0, 0, 1] + 2 * y[1, 0, 1],
    ]
    np.testing.assert_allclose(out[0], expected, rtol=1e-2)
    (dy,) = call(
        "combine_grad_input", "b t! d, b t! k!, b t! k!, b t! k! -> e b c! d",
        [np.ones((1, 2, 4)), expert, place, weight], [sides[0]],
        input_shards=[sides[1], *chosen, wide],
    )  # fmt: skip
    np.testing.assert_array_equal(dy[..., 0], [[[0.25, 1]], [[0.5, 2]]])


def margin_of(
    emulator: Emulator, scores: Array, choices: int, before: float = np.inf, **groups: int
) -> float:
    """The margin that the control holds after a choice, when it held `before`."""
    shape = (*scores.shape[:2], choices)
    outputs = [whole_shard(shape, dtype) for dtype in ("float64", "int32", "int32")]
    attributes: Attributes = {"capacity": 2, **groups}
    context = context_of(
        "top_k", TOP_K, [whole_shard(scores.shape, "float64")], outputs, attributes
    )  # fmt: skip
    calls = make_calls(context)
    operands = Operands(calls, [scores], [empty(shard) for shard in outputs])
    margin = operands.control[MARGIN_BYTE : MARGIN_BYTE + 4].view(np.float32)
    margin[0] = before
    operands.carry_out(calls.of(0), emulator)
    return float(margin[0])


def test_the_smallest_margin_of_a_choice_is_kept(emulator: Emulator):
    scores = np.array([[[3.0, 1, 2], [0, 4, 2.5]]])
    assert margin_of(emulator, scores, 1) == 1.0
    assert margin_of(emulator, scores, 1, before=0.5) == 0.5
    grouped = np.array([[[9.0, 0, -1, 6, 2.75, 1]]])
    assert margin_of(emulator, grouped, 2, groups=2, kept_groups=1) == 0.25
    assert margin_of(emulator, np.array([[[9.0, 8.9]]]), 2) == np.inf


def test_scores_that_are_no_numbers_choose_experts_that_exist(emulator: Emulator):
    scores = np.full((1, 3, 4), np.nan)
    scores[0, 1] = [1, np.nan, 2, 3]
    scores[0, 2] = -np.inf
    shape = (1, 3, 2)
    _, expert, place = call(
        "top_k", TOP_K, [scores], [whole_shard(shape, d) for d in ("float64", "int32", "int32")],
        attributes={"capacity": 2}, emulator=emulator,
    )  # fmt: skip
    np.testing.assert_array_equal(expert[0], [[0, 1], [1, 3], [0, 1]])
    np.testing.assert_array_equal(place[0], [[0, 1], [0, 0], [1, -1]])
    assert margin_of(emulator, scores, 2, before=0.5) == 0.5


def test_a_device_chooses_as_the_host_does(emulator: Emulator):
    scores = np.round(np.random.default_rng(3).standard_normal((2, 65, 70)), 1)
    outputs = [whole_shard((2, 65, 5), dtype) for dtype in ("float64", "int32", "int32")]
    attributes: Attributes = {"capacity": 3, "groups": 5, "kept_groups": 2}
    choices = [
        calling("top_k", TOP_K, [scores], outputs, attributes=attributes, **more)
        for calling, more in ((call, {"emulator": emulator}), (call_on_host, {}))
    ]
    for on_device, on_host in zip(*choices, strict=True):
        np.testing.assert_array_equal(on_device, on_host)


def test_more_choices_than_experts_in_the_kept_groups_are_refused():
    shards = [whole_shard((1, 2, 4), dtype) for dtype in ("float64", "int32", "int32")]
    context = context_of(
        "top_k", TOP_K, [whole_shard((1, 2, 6), "float64")], shards,
        {"capacity": 1, "groups": 2, "kept_groups": 1},
    )  # fmt: skip
    with pytest.raises(ExecutorError, match="chooses 4 experts of 3 that it may choose"):
        make_calls(context)
