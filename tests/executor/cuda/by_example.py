"""CUDA factories against the examples of the NumPy kernels, whole and cut along labels."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from millrace.executor.cuda.calls import Call
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.kernels.context import Array, Shard
from millrace.models.labels import parse, shape_of
from millrace.models.ops import OPS
from tests.executor.cuda.calling import FLOATS, call, context_of, loaded, to_device
from tests.executor.cuda.emulation.machine import Emulator, functions_of
from tests.executor.examples.example import Example
from tests.executor.kernel_calls import shard_of

# float64 and float32 are as near as the NumPy kernels; 16 bits round the result and a sum once.
TOLERANCE = {"float64": 1e-11, "float32": 2e-4, "bfloat16": 2**-7, "float16": 2**-10}

Splits = Mapping[str, int]


class ExampleShards(NamedTuple):
    """Shards of one rank, and their places in the whole tensors."""

    inputs: tuple[Shard, ...]
    outputs: tuple[Shard, ...]
    given: tuple[tuple[slice, ...], ...]
    made: tuple[tuple[slice, ...], ...]


def output_dtype(example: Example, output: int, dtype: str) -> str:
    row = OPS[example.kind]
    if output in row.integer_outputs:
        return "int32"
    return "float32" if output in row.wide_outputs and dtype in ("bfloat16", "float16") else dtype


def parts_of(example: Example, dtype: str, splits: Splits) -> Iterator[ExampleShards]:
    """The shards of every rank when the labels of `splits` are cut."""
    expression, sizes = parse(example.labels), example.label_sizes
    for place in product(*(range(parts) for parts in splits.values())):
        place_by_label = dict(zip(splits, place, strict=True))
        shards_and_regions = [
            shard_of(operand, shape_of(operand, sizes), operand_dtype, splits, place_by_label)
            for operand, operand_dtype in (
                *(
                    (operand, "int32" if number in example.ids else dtype)
                    for number, operand in enumerate(expression.inputs)
                ),
                *(
                    (operand, output_dtype(example, number, dtype))
                    for number, operand in enumerate(expression.outputs)
                ),
            )
        ]
        shards, regions = zip(*shards_and_regions, strict=True)
        count = len(expression.inputs)
        yield ExampleShards(shards[:count], shards[count:], regions[:count], regions[count:])


def splits_of(example: Example) -> list[Splits]:
    """Splits to try: every label that may be cut alone (in two ways), and all of them at once."""
    expression, sizes = parse(example.labels), example.label_sizes
    outputs = [{x for dim in operand for x in dim} for operand in expression.outputs]
    parts = {
        label: [p for p in (2, 3, 4, 5) if sizes[label] % p == 0]
        for label in expression.splittable
        if OPS[example.kind].reduction or all(label in labels for labels in outputs)
    }
    alone = [{label: n} for label, counts in parts.items() for n in {*counts[:1], *counts[-1:]}]
    together = {label: counts[0] for label, counts in parts.items() if counts}
    return [*alone, together] if len(together) > 1 else alone


def calls_of(examples: Iterable[Example]) -> Iterator[Call]:
    """Calls that the checks of this module launch for the examples."""
    for example in examples:
        for dtype in FLOATS:
            for splits in ({}, *(splits_of(example) if dtype == "float64" else ())):
                for part in parts_of(example, dtype, splits):
                    context = context_of(
                        example.kind, example.labels, part.inputs, part.outputs, example.attributes
                    )
                    yield from make_calls(context).of(0)


def emulator_of(examples: Iterable[Example], more: Iterable[Call] = ()) -> Emulator:
    """Emulator of what examples launch, and of `more`."""
    return Emulator(functions_of([*calls_of(examples), *more]))


def check_whole(example: Example, dtype: str, emulator: Emulator) -> None:
    """Check the example on one device against its formula, on inputs as the dtype holds them."""
    given = [
        array if array.dtype == np.int32 else rounded(array, dtype)
        for array in example.inputs("float64")
    ]
    (part,) = parts_of(example, dtype, {})
    outputs = call(
        example.kind,
        example.labels,
        given,
        part.outputs,
        input_shards=part.inputs,
        attributes=example.attributes,
        emulator=emulator,
        firings=2 if dtype == "float32" else 1,
    )
    assert_close(outputs, example.expected(given), dtype)


def check_sharded(example: Example, emulator: Emulator) -> None:
    """Check the example cut along labels, in float64: the joined parts against the formula."""
    inputs = example.inputs("float64")
    expected = example.expected(inputs)
    for splits in splits_of(example):
        (whole_part,) = parts_of(example, "float64", {})
        totals = [np.zeros(shard.shape, shard.dtype) for shard in whole_part.outputs]
        for part in parts_of(example, "float64", splits):
            results = call(
                example.kind,
                example.labels,
                [np.ascontiguousarray(x[r]) for x, r in zip(inputs, part.given, strict=True)],
                part.outputs,
                input_shards=part.inputs,
                attributes=example.attributes,
                emulator=emulator,
                firings=1,
            )
            for total, result, region in zip(totals, results, part.made, strict=True):
                total[region] += result
        assert_close(totals, expected, "float64")


def rounded(array: Array, dtype: str) -> Array:
    """Numbers as a dtype holds them."""
    return loaded(to_device(array, dtype), dtype).reshape(array.shape)


def assert_close(outputs: Sequence[Array], expected: Sequence[Array], dtype: str) -> None:
    assert len(outputs) == len(expected)
    for output, reference in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, reference, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
