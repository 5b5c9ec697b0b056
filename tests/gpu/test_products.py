"""Products through cuBLASLt: layouts, gaps, stacks, sums, cuts and dtypes, fired and replayed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.executor.cuda.calls import (
    Call,
    Clear,
    KernelAlternatives,
    Matrices,
    Operand,
    ProductCall,
)
from millrace.executor.cuda.products import cut
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array
from tests.executor.cuda.calling import loaded, to_device
from tests.executor.cuda.emulation.machine import Emulator
from tests.executor.gpu.emulated_device import EmulatedDevice
from tests.executor.gpu.products.test_epilogues import EPILOGUES, product_of
from tests.gpu.on_device import DeviceBench

# Relative to the largest value: roundings of the result and of operands (tf32 keeps 11 bits).
NEAR = {"float64": 1e-13, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
TF32_NEAR = 4e-3
DTYPES = [
    ("float64", "float64", "fp64"),
    ("float32", "float32", "fp32"),
    ("float32", "float32", "tf32"),
    ("bfloat16", "bfloat16", "bf16"),
    ("float16", "float16", "fp16"),
    ("bfloat16", "float32", "bf16"),
    ("float16", "float32", "fp16"),
]
# Shapes are m, n, k, batch: even ones, some that vectors of 16 bytes do not divide, a row, a column
SHAPES = [(64, 128, 32, 1), (17, 33, 9, 1), (48, 24, 40, 3), (1, 65, 31, 1), (65, 1, 31, 2)]
ARITHMETIC = {"float16": "fp16", "bfloat16": "bf16"}
NARROW = [
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
    ("float16", "float16"),
    ("float32", "float32"),
]


@pytest.fixture(scope="module")
def bench(device: Any) -> DeviceBench:
    device.load({})
    return DeviceBench(device)


class MatrixStack:
    """A stack of matrices in a flat array, by rows or by columns, with gaps."""

    def __init__(
        self, rows: int, columns: int, batch: int, dtype: str, *, turned: bool, gap: int, seed: int
    ) -> None:
        across, along = (columns, rows) if turned else (rows, columns)
        leading = along + gap
        self.dtype, self.shape = dtype, (batch, rows, columns)
        each = leading * across + gap
        self.strides = (each, 1, leading) if turned else (each, leading, 1)
        values = np.random.default_rng(seed).standard_normal(each * batch)
        self.flat = to_device(values, dtype)

    def matrices(self, address: int) -> Matrices:
        batch, row, column = self.strides
        return Matrices(Operand("address", 0, address), self.dtype, row, column, batch)

    def view(self, flat: Array) -> Array:
        strides = [stride * flat.itemsize for stride in self.strides]
        return np.lib.stride_tricks.as_strided(flat, self.shape, strides)

    def wide(self, flat: Array) -> Array:
        return loaded(np.ascontiguousarray(self.view(flat)), self.dtype).astype(np.float64)


@pytest.mark.parametrize("accumulate", [False, True], ids=["new", "added"])
@pytest.mark.parametrize("gap", [0, 8], ids=["dense", "gaps"])
@pytest.mark.parametrize("turned", range(8), ids=lambda bits: f"{bits:03b}")
@pytest.mark.parametrize(("narrow", "out", "arithmetic"), DTYPES, ids="-".join)
def test_a_product_is_that_of_float64(
    bench: DeviceBench,
    narrow: str,
    out: str,
    arithmetic: str,
    turned: int,
    gap: int,
    accumulate: bool,
) -> None:
    for number, (m, n, k, batch) in enumerate(SHAPES):
        bench.clear()
        sides = [
            MatrixStack(
                rows, columns, batch, dtype, turned=bool(turned >> index & 1), gap=gap, seed=index
            )
            for index, (rows, columns, dtype) in enumerate(
                [(m, k, narrow), (k, n, narrow), (m, n, out)]
            )
        ]
        a, b, d = sides
        places = [bench.put(side.flat) for side in sides]
        matrices = [side.matrices(address) for side, address in zip(sides, places, strict=True)]
        call = ProductCall(
            matrices[0], matrices[1], matrices[2], m, n, k, batch, arithmetic, accumulate
        )
        expected = a.wide(a.flat) @ b.wide(b.flat)
        if accumulate:
            expected += d.wide(d.flat)
        near = TF32_NEAR if arithmetic == "tf32" else NEAR[out if out == narrow else narrow]
        check(bench, [call], d, places[2], expected, near, f"gaps of d, shape {number}")


def check(
    bench: DeviceBench,
    calls: Sequence[Call],
    d: MatrixStack,
    address: int,
    expected: Array,
    near: float,
    gaps: str,
) -> None:
    """Assert that calls leave in d, at `address`, what is expected, fired as replayed."""
    for call in calls:
        bench.device.prepare(call, bench.stream)
    bench.fire(calls)
    fired = bench.take(address, d.flat)
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(d.wide(fired), expected, rtol=0, atol=near * scale)
    untouched = d.flat.copy()
    d.view(untouched)[...] = d.view(fired)
    np.testing.assert_array_equal(untouched, fired, err_msg=gaps)
    bench.device.to_device(address, d.flat.view(np.uint8))
    bench.replay(calls)
    np.testing.assert_array_equal(bench.take(address, d.flat), fired)


@pytest.mark.parametrize(("narrow", "out"), NARROW[:3])
@pytest.mark.parametrize(
    ("dim", "m", "n", "k"), [("n", 128, 1027, 64), ("m", 1025, 64, 128), ("k", 128, 64, 1031)]
)
def test_a_cut_product_is_that_of_float64(
    bench: DeviceBench, dim: str, m: int, n: int, k: int, narrow: str, out: str
) -> None:
    bench.clear()
    sizes = [(m, k, narrow, dim == "m"), (k, n, narrow, False), (m, n, out, False)]
    a, b, d = sides = [
        MatrixStack(*shape, 1, dtype, turned=turned, gap=-shape[not turned] % 8, seed=index)
        for index, (*shape, dtype, turned) in enumerate(sizes)
    ]
    places = [bench.put(side.flat) for side in sides]
    matrices = [side.matrices(address) for side, address in zip(sides, places, strict=True)]
    rest, large = cut(
        ProductCall(matrices[0], matrices[1], matrices[2], m, n, k, 1, ARITHMETIC[narrow])
    )
    assert getattr(rest, dim) < 8
    expected = a.wide(a.flat) @ b.wide(b.flat)
    check(bench, [rest, large], d, places[2], expected, 2 * NEAR[narrow], "gaps of d")


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("narrow", "out"), NARROW)
@pytest.mark.parametrize("name", EPILOGUES)
def test_an_epilogue_is_that_of_the_emulation(
    bench: DeviceBench, name: str, narrow: str, out: str, batch: int
) -> None:
    product, arrays = product_of(name, narrow, out, batch=batch)
    bench.clear()
    places = {part: bench.put(array) for part, array in arrays.items()}
    moved = {
        part: tensor._replace(operand=Operand("address", 0, places[part]))
        for part, tensor in product.parts.items()
    }
    call = product._replace(**moved)
    try:
        bench.device.prepare(call, bench.stream)
    except ExecutorError as error:
        pytest.skip(f"the library has no algorithm: {error}")
    bench.fire([call])
    Emulator({}).run(product, lambda operand: operand.offset_bytes)
    for part, tensor in product.parts.items():
        fired = loaded(bench.take(places[part], arrays[part]), tensor.dtype).astype(np.float64)
        expected = loaded(arrays[part], tensor.dtype).astype(np.float64)
        near = 2 * NEAR[tensor.dtype] * max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(fired, expected, rtol=0, atol=near, err_msg=part)


def test_kept_picks_give_the_bits_and_the_way_of_the_run_that_timed_them(
    bench: DeviceBench, tmp_path: Path
) -> None:
    if isinstance(bench.device, EmulatedDevice):
        pytest.skip("an emulated device times nothing")
    from millrace.executor.gpu.cupy_device import CupyDevice
    from millrace.executor.gpu.gemm.cublaslt import ProductLibrary
    from millrace.executor.gpu.gemm.tuning import Tuner

    outcomes = []
    sides = [
        MatrixStack(512, 512, 1, "bfloat16", turned=False, gap=0, seed=seed) for seed in range(3)
    ]
    for _ in range(2):
        tuner = Tuner(tmp_path)
        device = CupyDevice(0, ProductLibrary, tuner=tuner)
        own_bench = DeviceBench(device)
        places = [own_bench.put(side.flat) for side in sides]
        a, b, d = (side.matrices(address) for side, address in zip(sides, places, strict=True))
        call = ProductCall(a, b, d, 512, 512, 512, 1, "bf16")
        choice = KernelAlternatives(((call,), (Clear(d.operand, sides[2].flat.nbytes), call)))
        device.prepare(choice, own_bench.stream)
        own_bench.fire([choice])
        outcomes.append((own_bench.take(places[2], sides[2].flat), tuner.used, device.picked()))
        tuner.save()
        device.close()
    np.testing.assert_array_equal(outcomes[0][0], outcomes[1][0])
    assert outcomes[0][1:] == outcomes[1][1:]
    assert len(outcomes[0][1].picks) == 2
