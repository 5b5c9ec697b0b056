"""Products of two float32 matrices by oneDNN.

Of two ways the faster is taken, by GFLOP/s of a core's own time on Zen 4 (`benchmarks/executor`'s
sizes, oneDNN 3.2, 2026-11): 104 to 115 by `sgemm`, and where only the right matrix is transposed,
102 to 112 by the primitive (`sgemm` 85 to 111); NumPy's OpenBLAS has 89 to 107.
"""

import ctypes
from collections.abc import Callable

from millrace.executor.kernels.context import Array
from millrace.executor.kernels.onednn.dnnl_library import Dnnl, DnnlArgument, Primitive, open_dnnl

MatrixProduct = Callable[[Array, Array, Array], object]
"""`product(left, right, out)`: matrices in the shapes and strides that it was made for."""

_ITEM_BYTES = 4


def matrix_product(left: Array, right: Array, out: Array) -> MatrixProduct | None:
    """Product of matrices that lie as these do; None where oneDNN is not to be asked.

    Parameters
    ----------
    left, right, out
        Matrices [m, k], [k, n] and [m, n]; their values are not read.
    """
    matrices = (left, right, out)
    if any(matrix.dtype != "float32" or matrix.ndim != 2 for matrix in matrices):
        return None
    rows = [_leading(matrix) for matrix in matrices]
    if not all(matrix.size for matrix in matrices) or rows[2] is None or rows[2][1]:
        return None
    dnnl = open_dnnl()
    if dnnl is None or rows[0] is None or rows[1] is None:
        return None
    if rows[1][1] and not rows[0][1]:
        return _primitive(dnnl, left, right, out)
    return _sgemm(dnnl, left, right, out, rows[0], rows[1], rows[2][0])


def _leading(matrix: Array) -> tuple[int, bool] | None:
    """Elements from one line of a matrix to the next, and whether lines are columns; else None."""
    apart = [stride // _ITEM_BYTES for stride in matrix.strides]
    rows, columns = matrix.shape
    if (apart[1] == 1 or columns == 1) and (apart[0] >= columns or rows == 1):
        return max(apart[0], columns), False
    if (apart[0] == 1 or rows == 1) and (apart[1] >= rows or columns == 1):
        return max(apart[1], rows), True
    return None


def _sgemm(
    dnnl: Dnnl,
    left: Array,
    right: Array,
    out: Array,
    left_line: tuple[int, bool],
    right_line: tuple[int, bool],
    out_line: int,
) -> MatrixProduct:
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    letters = [ctypes.c_char(b"T" if line[1] else b"N") for line in (left_line, right_line)]
    sizes = (number(left.shape[0]), number(right.shape[1]), number(left.shape[1]))
    lines = [number(line) for line in (left_line[0], right_line[0], out_line)]
    all_of_it, nothing = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def product(left: Array, right: Array, out: Array) -> None:
        dnnl.call(
            "sgemm",
            *(*letters, *sizes, all_of_it),
            *(pointer(left.ctypes.data), lines[0], pointer(right.ctypes.data), lines[1]),
            *(nothing, pointer(out.ctypes.data), lines[2]),
        )

    return product


def _primitive(dnnl: Dnnl, left: Array, right: Array, out: Array) -> MatrixProduct:
    layouts = [
        dnnl.layout(matrix.shape, [stride // _ITEM_BYTES for stride in matrix.strides])
        for matrix in (left, right, out)
    ]
    description = dnnl.created(
        "matmul_primitive_desc_create",
        *(dnnl.engine, layouts[0], layouts[1], None, layouts[2], dnnl.attributes()),
    )
    keys = (DnnlArgument.SRC, DnnlArgument.WEIGHTS, DnnlArgument.DST)
    primitive = Primitive(dnnl, description, dict(zip(keys, layouts, strict=True)), {})

    def product(left: Array, right: Array, out: Array) -> None:
        addresses = (matrix.ctypes.data for matrix in (left, right, out))
        primitive.run(dict(zip(keys, addresses, strict=True)))

    return product
