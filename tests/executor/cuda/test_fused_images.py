"""Batch norms with a sum and relu behind them: one pass computes what the parts in turn do."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from msgspec.structs import replace

from millrace.executor.cuda.calls import Call, Calls
from millrace.executor.cuda.cuda_rank import RankCalls
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.cuda.kernels.unfused_parts import unfused_calls
from millrace.executor.kernels.context import Array, FusedPart, KernelContext, whole_shard
from millrace.executor.kernels.kernel_table import make_kernel
from millrace.executor.streams.commands import command_buffer
from millrace.planner.compile import compile_plan
from millrace.planner.plan import FUSED
from tests.executor.cuda.calling import Operands, context_of, empty, loaded, to_device
from tests.executor.cuda.emulation.machine import COMPILER, Emulator, functions_of
from tests.executor.gpu.plans import planned, runs_of

IMAGES = {  # channels last that fill pieces, that do not, and channels first
    "pieces": ("b y x c", (3, 5, 7, 24)),
    "last": ("b y x c", (3, 5, 7, 19)),
    "first": ("b c y x", (3, 6, 5, 7)),
}
DTYPES = ("float32", "bfloat16", "float16", "float64")
FOLLOWING = (("add",), ("relu",), ("add", "relu"))
SUMS = {"float64": "float64"}  # else float32


def fused_norm(
    image: str, dtype: str, after: tuple[str, ...], *, pre_relu: bool, swapped: bool = False
) -> KernelContext:
    """Context of a batch norm and what follows; `pre_relu`: the input of relu is an output too."""
    labels, shape = IMAGES[image]
    channels = whole_shard((shape[labels.split().index("c")],), SUMS.get(dtype, "float32"))
    large = whole_shard(shape, dtype)
    inputs = [large, channels, channels, channels, channels]
    norm = context_of("batch_norm", f"{labels}, c, c, c, c -> {labels}", inputs, [large],
                      {"epsilon": 1e-3})  # fmt: skip
    if "add" in after:
        inputs.append(large)
    outputs = [large, large] if pre_relu else [large]
    first = len(inputs) + len(outputs)
    results = list(range(first, first + len(after)))
    if pre_relu:
        results[-1] = len(inputs) + 1
    results.append(len(inputs))
    parts = [FusedPart(context=norm, inputs=(0, 1, 2, 3, 4), outputs=(results[0],))]
    for kind, target, before in zip(after, results[1:], results, strict=False):
        read = (before, 5) if kind == "add" else (before,)
        read = read[::-1] if swapped else read
        form = f"{', '.join([labels] * len(read))} -> {labels}"
        part_context = context_of(kind, form, [large] * len(read), [large])
        parts.append(FusedPart(context=part_context, inputs=read, outputs=(target,)))
    inner = (large,) * sum(number >= first for number in results)
    kind = "+".join(part.context.kind for part in parts)
    return context_of(kind, "", inputs, outputs, parts=tuple(parts), inner=inner)


def arrays_of(context: KernelContext) -> list[Array]:
    """Inputs of a norm whose squares are none below zero; a NaN among the elements."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shard.shape) for shard in context.inputs]
    points = context.inputs[0].size // context.inputs[1].size
    arrays[1], arrays[2] = arrays[1] * points, (0.1 + arrays[2] ** 2) * points
    arrays[0].flat[5] = np.nan
    return arrays


def emulated(context: KernelContext, calls: Calls) -> list[Array]:
    """Outputs of calls, in the bits that a device would hold."""
    arrays = zip(arrays_of(context), context.inputs, strict=True)
    writes = [empty(shard) for shard in context.outputs]
    reads = [to_device(array, shard.dtype) for array, shard in arrays]
    Operands(calls, reads, writes).carry_out(calls.of(0))
    return writes


