"""Values moved on a GPU, and what comes from no input, on the emulator."""

import zlib
from base64 import b64encode
from functools import partial
from itertools import product

import numpy as np
import pytest

from millrace.executor.cuda.calls import Calls, CopyCall, Launch
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.cuda.kernels.source import stage_dtype
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Shard, whole_shard
from tests.executor.boxing_calls import (
    COORDINATES,
    FOR_MAXIMUM,
    PADDED,
    SLICED,
    Boxed,
    assert_each_rank_keeps_its_shard,
    assert_parts_add_up,
    assert_the_largest_is_the_whole,
    boxing,
    shard,
)
from tests.executor.cuda.calling import FLOATS, Operands, call, context_of, empty, loaded, to_device
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
from tests.executor.kernel_calls import shard_of

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++")

KINDS = {"broadcast", "concat", "constant", "fill", "narrow", "rearrange", "widen"}
# Permutations go by tile, by table, in units of 16 bytes, and with a group between two matrices.
PERMUTED = [
    ("b t -> t b", (40, 70)),
    ("b t n -> b n t", (3, 33, 35)),
    ("b t n -> n b t", (3, 9, 40)),
    ("b t h d -> b h t d", (2, 5, 3, 16)),
    ("b t h d -> t d b h", (2, 9, 3, 16)),
    ("b c y x -> b y x c", (2, 3, 8, 8)),
    ("b t n -> t b n", (2, 3, 5)),
]


def permuted(labels: str, shape: tuple[int, ...]) -> Example:
    sizes = dict(zip(labels.partition(" -> ")[0].split(), shape, strict=True))
    return Example(kind="rearrange", labels=labels, sizes=sizes)


EXTRA = [
    *(permuted(labels, shape) for labels, shape in PERMUTED),
    Example(kind="broadcast", labels="n b -> t b n", sizes={"n": 40, "b": 36, "t": 5}),
    Example(kind="broadcast", labels="b n -> b n t", sizes={"b": 3, "n": 16, "t": 12}),
    *(
        Example(
            kind=kind, labels=labels, attributes={"start": 2},
            sizes={"b": 3, "p": 9, "t": 4, "d": 16},
        )
        for kind, labels in (("narrow", "b p! d -> b t! d"), ("widen", "b t! d -> b p! d"))
    ),
    Example(
        kind="fill", labels=" -> b t", formula=lambda: np.zeros((4, 6)), attributes={"value": 0}
    ),
]  # fmt: skip
ALL = [example for example in EXAMPLES if example.kind in KINDS] + EXTRA
CASES = cases_of(ALL, tolerance=ROUNDED_ONCE)
STAGED = (*FLOATS, "int32")


def staged(dtype: str) -> Calls:
    attributes = {"source": "tokens", "values": 9}
    return make_calls(context_of("input", "-> b t", [], [whole_shard((3, 5), dtype)], attributes))


@pytest.fixture(scope="module")
def emulator(request: pytest.FixtureRequest) -> Emulator:
    more = [device_call for dtype in STAGED for device_call in staged(dtype).of(0)]
    for (kind, before, after), coordinate in product((*SLICED, *PADDED, FOR_MAXIMUM), COORDINATES):
        shards = [shard(before, coordinate)], [shard(after, coordinate)]
        context = context_of(kind, "", *shards, **boxing(before, after, coordinate))
        more += make_calls(context).of(0)
    return emulator_of(selected_cases(CASES, request), more)


@parametrize_cases(CASES)
def test_a_kernel_computes_what_its_formula_says(
    cases: list[ExampleCase], emulator: Emulator
) -> None:
    check_all(cases, emulator)


@pytest.mark.parametrize("boxed", SLICED, ids=str)
def test_slice_keeps_each_ranks_shard(boxed: Boxed, emulator: Emulator):
    assert_each_rank_keeps_its_shard(partial(call, emulator=emulator), boxed)


