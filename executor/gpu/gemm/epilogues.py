"""Epilogues: what the library computes in the same call as a product, and what it cannot.

A result of contiguous rows is told to the library as d^T = b^T a^T (`column_major.py`), so a value
per column of d is one per row of the library's D, as its bias is. Where d has contiguous columns
it is not.

Notes
-----
Rules are those of `cublasLt.h` 13.10.0 (NVIDIA, wheel `nvidia-cublas` 13.10.0.20, read 2026-11):
`cublasLtEpilogue_t`, and of `cublasLtMatmulDescAttributes_t` BIAS_POINTER, BIAS_DATA_TYPE,
EPILOGUE_AUX_LD and EPILOGUE_AUX_DATA_TYPE. Which of the products that they allow have an algorithm
is another question, which only the library answers (`ProductLibrary.supports`).
"""

from millrace.executor.cuda.calls import Matrices, ProductCall
from millrace.executor.gpu.gemm.column_major import layout_of
from millrace.executor.gpu.gemm.cublaslt_types import (
    EPILOGUE_BIAS,
    EPILOGUE_DEFAULT,
    EPILOGUE_DGELU,
    EPILOGUE_GELU,
    EPILOGUE_RELU,
    EPILOGUE_WITH_AUX,
)

AUX_ELEMENTS = 8  # leading dimensions and batch strides of what GELU keeps are multiples of it
ACTIVATIONS = {"gelu": EPILOGUE_GELU, "relu": EPILOGUE_RELU}


def epilogue_of(product: ProductCall) -> int:
    """Number of the epilogue of a product that `refusal` allows.

    Examples
    --------
    >>> from millrace.executor.cuda.calls import Matrices, Vector, read, write
    >>> sides = [Matrices(place, "bfloat16", 8, 1, 0) for place in (read(0), read(1), write(0))]
    >>> bias = Vector(read(2), "bfloat16")
    >>> product = ProductCall(*sides, 8, 8, 8, 1, "bf16", bias=bias, activation="gelu")
    >>> epilogue_of(product) == EPILOGUE_GELU | EPILOGUE_BIAS
    True
    """
    if product.slope:
        return EPILOGUE_DGELU
    code = ACTIVATIONS.get(product.activation, 0)
    if product.aux is not None:
        code |= EPILOGUE_WITH_AUX
    if product.bias is not None:
        code |= EPILOGUE_BIAS
    return code or EPILOGUE_DEFAULT


def refusal(product: ProductCall) -> str:
    """Reason why the library cannot compute a product in one call; empty where its rules allow it.

    Examples
    --------
    >>> from millrace.executor.cuda.calls import Matrices, Vector, read, write
    >>> sides = [Matrices(place, "bfloat16", 8, 1, 0) for place in (read(0), read(1), write(0))]
    >>> refusal(ProductCall(*sides, 8, 8, 8, 1, "bf16", bias=Vector(read(2), "float32")))
    'the bias is of float32 and d of bfloat16'
    """
    checks = (_of_kind, _of_dtypes, _of_places)
    return next((reason for check in checks if (reason := check(product))), "")


def _of_kind(product: ProductCall) -> str:
    """Reason why a combination of fields has no epilogue; empty where it has one."""
    if product.accumulate and product.c is not None:
        return "a product adds either what d holds or c"
    if product.activation not in ("", *ACTIVATIONS):
        return f"there is no epilogue of {product.activation}"
    forward = product.activation or product.bias or product.c or product.accumulate
    if product.slope:
        if product.slope != "gelu":
            return f"the slope of {product.slope} is read from a bit mask, not from values"
        if forward or product.aux is None:
            return "a slope goes with aux and with nothing else"
        return ""
    if product.aux is not None and product.activation != "gelu":
        return "only gelu keeps the values before it (relu keeps a bit mask)"
    return ""


def _of_dtypes(product: ProductCall) -> str:
    """Reason why dtypes do not fit: all beside d has its dtype, in all but 8-bit products."""
    words = {"c": "c", "aux": "aux", "bias": "the bias"}
    for name, word in words.items():
        part = getattr(product, name)
        if part is not None and part.dtype != product.d.dtype:
            return f"{word} is of {part.dtype} and d of {product.d.dtype}"
    return ""


def _of_places(product: ProductCall) -> str:
    """Reason why places do not fit: c and aux need d's order, what GELU keeps multiples of 8."""
    for name in ("c", "aux"):
        part: Matrices | None = getattr(product, name)
        along = part is None or (part.column_stride if _by_rows(product.d) else part.row_stride)
        if along != 1:
            return f"d and {name} are not contiguous along one dim"
    if product.bias is not None and not _by_rows(product.d):
        return "d has contiguous columns, along which the library has a bias"
    aux = layout_of(product).aux
    if aux is not None:
        stride = aux.batch_stride if product.batch > 1 else 0
        if aux.leading % AUX_ELEMENTS or stride % AUX_ELEMENTS:
            return f"aux has strides {aux.leading} and {stride}, no multiples of {AUX_ELEMENTS}"
    return ""


def _by_rows(matrices: Matrices) -> bool:
    return matrices.column_stride == 1
