"""cuBLASLt, the vendor's library of products: nothing is allocated, all is planned.

A product is planned once, before a step is captured: descriptors, and an algorithm out of those
that the library's heuristic names for these strides, alignments and workspace: its first, unless
another was found to be faster (`tuning.py`). Running it is one call that a stream can record. The
library itself is found when a `ProductLibrary` is made.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from millrace.executor.cuda.calls import Matrices, ProductCall, Vector
from millrace.executor.cuda.wording import described
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.device import address_of
from millrace.executor.gpu.gemm.column_major import ColumnMajor, ProductLayout, layout_of
from millrace.executor.gpu.gemm.cublaslt_types import (
    ALIGNMENT_MAX_BYTES,
    COMPUTE_32F,
    COMPUTE_32F_FAST_TF32,
    COMPUTE_64F,
    DATA_TYPES,
    DESC_BIAS_BATCH_STRIDE,
    DESC_BIAS_DATA_TYPE,
    DESC_BIAS_POINTER,
    DESC_EPILOGUE,
    DESC_EPILOGUE_AUX_BATCH_STRIDE,
    DESC_EPILOGUE_AUX_LD,
    DESC_EPILOGUE_AUX_POINTER,
    DESC_TRANSA,
    DESC_TRANSB,
    EPILOGUE_DEFAULT,
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
from millrace.executor.gpu.gemm.epilogues import epilogue_of, refusal
from millrace.models.graph import ITEMSIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProduct:
    """A product that the library is ready to run at any addresses as aligned as those planned for.

    Parameters
    ----------
    key
        All that the choice of an algorithm depends on, but for the device and the library.
    layout
        Layout that the library was told.
    description
        The product in words, for errors.
    descriptor, a, b, c, d
        Handles of the library.
    algorithm
        Algorithm that it will run.
    workspace_bytes
        Scratch that this takes.
    alpha, beta
        Factors of the product and of what is added, in host memory.
    """

    key: str
    layout: ProductLayout
    description: str
    descriptor: ctypes.c_void_p
    a: ctypes.c_void_p
    b: ctypes.c_void_p
    c: ctypes.c_void_p
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
        self._planned: dict[str, PlannedProduct] = {}
        handle = ctypes.c_void_p()
        check(self._library.cublasLtCreate(ctypes.byref(handle)), "cublasLtCreate")
        self._handle = handle

    @property
    def version(self) -> int:
        """The library's number: 131000 is 13.10.0."""
        return int(self._library.cublasLtGetVersion())

    def supports(self, product: ProductCall, workspace_bytes: int) -> bool:
        """True if the library has an algorithm for a bound product, epilogue and all."""
        try:
            self.plan(product, workspace_bytes)
        except ExecutorError:
            return False
        return True

    def plan(self, product: ProductCall, workspace_bytes: int) -> PlannedProduct:
        """Plan of a product: its descriptors and the algorithm that the library puts first.

        Alike products share one.

        Parameters
        ----------
        product
            The product, bound: algorithms are chosen by the alignment of addresses.
        workspace_bytes
            Scratch that it may use.

        Raises
        ------
        ExecutorError
            The library has no algorithm for it.
        """
        assert self._handle is not None, "the library is closed"
        if reason := refusal(product):
            raise ExecutorError(f"cuBLASLt cannot compute {describe(product)}: {reason}")
        key = key_of(product, workspace_bytes)
        if key not in self._planned:
            self._planned[key] = self._described(key, product, workspace_bytes)
        return self._planned[key]

    def candidates(
        self, product: ProductCall, workspace_bytes: int, count: int
    ) -> list[PlannedProduct]:
        """Plans of a product, one for each of at most `count` algorithms, the best first.

        Raises
        ------
        ExecutorError
            The library has no algorithm for it.
        """
        planned = self.plan(product, workspace_bytes)
        results = self._heuristic(planned, product, workspace_bytes, count)
        return [with_result(planned, result) for result in results]

    def restored(self, planned: PlannedProduct, algorithm: bytes) -> PlannedProduct | None:
        """Plan of a product with an algorithm that was kept as bytes; None: it does not fit here.

        The library's header allows that under the same version of it (`cublasLtMatmulAlgo_t`,
        cublasLt.h 13.10.0); it is asked all the same.
        """
        restored = Algorithm.from_buffer_copy(algorithm)
        result = HeuristicResult()
        status = self._library.cublasLtMatmulAlgoCheck(
            self._handle, planned.descriptor, planned.a, planned.b, planned.c, planned.d,
            ctypes.byref(restored), ctypes.byref(result),
        )  # fmt: skip
        if status or result.state:
            return None
        return replace(planned, algorithm=restored, workspace_bytes=result.workspace_bytes)

    def run(
        self, planned: PlannedProduct, product: ProductCall, workspace: int, stream_handle: int
    ) -> None:
        """Put a bound product on a stream as planned; the workspace is a device address.

        The descriptor is read by the call itself, so alike products share it: the addresses of
        bias and aux, which are attributes of it, are those of this call.

        Raises
        ------
        ExecutorError
            The library refuses, or the device has failed.
        """
        assert self._handle is not None, "the library is closed"
        self._point(planned.descriptor, product)
        first, second = (address_of(side.operand) for side in (product.a, product.b))
        if planned.layout.swapped:
            first, second = second, first
        d = address_of(product.d.operand)
        status = self._library.cublasLtMatmul(
            self._handle,
            planned.descriptor,
            ctypes.byref(planned.alpha),
            first,
            planned.a,
            second,
            planned.b,
            ctypes.byref(planned.beta),
            d if product.c is None else address_of(product.c.operand),
            planned.c,
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
            self._destroy(planned)
        self._planned.clear()
        if self._handle is not None:
            self._library.cublasLtDestroy(self._handle)
            self._handle = None

    def _described(self, key: str, product: ProductCall, workspace_bytes: int) -> PlannedProduct:
        """Plan of a product: its descriptors, and the algorithm that is put first."""
        layout, (compute, scale) = layout_of(product), compute_type(product)
        factor = ctypes.c_double if scale == DATA_TYPES["float64"] else ctypes.c_float
        stored = (layout.a, layout.b, layout.c or layout.d, layout.d)
        a, b, c, d = (stored_layout(self._library, matrices, layout.batch) for matrices in stored)
        planned = PlannedProduct(
            key=key,
            layout=layout,
            description=describe(product),
            descriptor=self._descriptor(product, layout, compute, scale),
            a=a,
            b=b,
            c=c,
            d=d,
            algorithm=Algorithm(),
            workspace_bytes=0,
            alpha=factor(1),
            beta=factor(1 if product.accumulate or product.c is not None else 0),
        )
        try:
            (result, *_) = self._heuristic(planned, product, workspace_bytes, 1)
        except ExecutorError:
            self._destroy(planned)
            raise
        return with_result(planned, result)

    def _destroy(self, planned: PlannedProduct) -> None:
        self._library.cublasLtMatmulDescDestroy(planned.descriptor)
        for layout in (planned.a, planned.b, planned.c, planned.d):
            self._library.cublasLtMatrixLayoutDestroy(layout)

    def _descriptor(
        self, product: ProductCall, layout: ProductLayout, compute: int, scale: int
    ) -> ctypes.c_void_p:
        """The library's handle of what is computed."""
        kind = "cublasLtMatmulDesc"
        descriptor = create(self._library, kind, compute, scale)
        values: list[tuple[int, Any]] = [
            (DESC_TRANSA, ctypes.c_int32(OP_T if layout.transpose_a else OP_N)),
            (DESC_TRANSB, ctypes.c_int32(OP_T if layout.transpose_b else OP_N)),
        ]
        epilogue = epilogue_of(product)
        if epilogue != EPILOGUE_DEFAULT:
            values.append((DESC_EPILOGUE, ctypes.c_uint32(epilogue)))
        if layout.aux is not None:
            values.append((DESC_EPILOGUE_AUX_LD, ctypes.c_int64(layout.aux.leading)))
            if layout.batch > 1:
                stride = ctypes.c_int64(layout.aux.batch_stride)
                values.append((DESC_EPILOGUE_AUX_BATCH_STRIDE, stride))
        bias = product.bias
        if bias is not None:
            values.append((DESC_BIAS_DATA_TYPE, ctypes.c_int32(DATA_TYPES[bias.dtype])))
            if layout.batch > 1:
                values.append((DESC_BIAS_BATCH_STRIDE, ctypes.c_int64(bias.batch_stride)))
        for attribute, value in values:
            put(self._library, kind, descriptor, attribute, value)
        return descriptor

    def _point(self, descriptor: ctypes.c_void_p, product: ProductCall) -> None:
        """Tell a descriptor where the bias and aux of a bound product lie."""
        for attribute, part in (
            (DESC_BIAS_POINTER, product.bias),
            (DESC_EPILOGUE_AUX_POINTER, product.aux),
        ):
            if part is not None:
                address = ctypes.c_void_p(address_of(part.operand))
                put(self._library, "cublasLtMatmulDesc", descriptor, attribute, address)

    def _heuristic(
        self, planned: PlannedProduct, product: ProductCall, workspace_bytes: int, most: int
    ) -> list[HeuristicResult]:
        """Algorithms that the library proposes, the best first; at least one.

        It takes the alignment of bias and aux from their addresses.
        """
        self._point(planned.descriptor, product)
        aligned = {name: alignment_of(part) for name, part in product.parts.items()}
        first, second = ("b", "a") if planned.layout.swapped else ("a", "b")
        preference = preference_for(
            self._library,
            (aligned[first], aligned[second], aligned.get("c", aligned["d"]), aligned["d"]),
            workspace_bytes,
        )
        results, count = (HeuristicResult * most)(), ctypes.c_int()
        name = "cublasLtMatmulAlgoGetHeuristic"
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            self._handle, planned.descriptor, planned.a, planned.b, planned.c, planned.d,
            preference, most, results, ctypes.byref(count),
        )  # fmt: skip
        self._library.cublasLtMatmulPreferenceDestroy(preference)
        check(status, name, planned.description)
        usable = [result for result in results[: count.value] if not result.state]
        if not usable:
            check(results[0].state or STATUS_NOT_SUPPORTED, name, planned.description)
        return usable


