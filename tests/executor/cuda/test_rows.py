"""Calls of rows against the formulas of the NumPy kernels, on the emulator.

The examples come as they are and in shapes that do not fit packs, blocks and slabs; whole in every
dtype, and cut along any labels they may be cut along.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from _pytest.mark import ParameterSet

from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.cuda.kernels.rows.row_kernels import ROWS
from millrace.executor.kernels.context import Array, Shard, whole_shard
from millrace.models.labels import parse, shape_of
from millrace.models.ops import OPS
from tests.executor.cuda.calling import FLOATS, call, context_of, loaded, to_device
from tests.executor.cuda.emulation.machine import COMPILER, Emulator, functions_of
from tests.executor.cuda.usual import NARROW, enumerate_by_kind
from tests.executor.examples import attention, losses, norms
from tests.executor.examples.example import Example, splittable
from tests.executor.kernel_calls import shard_of

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")

TOLERANCE = {"float64": 1e-11, "float32": 2e-4, "bfloat16": 1.2e-2, "float16": 1.5e-3}
KEPT_WIDE = {  # inputs that stay float32 where the others have 16 bits
    "cross_entropy_grad": (2,),
    "l2_normalize_grad": (2,),
    "layer_norm_grad_input": (3, 4),
    "layer_norm_grad_weight": (2, 3),
    "loss_from_sums": (1,),
    "rms_norm_grad_input": (3,),
    "rms_norm_grad_weight": (2,),
}
FOUND = list(
    {
        (e.kind, e.labels, str(e.attributes)): e
        for theme in (norms, losses, attention)
        for e in theme.EXAMPLES
        if e.kind in ROWS
    }.values()
)
WIDE = {"b": 2, "t": 19, "s": 19, "d": 520, "n": 131, "v": 2101}  # 38 rows make two slabs
TALL = {"b": 2, "t": 90, "s": 90, "d": 3, "n": 3, "v": 5}  # rows of less than a pack
EXAMPLES = [*FOUND, *(replace(e, sizes=e.sizes | more) for e in FOUND for more in (WIDE, TALL))]

Piece = tuple[list[Shard], list[Shard], list[tuple[slice, ...]], list[tuple[slice, ...]]]


def name_of(example: Example) -> str:
    sizes = [size for size in ("520", "90") if int(size) in example.sizes.values()]
    return f"{example.kind} {example.attributes or ''} {' '.join(sizes)}"


def in_dtypes() -> Iterator[ParameterSet]:
    """Every example and dtype; of 16 bits one in turn, but all of the first of a kind."""
    for number, example in enumerate_by_kind(EXAMPLES):
        for dtype in FLOATS:
            usual = number == 0 or dtype not in NARROW or dtype == NARROW[number % 2]
            yield pytest.param(
                example, dtype, id=f"{name_of(example)} {dtype}",
                marks=() if usual else pytest.mark.exhaustive,
            )  # fmt: skip


every_small_example = pytest.mark.parametrize("example", FOUND, ids=name_of)


def input_dtypes(example: Example, dtype: str) -> list[str]:
    wide = "float64" if dtype == "float64" else "float32"
    wide_inputs = KEPT_WIDE.get(example.kind, ())
    return [
        "int32" if position in example.ids else wide if position in wide_inputs else dtype
        for position in range(len(parse(example.labels).inputs))
    ]


def shards_of(example: Example, dtype: str) -> tuple[list[Shard], list[Shard]]:
    """Shards of inputs and outputs, wide where the op table keeps them so."""
    expression, row = parse(example.labels), OPS[example.kind]
    wide = "float64" if dtype == "float64" else "float32"
    inputs = [
        whole_shard(shape_of(operand, example.label_sizes), operand_dtype)
        for operand, operand_dtype in zip(
            expression.inputs, input_dtypes(example, dtype), strict=True
        )
    ]
    outputs = [
        whole_shard(
            shape_of(operand, example.label_sizes),
            wide if position in row.wide_outputs or example.kind == "count_valid" else dtype,
        )
        for position, operand in enumerate(expression.outputs)
    ]
    return inputs, outputs


def inputs_of(example: Example, dtype: str) -> list[Array]:
    """Random inputs as a device holds them, consistent after rounding too."""
    shards, _ = shards_of(example, dtype)

    def rounded(arrays: list[Array]) -> list[Array]:
        return [
            array if shard.dtype == "int32" else loaded(to_device(array, shard.dtype), shard.dtype)
            for array, shard in zip(arrays, shards, strict=True)
        ]

    given = rounded(example.inputs("float64"))
    return rounded([np.asarray(a) for a in example.derive(*(_wide(array) for array in given))])


def _wide(array: Array) -> Array:
    return array if array.dtype == np.int32 else array.astype(np.float64)


def splits_of(example: Example) -> list[dict[str, int]]:
    """Each label that may be split alone, and all of them at once."""
    halves = {
        label: 2 if example.label_sizes[label] % 2 == 0 else 3 for label in splittable(example)
    }
    fitting = {x: parts for x, parts in halves.items() if example.label_sizes[x] % parts == 0}
    return [*({label: parts} for label, parts in fitting.items()), fitting]


def pieces_of(example: Example, splits: dict[str, int]) -> Iterator[Piece]:
    """The shards of every place of the split labels, with their regions."""
    expression = parse(example.labels)
    inputs, outputs = shards_of(example, "float64")
    for place in product(*(range(parts) for parts in splits.values())):
        place_by_label = dict(zip(splits, place, strict=True))
        input_pieces, output_pieces = (
            [
                shard_of(o, s.global_shape, s.dtype, splits, place_by_label)
                for o, s in zip(*pair, strict=True)
            ]
            for pair in ((expression.inputs, inputs), (expression.outputs, outputs))
        )
        yield (
            [shard for shard, _ in input_pieces],
            [shard for shard, _ in output_pieces],
            [region for _, region in input_pieces],
            [region for _, region in output_pieces],
        )


@pytest.fixture(scope="module")
def emulator() -> Emulator:
    """Emulator of every function of every example."""
    wanted: dict[str, set[str]] = {}

    def want(example: Example, inputs: list[Shard], outputs: list[Shard]) -> None:
        context = context_of(example.kind, example.labels, inputs, outputs, example.attributes)
        for source, names in functions_of(make_calls(context).of(0)).items():
            wanted.setdefault(source, set()).update(names)

    for example in EXAMPLES:
        for dtype in FLOATS:
            want(example, *shards_of(example, dtype))
    for example in FOUND:
        for splits in splits_of(example):
            for inputs, outputs, *_ in pieces_of(example, splits):
                want(example, inputs, outputs)
    return Emulator(wanted)


def assert_close(outputs: list[Array], expected: tuple[Array, ...], tolerance: float) -> None:
    assert len(outputs) == len(expected)
    for output, reference in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, reference, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("example", "dtype"), list(in_dtypes()))
def test_calls_compute_what_the_formula_says(example: Example, dtype: str, emulator: Emulator):
    inputs = inputs_of(example, dtype)
    shards, output_shards = shards_of(example, dtype)
    outputs = call(
        example.kind, example.labels, inputs, output_shards, input_shards=shards,
        attributes=example.attributes, emulator=emulator, firings=2 if dtype == "float32" else 1,
    )  # fmt: skip
    expected = example.expected(inputs)
    largest = max(1.0, *(float(np.abs(array).max(initial=0)) for array in expected))
    assert_close(outputs, expected, TOLERANCE[dtype] * largest)


@every_small_example
def test_shards_put_together_equal_the_whole(example: Example, emulator: Emulator):
    inputs = inputs_of(example, "float64")
    _, shards = shards_of(example, "float64")
    reduction = OPS[example.kind].reduction
    start, join = (-np.inf, np.maximum) if reduction == "max" else (0, np.add)
    for splits in splits_of(example):
        totals = [np.full(shard.shape, start, shard.dtype) for shard in shards]
        for given, output_shards, regions, places in pieces_of(example, splits):
            parts = [array[region] for array, region in zip(inputs, regions, strict=True)]
            outputs = call(
                example.kind, example.labels, parts, output_shards, input_shards=given,
                attributes=example.attributes, emulator=emulator, firings=1,
            )  # fmt: skip
            for total, output, region in zip(totals, outputs, places, strict=True):
                total[region] = join(total[region], output)
        assert_close(totals, example.expected(inputs), 1e-11)
