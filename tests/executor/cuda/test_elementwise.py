"""Arithmetic and functions on a GPU, on the emulator."""

from math import erfc

import numpy as np
import pytest

from millrace.executor.cuda.calls import Calls, Launch
from millrace.executor.cuda.kernels.elementwise.elementwise_kernels import ELEMENTWISE
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.cuda.kernels.strides import merged, walk
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import whole_shard
from tests.executor.cuda.calling import FLOATS, Operands, call, context_of, empty, to_device
from tests.executor.cuda.emulation.machine import COMPILER, Emulator
from tests.executor.cuda.example_cases import (
    ROUNDED_ONCE,
    ExampleCase,
    cases_of,
    check_all,
    emulator_of,
    parametrize_cases,
    selected_cases,
)
from tests.executor.examples.example import Example
from tests.executor.examples.table import EXAMPLES
from tests.executor.kernel_calls import run_state

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++")

KINDS = set(ELEMENTWISE) - {"dropout"}
SIZES = {"b": 4, "t": 6, "n": 10, "c": 3, "y": 5, "x": 7}
# Broadcasts of every form: by rows, by columns, in the middle, of both operands, of no order.
BROADCASTS = {
    "add": [
        "b t n, n -> b t n",
        "n, b t n -> b t n",
        "b t n, b t -> b t n",
        "b c y x, c -> b c y x",
        "b t n, () -> b t n",
        "b t, n -> b t n",
        "n t b, b t n -> b t n",
        "b t n, b n -> b t n",
        "b t n, n, b t n, t b -> b t n",
        "t n, t n -> t n",
        "(t n), n t -> t n",
    ],
    "mul": [
        "b t n, n -> b t n",
        "t, b t n -> b t n",
        "b t n, b t n -> b t",
        "b t n, b t n -> n",
        "b t n, b t n -> t",
        "b t n, t -> n",
        "b t n, n b t -> ",
        "b c y x, b c y x -> c",
    ],
}


EXTRA = [
    Example(kind=kind, labels=labels, sizes=SIZES)
    for kind, forms in BROADCASTS.items()
    for labels in forms
]
ALL = [example for example in EXAMPLES if example.kind in KINDS] + EXTRA
LIMITS = ("silu", "gelu", "gelu_erf", "relu", "softplus", "sigmoid")
CASES = cases_of(ALL, tolerance=ROUNDED_ONCE)


def accumulating(narrow: str, wide: str) -> Calls:
    sides = [whole_shard((5,), narrow)], [whole_shard((5,), wide)]
    return make_calls(context_of("accumulate", "n -> n", *sides, output_hold=3))


ACCUMULATED = [("float32", "float32"), ("bfloat16", "float32"), ("float16", "float32")]
CASTS = [(x, y) for x in (*FLOATS, "int32") for y in FLOATS if x != y]


@pytest.fixture(scope="module")
def emulator(request: pytest.FixtureRequest) -> Emulator:
    more = [
        device_call
        for pair in ACCUMULATED
        for n in (0, 1)
        for device_call in accumulating(*pair).of(n)
    ]
    for x, y in CASTS:
        context = context_of("cast", "n -> n", [whole_shard((7,), x)], [whole_shard((7,), y)])
        more += make_calls(context).of(0)
    shard = whole_shard((4,), "int32")
    more += make_calls(context_of("add", "n, n -> n", [shard, shard], [shard])).of(0)
    return emulator_of(selected_cases(CASES, request), more)


def test_every_kind_has_an_example():
    assert {example.kind for example in ALL} == KINDS


@parametrize_cases(CASES)
def test_a_kernel_computes_what_its_formula_says(
    cases: list[ExampleCase], emulator: Emulator
) -> None:
    check_all(cases, emulator)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_of_values_far_from_zero_are_their_limits(dtype: str, emulator: Emulator):
    x = np.array([-1e4, -200, 200, 1e4], dtype)
    shards = [whole_shard(x.shape, dtype)]
    for kind in LIMITS:
        labels = "b t n -> b t n", "b t n, b t n -> b t n"
        given = x.reshape(1, 1, 4)
        shards = [whole_shard(given.shape, dtype)]
        (value,) = call(kind, labels[0], [given], shards, emulator=emulator)
        (slope,) = call(
            f"{kind}_grad", labels[1], [given, np.ones_like(given)], shards, emulator=emulator
        )
        is_gate = kind == "sigmoid"
        np.testing.assert_allclose(
            value.ravel(), x > 0 if is_gate else np.maximum(x, 0), atol=1e-30
        )
        np.testing.assert_allclose(slope.ravel(), 0 if is_gate else x > 0, atol=1e-30)