def with_result(planned: PlannedProduct, result: HeuristicResult) -> PlannedProduct:
    """Plan of a product with the algorithm that the library proposes."""
    algorithm = Algorithm.from_buffer_copy(result.algo)
    return replace(planned, algorithm=algorithm, workspace_bytes=int(result.workspace_bytes))


def key_of(product: ProductCall, workspace_bytes: int) -> str:
    """All that the choice of an algorithm depends on, in words.

    Parameters
    ----------
    product
        A bound product: its shapes, strides, dtypes and epilogue count, and what powers of two
        divide its addresses.
    workspace_bytes
        Scratch that an algorithm may use.
    """
    layout, (compute, _) = layout_of(product), compute_type(product)
    turned = "".join(
        "T" if is_transposed else "N" for is_transposed in (layout.transpose_a, layout.transpose_b)
    )
    sides = [
        f"{name} {matrices.dtype} {matrices.leading}/{matrices.batch_stride}"
        for name, matrices in (
            ("a", layout.a), ("b", layout.b), ("c", layout.c), ("d", layout.d), ("aux", layout.aux),
        )
        if matrices is not None
    ]  # fmt: skip
    aligned = [f"{name} {alignment_of(part)}" for name, part in product.parts.items()]
    bias = product.bias
    return "; ".join(
        (
            f"{layout.m}x{layout.n}x{layout.k} batch {layout.batch} {turned} compute {compute}",
            f"added {int(product.accumulate)} epilogue {epilogue_of(product)}",
            *((f"vector {bias.dtype}/{bias.batch_stride}",) if bias is not None else ()),
            ", ".join(sides),
            f"aligned {', '.join(aligned)}",
            f"workspace {workspace_bytes}",
        )
    )


