"""Every epilogue: the library's, in its column-major view, gives what a product says."""

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest

from millrace.executor.cuda.binding import bind
from millrace.executor.cuda.calls import Matrices, Operand, ProductCall, Vector, read, write
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.gemm import cublaslt, cublaslt_types
from millrace.executor.gpu.gemm.cublaslt import ProductLibrary, key_of
from millrace.executor.gpu.gemm.cublaslt_types import Algorithm, HeuristicResult
from millrace.executor.gpu.gemm.epilogues import refusal
from tests.executor.cuda.calling import FLOATS, loaded, to_device
from tests.executor.cuda.emulation.machine import Emulator
from tests.executor.gpu.products.cublaslt_in_memory import CublasLtInMemory

ARITHMETIC = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
DTYPES = [*((dtype, dtype) for dtype in FLOATS), ("bfloat16", "float32"), ("float16", "float32")]
M, N, K, BATCH = 5, 16, 7, 2
# An epilogue has flags, and fields that lie in memory.
EPILOGUES = {
    "plain": ({}, ()),
    "accumulate": ({"accumulate": True}, ()),
    "residual": ({}, ("c",)),
    "bias": ({}, ("bias",)),
    "residual and bias": ({}, ("c", "bias")),
    "accumulate and bias": ({"accumulate": True}, ("bias",)),
    "relu": ({"activation": "relu"}, ()),
    "bias and relu": ({"activation": "relu"}, ("bias",)),
    "gelu": ({"activation": "gelu"}, ()),
    "bias and gelu": ({"activation": "gelu"}, ("bias",)),
    "gelu with aux": ({"activation": "gelu"}, ("aux",)),
    "all of gelu": ({"activation": "gelu"}, ("c", "bias", "aux")),
    "slope": ({"slope": "gelu"}, ("aux",)),
}
BY_COLUMNS = ("plain", "accumulate", "residual", "relu", "gelu", "gelu with aux", "slope")


@pytest.fixture
def in_memory_library(monkeypatch: pytest.MonkeyPatch) -> CublasLtInMemory:
    in_memory = CublasLtInMemory()
    monkeypatch.setattr(cublaslt, "open_library", lambda: in_memory)
    return in_memory


@pytest.fixture
def library(in_memory_library: CublasLtInMemory) -> Iterator[ProductLibrary]:
    opened = ProductLibrary()
    yield opened
    opened.close()
    assert not in_memory_library.things, "everything was given back"