def test_the_exact_gelu_is_exact_in_between(emulator: Emulator):
    x = np.linspace(-9, 9, 4_001)
    expected = x * 0.5 * np.vectorize(erfc)(-x / np.sqrt(2))
    for dtype, tolerance in (("float64", 1e-13), ("float32", 2e-6)):
        shards = [whole_shard(x.shape, dtype)]
        (output,) = call("gelu_erf", "n -> n", [x.astype(dtype)], shards, emulator=emulator)
        np.testing.assert_allclose(output, expected, atol=tolerance)


def test_what_is_no_number_stays_none(emulator: Emulator):
    x = np.array([np.nan, 1.0])
    for kind, attributes in (("relu", {}), ("clip", {"low": -0.5, "high": 0.75}), ("gelu", {})):
        shards, more = [whole_shard((2,), "float64")], {"attributes": attributes}
        (output,) = call(kind, "n -> n", [x], shards, emulator=emulator, **more)
        assert np.isnan(output[0])
        assert np.isfinite(output[1])


@pytest.mark.parametrize(("narrow", "wide"), ACCUMULATED)
def test_accumulate_overwrites_at_the_first_of_its_firings_and_adds_after(
    narrow: str, wide: str, emulator: Emulator
):
    calls = accumulating(narrow, wide)
    total = empty(whole_shard((5,), wide))
    seen = []
    for firing in range(6):
        given = to_device(np.full(5, float(firing)), narrow)
        Operands(calls, [given], [total]).carry_out(calls.of(firing), emulator)
        seen.append(float(total[-1]))
    assert seen == [0, 1, 3, 3, 7, 12]


@pytest.mark.parametrize(("x", "y"), CASTS)
def test_cast_goes_between_widths(x: str, y: str, emulator: Emulator):
    given = np.array([0, 1, -2, 3, 100, -7, 5])
    (output,) = call(
        "cast", "n -> n", [given], [whole_shard((7,), y)],
        input_shards=[whole_shard((7,), x)], emulator=emulator,
    )  # fmt: skip
    np.testing.assert_array_equal(output, given)


def test_ids_are_added_as_whole_numbers(emulator: Emulator):
    x = np.array([2**30, -5, 0, 7], np.int32)
    (output,) = call(
        "add", "n, n -> n", [x, x - 1], [whole_shard((4,), "int32")], emulator=emulator
    )
    np.testing.assert_array_equal(output, x + (x - 1))


def functions(kind: str, labels: str, shapes: list[tuple[int, ...]], output: tuple[int, ...]):
    shards = [whole_shard(shape, "bfloat16") for shape in shapes]
    calls = make_calls(context_of(kind, labels, shards, [whole_shard(output, "bfloat16")]))
    return [
        launch.function.partition("<")[0] for launch in calls.of(0) if isinstance(launch, Launch)
    ]


def test_a_bias_is_read_in_line_and_no_table():
    assert functions("add", "b t n, n -> b t n", [(8, 16, 64), (64,)], (8, 16, 64)) == [
        "join_repeated"
    ]
    assert functions("add", "b c y x, c -> b c y x", [(8, 16, 4, 4), (16,)], (8, 16, 4, 4)) == [
        "join_repeated"
    ]
    assert functions("add", "b t, b t -> b t", [(8, 16), (8, 16)], (8, 16)) == ["join_flat"]


def test_neighbouring_labels_are_one_dim_where_both_operands_allow_it():
    sizes = {"b": 2, "t": 3, "n": 5, "o": 1}
    assert walk(("b", "t", "n"), ("b", "t", "n"), ("b", "t", "n"), sizes).is_flat
    assert walk(("b", "o", "t"), ("b", "t"), ("o", "t"), sizes).sizes == (2, 3)
    assert walk(("o",), ("o",), (), sizes).count == 1


def test_too_many_dims_apart_are_refused():
    path = merged(
        [2] * 9, [2**exponent for exponent in range(9)], [2**exponent for exponent in range(9)]
    )
    with pytest.raises(ExecutorError, match="at most 8 dims"):
        path.table("op")


def test_eight_bits_are_refused():
    shards = [whole_shard((4, 4), "bfloat16")], [whole_shard((4, 4), "float8")]
    with pytest.raises(ExecutorError, match="--precision bf16"):
        make_calls(context_of("quantise", "b n -> b n", *shards, run=run_state()))


def test_a_cast_that_loses_fractions_is_refused():
    with pytest.raises(ExecutorError, match="would lose fractions"):
        make_calls(
            context_of(
                "cast", "n -> n", [whole_shard((4,), "float32")], [whole_shard((4,), "int32")]
            )
        )


def test_functions_of_ids_are_refused():
    shard = whole_shard((4,), "int32")
    with pytest.raises(ExecutorError, match="found int32: cast it first"):
        make_calls(context_of("scale", "n -> n", [shard], [shard], {"factor": 0.5}))


def test_prelu_takes_one_slope_per_index_of_one_dim():
    shard = whole_shard((2, 3), "float32")
    with pytest.raises(ExecutorError, match="prelu takes one slope"):
        make_calls(context_of("prelu", "b c, b c -> b c", [shard, shard], [shard]))
