"""The vendor's library of products, cuBLASLt: nothing is allocated, all is planned.

A product is planned once, before a step is captured: descriptors, and the first algorithm that the
library's heuristic names for these strides, alignments and workspace. Running it is one call that a
stream can record. The library itself is found when a `ProductLibrary` is made.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from executor.cuda.calls import Product
from executor.gpu.products.column_major import ColumnMajor, ProductLayout, layout_of
from executor.gpu.products.binding import (
    ALIGNMENT_MAX_BYTES,
    COMPUTE_32F,
    COMPUTE_32F_FAST_TF32,
    COMPUTE_64F,
    DATA_TYPES,
    DESC_TRANSA,
    DESC_TRANSB,
    LAYOUT_BATCH_COUNT,
    LAYOUT_STRIDED_BATCH_OFFSET,
    OP_N,
    OP_T,
    PREF_MAX_WORKSPACE_BYTES,
    PREF_MIN_ALIGNMENT_A_BYTES,
    PREF_MIN_ALIGNMENT_B_BYTES,
    PREF_MIN_ALIGNMENT_C_BYTES,
    PREF_MIN_ALIGNMENT_D_BYTES,
    PREF_REDUCTION_SCHEME_MASK,
    REDUCTION_SCHEME_COMPUTE_TYPE,
    STATUS_NOT_SUPPORTED,
    Algorithm,
    HeuristicResult,
    check,
    create,
    open_library,
    put,
)
from models.graph import ITEMSIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProduct:
    """A product that the library is ready to run at any addresses as aligned as those planned for.

    Parameters
    ----------
    layout
        What the library was told.
    description
        Of the product, in words, for errors.
    descriptor, a, b, d
        Handles of the library.
    algorithm
        What it will run.
    workspace_bytes
        Scratch that this takes.
    alpha, beta
        Factors of the product and of what d holds, in host memory.
    """

    layout: ProductLayout
    description: str
    descriptor: ctypes.c_void_p
    a: ctypes.c_void_p
    b: ctypes.c_void_p
    d: ctypes.c_void_p
    algorithm: Algorithm
    workspace_bytes: int
    alpha: Any
    beta: Any


class ProductLibrary:
    """cuBLASLt on the device that is current when this is made.

    Raises
    ------
    ExecutorError
        There is no `libcublasLt`, or it finds no device.
    """

    def __init__(self) -> None:
        self._library = open_library()
        self._handle: ctypes.c_void_p | None = None
        self._planned: dict[tuple[object, ...], PlannedProduct] = {}
        handle = ctypes.c_void_p()
        check(self._library.cublasLtCreate(ctypes.byref(handle)), "cublasLtCreate")
        self._handle = handle

    def plan(
        self, product: Product, addresses: tuple[int, int, int], workspace_bytes: int
    ) -> PlannedProduct:
        """Return a product with its descriptors and algorithm; alike products share one.

        Parameters
        ----------
        product
            What is to be computed.
        addresses
            Where its a, b and d lie, offsets included: algorithms are chosen by their alignment.
        workspace_bytes
            Scratch that it may use.

        Raises
        ------
        ExecutorError
            The library has no algorithm for it.
        """
        assert self._handle is not None, "the library is closed"
        alignments = tuple(
            alignment_bytes(address, found.batch_stride * ITEMSIZE[found.dtype])
            for address, found in zip(addresses, (product.a, product.b, product.d), strict=True)
        )
        layout, compute = layout_of(product), compute_type(product)
        key = (layout, compute, product.accumulate, alignments, workspace_bytes)
        if key not in self._planned:
            self._planned[key] = plan_product(
                self._library, self._handle, product, alignments, workspace_bytes
            )
        return self._planned[key]

    def run(
        self,
        planned: PlannedProduct,
        a: int,
        b: int,
        d: int,
        workspace: int,
        stream_handle: int,
    ) -> None:
        """Put a planned product on a stream; all but the stream are device addresses.

        Raises
        ------
        ExecutorError
            The library refuses, or the device has failed.
        """
        first, second = (b, a) if planned.layout.swapped else (a, b)
        status = self._library.cublasLtMatmul(
            self._handle,
            planned.descriptor,
            ctypes.byref(planned.alpha),
            first,
            planned.a,
            second,
            planned.b,
            ctypes.byref(planned.beta),
            d,
            planned.d,
            d,
            planned.d,
            ctypes.byref(planned.algorithm),
            workspace,
            planned.workspace_bytes,
            stream_handle,
        )
        check(status, "cublasLtMatmul", planned.description)

    def close(self) -> None:
        """Give everything back; what was planned cannot run any more."""
        for planned in self._planned.values():
            self._library.cublasLtMatmulDescDestroy(planned.descriptor)
            for layout in (planned.a, planned.b, planned.d):
                self._library.cublasLtMatrixLayoutDestroy(layout)
        self._planned.clear()
        if self._handle is not None:
            self._library.cublasLtDestroy(self._handle)
            self._handle = None


def compute_type(product: Product) -> tuple[int, int]:
    """Return the arithmetic of a product and the type of its factors, as the library knows them.

    Products of 16 bits add up in float32.
    """
    if product.a.dtype == "float64":
        return COMPUTE_64F, DATA_TYPES["float64"]
    fast = product.a.dtype == "float32" and product.arithmetic == "tf32"
    return COMPUTE_32F_FAST_TF32 if fast else COMPUTE_32F, DATA_TYPES["float32"]


def alignment_bytes(address: int, batch_stride_bytes: int) -> int:
    """Return what power of two, at most 256, divides the address of every matrix of a stack.

    Examples
    --------
    >>> alignment_bytes(4096, 96)
    32
    """
    return gcd(address, batch_stride_bytes, ALIGNMENT_MAX_BYTES)


def describe(product: Product) -> str:
    """Return a product in words, for errors."""
    sides = zip("abd", (product.a, product.b, product.d), strict=True)
    stored = ", ".join(
        f"{name} {found.dtype} strides ({found.batch_stride}, {found.row_stride}, "
        f"{found.column_stride})"
        for name, found in sides
    )
    return (
        f"a product of {product.batch} × [{product.m}, {product.k}] × [{product.k}, {product.n}] "
        f"in {product.arithmetic} ({stored})"
    )


def plan_product(
    library: ctypes.CDLL,
    handle: ctypes.c_void_p,
    product: Product,
    alignments: tuple[int, ...],
    workspace_bytes: int,
) -> PlannedProduct:
    """Return a product with its descriptors and the algorithm that the library puts first."""
    layout, description = layout_of(product), describe(product)
    compute, scale = compute_type(product)
    descriptor = create(library, "cublasLtMatmulDesc", compute, scale)
    for attribute, transposed in (
        (DESC_TRANSA, layout.transpose_a),
        (DESC_TRANSB, layout.transpose_b),
    ):
        operation = ctypes.c_int32(OP_T if transposed else OP_N)
        put(library, "cublasLtMatmulDesc", descriptor, attribute, operation)
    a, b, d = (stored_layout(library, one, layout.batch) for one in (layout.a, layout.b, layout.d))
    aligned = alignments if not layout.swapped else (alignments[1], alignments[0], alignments[2])
    preference = preference_for(library, aligned, workspace_bytes)
    result, count = HeuristicResult(), ctypes.c_int()
    status = library.cublasLtMatmulAlgoGetHeuristic(
        handle, descriptor, a, b, d, d, preference, 1, ctypes.byref(result), ctypes.byref(count)
    )
    library.cublasLtMatmulPreferenceDestroy(preference)
    check(status, "cublasLtMatmulAlgoGetHeuristic", description)
    check(
        result.state if count.value else STATUS_NOT_SUPPORTED,
        "cublasLtMatmulAlgoGetHeuristic",
        description,
    )
    factor = ctypes.c_double if scale == DATA_TYPES["float64"] else ctypes.c_float
    return PlannedProduct(
        layout=layout,
        description=description,
        descriptor=descriptor,
        a=a,
        b=b,
        d=d,
        algorithm=result.algo,
        workspace_bytes=result.workspace_bytes,
        alpha=factor(1),
        beta=factor(1 if product.accumulate else 0),
    )


def stored_layout(library: ctypes.CDLL, found: ColumnMajor, batch: int) -> ctypes.c_void_p:
    """Return the library's handle of a stack of matrices."""
    kind = "cublasLtMatrixLayout"
    data_type = DATA_TYPES[found.dtype]
    layout = create(library, kind, data_type, found.rows, found.columns, found.leading)
    if batch > 1:
        put(library, kind, layout, LAYOUT_BATCH_COUNT, ctypes.c_int32(batch))
        stride = ctypes.c_int64(found.batch_stride)
        put(library, kind, layout, LAYOUT_STRIDED_BATCH_OFFSET, stride)
    return layout


def preference_for(
    library: ctypes.CDLL, alignments: Sequence[int], workspace_bytes: int
) -> ctypes.c_void_p:
    """Return the library's handle of what the heuristic may choose.

    Parts of a sum that are made at once meet in the arithmetic's type and in a fixed order: not in
    the output's, which may be of 16 bits.
    """
    kind = "cublasLtMatmulPreference"
    preference = create(library, kind)
    put(library, kind, preference, PREF_MAX_WORKSPACE_BYTES, ctypes.c_uint64(workspace_bytes))
    first, second, made = alignments
    for attribute, value in (
        (PREF_REDUCTION_SCHEME_MASK, REDUCTION_SCHEME_COMPUTE_TYPE),
        (PREF_MIN_ALIGNMENT_A_BYTES, first),
        (PREF_MIN_ALIGNMENT_B_BYTES, second),
        (PREF_MIN_ALIGNMENT_C_BYTES, made),
        (PREF_MIN_ALIGNMENT_D_BYTES, made),
    ):
        put(library, kind, preference, attribute, ctypes.c_uint32(value))
    return preference
