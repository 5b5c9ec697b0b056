"""Orthogonal matrices by Newton and Schulz: sizes of the matrices, and FLOPs.

Shape legend: r the shorter side of a matrix, c the longer one.

Notes
-----
Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024): rounds of
X' = a X + (b A + c A²) X with A = X Xᵀ, begun at X over its norm, wide or turned to be so.
"""

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np

from millrace.models.labels import Dim, parse
from millrace.models.ops.kind import Attributes

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # a, b, c of the blog post above, 2024-12
EPSILON = 1e-7  # the least norm that is divided by, as in PyTorch's Muon (release 2.13)


class MatrixSizes(NamedTuple):
    """`batch` matrices of [rows, columns]: numbers, or arrays of them."""

    batch: Any
    rows: Any
    columns: Any


def matrix_sizes(labels: str, attributes: Attributes, sizes: Mapping[str, Any]) -> MatrixSizes:
    """Sizes of the matrices that a `newton_schulz` works on.

    Parameters
    ----------
    labels, attributes : str, mapping
        Those of the op: dims that are whole make the matrices, the first `rows` of them their rows;
        the others count matrices.
    sizes : mapping
        Size of every label.

    Examples
    --------
    >>> labels = "e k! h! d! -> e k! h! d!"
    >>> matrix_sizes(labels, {"rows": 1}, {"e": 8, "k": 512, "h": 4, "d": 64})
    MatrixSizes(batch=8, rows=512, columns=256)
    """
    expression = parse(labels)
    dims = expression.inputs[0]
    matrix = [dim for dim in dims if dim[0] in expression.whole_labels]
    rows = int(attributes["rows"])

    def size(part: list[Dim]) -> Any:
        return prod(sizes[label] for dim in part for label in dim)

    batch = [dim for dim in dims if dim not in matrix]
    return MatrixSizes(size(batch), size(matrix[:rows]), size(matrix[rows:]))


def newton_schulz_flops(labels: str, attributes: Attributes, sizes: Mapping[str, Any]) -> Any:
    """FLOPs of one firing: two products of r r c and one of r r r in every round."""
    batch, rows, columns = matrix_sizes(labels, attributes, sizes)
    short, long = np.minimum(rows, columns), np.maximum(rows, columns)
    return attributes["rounds"] * batch * (4 * short**2 * long + 2 * short**3)
