"""Kernels that move packs, at sizes that end inside of one, and at more than a block takes."""

import numpy as np
import pytest

from millrace.executor.cuda.calls import CallTensor, Launch, read, write
from millrace.executor.cuda.kernels.column_sums import ColumnSums, column_sum
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.kernels.context import Array, whole_shard
from tests.executor.cuda.calling import Operands, call, context_of, empty, loaded, to_device
from tests.executor.cuda.emulation.machine import COMPILER, Emulator, functions_of
from tests.executor.cuda.narrowing import cast_context, floats, wanted_bits

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

SIZES = (1, 7, 8, 4097, 20_003)
WIDTHS = ("float64", "float32", "float16", "bfloat16")
CLOSE = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
every_width = pytest.mark.parametrize("dtype", WIDTHS)


def numbers(dtype: str, *shape: int, seed: int = 0) -> Array:
    """Normal numbers as the dtype has them."""
    values = np.random.default_rng(seed).standard_normal(shape)
    return loaded(to_device(values, dtype), dtype).astype(np.float64)


@every_width
@pytest.mark.parametrize("size", SIZES)
def test_sums_of_two_tensors(size: int, dtype: str) -> None:
    a, b = numbers(dtype, size), numbers(dtype, size, seed=1)
    shard = whole_shard((size,), dtype)
    (output,) = call("add", "n, n -> n", [a, b], [shard], input_shards=[shard] * 2)
    np.testing.assert_array_equal(output, loaded(to_device(a + b, dtype), dtype))


@every_width
@pytest.mark.parametrize(("rows", "columns"), [(1, 8), (3, 12), (700, 24), (41, 7)])
def test_a_bias_that_comes_with_every_row(rows: int, columns: int, dtype: str) -> None:
    a, b = numbers(dtype, rows, columns), numbers(dtype, columns, seed=1)
    shards = [whole_shard(a.shape, dtype), whole_shard(b.shape, dtype)]
    (output,) = call("add", "b n, n -> b n", [a, b], shards[:1], input_shards=shards)
    np.testing.assert_array_equal(output, loaded(to_device(a + b, dtype), dtype))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("source", "target"), [("float32", "bfloat16"), ("float16", "float32")])
def test_casts(size: int, source: str, target: str) -> None:
    x = numbers(source, size)
    shards = [whole_shard((size,), source)]
    (output,) = call("cast", "n -> n", [x], [whole_shard((size,), target)], input_shards=shards)
    np.testing.assert_array_equal(output, loaded(to_device(x, target), target))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_floats_become_16_bits_as_the_instruction_has_it(dtype: str) -> None:
    shards = cast_context(dtype).outputs
    calls, output = make_calls(cast_context(dtype)), empty(shards[0])
    operands = Operands(calls, [floats()], [output])
    for device_call in calls.of(0):
        Emulator(functions_of([device_call])).run(
            device_call, operands.address, operands.ranges(device_call)
        )
    assert [f"{x:04x}" for x in output.view(np.uint16)] == [f"{x:04x}" for x in wanted_bits(dtype)]


@every_width
@pytest.mark.parametrize("size", SIZES)
def test_gates(size: int, dtype: str) -> None:
    gate, up = numbers(dtype, size), numbers(dtype, size, seed=1)
    shard = whole_shard((size,), dtype)
    (output,) = call("swiglu", "n, n -> n", [gate, up], [shard], input_shards=[shard] * 2)
    expected = gate / (1 + np.exp(-gate)) * up
    np.testing.assert_allclose(output, expected, rtol=CLOSE[dtype], atol=CLOSE[dtype])


# A thread has one pack, two or four, or reads rows again.
@every_width
@pytest.mark.parametrize(
    ("rows", "columns"), [(3, 70), (2, 1999), (2, 4097), (2, 8190), (1, 20_003)]
)
def test_softmax_of_rows_of_any_length(rows: int, columns: int, dtype: str) -> None:
    x, dy = numbers(dtype, rows, columns), numbers(dtype, rows, columns, seed=1)
    shard = whole_shard(x.shape, dtype)
    (output,) = call("softmax", "b n! -> b n!", [x], [shard], input_shards=[shard])
    y = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    np.testing.assert_allclose(output, y, rtol=CLOSE[dtype], atol=1e-6)
    y = loaded(to_device(y, dtype), dtype).astype(np.float64)
    inputs = [y, dy]
    (slope,) = call("softmax_grad", "b n!, b n! -> b n!", inputs, [shard], input_shards=[shard] * 2)
    expected = y * (dy - (y * dy).sum(1, keepdims=True))
    np.testing.assert_allclose(slope, expected, rtol=CLOSE[dtype], atol=1e-6)


