from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.executor.cuda.calls import Matrices, ProductCall, read, write
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.gemm.column_major import ColumnMajor, layout_of
from millrace.executor.gpu.gemm.cublaslt import alignment_bytes, compute_type, describe
from millrace.executor.gpu.gemm.cublaslt_types import (
    COMPUTE_32F,
    COMPUTE_32F_FAST_TF32,
    COMPUTE_64F,
    DATA_TYPES,
    candidates,
    check,
    open_library,
)
from millrace.executor.kernels.context import Array


@st.composite
def matrices(draw: st.DrawFn, operand, rows: int, columns: int, batch: int) -> Matrices:
    """A stack of contiguous rows or columns, with gaps; a lone one's stride may be anything."""
    by_rows = draw(st.booleans())
    across, along = (rows, columns) if by_rows else (columns, rows)
    leading = draw(st.integers(1 if across == 1 else along, along + 2))
    stride = draw(st.integers(leading * across, leading * across + 3)) if batch > 1 else 0
    strides = (leading, 1) if by_rows else (1, leading)
    return Matrices(operand, "float64", *strides, stride)


@st.composite
def products(draw: st.DrawFn) -> ProductCall:
    m, n, k, batch = (draw(st.integers(1, 4)) for _ in range(4))
    return ProductCall(
        draw(matrices(read(0), m, k, batch)),
        draw(matrices(read(1), k, n, batch)),
        draw(matrices(write(0), m, n, batch)),
        m,
        n,
        k,
        batch,
        "fp64",
    )


def by_strides(flat: Array, stack: Matrices, batch: int, rows: int, columns: int) -> Array:
    strides = (stack.batch_stride, stack.row_stride, stack.column_stride)
    return np.lib.stride_tricks.as_strided(
        flat, (batch, rows, columns), [8 * stride for stride in strides]
    )


def by_columns(flat: Array, stack: ColumnMajor, batch: int, transposed: bool) -> Array:
    assert stack.columns >= 1
    assert stack.leading >= stack.rows, "what cuBLASLt asks of a leading dimension"
    shape = (batch, stack.rows, stack.columns)
    strides = (8 * stack.batch_stride, 8, 8 * stack.leading)
    stored = np.lib.stride_tricks.as_strided(flat, shape, strides)
    return stored.swapaxes(1, 2) if transposed else stored


@given(product=products())
@settings(max_examples=300, deadline=None)
def test_a_column_major_library_is_told_the_same_product(product: ProductCall):
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((2, 200))
    computed, expected = np.zeros(200), np.zeros(200)
    sizes = (product.m, product.n, product.k)
    layout = layout_of(product)
    assert layout.batch == product.batch
    a, b = (second, first) if layout.swapped else (first, second)
    op_a = by_columns(a, layout.a, layout.batch, layout.transpose_a)
    op_b = by_columns(b, layout.b, layout.batch, layout.transpose_b)
    d = by_columns(computed, layout.d, layout.batch, False)
    assert op_a.shape == (layout.batch, layout.m, layout.k)
    assert op_b.shape == (layout.batch, layout.k, layout.n)
    assert d.shape == (layout.batch, layout.m, layout.n)
    d[...] = np.einsum("zmk,zkn->zmn", op_a, op_b)
    m, n, k = sizes
    by_strides(expected, product.d, product.batch, m, n)[...] = np.einsum(
        "zmk,zkn->zmn",
        by_strides(first, product.a, product.batch, m, k),
        by_strides(second, product.b, product.batch, k, n),
    )
    np.testing.assert_allclose(computed, expected, rtol=1e-12, atol=1e-12)


def product_of(dtype: str, arithmetic: str) -> ProductCall:
    sides = (Matrices(operand, dtype, 2, 1, 0) for operand in (read(0), read(1), write(0)))
    return ProductCall(*sides, 2, 2, 2, 1, arithmetic)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("dtype", "arithmetic", "expected"),
    [
        ("float64", "fp64", (COMPUTE_64F, DATA_TYPES["float64"])),
        ("float32", "fp32", (COMPUTE_32F, DATA_TYPES["float32"])),
        ("float32", "tf32", (COMPUTE_32F_FAST_TF32, DATA_TYPES["float32"])),
        ("bfloat16", "bf16", (COMPUTE_32F, DATA_TYPES["float32"])),
        ("float16", "fp16", (COMPUTE_32F, DATA_TYPES["float32"])),
    ],
)
def test_sixteen_bits_add_up_in_float32_and_only_tf32_may_round_operands(
    dtype, arithmetic, expected
):
    assert compute_type(product_of(dtype, arithmetic)) == expected


@pytest.mark.parametrize(
    ("address", "stride_bytes", "expected"),
    [(512, 0, 64), (512, 1024, 64), (512, 96, 32), (6, 0, 2), (2, 4096, 2)],
)
def test_a_stack_is_as_aligned_as_its_least_aligned_matrix(address, stride_bytes, expected):
    assert alignment_bytes(address, stride_bytes) == expected


def test_a_refusal_names_the_status_and_the_product():
    with pytest.raises(
        ExecutorError,
        match=r"cublasLtMatmul returned CUBLAS_STATUS_NOT_SUPPORTED for a product m 2 n 2 "
        r"k 2 batch 1 in bf16 \(a bfloat16 strides \(0, 2, 1\)",
    ):
        check(15, "cublasLtMatmul", describe(product_of("bfloat16", "bf16")))


def test_a_missing_library_says_where_it_was_looked_for_and_what_to_install():
    with pytest.raises(
        ExecutorError, match=r"found no libabsent.so.1: .*pip install nvidia-cublas"
    ):
        open_library(["libabsent.so.1"])


def test_the_library_is_found_in_wheels_and_then_in_the_newest_toolkit(tmp_path: Path):
    for folder, name in (
        ("site/nvidia/cu13/lib", "libcublasLt.so.13"),
        ("site/nvidia/cublas/lib", "libcublasLt.so.12"),
        ("root/cuda-12.9/lib64", "libcublasLt.so.12"),
        ("root/cuda-13.0/lib64", "libcublasLt.so.13"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / name).touch()
    paths = candidates([str(tmp_path / "site"), "nowhere"], root=tmp_path / "root")
    assert [str(Path(path).relative_to(tmp_path)) for path in paths] == [
        "site/nvidia/cu13/lib/libcublasLt.so.13",
        "site/nvidia/cublas/lib/libcublasLt.so.12",
        "root/cuda-13.0/lib64/libcublasLt.so.13",
        "root/cuda-12.9/lib64/libcublasLt.so.12",
    ]
