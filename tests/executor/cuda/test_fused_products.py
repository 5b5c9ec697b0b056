"""Products with what follows on them: one call computes what the parts in turn compute."""

from collections import Counter
from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace

from millrace.executor.cuda.calls import Calls, KernelAlternatives, ProductCall
from millrace.executor.cuda.cuda_rank import RankCalls
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.kernels.context import KernelContext
from millrace.executor.streams.commands import command_buffer
from millrace.planner.compile import compile_plan
from millrace.planner.plan import FUSED
from tests.executor.cuda.calling import Operands, empty, loaded, to_device
from tests.executor.cuda.emulation.machine import COMPILER, Emulator, functions_of
from tests.executor.gpu.plans import planned, runs_of

MODELS = ("gpt", "llama", "bert", "mixtral")
NEAR = {"float32": 1e-4, "bfloat16": 4e-2, "float16": 5e-3}
# What follows on products in each of them
KINDS = {
    "gpt": {"matmul+add+add", "matmul+add+gelu", "matmul+gelu_grad", "matmul+accumulate"},
    "llama": {"matmul+add", "matmul+accumulate"},
    "bert": {"matmul+add", "matmul+accumulate"},
    "mixtral": {"matmul+add", "matmul+accumulate"},
}


@cache
def contexts(model: str, precision: str) -> tuple[tuple[KernelContext, Calls], ...]:
    """Fused actors with products, one of every kind and shapes, and their calls."""
    plan, _, _ = planned(model, precision)
    actors = compile_plan(replace(plan, fusion=FUSED))
    rank = RankCalls(actors, 0, command_buffer(actors, (0,)), runs_of(plan, actors)[0])
    contexts_by_shape = {}
    for actor in rank.program.actors:
        if actor.parts and "matmul" in actor.kinds:
            context = rank.context(actor, rank.run_state)
            shapes = (actor.kind, *(shard.shape for shard in (*context.inputs, *context.outputs)))
            contexts_by_shape.setdefault(shapes, (context, make_calls(context)))
    return tuple(contexts_by_shape.values())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model", MODELS)
def test_every_product_and_what_follows_on_it_is_one_call(model: str, precision: str) -> None:
    kinds = Counter(context.kind for context, _ in contexts(model, precision))
    assert KINDS[model] <= set(kinds)
    for context, calls in contexts(model, precision):
        option = list(options_of(calls, 0, 0))
        assert all(isinstance(call, ProductCall) for call in option), context.kind
        assert len(option) == context.kind.split("+").count("matmul"), context.kind


def options_of(calls: Calls, firing: int, which: int):
    for call in calls.of(firing):
        yield from call.options[which] if isinstance(call, KernelAlternatives) else (call,)


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("model", MODELS)
def test_it_computes_what_the_parts_in_turn_compute(model: str, precision: str) -> None:
    from millrace.executor.cuda.kernels.unfused_parts import unfused_calls

    rng = np.random.default_rng(0)
    for context, calls in contexts(model, precision):
        alone = unfused_calls(context, [make_calls(part.context) for part in context.parts])
        emulator = Emulator(functions_of(shard for firing in (0, 1) for shard in alone.of(firing)))
        reads = [
            to_device(rng.standard_normal(shard.shape), shard.dtype) for shard in context.inputs
        ]
        results = []
        for op_calls, which in ((alone, -1), (calls, 0), (calls, -1)):
            writes = [empty(shard) for shard in context.outputs]
            operands = Operands(op_calls, reads, writes)
            for firing in (0, 1):  # a sum over microbatches adds in the second
                operands.carry_out(list(options_of(op_calls, firing, which)), emulator)
            results.append(writes)
        for shard, first, second, third in zip(context.outputs, *results, strict=True):
            expected = loaded(first, shard.dtype).astype(np.float64)
            near = NEAR["bfloat16" if precision == "bf16" else "float16"]
            near = NEAR["float32"] if precision == "fp32" else near
            scale = max(1.0, float(np.abs(expected).max()))
            for other in (second, third):
                values = loaded(other, shard.dtype).astype(np.float64)
                np.testing.assert_allclose(values, expected, rtol=0, atol=near * scale)
