"""Rules of matrix products."""

from millrace.models.errors import ModelError
from millrace.models.importers.onnx.lowering import Lowering
from millrace.models.importers.onnx.reading import Node
from millrace.models.importers.onnx.rules.attention import attention_pattern
from millrace.models.importers.onnx.rules.pointwise import scaled
from millrace.models.importers.onnx.values import Dim, Dims, Factor, Traced, unified
from millrace.models.labels import BATCH, SEQUENCE


def matmul(low: Lowering, node: Node) -> Traced:
    """A product of matrices, batched or not; or the end of an attention that was written out."""
    found = attention_pattern(low, node)
    if found is not None:
        return found
    return product(low, node, low.name(node), low.floating(node, 0), low.floating(node, 1))


def product(low: Lowering, node: Node, name: str, left: Traced, right: Traced) -> Traced:
    """Add the product of two tensors over the last dim of one and the last but one of the other."""
    if not left.dims or not right.dims:
        raise ModelError(f"{node.title} multiplies a number; the file is malformed")
    vectors = (len(left.dims) == 1, len(right.dims) == 1)
    left = left.seen_as(((), *left.dims)) if vectors[0] else left
    right = right.seen_as((*right.dims, ())) if vectors[1] else right
    ranks = (len(left.dims), len(right.dims))
    if left.shape[-1] != right.shape[-2]:
        raise ModelError(f"{node.title}: {left.shape} times {right.shape} does not fit")
    highest = max(ranks)
    batch = [
        [(at, place - highest + rank) for at, rank in enumerate(ranks) if place >= highest - rank]
        for place in range(highest - 2)
    ]
    last = ((0, ranks[0] - 2), (0, ranks[0] - 1), (1, ranks[1] - 2), (1, ranks[1] - 1))
    columns = [*batch, [last[0]], [last[1], last[2]], [last[3]]]
    left, right = (low.dropped(v) for v in unified((left, right), columns, low.fresh))
    left, right = _both_hold(low, name, left, right, left.dims[-1])
    shared = tuple(
        next((d for at, index in column if (d := (left, right)[at].dims[index])), ())
        for column in batch
    )
    rows = () if vectors[0] else (left.dims[-2],)
    made = () if vectors[1] else (right.dims[-1],)
    dims = (*shared, *rows, *made)
    operand = _laid_out(left, right, dims)
    names = {left.dims[-1][0]: "k"} if len(left.dims[-1]) == 1 else {}
    return low.emit("matmul", name, (left, right), (operand,), dims=dims, names=names)


def _both_hold(
    low: Lowering, name: str, left: Traced, right: Traced, contracted: Dim
) -> tuple[Traced, Traced]:
    """Broadcast where one holds a contracted factor that the other lacks."""
    sides = []
    for side, value in enumerate((left, right)):
        lacking = tuple(factor for factor in contracted if factor not in value.held)
        if lacking:
            operand = (*value.operand, *((factor,) for factor in lacking))
            value = low.laid_out(value, operand, f"{name}.{side}")
        sides.append(value)
    return sides[0], sides[1]


def _laid_out(left: Traced, right: Traced, dims: Dims) -> Dims:
    """Where the right is a plain matrix the left's layout stays, else the dims are as seen."""
    seen = {factor for dim in dims for factor in dim}
    held = (left.held | right.held) & seen
    later_batch = any(factor.name == BATCH for factor in right.held - left.held)
    if not right.held & left.held & seen and not later_batch:
        kept = [tuple(factor for factor in dim if factor in seen) for dim in left.operand]
        new = [tuple(factor for factor in dim if factor in seen) for dim in right.operand]
        return tuple(dim for dim in (*kept, *new) if dim)
    apart: list[Dim] = []
    for dim in dims:
        found: tuple[Factor, ...] = tuple(factor for factor in dim if factor in held)
        mixed = any(factor.name in (BATCH, SEQUENCE) for factor in found)
        apart.extend([(factor,) for factor in found] if mixed else [found])
    return tuple(dim for dim in apart if dim)


def gemm(low: Lowering, node: Node) -> Traced:
    """Return alpha A B + beta C, either factor transposed."""
    name = low.name(node)
    left, right = low.floating(node, 0), low.floating(node, 1)
    if len(left.dims) != 2 or len(right.dims) != 2:
        raise ModelError(f"{node.title}: its factors have {left.shape} and {right.shape}")
    if node.integer("transA", 0):
        left = left.seen_as(reversed(left.dims))
    if node.integer("transB", 0):
        right = right.seen_as(reversed(right.dims))
    biased = low.given(node, 2)
    label = low.name(node, "matmul") if biased else name
    made = product(low, node, label, left, right)
    made = scaled(low, low.name(node, "alpha"), made, node.number("alpha", 1.0))
    if not biased:
        return made
    bias = scaled(low, low.name(node, "beta"), low.floating(node, 2), node.number("beta", 1.0))
    return low.elementwise("add", name, (made, bias))
