"""Arithmetic ops: rows of products, sums, softmax and losses.

Shape legend: b batch, t sequence, k d n features, v vocabulary, s classes of a classifier.
"""

from millrace.models.ops.kind import OpKind

PRODUCTS = (
    OpKind(
        name="matmul",
        description="b t k, k n -> b t n: any product of two tensors, summed over what is missing",
        linear=(0, 1),
        reduction="sum",
        products=((0, 1),),
        differentiable=True,
        pitched=True,
        role="product",
    ),
    OpKind(
        name="mul",
        description="b t n, n -> b t n: elementwise, broadcast by label and summed over what is "
        "missing; not counted as a matrix product",
        linear=(0, 1),
        reduction="sum",
        differentiable=True,
        fused_by_frameworks=True,
    ),
    OpKind(
        name="add",
        description="b t n, n -> b t n: two or more, broadcast by label",
        linear="joint",
        differentiable=True,
        joins=("product", "norm", "norm_grad", "channel_norm"),
        fused_by_frameworks=True,
    ),
    OpKind(
        name="sum",
        description="b t n -> n: summed over what is missing",
        linear="joint",
        reduction="sum",
        differentiable=True,
        role="sum",
        fused_by_frameworks=True,
    ),
    OpKind(
        name="scale",
        description="b t n -> b t n: times `factor`",
        linear="joint",
        attributes=("factor",),
        differentiable=True,
        fused_by_frameworks=True,
    ),
    OpKind(
        name="shift",
        description="b t n -> b t n: plus `value`",
        attributes=("value",),
        differentiable=True,
        fused_by_frameworks=True,
    ),
    OpKind(
        name="softmax",
        description="b t n! -> b t n!: over the last dim",
        differentiable=True,
        fused_by_frameworks=True,
    ),
    OpKind(
        name="softmax_grad",
        description="(y, dy) b t n!, b t n! -> b t n!: y (dy - sum(y dy))",
        linear=(1,),
        fused_by_frameworks=True,
    ),
)

LOSSES = (
    OpKind(
        name="cross_entropy",
        description="(logits, targets) b t v!, b t -> b t, b t: loss (0 where the target is "
        "negative) and the logarithm of the softmax's sum",
        extra_outputs=("logsumexp",),
        wide_outputs=(0, 1),
        differentiable=True,
        pitched=True,
        fused_by_frameworks=True,
    ),
    OpKind(
        name="cross_entropy_grad",
        description="(logits, targets, logsumexp) b t v, b t, b t -> b t v: gradient of the sum "
        "of the losses",
        pitched=True,
        fused_by_frameworks=True,
    ),
    OpKind(
        name="logistic_loss",
        description="(logits, targets) b, b -> b: cross entropy of sigmoid(logit) against a "
        "target of 0 or 1 (0 where the target is negative)",
        wide_outputs=(0,),
        differentiable=True,
        fused_by_frameworks=True,
    ),
    OpKind(
        name="logistic_loss_grad",
        description="(logits, targets) b, b -> b: gradient of the sum of the losses",
        fused_by_frameworks=True,
    ),
    OpKind(
        name="count_valid",
        description="b t ->: how many targets are not negative",
        reduction="sum",
    ),
    OpKind(
        name="arc_margin",
        description="(cosine, targets) b s, b -> b s: scale cos(angle + margin) at the target's "
        "class, scale cosine elsewhere",
        attributes=("scale", "margin"),
        differentiable=True,
        fused_by_frameworks=True,
    ),
    OpKind(
        name="arc_margin_grad",
        description="(cosine, targets, dy) b s, b, b s -> b s: gradient of the cosine",
        linear=(2,),
        attributes=("scale", "margin"),
        fused_by_frameworks=True,
    ),
    OpKind(
        name="row_max",
        description="b t v -> b t: the largest logit",
        reduction="max",
        expansion_only=True,
        fused_by_frameworks=True,
    ),
    OpKind(
        name="shifted_sums",
        description="(logits, max, targets) b t v, b t, b t -> b t c!: sum of exp(logit - max) "
        "and the target's logit",
        reduction="sum",
        wide_outputs=(0,),
        expansion_only=True,
        fused_by_frameworks=True,
    ),
    OpKind(
        name="loss_from_sums",
        description="(max, sums, targets) b t, b t c!, b t -> b t, b t: loss and logsumexp",
        extra_outputs=("logsumexp",),
        wide_outputs=(0, 1),
        expansion_only=True,
        fused_by_frameworks=True,
    ),
)

ROWS = (*PRODUCTS, *LOSSES)
