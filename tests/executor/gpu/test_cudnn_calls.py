"""The library's calls mean what the ops do: operands, layouts, masks, and where there are any."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from millrace.executor.cuda.call_listing import rank_listing
from millrace.executor.cuda.calls import (
    Attention,
    Calls,
    Clear,
    Convolution,
    KernelAlternatives,
    same_calls,
    write,
)
from millrace.executor.cuda.kernels.images.convolution_library import (
    FORWARD,
    GRAD_INPUT,
    GRAD_WEIGHT,
    with_library,
)
from millrace.executor.cuda.kernels.images.windows import ConvolutionSizes, Dim
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.kernels.context import KernelContext, Shard, whole_shard
from tests.executor.cuda.calling import Operands, context_of, empty, loaded, to_device
from tests.executor.cuda.emulation.machine import COMPILER, Emulator
from tests.executor.cuda.example_cases import TOLERANCE, ExampleCase
from tests.executor.examples.attention import Attributes, Form, both
from tests.executor.examples.example import Example
from tests.executor.examples.images import channels_last, convolutions, window
from tests.executor.gpu.emulated_device import EmulatedDevice
from tests.executor.gpu.plans import execute_on_device, loading, planned, runs_of
from tests.executor.kernel_calls import run_state

NARROW = ("bfloat16", "float16")
CAUSAL: Attributes = {"causal": True, "scale": 0.5}
PLAIN: Attributes = {"causal": False, "scale": 0.5}
GROUPED = {"b": 2, "g": 2, "r": 3, "t": 10, "s": 10, "d": 8, "u": 6}
WAYS = {"where it lies": 0, "turned over": 1, "our own": -1}


def examples() -> Iterator[Example]:
    for form, sizes in (
        (Form(attributes=CAUSAL), {}),
        (Form(attributes=CAUSAL), {"h": 1}),
        (Form(attributes=PLAIN), {"t": 7, "s": 9}),
        (Form(attributes=CAUSAL, grouped=True), GROUPED),
        (Form(attributes=CAUSAL | {"window": 4}, grouped=True), GROUPED),
        (Form(attributes=PLAIN | {"window": 4}, grouped=True), GROUPED),
    ):
        yield from both(form, sizes)


CASES = [
    ExampleCase(example=example, dtype=dtype, wide=(4,) if example.kind == "attention_grad" else ())
    for example in examples()
    for dtype in NARROW
]


@cache
def emulator(way: int) -> Emulator:
    functions_by_source: dict[str, set[str]] = {}
    for case in CASES:
        for source, names in case.functions().items():
            functions_by_source.setdefault(source, set()).update(names)
    return Emulator(functions_by_source, option=way)


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_way_computes_what_the_formula_says(case: ExampleCase, way: str) -> None:
    case.check(emulator(WAYS[way]))


def context(
    query: Shard, key: Shard, attributes: Attributes, *, out: str | None = None
) -> KernelContext:
    """Attention on these shards, of as many value features as key features."""
    output = replace(query, dtype=out or query.dtype)
    statistics = Shard(
        global_shape=query.global_shape[:-1],
        offsets=query.offsets[:-1],
        shape=query.shape[:-1],
        dtype="float32",
    )
    labels = Form(attributes=attributes).labels[0]
    return context_of("attention", labels, [query, key, key], [output, statistics], attributes)


def block(begin: int, size: int, dtype: str = "bfloat16") -> Shard:
    """Places of a sequence of 256."""
    return Shard(
        global_shape=(1, 256, 2, 8), offsets=(0, begin, 0, 0), shape=(1, size, 2, 8), dtype=dtype
    )


ALL = block(0, 256)


@pytest.mark.parametrize(
    ("actor", "ways"),
    [
        (context(ALL, ALL, CAUSAL), 3),
        (context(ALL, ALL, PLAIN), 3),
        (context(ALL, ALL, CAUSAL | {"window": 9}), 3),
        (context(block(0, 128), block(0, 128), CAUSAL), 3),
        (context(block(128, 128), block(128, 128), CAUSAL), 3),
        (context(block(128, 128), ALL, PLAIN), 3),
        (
            context(
                whole_shard((1, 256, 1, 8), "float16"),
                whole_shard((1, 256, 1, 8), "float16"),
                CAUSAL,
            ),
            2,
        ),
        (context(block(128, 128), ALL, CAUSAL), 0),  # its mask begins 128 places later
        (context(block(0, 128), ALL, CAUSAL | {"window": 9}), 0),
        (context(ALL, ALL, CAUSAL | {"alibi": 8.0}), 0),
        (context(ALL, ALL, CAUSAL, out="float32"), 0),
        (context(block(0, 256, "float32"), block(0, 256, "float32"), CAUSAL), 0),
    ],
)
def test_the_library_is_asked_where_it_has_a_form_of_the_op(
    actor: KernelContext, ways: int
) -> None:
    calls = make_calls(actor).of(0)
    choices = [call for call in calls if isinstance(call, KernelAlternatives)]
    assert [len(choice.options) for choice in choices] == ([ways] if ways else [])
    if ways:
        assert calls == (choices[0],)
        for option in choices[0].options[:-1]:
            assert sum(isinstance(call, Attention) for call in option) == 1


WINDOWS = [
    (window((1, 1), (1, 1)), {"y": 5, "x": 4, "q": 3, "p": 3, "j": 5, "i": 4}),
    (window((2, 1), (1, 0)), {"y": 6, "x": 4, "q": 3, "p": 2, "j": 3, "i": 3}),
    (window((2, 3), (2, 0), (2, 1)), {"y": 7, "x": 5, "q": 3, "p": 2, "j": 4, "i": 2}),
    (window((2, 2), (0, 0)), {"y": 5, "x": 4, "q": 1, "p": 1, "j": 3, "i": 2}),
    (window((1, 2), (1, 1)), {"g": 2, "y": 4, "x": 5, "q": 3, "p": 3, "j": 4, "i": 3}),
]


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("direction", [FORWARD, GRAD_INPUT, GRAD_WEIGHT])
@pytest.mark.parametrize(("attributes", "sizes"), WINDOWS)
def test_convolutions_are_those_of_images_whose_channels_lie_last(
    attributes: dict[str, int], sizes: dict[str, int], direction: str, dtype: str
) -> None:
    b, c, n, g = 2, 3, 4, sizes.get("g", 1)
    given, output, size = (tuple(sizes[x] for x in pair) for pair in ("yx", "ji", "qp"))
    dims = {
        dim: Dim(
            given[axis], output[axis], size[axis], attributes[f"stride_{dim}"],
            attributes[f"pad_{dim}"], attributes.get(f"dilation_{dim}", 1),
        )
        for axis, dim in enumerate("yx")
    }  # fmt: skip
    layer = ConvolutionSizes(b=b, g=g, c=c, n=n, dtype=dtype, **dims)
    calls = with_library(direction, layer, run_state(), same_calls(Clear(write(0), 0)))
    (choice,) = calls.of(0)
    assert isinstance(choice, KernelAlternatives)
    sizes = {"b": b, "c": c, "n": n} | sizes
    examples = map(channels_last, convolutions(attributes, sizes))
    example = dict(zip((FORWARD, GRAD_INPUT, GRAD_WEIGHT), examples, strict=True))[direction]
    arrays = [to_device(array, dtype) for array in example.inputs("float64")]
    (expected,) = example.expected([loaded(array, dtype) for array in arrays])
    room = empty(whole_shard(expected.shape, dtype))
    operands = Operands(Calls(of=lambda firing: ()), arrays, [room])
    (call,) = choice.options[0]
    assert isinstance(call, Convolution)
    operands.carry_out([call], Emulator({}, option=0))
    near = TOLERANCE[dtype] * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(loaded(room, dtype), expected, atol=near)


def test_convolutions_in_float32_stay_with_kernels_of_ours() -> None:
    dim = Dim(4, 4, 3, 1, 1, 1)
    sizes = ConvolutionSizes(b=1, g=1, c=2, n=2, y=dim, x=dim, dtype="float32")
    calls = same_calls()
    assert with_library(FORWARD, sizes, run_state(), calls) is calls


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize("model", ["llama", "resnet"])
def test_a_model_trains_alike_by_the_library_and_by_kernels_of_ours(model: str) -> None:
    plan, graph, actors = planned(model, "bf16")
    losses = []
    for way in (-1, 0, 1):
        runs = runs_of(plan, actors)
        execute_on_device(EmulatedDevice(option=way), actors, runs, loading(graph), 3)
        losses.append([loss / count for loss, count, _ in runs[0].totals])
    np.testing.assert_allclose(losses[1:], losses[:1] * 2, atol=2e-2, rtol=0)


def test_a_listing_names_every_way_of_a_choice() -> None:
    plan, _, _ = planned("gpt", "bf16")
    lines = [line.strip() for line in rank_listing(plan, 0).splitlines()]
    position = next(
        position
        for position, line in enumerate(lines)
        if line.startswith("1: library: attention b ")
    )
    assert lines[position - 1] == "one of 3:"
    assert lines[position + 1].startswith("2: library: attention b ")
    assert lines[position + 2].startswith("2: movement: ")
    assert lines[position + 3].startswith("3: attention")
    assert any(line.startswith("1: library: gradient of attention") for line in lines)