def product_of(
    name: str, narrow: str, out: str, *, by_rows: bool = True, batch: int = 1
) -> tuple[ProductCall, dict[str, np.ndarray]]:
    """A bound product with an epilogue, and its memory."""
    flags, parts = EPILOGUES[name]
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}

    def matrices(part: str, rows: int, columns: int, dtype: str, turned: bool) -> Matrices:
        across, along = (columns, rows) if turned else (rows, columns)
        leading = -(-(along + 1) // 8) * 8
        each = leading * across + 8
        arrays[part] = to_device(rng.standard_normal(each * batch), dtype)
        operand = Operand("address", 0, arrays[part].ctypes.data)
        steps = (1, leading) if turned else (leading, 1)
        return Matrices(operand, dtype, *steps, each if batch > 1 else 0)

    def vector(part: str, length: int) -> Vector:
        arrays[part] = to_device(rng.standard_normal((length + 1) * batch), out)
        operand = Operand("address", 0, arrays[part].ctypes.data)
        return Vector(operand, out, length + 1 if batch > 1 else 0)

    beside = {}
    for part in parts:
        if part in ("c", "aux"):
            beside[part] = matrices(part, M, N, out, not by_rows)
        else:
            beside[part] = vector(part, N)
    a, b, d = (
        matrices("a", M, K, narrow, by_rows),
        matrices("b", K, N, narrow, False),
        matrices("d", M, N, out, not by_rows),
    )
    return ProductCall(a, b, d, M, N, K, batch, ARITHMETIC[narrow], **flags, **beside), arrays


@pytest.mark.parametrize(("narrow", "out"), DTYPES, ids="-".join)
@pytest.mark.parametrize("batch", [1, BATCH])
@pytest.mark.parametrize("name", EPILOGUES)
def test_the_library_is_told_the_same_epilogue(
    library: ProductLibrary, name: str, narrow: str, out: str, batch: int
) -> None:
    compare(library, name, narrow, out, by_rows=True, batch=batch)


@pytest.mark.parametrize("name", BY_COLUMNS)
def test_results_of_contiguous_columns_have_those_that_the_library_knows(
    library: ProductLibrary, name: str
) -> None:
    compare(library, name, "bfloat16", "bfloat16", by_rows=False, batch=BATCH)


def compare(library: ProductLibrary, name: str, narrow: str, out: str, **how) -> None:
    """Assert that the library's call and the emulator's leave the same memory."""
    product, arrays = product_of(name, narrow, out, **how)
    before = {part: array.copy() for part, array in arrays.items()}
    assert refusal(product) == ""
    library.run(library.plan(product, 1 << 20), product, 0, 0)
    left = {part: array.copy() for part, array in arrays.items()}
    for part, array in arrays.items():
        array[...] = before[part]
    Emulator({}).run(product, lambda operand: operand.offset_bytes)
    changed = {part for part in arrays if not np.array_equal(arrays[part], before[part])}
    assert "d" in changed
    assert ("aux" in changed) == (product.aux is not None and not product.slope)
    dtypes = {part: tensor.dtype for part, tensor in product.parts.items()}
    near = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
    for part in arrays:
        np.testing.assert_allclose(
            loaded(left[part], dtypes[part]).astype(float),
            loaded(arrays[part], dtypes[part]).astype(float),
            atol=4 * near[dtypes[part]],
            err_msg=part,
        )


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_epilogue_is_computed_before_the_result_is_rounded(dtype: str) -> None:
    product, arrays = product_of("all of gelu", dtype, dtype)
    wide = {
        part: loaded(arrays[part], dtype).astype(np.float64) for part in ("a", "b", "c", "bias")
    }
    steps = {part: getattr(product, part) for part in ("a", "b", "c", "d", "aux")}

    def values(part: str, rows: int, columns: int) -> np.ndarray:
        tensor = steps[part]
        offsets = np.add.outer(
            np.arange(rows) * tensor.row_stride, np.arange(columns) * tensor.column_stride
        )
        return wide[part][offsets] if part in wide else loaded(arrays[part], dtype)[offsets]

    inner = values("a", M, K) @ values("b", K, N) + values("c", M, N) + wide["bias"][:N]
    outer = inner / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)))
    Emulator({}).run(product, lambda operand: operand.offset_bytes)
    # The bounds are half a unit in the last place, and the rounding of sums.
    near = {"float64": 1e-12, "float32": 1e-5, "float16": 2**-11, "bfloat16": 2**-8}[dtype]
    for part, expected in (("aux", inner), ("d", outer)):
        np.testing.assert_allclose(values(part, M, N), expected, rtol=near * 1.01, atol=1e-5)


def test_the_slope_is_the_derivative_of_gelu() -> None:
    from tests.executor.cuda.emulation.machine import ACTIVATIONS, SLOPES

    x = np.linspace(-4, 4, 101)
    step = 1e-5
    risen = (ACTIVATIONS["gelu"](x + step) - ACTIVATIONS["gelu"](x - step)) / (2 * step)
    np.testing.assert_allclose(SLOPES["gelu"](x), risen, atol=1e-9)


def square(**more) -> ProductCall:
    sides = [Matrices(operand, "bfloat16", 8, 1, 0) for operand in (read(0), read(1), write(0))]
    return ProductCall(*sides, 8, 8, 8, 1, "bf16", **more)


BIAS, AUX = Vector(read(2), "bfloat16"), Matrices(read(3), "bfloat16", 8, 1, 0)


@pytest.mark.parametrize(
    ("product", "reason"),
    [
        (square(bias=BIAS._replace(dtype="float32")), "the bias is of float32 and d of bfloat16"),
        (square(c=AUX._replace(dtype="float32")), "c is of float32"),
        (square(activation="silu"), "no epilogue of silu"),
        (square(activation="relu", aux=AUX), "relu keeps a bit mask"),
        (square(slope="relu", aux=AUX), "bit mask"),
        (square(slope="gelu"), "goes with aux"),
        (square(slope="gelu", aux=AUX, bias=BIAS), "nothing else"),
        (square(aux=AUX), "only gelu keeps"),
        (square(accumulate=True, c=AUX), "either what d holds or c"),
        (square(activation="gelu", aux=AUX._replace(row_stride=12)), "no multiples of 8"),
        (square(activation="gelu", aux=Matrices(read(3), "bfloat16", 1, 8, 0)), "not contiguous"),
        (square(bias=BIAS)._replace(d=Matrices(write(0), "bfloat16", 1, 8, 0)), "contiguous col"),
    ],
)
def test_what_the_library_has_no_epilogue_for_is_refused_with_the_reason(product, reason) -> None:
    assert reason in refusal(product)


