"""Embedding, rotary positions and relative bias on a device, against their formulas."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array, Shard, whole_shard
from tests.executor.cuda.calling import context_of
from tests.executor.cuda.emulation.machine import COMPILER, Emulator
from tests.executor.cuda.example_cases import (
    ExampleCase,
    cases_of,
    check_all,
    emulator_of,
    parametrize_cases,
    selected_cases,
)
from tests.executor.examples.embeddings import EXAMPLES, rotary_example
from tests.executor.examples.example import Example

pytestmark = pytest.mark.skipif(COMPILER is None, reason="g++ compiles the kernels")

PADDING = 4
FREQUENT = 5
ROTARY = {"base": 100.0, "dims": 8, "interleaved": False, "inverse": False}


def uneven(ids: Array, dy: Array) -> tuple[Array, Array]:
    """Ids of which a third are one id and others the id that gets no gradient, and dy as it is."""
    return np.where(ids % 3 == 0, FREQUENT, np.where(ids % 7 == 0, PADDING, ids)), dy


MANY_IDS = Example(
    kind="embedding_grad",
    labels="b t, b t d -> v d",
    derive=uneven,
    ids=(0,),
    lowest_id=0,
    attributes={"padding": PADDING},
    sizes={"b": 6, "t": 350, "v": 700, "d": 2},
)  # 2,100 ids: three blocks, two passes of the sort, runs of many pieces


def cases() -> Iterator[ExampleCase]:
    yield from cases_of(EXAMPLES)
    for splits in ({}, {"v": 2}, {"b": 3, "d": 2}):
        yield ExampleCase(example=MANY_IDS, dtype="float64", splits=splits)
    for dtype in ("float32", "bfloat16"):
        yield ExampleCase(example=MANY_IDS, dtype=dtype)
    few = replace(MANY_IDS, sizes=MANY_IDS.sizes | {"b": 1, "t": 64})  # pieces that are just full
    for dtype in ("float64", "float32"):
        yield ExampleCase(example=few, dtype=dtype)


CASES = list(cases())


@pytest.fixture(scope="module")
def emulator(request: pytest.FixtureRequest) -> Emulator:
    """Emulator of all that the tests of this module launch."""
    return emulator_of(selected_cases(CASES, request))


@parametrize_cases(CASES)
def test_a_sequence_kernel_computes_what_its_formula_says(
    cases: list[ExampleCase], emulator: Emulator
):
    check_all(cases, emulator)


def test_sorting_takes_as_many_passes_as_the_rows_of_the_table_have_bytes():
    for rows, passes in ((255, 1), (256, 2), (50257, 2), (65536, 3)):
        calls = make_calls(
            context_of(
                "embedding_grad", "b t, b t d -> v d",
                [whole_shard((2, 8), "int32"), whole_shard((2, 8, 4), "bfloat16")],
                [whole_shard((rows, 4), "float32")],
            )
        )  # fmt: skip
        names = [getattr(device_call, "function", "clear") for device_call in calls.of(0)]
        digits = ["count_digits", "place_digits", "move_by_digit"] * passes
        sums = ["sum_pieces<bf16, float, 4>", "join_pieces<float, float>"]
        assert names == ["clear", "sort_keys", *digits, *sums]


def test_turns_of_the_same_positions_share_one_table_either_way_round():
    def table(offset: int, **attributes: object) -> Array:
        shard = Shard(
            global_shape=(2, 8, 8), offsets=(0, offset, 0), shape=(2, 4, 8), dtype="bfloat16"
        )
        context = context_of("rotary", "b t k! -> b t k!", [shard], [shard], ROTARY | attributes)
        (turns,) = make_calls(context).tables
        return turns

    assert table(0) is table(0, inverse=True)
    assert table(0).dtype == np.float32
    np.testing.assert_allclose(table(4)[:, 0, 0], [np.cos(4.0), np.sin(4.0)], rtol=1e-6)


def test_rotary_refuses_what_it_cannot_turn():
    example = rotary_example("b t k!")
    shard = whole_shard((2, 4, 8), "float32")
    for dims in (7, 10):
        with pytest.raises(ExecutorError, match=f"turns {dims} of 8 features: expected an even"):
            make_calls(
                context_of("rotary", example.labels, [shard], [shard], ROTARY | {"dims": dims})
            )
    with pytest.raises(ExecutorError, match="needs label `t`"):
        make_calls(context_of("rotary", "b n k! -> b n k!", [shard], [shard], ROTARY))
