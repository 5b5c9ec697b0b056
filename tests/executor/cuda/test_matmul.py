from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.executor.cuda.calls import Launch, ProductCall, types
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.cuda.kernels.matmul import PRODUCTS_MAX, SOURCE
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array, Shard, whole_shard
from millrace.models.fp8 import ARITHMETIC
from millrace.models.labels import bind, parse, shape_of
from millrace.models.zoo.catalogue import TrainingSpec, build_training
from tests.executor.cuda.calling import FLOATS, call, context_of, loaded, to_device
from tests.executor.cuda.emulation.machine import COMPILER, Emulator
from tests.executor.cuda.example_cases import ExampleCase, cases_of, check_all, parametrize_cases
from tests.executor.examples.example import Example
from tests.executor.examples.products import EXAMPLES as PRODUCTS
from tests.executor.kernel_calls import run_state
from tests.small_models import NAMES, small

EXAMPLES = [example for example in PRODUCTS if example.kind == "matmul"]
# Tolerances are relative to the largest value of the output: narrow outputs and sums are rounded.
TOLERANCE = {"float64": 1e-11, "float32": 2e-4, "float16": 2e-3, "bfloat16": 1.6e-2}
MIXED = [
    ("bfloat16", "bfloat16", "float32"),
    ("float16", "float16", "float32"),
    ("bfloat16", "float32", "bfloat16"),
    ("float32", "float32", "bfloat16"),
]
# Labels map to the number of products of the library that they become; 0 is a kernel of our own.
PRODUCTS_MADE = {
    "b t k, k n -> b t n": 1,
    "b t n, k n -> b t k": 1,
    "b t k, b t n -> k n": 1,
    "b t k, b t n -> n k": 1,
    "b t k, k h d -> b t h d": 1,
    "b t h d, h d n -> b t n": 1,
    "b t h d, k h d -> b t k": 1,
    "b t k, b t h d -> k h d": 1,
    "e b c! k, e k n -> e b c! n": 1,
    "e b c! n, e k n -> e b c! k": 1,
    "e b c! k, e b c! n -> e k n": 1,
    "k, n -> n k": 1,
    "b k, b k -> ": 1,
    "b k, k -> b": 1,
    "b h t d, b h s d -> b h t s": 1,
    "b t h d, b s h d -> b h t s": 2,  # one per head: there are fewer than samples
    "b h t s, b s h d -> b t h d": 2,
    "b t k, d k h -> h b d t": 0,
    "k n b, n k b -> b": 0,
    "t d b, d s b -> t s b": 0,
}

CASES = cases_of(EXAMPLES, tolerance=TOLERANCE)

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs g++")
every_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.labels)


@pytest.fixture(scope="module")
def emulator() -> Emulator:
    """Emulator of every instantiation of this module, in one library."""
    alike = [(dtype,) * 3 for dtype in FLOATS]
    swapped = [(b, a, d) for a, b, d in MIXED]
    return Emulator({SOURCE: {"contract" + types(*d) for d in (*alike, *MIXED, *swapped)}})