def test_a_product_without_an_algorithm_is_not_supported_and_says_so(
    in_memory_library: CublasLtInMemory, library: ProductLibrary
) -> None:
    product, _ = product_of("gelu with aux", "bfloat16", "bfloat16")
    in_memory_library.refused.add(160)
    assert not library.supports(product, 1 << 20)
    with pytest.raises(ExecutorError, match=r"NOT_SUPPORTED for a product m .* with gelu"):
        library.plan(product, 1 << 20)
    assert library.supports(product.plain, 1 << 20)


def test_alike_products_share_a_plan_and_each_has_its_own_bias(
    in_memory_library: CublasLtInMemory, library: ProductLibrary
) -> None:
    product, arrays = product_of("bias", "float32", "float32")
    other = to_device(np.zeros(N), "float32")
    other_bias = Vector(Operand("address", 0, other.ctypes.data), "float32")
    alike = product._replace(bias=other_bias)
    planned = library.plan(product, 64)
    assert library.plan(alike, 64) is planned
    library.run(planned, product, 0, 0)
    first = arrays["d"].copy()
    library.run(planned, alike, 0, 0)
    columns = np.arange(N)
    np.testing.assert_allclose(
        first[columns] - arrays["d"][columns], arrays["bias"][columns], atol=1e-5
    )


def test_keys_differ_wherever_algorithms_may() -> None:
    keys = set()
    for name in EPILOGUES:
        for batch in (1, 2):
            product, _ = product_of(name, "bfloat16", "bfloat16", batch=batch)
            product = bind(product, lambda operand: Operand("address", 0, 4096))  # type: ignore[assignment]
            keys.add(key_of(product, 64))
            keys.add(key_of(product, 128))
    assert len(keys) == 4 * len(EPILOGUES)
    moved = square()._replace(
        **{part: tensor._replace(operand=Operand("address", 0, 4096)) for part, tensor in
           square().parts.items()}
    )  # fmt: skip
    other = moved._replace(a=moved.a._replace(operand=Operand("address", 0, 4096 + 16)))
    assert key_of(moved, 64) != key_of(other, 64)


def test_structures_are_as_large_as_the_header_has_them() -> None:
    assert ctypes.sizeof(Algorithm) == 64  # uint64_t data[8]
    assert ctypes.sizeof(HeuristicResult) == 96  # 64, size_t, enum, float, int[4]
    offsets = [getattr(HeuristicResult, name).offset for name in ("workspace_bytes", "state")]
    assert offsets == [64, 72]


def test_the_real_library_takes_every_attribute_at_its_size() -> None:
    """Descriptors need no device, and the library refuses a value of another size."""
    try:
        real = cublaslt_types.open_library()
    except ExecutorError as missing:
        pytest.skip(str(missing))
    assert real.cublasLtGetVersion() // 10_000 in (12, 13)
    kind = "cublasLtMatmulDesc"
    descriptor = cublaslt_types.create(
        real, kind, cublaslt_types.COMPUTE_32F, cublaslt_types.DATA_TYPES["float32"]
    )
    values = {
        cublaslt_types.DESC_TRANSA: ctypes.c_int32(cublaslt_types.OP_T),
        cublaslt_types.DESC_EPILOGUE: ctypes.c_uint32(cublaslt_types.EPILOGUE_DGELU),
        cublaslt_types.DESC_BIAS_POINTER: ctypes.c_void_p(4096),
        cublaslt_types.DESC_BIAS_BATCH_STRIDE: ctypes.c_int64(8),
        cublaslt_types.DESC_EPILOGUE_AUX_POINTER: ctypes.c_void_p(4096),
        cublaslt_types.DESC_EPILOGUE_AUX_LD: ctypes.c_int64(64),
        cublaslt_types.DESC_EPILOGUE_AUX_BATCH_STRIDE: ctypes.c_int64(64),
        cublaslt_types.DESC_BIAS_DATA_TYPE: ctypes.c_int32(cublaslt_types.DATA_TYPES["bfloat16"]),
    }
    for attribute, value in values.items():
        cublaslt_types.put(real, kind, descriptor, attribute, value)
    with pytest.raises(ExecutorError, match="INVALID_VALUE"):
        cublaslt_types.put(
            real, kind, descriptor, cublaslt_types.DESC_EPILOGUE_AUX_LD, ctypes.c_int32(64)
        )
    real.cublasLtMatmulDescDestroy(descriptor)
