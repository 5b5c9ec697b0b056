"""Column-major matrices: a product as libraries of the BLAS family see it.

A matrix of contiguous rows is its transpose stored column by column, so nothing is ever moved: a
result of contiguous rows is made as d^T = b^T a^T.
"""

from typing import NamedTuple

from millrace.executor.cuda.calls import Matrices, ProductCall


class ColumnMajor(NamedTuple):
    """A stack of matrices stored column by column, `leading` elements from one to the next."""

    dtype: str
    rows: int
    columns: int
    leading: int
    batch_stride: int


class ProductLayout(NamedTuple):
    """D = op(A) op(B), of [m, k] and [k, n], for `batch` pairs.

    Parameters
    ----------
    swapped
        A is the product's b, and B its a.
    transpose_a, transpose_b
        True if op transposes what is stored.
    c, aux
        Matrices of an epilogue, stored as D is; None where it has none.
    """

    swapped: bool
    transpose_a: bool
    transpose_b: bool
    a: ColumnMajor
    b: ColumnMajor
    d: ColumnMajor
    m: int
    n: int
    k: int
    batch: int
    c: ColumnMajor | None = None
    aux: ColumnMajor | None = None


def layout_of(product: ProductCall) -> ProductLayout:
    """Layout that a column-major library is told, to compute a product.

    Examples
    --------
    >>> from millrace.executor.cuda.calls import Matrices, read, write
    >>> x, w, y = read(0), read(1), write(0)
    >>> stored = [Matrices(x, "float32", 8, 1, 0), Matrices(w, "float32", 5, 1, 0)]
    >>> layout = layout_of(
    ...     ProductCall(*stored, Matrices(y, "float32", 5, 1, 0), 3, 5, 8, 1, "fp32")
    ... )
    >>> layout.swapped, layout.transpose_a, layout.transpose_b, (layout.m, layout.n, layout.k)
    (True, False, False, (5, 3, 8))
    """
    a, a_by_rows = _stored(product.a, product.m, product.k)
    b, b_by_rows = _stored(product.b, product.k, product.n)
    d, swapped = _stored(product.d, product.m, product.n)
    if swapped:  # op(b stored) op(a stored) = b^T a^T
        first, second = (b, not b_by_rows), (a, not a_by_rows)
    else:
        first, second = (a, a_by_rows), (b, b_by_rows)
    return ProductLayout(
        swapped=swapped,
        transpose_a=first[1],
        transpose_b=second[1],
        a=first[0],
        b=second[0],
        d=d,
        m=d.rows,
        n=d.columns,
        k=product.k,
        batch=product.batch,
        c=_epilogue_matrices(product.c, product),
        aux=_epilogue_matrices(product.aux, product),
    )


def _epilogue_matrices(matrices: Matrices | None, product: ProductCall) -> ColumnMajor | None:
    """Matrices of an epilogue, in the order of d."""
    return None if matrices is None else _stored(matrices, product.m, product.n)[0]


def _stored(matrices: Matrices, rows: int, columns: int) -> tuple[ColumnMajor, bool]:
    """Matrices as they are stored column by column, and True if that is the transpose.

    The stride of a single row or column is free, but libraries want it to be no shorter than what
    it would skip.
    """
    by_rows = matrices.column_stride == 1
    if by_rows:
        rows, columns, leading = columns, rows, matrices.row_stride
    else:
        assert matrices.row_stride == 1, (
            f"matrices of neither contiguous rows nor columns: {matrices}"
        )
        leading = matrices.column_stride
    if columns == 1:
        leading = max(leading, rows)
    return ColumnMajor(matrices.dtype, rows, columns, leading, matrices.batch_stride), by_rows
