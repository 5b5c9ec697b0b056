"""Norms with what stands beside them: the residual sum before, sums of gradients after, weights.

Shape legend: R rows, D features of a row, which lie behind each other.
"""

from millrace.executor.cuda.calls import Calls, same_calls
from millrace.executor.cuda.kernels.fused.fused_sums import added_sums
from millrace.executor.cuda.kernels.fused.operands import read_by, written_by
from millrace.executor.cuda.kernels.rows.norms import NormResidual, norm, norm_grad_input
from millrace.executor.cuda.kernels.unfused_parts import is_inner
from millrace.executor.kernels.context import FusedPart, KernelContext

NORMS = ("layer_norm", "rms_norm")
GRADIENTS = tuple(f"{kind}_grad_input" for kind in NORMS)


def norm_calls(context: KernelContext) -> Calls | None:
    """Calls of a norm and the sum before it, or of a norm's gradient and what follows.

    None: the actor is neither, or its parts differ in dtypes that one pass has in common.
    """
    parts = {part.context.kind: part for part in context.parts if part.context.kind != "accumulate"}
    kinds = [part.context.kind for part in context.parts]
    if len(kinds) == 2 and kinds[0] == "add" and kinds[1] in NORMS:
        return _after_sum(context, parts["add"], parts[kinds[1]])
    if kinds[0] in GRADIENTS:
        return _gradient(context, kinds[0], parts)
    return None


def _after_sum(context: KernelContext, add: FusedPart, norm_part: FusedPart) -> Calls | None:
    """Calls of the norm of a sum of two tensors, which is kept."""
    dtypes = {shard.dtype for shard in (*add.context.inputs, *add.context.outputs)}
    if len(dtypes) > 1 or is_inner(context, add.outputs[0]):
        return None
    x, other = (read_by(context, add, number) for number in (0, 1))
    total = written_by(context, add, 0)
    rms = norm_part.context.kind == "rms_norm"
    y, *statistics = (written_by(context, norm_part, number) for number in range(2 if rms else 3))
    return same_calls(
        norm(
            x,
            read_by(context, norm_part, 1),
            y.operand,
            statistics[-1],
            columns=norm_part.context.inputs[0].shape[-1],
            epsilon=norm_part.context.number("epsilon", 1e-5),
            beta=None if rms else read_by(context, norm_part, 2).operand,
            mean=None if rms else statistics[0].operand,
            residual=NormResidual(other=other.operand, total=total.operand),
        )
    )


def _gradient(context: KernelContext, kind: str, parts: dict[str, FusedPart]) -> Calls | None:
    """Calls of a norm's input's gradient, another added, and those of its weights added up."""
    norm_part = parts[kind]
    rms = kind == "rms_norm_grad_input"
    dy, x, gamma = (read_by(context, norm_part, number) for number in range(3))
    rstd = read_by(context, norm_part, 3 if rms else 4)
    mean = None if rms else read_by(context, norm_part, 3).operand
    dx, other = written_by(context, norm_part, 0), None
    if (add := parts.get("add")) is not None:
        number = 1 - add.inputs.index(norm_part.outputs[0])
        added, dx = read_by(context, add, number), written_by(context, add, 0)
        if {added.dtype, dx.dtype} != {dy.dtype}:
            return None
        other = added.operand
    weights = None
    if (beside := parts.get(kind.replace("_input", "_weight"))) is not None:
        weights = added_sums(context, beside)
        if weights is None:
            return None
    columns = norm_part.context.inputs[0].shape[-1]
    return norm_grad_input(
        dy, x, gamma, rstd, dx.operand, columns=columns, mean=mean, other=other, weights=weights
    )
