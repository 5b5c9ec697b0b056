"""Products in memory: which of several are one stack, and that it computes the same."""

import numpy as np
import pytest

from executor.cuda.calls import Clear, Matrices, Operand, Product, Vector
from executor.cuda.products import spans, stacked, with_stacks
from tests.executor.cuda.calling import FLOATS, stored
from tests.executor.cuda.emulation.machine import Emulator

M, N, K = 3, 4, 5
ARITHMETIC = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def at(address: int) -> Operand:
    return Operand("address", 0, address)


def siblings(
    x: int, weights: list[int], made: list[int], dtype: str = "float32", **more
) -> list[Product]:
    """Products with one left operand."""
    return [
        Product(
            Matrices(at(x), dtype, K, 1, 0),
            Matrices(at(weight), dtype, N, 1, 0),
            Matrices(at(result), dtype, N, 1, 0),
            M, N, K, 1, ARITHMETIC[dtype], **more,
        )
        for weight, result in zip(weights, made, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_stack_with_a_shared_operand_computes_what_its_products_do(dtype: str) -> None:
    rng = np.random.default_rng(0)
    size = np.dtype({"bfloat16": "uint16"}.get(dtype, dtype)).itemsize
    x, weights = (stored(rng.standard_normal(count), dtype) for count in (M * K, 3 * K * N + 8))
    bias = stored(rng.standard_normal(3 * N), dtype)
    found = []
    for together in (False, True):
        made = stored(np.zeros(3 * M * N + 8), dtype)
        products = siblings(
            x.ctypes.data,
            [weights.ctypes.data + size * step * (K * N + 4) for step in range(3)],
            [made.ctypes.data + size * step * (M * N + 4) for step in range(3)],
            dtype,
        )
        products = [
            one._replace(bias=Vector(at(bias.ctypes.data + size * N * step), dtype))
            for step, one in enumerate(products)
        ]
        calls = with_stacks(products) if together else products
        assert len(calls) == (1 if together else 3)
        for call in calls:
            Emulator({}).run(call, lambda operand: operand.offset_bytes)
        found.append(made)
    np.testing.assert_array_equal(*found)
    (stack,) = with_stacks(products)
    assert (stack.batch, stack.a.batch_stride, stack.b.batch_stride) == (3, 0, K * N + 4)
    assert (stack.d.batch_stride, stack.bias.batch_stride) == (M * N + 4, N)


X, W, Y = 1 << 12, 1 << 13, 1 << 14


@pytest.mark.parametrize(
    ("weights", "made"),
    [
        pytest.param([W, W + 96, W + 160], [Y, Y + 64, Y + 128], id="unequal distances"),
        pytest.param([W, W + 96], [Y, Y], id="one result"),
        pytest.param([W, W + 96], [Y, Y + 16], id="results that overlap"),
        pytest.param([W, W + 98], [Y, Y + 64], id="half an element"),
        pytest.param([W + 96, W], [Y + 64, Y], id="backwards"),
        pytest.param([W, Y], [Y, 2 * Y - W], id="one reads what the other wrote"),
    ],
)
def test_what_places_do_not_allow_stays_apart(weights: list[int], made: list[int]) -> None:
    products = siblings(X, weights, made)
    assert stacked(products) is None
    assert stacked(products[:2]) is not None or with_stacks(products) == tuple(products)


def test_only_alike_neighbours_are_put_together() -> None:
    products = siblings(X, [W, W + 128, W + 256, W + 384], [Y, Y + 64, Y + 128, Y + 192])
    first, second, third, fourth = products
    other = third._replace(m=2)
    clear = Clear(at(0), 4)
    assert stacked([first, other]) is None
    assert stacked([first]) is None
    calls = with_stacks([first, second, clear, third, fourth])
    assert [call.batch if isinstance(call, Product) else call for call in calls] == [2, clear, 2]
    assert with_stacks([first, second, other]) == (stacked([first, second]), other)
    assert with_stacks([first, first]) == (first, first)


def test_spans_are_of_every_part() -> None:
    (product,) = siblings(X, [W], [Y])
    product = product._replace(
        batch=2,
        d=product.d._replace(batch_stride=20, dtype="float64"),
        c=Matrices(at(0), "float64", 1, 8, 0),
        bias_grad=Vector(at(0), "float32", 7),
        bias_grad_of="a",
    )
    assert spans(product) == {
        "a": 4 * M * K, "b": 4 * K * N, "d": 8 * (20 + M * N),
        "c": 8 * (M - 1 + 8 * (N - 1) + 1), "bias_grad": 4 * (7 + M),
    }  # fmt: skip
    assert spans(product._replace(bias_grad_of="b"))["bias_grad"] == 4 * (7 + N)