def cases() -> list[tuple[str, tuple[str, ...], bool, bool]]:
    combinations = []
    for image, after, pre_relu in product(IMAGES, FOLLOWING, (False, True)):
        if "relu" in after or not pre_relu:
            combinations.append((image, after, pre_relu, False))
    return [*combinations, ("pieces", ("add", "relu"), False, True)]


@pytest.fixture(scope="module")
def compiled() -> Emulator:
    """Emulator of all that is launched, compiled at once."""
    calls: list[Call] = []
    for dtype, (image, after, pre_relu, swapped) in product(DTYPES, cases()):
        context = fused_norm(image, dtype, after, pre_relu=pre_relu, swapped=swapped)
        calls += make_calls(context).of(0)
        for part in context.parts:
            calls += make_calls(part.context).of(0)
    return Emulator(functions_of(calls))


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("image", "after", "pre_relu", "swapped"), cases())
def test_one_pass_gives_the_bits_of_the_parts(
    image: str, after: tuple[str, ...], pre_relu: bool, swapped: bool, dtype: str
) -> None:
    context = fused_norm(image, dtype, after, pre_relu=pre_relu, swapped=swapped)
    calls = make_calls(context)
    assert len(calls.of(0)) == 2  # the channels' factors, then all elements once
    alone = unfused_calls(context, [make_calls(part.context) for part in context.parts])
    assert len(alone.of(0)) == 2 + len(after)
    for output, expected in zip(emulated(context, calls), emulated(context, alone), strict=True):
        np.testing.assert_array_equal(output, expected)


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("image", IMAGES)
def test_it_is_near_what_a_cpu_makes_of_the_parts(image: str, dtype: str) -> None:
    context = fused_norm(image, dtype, ("add", "relu"), pre_relu=True)
    wide = fused_norm(image, "float64", ("add", "relu"), pre_relu=True)
    arrays = [
        loaded(to_device(array, shard.dtype), shard.dtype).astype(np.float64)
        for array, shard in zip(arrays_of(context), context.inputs, strict=True)
    ]
    expected = [np.empty(shard.shape) for shard in wide.outputs]
    make_kernel(wide)(0, arrays, expected)
    near = {"float32": 1e-5, "bfloat16": 4e-2, "float16": 5e-3}[dtype]
    for output, reference in zip(emulated(context, make_calls(context)), expected, strict=True):
        np.testing.assert_allclose(loaded(output, dtype), reference, rtol=near, atol=near)


def test_parts_of_several_dtypes_run_in_turn() -> None:
    context = fused_norm("pieces", "bfloat16", ("relu",), pre_relu=False)
    norm, relu = context.parts
    wide = whole_shard(context.outputs[0].shape, "float32")
    relu.context.outputs = (wide,)
    mixed = context_of(
        context.kind, "", context.inputs, [wide], parts=(norm, relu), inner=context.inner
    )
    assert len(make_calls(mixed).of(0)) == 3


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_resnet_has_no_norm_that_is_gone_over_again(precision: str) -> None:
    plan, _, _ = planned("resnet", precision)
    actors = compile_plan(replace(plan, fusion=FUSED))
    rank = RankCalls(actors, 0, command_buffer(actors, (0,)), runs_of(plan, actors)[0])
    kinds: Counter[str] = Counter()
    for actor in rank.program.actors:
        kinds[actor.kind] += 1
        if actor.kind.startswith("batch_norm+"):
            context = rank.context(actor, rank.run_state)
            # The input of the relu that ends a block is kept: the next block reads its result.
            assert extra_outputs_of_equal_size(context) == (1 if "+add" in actor.kind else 0)
            assert len(make_calls(context).of(0)) == 2
    assert kinds["batch_norm+relu"]
    assert kinds["batch_norm+add+relu"]
    assert not kinds["relu"]


def extra_outputs_of_equal_size(context: KernelContext) -> int:
    """Number of further outputs that are as large as the first."""
    return sum(shard.size == context.outputs[0].size for shard in context.outputs[1:])
