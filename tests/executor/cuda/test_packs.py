"""Kernels that move packs, at sizes that end inside of one, and at more than a block takes."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from millrace.executor.cuda.calls import CallTensor, Launch, read, write
from millrace.executor.cuda.kernels.column_sums import ColumnSums, column_sum
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.kernels.context import Array, whole_shard
from tests.executor.cuda.calling import Operands, call, context_of, empty, loaded, to_device
from tests.executor.cuda.emulation.machine import COMPILER, Emulator
from tests.executor.cuda.example_cases import (
    ExampleCase,
    check_all,
    emulator_of,
    parametrize_cases,
    selected_cases,
)
from tests.executor.cuda.narrowing import cast_context, floats, wanted_bits
from tests.executor.examples import losses, norms
from tests.executor.examples.example import Example

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

SIZES = (1, 7, 8, 4097, 20_003)
WIDTHS = ("float64", "float32", "float16", "bfloat16")
CLOSE = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
every_width = pytest.mark.parametrize("dtype", WIDTHS)
softmax, softmax_grad = (e for e in norms.EXAMPLES if e.kind.startswith("softmax"))
loss, loss_grad = losses.EXAMPLES[:2]


def sized() -> Iterator[Example]:
    for size in SIZES:
        yield Example(kind="add", labels="n, n -> n", sizes={"n": size})
        yield Example(kind="swiglu", labels="n, n -> n", sizes={"n": size})
    for rows, columns in ((1, 8), (3, 12), (700, 24), (41, 7)):
        yield Example(kind="add", labels="b n, n -> b n", sizes={"b": rows, "n": columns})
    # A thread has one pack, two or four, or reads rows again.
    for rows, columns in ((3, 70), (2, 1999), (2, 4097), (2, 8190), (1, 20_003)):
        for example in (softmax, softmax_grad):
            yield replace(example, sizes={"b": 1, "t": rows, "n": columns})
    # Rows begin inside of a pack.
    for rows, columns in ((1, 5), (5, 31), (3, 4099), (2, 20_000)):
        for example in (loss, loss_grad):
            yield replace(example, sizes={"b": 1, "t": rows, "v": columns})
    # Ids to sort are of more blocks than a thread places at once.
    sizes = {"b": 40, "t": 1024, "v": 300, "d": 4}
    yield Example(
        kind="embedding_grad", labels="b t, b t d -> v d", ids=(0,), lowest_id=0, sizes=sizes,
        derive=lambda ids, dy: (ids * ids % 300, dy),
    )  # fmt: skip


CASES = [
    ExampleCase(
        example=example,
        dtype=dtype,
        wide=(2,) if example.kind == "cross_entropy_grad" else (),
        tolerance=CLOSE,
    )
    for example in sized()
    for dtype in WIDTHS
]


@pytest.fixture(scope="module")
def emulator(request: pytest.FixtureRequest) -> Emulator:
    return emulator_of(selected_cases(CASES, request))


@parametrize_cases(CASES)
def test_kernels_compute_what_the_oracle_says_at_any_size(
    cases: list[ExampleCase], emulator: Emulator
) -> None:
    check_all(cases, emulator)


def numbers(dtype: str, *shape: int) -> Array:
    """Normal numbers as the dtype has them."""
    values = np.random.default_rng(0).standard_normal(shape)
    return loaded(to_device(values, dtype), dtype).astype(np.float64)


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
    Operands(calls, [floats()], [output]).carry_out(calls.of(0))
    assert [f"{x:04x}" for x in output.view(np.uint16)] == [f"{x:04x}" for x in wanted_bits(dtype)]


@every_width
@pytest.mark.parametrize(("rows", "columns"), [(1, 8), (33, 9), (300, 264), (70, 1000)])
def test_sums_of_columns_are_written_and_then_added_on(rows: int, columns: int, dtype: str) -> None:
    x = numbers(dtype, rows, columns)
    wide = "float64" if dtype == "float64" else "float32"
    sums = ColumnSums(outputs=(CallTensor(write(0), wide, columns),), rounded=dtype, hold=2)
    calls = column_sum(CallTensor(read(0), dtype, rows * columns), sums, columns=columns)
    output = empty(whole_shard((columns,), wide))
    operands = Operands(calls, [to_device(x, dtype)], [output])
    operands.carry_out([call for firing in range(4) for call in calls.of(firing)])
    near = CLOSE[dtype] * np.abs(x).sum(0).max()
    np.testing.assert_allclose(output, 2 * x.sum(0), rtol=CLOSE[dtype], atol=near)


def test_a_launch_has_a_thread_for_every_two_packs() -> None:
    for dtype, blocks in (("bfloat16", 256), ("float32", 512)):
        shard = whole_shard((2**20,), dtype)
        (launch,) = make_calls(context_of("add", "n, n -> n", [shard] * 2, [shard])).of(0)
        assert isinstance(launch, Launch)
        assert launch.grid == (blocks, 1, 1)
