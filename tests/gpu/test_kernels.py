"""Every kernel on a GPU: what its example's formula says, in every float dtype, fired and replayed.

Wherever an example is small enough for the emulator, `tests/executor/cuda` holds the same kernels
to tighter bounds; this is to find what only a device does otherwise.
"""

from typing import Any

import numpy as np
import pytest

from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.kernels.context import KernelContext
from tests.executor.cuda.calling import loaded, to_device
from tests.executor.cuda.emulation.machine import functions_of
from tests.executor.cuda.launched import examples_in_every_width
from tests.executor.cuda.narrowing import cast_context, floats, wanted_bits
from tests.executor.examples.example import Example
from tests.gpu.on_device import DeviceBench, carry_out

# Relative to the largest value: roundings of the operands of 16 bits, and orders of sums.
TOLERANCE = {"float64": 1e-11, "float32": 2e-4, "float16": 1e-2, "bfloat16": 6e-2}
CASES = list(examples_in_every_width())


@pytest.fixture(scope="module")
def bench(device: Any, compiled: None) -> DeviceBench:
    functions = functions_of(call for _, _, context in CASES for call in make_calls(context).of(0))
    if hasattr(device, "use"):
        for source, names in sorted(functions.items()):
            for name in sorted(names):
                device.load({source: [name]})
    else:
        device.load(functions)
    return DeviceBench(device)


def name_of(case: tuple[Example, str, KernelContext]) -> str:
    example, dtype, _ = case
    return f"{example.kind}-{dtype}-{example.labels}"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_kernel_computes_what_its_formula_says(
    case: tuple[Example, str, KernelContext], bench: DeviceBench
) -> None:
    example, dtype, context = case
    inputs = [
        to_device(array, shard.dtype)
        for array, shard in zip(example.inputs("float64"), context.inputs, strict=True)
    ]
    given = [
        loaded(array, shard.dtype).reshape(shard.shape)
        for array, shard in zip(inputs, context.inputs, strict=True)
    ]
    given = [array if array.dtype == np.int32 else array.astype(np.float64) for array in given]
    outputs = carry_out(bench, make_calls(context), inputs, context.outputs)
    expected = example.expected(given)
    assert len(outputs) == len(expected)
    for output, shard, other in zip(outputs, context.outputs, expected, strict=True):
        near = TOLERANCE[dtype]
        scale = max(1.0, float(np.abs(other).max(initial=0.0, where=np.isfinite(other))))
        np.testing.assert_allclose(
            loaded(output, shard.dtype).reshape(other.shape), other, rtol=near, atol=near * scale
        )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_floats_become_16_bits_as_the_emulator_has_it(dtype: str, bench: DeviceBench) -> None:
    context = cast_context(dtype)
    calls = make_calls(context)
    bench.device.load(functions_of(calls.of(0)))
    (output,) = carry_out(bench, calls, [floats()], context.outputs)
    np.testing.assert_array_equal(output.view(np.uint16), wanted_bits(dtype))
