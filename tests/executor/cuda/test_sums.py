"""Sums over labels on a GPU, on the emulator: by threads, by blocks and in parts."""

import numpy as np
import pytest

from millrace.executor.cuda.calls import Launch
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.kernels.context import whole_shard
from millrace.models.labels import parse, shape_of
from tests.executor.cuda.calling import call, context_of
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

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++")


def summed(labels: str, **sizes: int) -> Example:
    return Example(kind="mul" if "," in labels else "sum", labels=labels, sizes=sizes)


EXTRA = [
    summed("b t n -> n", b=3, t=100, n=40),  # columns, in parts
    summed("b t n -> n", b=2, t=1200, n=33),  # more than 32 parts, added up by blocks
    summed("b t n -> b t", b=3, t=2, n=70),  # rows
    summed("b t -> ", b=4, t=5000),  # one output, in parts
    summed("b c y x -> c", b=4, c=3, y=5, x=9),  # terms of two dims
    summed("b t n -> t", b=5, t=4, n=8),
    summed("b t n -> n b", b=4, t=50, n=34),
    summed("b t n -> b t n", b=2, t=3, n=4),
    summed("b t n, b t n -> n", b=2, t=90, n=36),
    summed("b t n, t n -> b", b=3, t=90, n=100),
    summed("b t n, b -> n", b=40, t=3, n=35),
]  # fmt: skip
ALL = [example for example in EXAMPLES if example.kind == "sum"] + EXTRA
CASES = cases_of(ALL, tolerance=ROUNDED_ONCE)


@pytest.fixture(scope="module")
def emulator(request: pytest.FixtureRequest) -> Emulator:
    return emulator_of(selected_cases(CASES, request))


@parametrize_cases(CASES)
def test_a_sum_is_what_its_formula_says(cases: list[ExampleCase], emulator: Emulator) -> None:
    check_all(cases, emulator)


def launches(example: Example) -> list[str]:
    expression = parse(example.labels)
    shapes = [shape_of(operand, example.label_sizes) for operand in expression.operands]
    shards = [whole_shard(shape, "bfloat16") for shape in shapes]
    count = len(expression.inputs)
    calls = make_calls(context_of(example.kind, example.labels, shards[:count], shards[count:]))
    return [
        launch.function.partition("<")[0] for launch in calls.of(0) if isinstance(launch, Launch)
    ]


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        (EXTRA[0], ["column_sums", "add_slabs"]),
        (EXTRA[1], ["column_sums", "add_slabs"]),
        (EXTRA[8], ["sum_by_thread", "sum_by_thread"]),
        (EXTRA[9], ["sum_by_block"]),
        (EXTRA[2], ["sum_by_block"]),
        (EXTRA[3], ["sum_by_block", "sum_by_thread"]),
        (EXTRA[5], ["sum_by_block"]),
        (EXTRA[7], []),
    ],
    ids=lambda parameter: getattr(parameter, "labels", ""),
)
def test_who_adds_up_follows_from_what_lies_side_by_side(example: Example, expected: list[str]):
    assert launches(example) == expected


def test_sixteen_bit_sums_are_added_up_in_more():
    # a running sum of ones in bfloat16 would stay at 256
    (total,) = call(
        "sum", "b t -> ", [np.ones((4, 5000))], [whole_shard((), "bfloat16")],
        input_shards=[whole_shard((4, 5000), "bfloat16")],
    )  # fmt: skip
    np.testing.assert_allclose(total, 20_000, rtol=2**-8)