def compute_type(product: ProductCall) -> tuple[int, int]:
    """Arithmetic of a product and type of its factors, as the library knows them.

    Products of 16 bits add up in float32.
    """
    if product.a.dtype == "float64":
        return COMPUTE_64F, DATA_TYPES["float64"]
    fast = product.a.dtype == "float32" and product.arithmetic == "tf32"
    return COMPUTE_32F_FAST_TF32 if fast else COMPUTE_32F, DATA_TYPES["float32"]


def alignment_bytes(address: int, batch_stride_bytes: int) -> int:
    """Largest power of two, at most 64, that divides the address of every matrix of a stack.

    Examples
    --------
    >>> alignment_bytes(4096, 96)
    32
    """
    return gcd(address, batch_stride_bytes, ALIGNMENT_MAX_BYTES)


def alignment_of(part: Matrices | Vector) -> int:
    """Largest power of two, at most 64, that divides the addresses of all of a bound stack."""
    stride_bytes = part.batch_stride * ITEMSIZE[part.dtype]
    return alignment_bytes(address_of(part.operand), stride_bytes)


def describe(product: ProductCall) -> str:
    """A product in words, for errors."""
    stored = ", ".join(
        f"{name} {part.dtype} strides ({part.batch_stride}, {part.row_stride}, "
        f"{part.column_stride})"
        for name, part in product.parts.items()
        if isinstance(part, Matrices)
    )
    return f"a {described(product)} ({stored})"


def stored_layout(library: ctypes.CDLL, matrices: ColumnMajor, batch: int) -> ctypes.c_void_p:
    """The library's handle of a stack of matrices."""
    kind = "cublasLtMatrixLayout"
    data_type = DATA_TYPES[matrices.dtype]
    layout = create(library, kind, data_type, matrices.rows, matrices.columns, matrices.leading)
    if batch > 1:
        put(library, kind, layout, LAYOUT_BATCH_COUNT, ctypes.c_int32(batch))
        stride = ctypes.c_int64(matrices.batch_stride)
        put(library, kind, layout, LAYOUT_STRIDED_BATCH_OFFSET, stride)
    return layout


def preference_for(
    library: ctypes.CDLL, alignments: Sequence[int], workspace_bytes: int
) -> ctypes.c_void_p:
    """The library's handle of what the heuristic may choose.

    Parts of a sum that are made at once meet in the arithmetic's type and in a fixed order: not in
    the output's, which may be of 16 bits.
    """
    kind = "cublasLtMatmulPreference"
    preference = create(library, kind)
    put(library, kind, preference, PREF_MAX_WORKSPACE_BYTES, ctypes.c_uint64(workspace_bytes))
    first, second, added, output = alignments
    for attribute, value in (
        (PREF_REDUCTION_SCHEME_MASK, REDUCTION_SCHEME_COMPUTE_TYPE),
        (PREF_MIN_ALIGNMENT_A_BYTES, first),
        (PREF_MIN_ALIGNMENT_B_BYTES, second),
        (PREF_MIN_ALIGNMENT_C_BYTES, added),
        (PREF_MIN_ALIGNMENT_D_BYTES, output),
    ):
        put(library, kind, preference, attribute, ctypes.c_uint32(value))
    return preference
