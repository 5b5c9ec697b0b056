"""Product nodes: rules of matrix products."""

from millrace.models.errors import ModelError
from millrace.models.importers.onnx.labelling import apart, restricted
from millrace.models.importers.onnx.lowering import OnnxLowering
from millrace.models.importers.onnx.onnx_file import OnnxNode
from millrace.models.importers.onnx.rules.attention_nodes import attention_pattern
from millrace.models.importers.onnx.rules.pointwise_nodes import scaled
from millrace.models.importers.onnx.values import (
    Dim,
    Dims,
    Traced,
    broadcast_columns,
    common_dims,
    factors_of,
    has_batch,
    unified,
)
from millrace.models.labels import BATCH, SEQUENCE


def matmul(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Add a product of matrices, batched or not, or the attention that one ends."""
    attended = attention_pattern(low, node)
    if attended is not None:
        return attended
    return product(low, node, low.name(node), low.floating(node, 0), low.floating(node, 1))


def product(low: OnnxLowering, node: OnnxNode, name: str, left: Traced, right: Traced) -> Traced:
    """Add the product of two tensors over the last dim of one and the last but one of the other."""
    if not left.dims or not right.dims:
        raise ModelError(f"{node.title} multiplies a number; the file is malformed")
    vectors = (len(left.dims) == 1, len(right.dims) == 1)
    left = left.seen_as(((), *left.dims)) if vectors[0] else left
    right = right.seen_as((*right.dims, ())) if vectors[1] else right
    ranks = (len(left.dims), len(right.dims))
    if left.shape[-1] != right.shape[-2]:
        raise ModelError(f"{node.title}: {left.shape} times {right.shape} does not fit")
    batch = broadcast_columns([rank - 2 for rank in ranks])
    last = ((0, ranks[0] - 2), (0, ranks[0] - 1), (1, ranks[1] - 2), (1, ranks[1] - 1))
    columns = [*batch, [last[0]], [last[1], last[2]], [last[3]]]
    left, right = (low.dropped(v) for v in unified((left, right), columns, low.fresh))
    left, right = _both_hold(low, name, left, right, left.dims[-1])
    shared = common_dims((left, right), batch)
    rows = () if vectors[0] else (left.dims[-2],)
    right_columns = () if vectors[1] else (right.dims[-1],)
    dims = (*shared, *rows, *right_columns)
    operand = _laid_out(left, right, dims)
    names = {left.dims[-1][0]: "k"} if len(left.dims[-1]) == 1 else {}
    return low.emit("matmul", name, (left, right), (operand,), dims=dims, names=names)


def _both_hold(
    low: OnnxLowering, name: str, left: Traced, right: Traced, contracted: Dim
) -> tuple[Traced, Traced]:
    """Broadcast where one holds a contracted factor that the other lacks."""
    sides = []
    for side, value in enumerate((left, right)):
        lacking = tuple(factor for factor in contracted if factor not in value.operand_factors)
        if lacking:
            operand = (*value.operand, *((factor,) for factor in lacking))
            value = low.laid_out(value, operand, f"{name}.{side}")
        sides.append(value)
    return sides[0], sides[1]


def _laid_out(left: Traced, right: Traced, dims: Dims) -> Dims:
    """Layout of a product: the left's where the right is a plain matrix, else that of `dims`."""
    seen = frozenset(factors_of(dims))
    if not right.operand_factors & left.operand_factors & seen and not has_batch(
        right.operand_factors - left.operand_factors
    ):
        return (*restricted(left.operand, seen), *restricted(right.operand, seen))
    laid: Dims = ()
    for dim in restricted(dims, left.operand_factors | right.operand_factors):
        fixed = any(factor.name in (BATCH, SEQUENCE) for factor in dim)
        laid += apart((dim,)) if fixed else (dim,)
    return laid


def gemm(low: OnnxLowering, node: OnnxNode) -> Traced:
    """Return alpha A B + beta C, either factor transposed."""
    name = low.name(node)
    left, right = low.floating(node, 0), low.floating(node, 1)
    if len(left.dims) != 2 or len(right.dims) != 2:
        raise ModelError(f"{node.title}: its factors have {left.shape} and {right.shape}")
    if node.integer("transA", 0):
        left = left.seen_as(reversed(left.dims))
    if node.integer("transB", 0):
        right = right.seen_as(reversed(right.dims))
    biased = low.has_input(node, 2)
    label = low.name(node, "matmul") if biased else name
    output = product(low, node, label, left, right)
    output = scaled(low, low.name(node, "alpha"), output, node.number("alpha", 1.0))
    if not biased:
        return output
    bias = scaled(low, low.name(node, "beta"), low.floating(node, 2), node.number("beta", 1.0))
    return low.elementwise("add", name, (output, bias))
