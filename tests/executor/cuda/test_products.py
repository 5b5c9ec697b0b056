"""Products in memory: which of several are one stack, which are cut; both compute the same."""

import numpy as np
import pytest

from millrace.executor.cuda.calls import (
    Clear,
    KernelAlternatives,
    Matrices,
    Operand,
    ProductCall,
    Vector,
)
from millrace.executor.cuda.products import (
    CUT_EXTENT_MIN,
    cut,
    spans,
    stacked,
    with_cuts,
    with_stacks,
)
from millrace.executor.kernels.context import Array
from tests.executor.cuda.calling import FLOATS, loaded, to_device
from tests.executor.cuda.emulation.machine import Emulator

M, N, K = 3, 4, 5
ARITHMETIC = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def operand_at(address: int) -> Operand:
    return Operand("address", 0, address)


def siblings(
    x: int, weights: list[int], results: list[int], dtype: str = "float32", **more
) -> list[ProductCall]:
    """Products with one left operand."""
    return [
        ProductCall(
            Matrices(operand_at(x), dtype, K, 1, 0),
            Matrices(operand_at(weight), dtype, N, 1, 0),
            Matrices(operand_at(result), dtype, N, 1, 0),
            M, N, K, 1, ARITHMETIC[dtype], **more,
        )
        for weight, result in zip(weights, results, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_stack_with_a_shared_operand_computes_what_its_products_do(dtype: str) -> None:
    rng = np.random.default_rng(0)
    size = np.dtype({"bfloat16": "uint16"}.get(dtype, dtype)).itemsize
    x, weights = (to_device(rng.standard_normal(count), dtype) for count in (M * K, 3 * K * N + 8))
    bias = to_device(rng.standard_normal(3 * N), dtype)
    outputs = []
    for together in (False, True):
        output = to_device(np.zeros(3 * M * N + 8), dtype)
        products = siblings(
            x.ctypes.data,
            [weights.ctypes.data + size * step * (K * N + 4) for step in range(3)],
            [output.ctypes.data + size * step * (M * N + 4) for step in range(3)],
            dtype,
        )
        products = [
            product._replace(bias=Vector(operand_at(bias.ctypes.data + size * N * step), dtype))
            for step, product in enumerate(products)
        ]
        calls = with_stacks(products) if together else products
        assert len(calls) == (1 if together else 3)
        for call in calls:
            Emulator({}).run(call, lambda operand: operand.offset_bytes)
        outputs.append(output)
    np.testing.assert_array_equal(*outputs)
    (stack,) = with_stacks(products)
    assert (stack.batch, stack.a.batch_stride, stack.b.batch_stride) == (3, 0, K * N + 4)
    assert (stack.d.batch_stride, stack.bias.batch_stride) == (M * N + 4, N)


X, W, Y = 1 << 12, 1 << 13, 1 << 14


@pytest.mark.parametrize(
    ("weights", "results"),
    [
        pytest.param([W, W + 96, W + 160], [Y, Y + 64, Y + 128], id="unequal distances"),
        pytest.param([W, W + 96], [Y, Y], id="one result"),
        pytest.param([W, W + 96], [Y, Y + 16], id="results that overlap"),
        pytest.param([W, W + 98], [Y, Y + 64], id="half an element"),
        pytest.param([W + 96, W], [Y + 64, Y], id="backwards"),
        pytest.param([W, Y], [Y, 2 * Y - W], id="one reads what the other wrote"),
    ],
)
def test_what_places_do_not_allow_stays_apart(weights: list[int], results: list[int]) -> None:
    products = siblings(X, weights, results)
    assert stacked(products) is None
    assert stacked(products[:2]) is not None or with_stacks(products) == tuple(products)


def test_only_alike_neighbours_are_put_together() -> None:
    products = siblings(X, [W, W + 128, W + 256, W + 384], [Y, Y + 64, Y + 128, Y + 192])
    first, second, third, fourth = products
    other = third._replace(m=2)
    clear = Clear(operand_at(0), 4)
    assert stacked([first, other]) is None
    assert stacked([first]) is None
    calls = with_stacks([first, second, clear, third, fourth])
    assert [call.batch if isinstance(call, ProductCall) else call for call in calls] == [
        2,
        clear,
        2,
    ]
    assert with_stacks([first, second, other]) == (stacked([first, second]), other)
    assert with_stacks([first, first]) == (first, first)


def test_spans_are_of_every_part() -> None:
    (product,) = siblings(X, [W], [Y])
    product = product._replace(
        batch=2,
        d=product.d._replace(batch_stride=20, dtype="float64"),
        c=Matrices(operand_at(0), "float64", 1, 8, 0),
        bias=Vector(operand_at(0), "float32", 7),
    )
    assert spans(product) == {
        "a": 4 * M * K, "b": 4 * K * N, "d": 8 * (20 + M * N),
        "c": 8 * (M - 1 + 8 * (N - 1) + 1), "bias": 4 * (7 + N),
    }  # fmt: skip


# The extents are those of m, n and k, by the dims that are cut.
UNEVEN = {
    "n": (24, 1027, 16),
    "m": (1029, 16, 24),
    "k": (16, 24, 1031),
    "mnk": (1033, 1027, 1025),
}
EPILOGUES: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "plain": ({}, ()),
    "accumulate": ({"accumulate": True}, ()),
    "all of gelu": ({"activation": "gelu"}, ("c", "bias", "aux")),
    "slope": ({"slope": "gelu"}, ("aux",)),
}
NEAR = {"float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}  # two roundings of d


def uneven(
    dims: str, dtype: str = "bfloat16", result_dtype: str = "bfloat16", epilogue: str = "plain"
) -> tuple[ProductCall, dict[str, Array]]:
    """Two products in a stack whose rows begin on 16 bytes, with gaps; and their memory."""
    m, n, k = UNEVEN[dims]
    flags, parts = EPILOGUES[epilogue]
    shapes = {"a": (m, k), "b": (k, n), "d": (m, n), "c": (m, n), "aux": (m, n)}
    rng = np.random.default_rng(0)
    arrays: dict[str, Array] = {}
    operands: dict[str, Matrices | Vector] = {}
    for name in ("a", "b", "d", *parts):
        part_dtype = dtype if name in "ab" else result_dtype
        if name == "bias":
            arrays[name] = to_device(rng.standard_normal(n), part_dtype)
            operands[name] = Vector(operand_at(arrays[name].ctypes.data), part_dtype)
            continue
        turned = name in {"m": "a", "mnk": "ab"}.get(dims, "")
        across, along = shapes[name][::-1] if turned else shapes[name]
        leading = -(-along // 8) * 8 + 8
        scale = k**-0.25 if name in "ab" else 1.0
        arrays[name] = to_device(scale * rng.standard_normal((2, across, leading)), part_dtype)
        strides = (1, leading) if turned else (leading, 1)
        operands[name] = Matrices(
            operand_at(arrays[name].ctypes.data), part_dtype, *strides, across * leading
        )
    product = ProductCall(
        *(operands.pop(name) for name in "abd"), m, n, k, 2, ARITHMETIC[dtype], **flags, **operands
    )  # type: ignore[arg-type]
    return product, arrays


CUT = [
    ("n", "bfloat16", "bfloat16", "plain"),
    ("n", "bfloat16", "float32", "all of gelu"),
    ("n", "float16", "float16", "slope"),
    ("m", "bfloat16", "float32", "accumulate"),
    ("m", "float16", "float16", "all of gelu"),
    ("m", "bfloat16", "bfloat16", "slope"),
    ("k", "float16", "float16", "plain"),
    ("k", "bfloat16", "bfloat16", "accumulate"),
    ("k", "bfloat16", "float32", "all of gelu"),
    ("mnk", "bfloat16", "float32", "accumulate"),
]


@pytest.mark.parametrize(("dims", "dtype", "result_dtype", "epilogue"), CUT)
def test_a_cut_product_computes_what_it_does_whole(
    dims: str, dtype: str, result_dtype: str, epilogue: str
) -> None:
    product, arrays = uneven(dims, dtype, result_dtype, epilogue)
    pieces = cut(product)
    *rests, large = pieces
    assert len(rests) == len(dims)
    assert all(getattr(rest, dim) < 8 for rest, dim in zip(rests, dims, strict=True))
    assert all(getattr(large, dim) % 8 == 0 for dim in dims)
    results = []
    before = {name: array.copy() for name, array in arrays.items()}
    for calls in ((product,), pieces):
        for name, array in arrays.items():
            array[...] = before[name]
        for call in calls:
            Emulator({}).run(call, lambda operand: operand.offset_bytes)
        results.append({name: arrays[name].copy() for name in {"d", "aux"} & set(arrays)})
    for name, array in results[-1].items():
        np.testing.assert_array_equal(array[..., product.n :], before[name][..., product.n :])
        expected, output = (
            loaded(written[name], result_dtype)[..., : product.n] for written in results
        )
        near = NEAR[result_dtype] * max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(output, expected, rtol=0, atol=near)


UNCUT_PRODUCTS = {
    "divided": lambda product: product._replace(n=1024),
    "short": lambda product: product._replace(n=CUT_EXTENT_MIN - 1),
    "rows begin elsewhere": lambda product: product._replace(d=product.d._replace(row_stride=1028)),
    "it begins elsewhere": lambda product: product._replace(
        d=product.d._replace(operand=operand_at(8))
    ),
    "stacks begin elsewhere": lambda product: product._replace(
        b=product.b._replace(batch_stride=4)
    ),
    "another extent stays slow": lambda product: product._replace(k=15),
    "wide operands": lambda product: product._replace(
        a=product.a._replace(dtype="float32"), b=product.b._replace(dtype="float32")
    ),
}


@pytest.mark.parametrize("why", UNCUT_PRODUCTS)
def test_what_gains_nothing_by_a_cut_stays_whole(why: str) -> None:
    product, _ = uneven("n")
    assert len(cut(product)) == 2
    assert with_cuts(UNCUT_PRODUCTS[why](product)) == UNCUT_PRODUCTS[why](product)


def test_no_slope_is_cut_along_k_for_nothing_is_added_before_it() -> None:
    product, _ = uneven("k", epilogue="slope")
    assert cut(product) == (product,)


def test_only_extents_that_lie_along_rows_are_cut_each_by_what_its_own_elements_take() -> None:
    product, _ = uneven("n")
    assert [piece.n for piece in cut(product._replace(m=1025))] == [3, 1024]
    b = product.b._replace(row_stride=1, column_stride=16)
    turned = product._replace(n=1028, b=b)
    assert [piece.n for piece in cut(turned)] == [4, 1024]
    wide = product.d._replace(dtype="float32")
    assert cut(turned._replace(d=wide)) == (turned._replace(d=wide),)


def test_every_option_in_which_a_product_is_cut_comes_before_all_others() -> None:
    product, clear = uneven("n")[0], Clear(operand_at(0), 4)
    biased = product._replace(bias=Vector(operand_at(0), "bfloat16"))
    assert with_cuts(product) == KernelAlternatives((cut(product), (product,)))
    assert with_cuts(KernelAlternatives(((biased,), (product, clear)))) == KernelAlternatives(
        (cut(biased), (*cut(product), clear), (biased,), (product, clear))
    )
    assert with_cuts(KernelAlternatives(((clear,), (product,)))) == KernelAlternatives(
        (cut(product), (clear,), (product,))
    )
    assert with_cuts(clear) is clear