@every_width
@pytest.mark.parametrize(("rows", "columns"), [(1, 5), (5, 31), (3, 4099), (2, 20_000)])
def test_losses_of_rows_that_begin_inside_a_pack(rows: int, columns: int, dtype: str) -> None:
    x = numbers(dtype, rows, columns)
    wide = "float64" if dtype == "float64" else "float32"
    targets = (np.arange(rows) * 7919 % columns).astype(np.int32)
    targets[rows // 2] = -1
    row_shards = [whole_shard((rows,), wide)] * 2
    shards = [whole_shard(x.shape, dtype), whole_shard((rows,), "int32"), row_shards[0]]
    loss, logsumexp = call(
        "cross_entropy", "b v!, b -> b, b", [x, targets], row_shards, input_shards=shards[:2]
    )
    sums = np.log(np.exp(x).sum(1))
    right = np.where(targets < 0, 0, sums - x[np.arange(rows), targets])
    np.testing.assert_allclose(logsumexp, sums, rtol=CLOSE[wide])
    np.testing.assert_allclose(loss, right, rtol=CLOSE[wide], atol=CLOSE[wide])
    (slope,) = call(
        "cross_entropy_grad", "b v, b, b -> b v", [x, targets, sums], shards[:1],
        input_shards=shards,
    )  # fmt: skip
    expected = np.exp(x - sums[:, None])
    expected[np.arange(rows), targets] -= 1
    expected[targets < 0] = 0
    np.testing.assert_allclose(slope, expected, rtol=CLOSE[dtype], atol=1e-6)


@every_width
@pytest.mark.parametrize(("rows", "columns"), [(1, 8), (33, 9), (300, 264), (70, 1000)])
def test_sums_of_columns_are_written_and_then_added_on(rows: int, columns: int, dtype: str) -> None:
    x = numbers(dtype, rows, columns)
    wide = "float64" if dtype == "float64" else "float32"
    sums = ColumnSums(outputs=(CallTensor(write(0), wide, columns),), rounded=dtype, hold=2)
    calls = column_sum(CallTensor(read(0), dtype, rows * columns), sums, columns=columns)
    output = empty(whole_shard((columns,), wide))
    operands = Operands(calls, [to_device(x, dtype)], [output])
    machine = Emulator(functions_of([*calls.of(0), *calls.of(1)]))
    for firing in (0, 1, 2, 3):
        for device_call in calls.of(firing):
            machine.run(device_call, operands.address, operands.ranges(device_call))
    near = CLOSE[dtype] * np.abs(x).sum(0).max()
    np.testing.assert_allclose(output, 2 * x.sum(0), rtol=CLOSE[dtype], atol=near)


def test_a_sort_of_more_blocks_than_a_thread_places_at_once() -> None:
    ids = (np.random.default_rng(0).integers(0, 300, (40, 1024)) ** 2 % 300).astype(np.int32)
    dy = numbers("float32", *ids.shape, 4)
    shards = [whole_shard(ids.shape, "int32"), whole_shard(dy.shape, "float32")]
    (output,) = call(
        "embedding_grad", "b t, b t d -> v d", [ids, dy], [whole_shard((300, 4), "float32")],
        input_shards=shards,
    )  # fmt: skip
    expected = np.zeros((300, 4))
    np.add.at(expected, ids.reshape(-1), dy.reshape(-1, 4))
    np.testing.assert_allclose(output, expected, atol=1e-3)


def test_a_launch_has_a_thread_for_every_two_packs() -> None:
    for dtype, blocks in (("bfloat16", 256), ("float32", 512)):
        shard = whole_shard((2**20,), dtype)
        (launch,) = make_calls(context_of("add", "n, n -> n", [shard] * 2, [shard])).of(0)
        assert isinstance(launch, Launch)
        assert launch.grid == (blocks, 1, 1)