@pytest.mark.parametrize("boxed", PADDED, ids=str)
def test_padded_parts_add_up_to_the_whole(boxed: Boxed, emulator: Emulator):
    assert_parts_add_up(partial(call, emulator=emulator), boxed)


def test_padding_for_a_maximum_uses_minus_infinity(emulator: Emulator):
    assert_the_largest_is_the_whole(partial(call, emulator=emulator))


def test_slice_refuses_a_shard_outside_its_input():
    inner = Shard(global_shape=(8,), offsets=(0,), shape=(4,), dtype="float64")
    outer = Shard(global_shape=(8,), offsets=(4,), shape=(4,), dtype="float64")
    with pytest.raises(ExecutorError, match="not inside"):
        make_calls(context_of("slice", "", [inner], [outer]))


@pytest.mark.parametrize("dtype", STAGED)
def test_steps_read_the_halves_of_the_stage_in_turn(dtype: str, emulator: Emulator):
    calls = staged(dtype)
    halves = [np.arange(15).reshape(3, 5) + 100 * half for half in (0, 1)]
    y = empty(whole_shard((3, 5), dtype))
    operands = Operands(calls, [], [y])
    operands.stage = [to_device(half, stage_dtype(dtype)) for half in halves]
    for run_step in (0, 1, 2):
        operands.control.view(np.int64)[:2] = 7 + run_step, run_step
        operands.carry_out(calls.of(0), emulator)
        np.testing.assert_array_equal(loaded(y, dtype), halves[run_step % 2])


@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
def test_a_constant_is_read_from_its_data_wherever_it_is_cut(dtype: str):
    values = np.arange(24).reshape(4, 6)
    bits = to_device(values, dtype)
    data = b64encode(zlib.compress(bits.astype(bits.dtype.newbyteorder("<")).tobytes())).decode()
    for splits in ({}, {"t": 2}, {"t": 2, "d": 3}):
        for place in product(*(range(parts) for parts in splits.values())):
            place_by_label = dict(zip(splits, place, strict=True))
            where, region = shard_of((("t",), ("d",)), (4, 6), dtype, splits, place_by_label)
            (output,) = call(
                "constant", " -> t d", [], [where],
                attributes={"value": 0, "data": data}, emulator=Emulator({}),
            )  # fmt: skip
            np.testing.assert_array_equal(output, values[region])


def one_call(
    kind: str,
    labels: str,
    input_shape: tuple[int, ...],
    output_shape: tuple[int, ...],
    **attributes: int,
):
    shards = [whole_shard(input_shape, "bfloat16")], [whole_shard(output_shape, "bfloat16")]
    (device_call,) = make_calls(context_of(kind, labels, *shards, attributes)).of(0)
    return device_call


def test_what_lies_in_one_piece_is_copied_as_bytes():
    assert isinstance(one_call("rearrange", "b i j -> b (i j)", (4, 3, 5), (4, 15)), CopyCall)
    copy = one_call("narrow", "p! d -> t! d", (9, 4), (6, 4), start=2)
    assert isinstance(copy, CopyCall)
    assert (copy.source.offset_bytes, copy.size_bytes) == (16, 48)


def test_heads_move_sixteen_bytes_at_once_and_matrices_are_turned_over_by_tiles():
    heads = one_call("rearrange", "b t h d -> b h t d", (2, 8, 4, 64), (2, 4, 8, 64))
    assert isinstance(heads, Launch)
    assert heads.function == "copy_strided<Bytes16, Bytes16, unsigned>"
    assert heads.args[-1] == 2 * 8 * 4 * 64 // 8
    turned = one_call("rearrange", "b t n -> b n t", (2, 64, 64), (2, 64, 64))
    assert isinstance(turned, Launch)
    assert turned.function == "transpose<bf16, 64>"


def test_a_widening_that_casts_is_refused():
    shards = [whole_shard((4, 2), "bfloat16")], [whole_shard((6, 2), "float32")]
    with pytest.raises(ExecutorError, match="widen keeps its dtype"):
        make_calls(context_of("widen", "t! d -> p! d", *shards, {"start": 0}))