def context_for(labels: str, shapes: list[tuple[int, ...]], dtypes: tuple[str, str, str], **more):
    shards = [whole_shard(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    return context_of("matmul", labels, shards[:2], shards[2:], **more)


def shapes_of(labels: str, sizes: dict[str, int]) -> list[tuple[int, ...]]:
    return [shape_of(operand, sizes) for operand in parse(labels).operands]


def check(
    example: Example, dtypes: tuple[str, str, str], emulator: Emulator, inputs: list[Array]
) -> None:
    """Check that the calls compute the formula on inputs as they are stored."""
    shapes = shapes_of(example.labels, example.label_sizes)
    shards = [whole_shard(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    rounded = [
        loaded(to_device(array, dtype), dtype).reshape(array.shape)
        for array, dtype in zip(inputs, dtypes, strict=False)
    ]
    (output,) = call(
        "matmul", example.labels, rounded, shards[2:], input_shards=shards[:2], emulator=emulator
    )
    (expected,) = example.expected(rounded)
    bound = max(TOLERANCE[dtype] for dtype in dtypes[2:]) * max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(output, expected, rtol=0, atol=bound)


@needs_compiler
@parametrize_cases(CASES)
def test_a_product_is_what_the_oracle_says(cases: list[ExampleCase], emulator: Emulator):
    check_all(cases, emulator)


@needs_compiler
@pytest.mark.parametrize("dtypes", MIXED, ids=" ".join)
@every_example
def test_operands_and_result_may_differ_in_dtype(
    example: Example, dtypes: tuple[str, str, str], emulator: Emulator
):
    check(example, dtypes, emulator, example.inputs("float64"))


@needs_compiler
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize(
    "text", ["bmkc,nbck->mnb", "lbc,crb->blr", "kmbn,nkj->bjm", "abc,cda->dba"]
)
def test_a_contraction_goes_beyond_one_tile_in_every_class(
    text: str, dtype: str, emulator: Emulator
):
    sizes = {"l": 70, "r": 65, "m": 67, "n": 5, "b": 3, "c": 19, "k": 4, "j": 66, "a": 3, "d": 80}
    labels = text.replace("->", ",").split(",")
    written = "{}, {} -> {}".format(*(" ".join(operand) for operand in labels))
    example = Example(kind="matmul", labels=written, sizes=sizes)
    context = context_for(written, shapes_of(written, example.label_sizes), (dtype,) * 3)
    assert isinstance(make_calls(context).of(0)[0], Launch)
    check(example, (dtype,) * 3, emulator, example.inputs("float64"))


@st.composite
def any_einsum(draw: st.DrawFn) -> Example:
    """Up to five labels, each in two or all of the three operands, in any order; some of size 1."""
    labels = "abcde"[: draw(st.integers(1, 5))]
    absent = {label: draw(st.sampled_from([None, 0, 1, 2])) for label in labels}
    operands = [
        draw(st.permutations([label for label in labels if absent[label] != number]))
        for number in range(3)
    ]
    sizes = {label: draw(st.sampled_from([1, 2, 3])) for label in labels}
    written = "{}, {} -> {}".format(*(" ".join(operand) or "()" for operand in operands))
    return Example(kind="matmul", labels=written, sizes=sizes)


@needs_compiler
@given(example=any_einsum())
@settings(max_examples=200, deadline=None)
def test_any_einsum_of_two_operands_is_what_its_formula_says(example: Example, emulator: Emulator):
    check(example, ("float64",) * 3, emulator, example.inputs("float64"))


def einsums_of_the_zoo() -> Iterator[tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]]:
    """Labels, shapes and dtypes of every product that a small model trains with, each once."""
    einsums = {}
    for name in NAMES:
        for precision in ("fp32", "bf16", "fp16"):
            graph = build_training(small(name, precision), TrainingSpec(), 4)
            tensors = graph.tensors_by_name
            for op in graph.ops:
                if op.kind == "matmul":
                    operands = [tensors[tensor] for tensor in (*op.inputs, *op.outputs)]
                    shapes = tuple(tensor.shape for tensor in operands)
                    einsums[op.labels, shapes, tuple(tensor.dtype for tensor in operands)] = None
    yield from einsums


def test_every_product_of_the_zoo_is_one_of_the_library_and_what_its_labels_say(
    emulator_of_products: Emulator,
):
    rng = np.random.default_rng(0)
    for labels, shapes, dtypes in einsums_of_the_zoo():
        context = context_for(labels, list(shapes), dtypes)
        calls = make_calls(context).of(0)
        assert [type(device_call) for device_call in calls] == [ProductCall], labels
        sizes = bind(parse(labels), shapes[:2], shapes[2:])
        example = Example(kind="matmul", labels=labels, sizes=sizes)
        inputs = [rng.standard_normal(shape) for shape in shapes[:2]]
        check(example, dtypes, emulator_of_products, inputs)


@pytest.fixture
def emulator_of_products() -> Emulator:
    """Emulator that needs no compiler: nothing is launched."""
    return Emulator({})


@pytest.mark.parametrize("labels", PRODUCTS_MADE)
def test_labels_that_merge_become_one_product(labels: str):
    sizes = {"b": 4, "t": 6, "s": 5, "h": 2, "d": 3, "k": 8, "n": 10, "e": 4, "c": 7}
    calls = make_calls(context_for(labels, shapes_of(labels, sizes), ("float32",) * 3)).of(0)
    products = [product for product in calls if isinstance(product, ProductCall)]
    assert len(products) == PRODUCTS_MADE[labels]
    assert len(calls) == max(1, len(products))
    for product in products:
        assert product.d.column_stride == 1
        for matrices in (product.a, product.b, product.d):
            assert 1 in (matrices.row_stride, matrices.column_stride)


def test_so_many_products_that_one_launch_is_faster_become_one():
    shapes = [(PRODUCTS_MAX + 1, 2, 99, 8), (PRODUCTS_MAX + 1, 3, 99, 8)]
    output_shape = (PRODUCTS_MAX + 1, 99, 2, 3)
    labels = "b t h d, b s h d -> b h t s"
    (launch,) = make_calls(context_for(labels, [*shapes, output_shape], ("float32",) * 3)).of(0)
    assert isinstance(launch, Launch)


@pytest.mark.parametrize(
    ("dtype", "run", "expected"),
    [
        ("float64", "tf32", "fp64"),
        ("float32", "fp32", "fp32"),
        ("float32", "tf32", "tf32"),
        ("bfloat16", "tf32", "bf16"),
        ("float16", "fp32", "fp16"),
    ],
)
def test_a_product_computes_in_what_its_operands_and_the_run_say(dtype, run, expected):
    context = context_for(
        "b k, k n -> b n", [(2, 3), (3, 4), (2, 4)], (dtype,) * 3, run=run_state(arithmetic=run)
    )
    (product,) = make_calls(context).of(0)
    assert isinstance(product, ProductCall)
    assert product.arithmetic == expected


@pytest.mark.parametrize("narrow", ["fp8", "mxfp8", "mxfp4", "nvfp4"])
def test_a_product_in_8_bits_is_refused_with_what_to_do(narrow: str):
    shards = [
        Shard(global_shape=s, offsets=(0, 0), shape=s, dtype="bfloat16") for s in [(2, 2)] * 3
    ]
    context = context_of("matmul", "b k, k n -> b n", shards[:2], shards[2:], {ARITHMETIC: narrow})
    with pytest.raises(ExecutorError, match=f"{narrow}.*--precision bf16"):
        make_calls(context)


@pytest.mark.parametrize(
    ("labels", "shapes", "message"),
    [
        ("b t k, k n -> b n", [(2, 3, 4), (4, 5), (2, 5)], "sum it with an op `sum` first"),
        ("b k -> b", [(2, 3), (2,)], "needs two operands"),
    ],
)
def test_labels_that_the_other_backend_refuses_are_refused_alike(labels, shapes, message):
    shards = [whole_shard(shape, "float32") for shape in shapes]
    with pytest.raises(ExecutorError, match=message):
        make_calls(context_of("matmul", labels, shards[:-1], shards[-1:]))
