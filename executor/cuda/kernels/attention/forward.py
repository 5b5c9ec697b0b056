"""Forward pass of attention, and later rounds of a ring: their calls; shapes as in `shape.py`."""

from millrace.executor.cuda.calls import TYPES, Calls, Operand, read, same_calls, table, write
from millrace.executor.cuda.kernels.attention.matrix_units import MatrixShape, is_supported
from millrace.executor.cuda.kernels.attention.shape import BIAS, AttentionShape, attention_shape
from millrace.executor.kernels.context import KernelContext

SOURCE = "attention"
NONE = "none"
"""C++ type of an operand that an op lacks: zero wherever it is read."""


def attention(context: KernelContext) -> Calls:
    """Calls of the output, and of the logsumexp of every query's scores, of (q, k, v)."""
    return _forward(context)


def biased_attention(context: KernelContext) -> Calls:
    """Calls of the output and logsumexp of (q, k, v, bias); the bias is added before any mask."""
    return _forward(context, bias=BIAS)


def attention_round(context: KernelContext) -> Calls:
    """Calls of the output and logsumexp of (q, k, v, out, logsumexp), joined when written."""
    return _forward(context, before=3)


def function_of(name: str, shape: AttentionShape, *more: str) -> str:
    """A kernel's name for the dtype of q, k and v and `more` types, and rows this wide."""
    return f"{name}<{TYPES[shape.dtype]}, {', '.join(more)}, {shape.columns}>"


def typed(context: KernelContext, operand: int | None) -> tuple[str, Operand]:
    """An input's C++ type and the operand; of one that the op lacks, none and any other."""
    if operand is None:
        return NONE, read(0)
    return TYPES[context.inputs[operand].dtype], read(operand)


def _forward(
    context: KernelContext, *, bias: int | None = None, before: int | None = None
) -> Calls:
    """Calls of attention; `before` is the input that other keys gave, the next its logsumexp."""
    shape = attention_shape(context, biased=bias is not None)
    bias_type, added = typed(context, bias)
    before_type, had = typed(context, before)
    share_type, share = typed(context, None if before is None else before + 1)
    output_types = [TYPES[shard.dtype] for shard in context.outputs]
    if bias is None and is_supported(context, shape, outs=context.outputs[:1]):
        launches = MatrixShape(shape=shape).forward(
            (output_types[0], before_type, share_type),
            table(0), read(0), read(1), read(2), had, share, write(0), write(1),
        )  # fmt: skip
        return same_calls(*launches, tables=shape.tables)
    launches = shape.launch(
        SOURCE,
        function_of("attention", shape, *output_types, bias_type, before_type, share_type),
        shape.heads * shape.query_tiles,
        table(0), table(1), read(0), read(1), read(2), added, had, share, write(0), write(1),
    )  # fmt: skip
    return same_calls(*launches, tables=shape.tables)
