"""Dropout on a GPU draws the bits of the NumPy kernel, on the emulator."""

from collections.abc import Iterable

import numpy as np
import pytest

from millrace.executor.cuda.calls import Calls
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels import KernelContext, make_kernel
from millrace.executor.kernels.context import Array, Shard, whole_shard
from tests.executor.cuda.calling import FLOATS, Operands, context_of, empty, loaded, to_device
from tests.executor.cuda.emulation.machine import COMPILER, Emulator, functions_of
from tests.executor.cuda.example_cases import (
    ROUNDED_ONCE,
    ExampleCase,
    cases_of,
    check_all,
    emulator_of,
    parametrize_cases,
    selected_cases,
)
from tests.executor.examples.dropout import EXAMPLES
from tests.executor.kernel_calls import run_state, shard_of

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++")

ATTRIBUTES = {"rate": 0.3, "op": "block.dropout"}
CASES = cases_of(EXAMPLES, tolerance=ROUNDED_ONCE)


def context(shard: Shard, labels: str = "b t n", **run: int) -> KernelContext:
    return context_of(
        "dropout", f"{labels} -> {labels}", [shard], [shard], ATTRIBUTES, run=run_state(**run)
    )


@pytest.fixture(scope="module")
def emulator(request: pytest.FixtureRequest) -> Emulator:
    shards = [whole_shard((2, 3, 4), dtype) for dtype in FLOATS]
    return emulator_of(
        selected_cases(CASES, request),
        [call for s in shards for call in make_calls(context(s)).of(0)],
    )


def dropped(
    emulator: Emulator, calls: Calls, x: Array, shard: Shard, firing: int, step: int
) -> Array:
    """Output of one firing in a step."""
    y = empty(shard)
    operands = Operands(calls, [to_device(x, shard.dtype)], [y])
    operands.control.view(np.int64)[0] = step
    operands.carry_out(calls.of(firing), emulator)
    return loaded(y, shard.dtype)


def by_numpy(context: KernelContext, x: Array, firings: Iterable[int]) -> list[Array]:
    kernel = make_kernel(context)
    outputs = []
    for firing in firings:
        y = np.full_like(x, 77)
        kernel(firing, [x], [y])
        outputs.append(y)
    return outputs


@parametrize_cases(CASES)
def test_a_kernel_computes_what_its_formula_says(
    cases: list[ExampleCase], emulator: Emulator
) -> None:
    check_all(cases, emulator)


@pytest.mark.parametrize(
    ("labels", "shape"),
    [("b t n", (4, 3, 8)), ("b t n", (4, 3, 7)), ("t b n", (3, 4, 12)), ("k n", (6, 5))],
)
def test_every_firing_of_every_step_drops_what_numpy_drops(
    labels: str, shape: tuple[int, ...], emulator: Emulator
):
    x = np.ones(shape)
    settings = {"global_batch": 8, "microbatches": 2, "batch": 4, "seed": 3}
    op_context = context(whole_shard(shape, "float64"), labels, first_step=5, **settings)
    expected = by_numpy(op_context, x, range(6))
    calls = make_calls(op_context)
    outputs = [
        dropped(emulator, calls, x, op_context.inputs[0], firing, 5 + step)
        for step in range(3)
        for firing in range(2)
    ]
    np.testing.assert_array_equal(np.stack(outputs), np.stack(expected))
    assert not np.array_equal(outputs[0], outputs[2])


@pytest.mark.parametrize(
    "splits", [{"b": 2}, {"t": 3}, {"n": 2}, {"t": 2, "n": 4}, {"b": 4, "n": 8}]
)
def test_a_shard_drops_what_numpy_drops_there(splits: dict[str, int], emulator: Emulator):
    shape = (4, 6, 24)
    x = np.ones(shape, np.float32)
    for place_by_label in (dict.fromkeys(splits, 0), {label: n - 1 for label, n in splits.items()}):
        shard, region = shard_of((("b",), ("t",), ("n",)), shape, "float32", splits, place_by_label)
        op_context = context(shard, microbatches=2, batch=4)
        (expected,) = by_numpy(op_context, np.ascontiguousarray(x[region]), [3])
        output = dropped(emulator, make_calls(op_context), x[region], shard, 1, 1)
        np.testing.assert_array_equal(output, expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_masks_are_the_same_in_every_dtype(dtype: str, emulator: Emulator):
    shape = (3, 5, 8)
    (expected,) = by_numpy(context(whole_shard(shape, "float64")), np.ones(shape), [0])
    op_context = context(whole_shard(shape, dtype))
    output = dropped(emulator, make_calls(op_context), np.ones(shape), op_context.inputs[0], 0, 0)
    np.testing.assert_array_equal(output > 0, expected > 0)


def test_one_kernel_serves_every_shape_of_a_dtype():
    calls = [make_calls(context(whole_shard((b, 3, 8), "float32"))).of(0) for b in (1, 2)]
    assert len({name for launches in calls for name in functions_of(launches)["dropout"]}) == 1


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_a_rate_that_is_no_share_is_refused(rate: float):
    shard = whole_shard((2, 3), "float32")
    attributes = {"rate": rate, "op": "a"}
    with pytest.raises(ExecutorError, match="dropout rate is"):
        make_calls(context_of("dropout", "b n -> b n", [shard], [shard], attributes))
