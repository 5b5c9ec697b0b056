"""Recurrence ops: rows of what goes through a sequence token by token.

Shape legend: b batch, t tokens, c channels, k taps of a filter; g groups of r heads that share
queries and keys, n features of a key, p features of a value. A head's state is a matrix S [n, p],
zero before the first token. Tokens are whole: where a sequence lies split, heads are split instead
while it is gone through.
"""

from millrace.models.ops.kind import OpKind

ROWS = (
    OpKind(
        name="causal_conv1d",
        description="(x, w) b t! c, c k! -> b t! c: every channel convolved along the tokens by a "
        "filter of its own, whose last tap meets the token itself; zeros before the first token",
        linear=(0, 1),
        differentiable=True,
    ),
    OpKind(
        name="causal_conv1d_grad_input",
        description="(dy, w) b t! c, c k! -> b t! c: dx",
        linear=(0, 1),
    ),
    OpKind(
        name="causal_conv1d_grad_weight",
        description="(x, dy) b t! c, b t! c -> c k!: dw",
        linear=(0, 1),
        reduction="sum",
    ),
    OpKind(
        name="state_space_scan",
        description="(query, key, value, decay) b t! g n!, b t! g n!, b t! g r p, b t! g r -> "
        "b t! g r p: linear attention with decay (Mamba-2's C, B, x dt and A dt): "
        "S = exp(decay) S + key valueᵀ, y = Sᵀ query; decay is a number of every head, or with n! "
        "of every row of its state",
        linear=(2,),
        products=((1, 2), (0, 4)),
        differentiable=True,
    ),
    OpKind(
        name="state_space_scan_grad",
        description="(query, key, value, decay, dy) b t! g n!, b t! g n!, b t! g r p, b t! g r, "
        "b t! g r p -> b t! g n!, b t! g n!, b t! g r p, b t! g r: gradients of all four",
        linear=(4,),
        reduction="sum",
        products=((1, 2), (1, 4), (0, 2), (0, 4)),
        extra_outputs=("key", "value", "decay"),
    ),
    OpKind(
        name="delta_rule",
        description="(query, key, value, decay, beta) b t! g n!, b t! g n!, b t! g r p, b t! g r, "
        "b t! g r -> b t! g r p: S = exp(decay) S, then S = S + beta key (value - Sᵀ key)ᵀ, "
        "y = Sᵀ query; decay as of the scan",
        linear=(2,),
        products=((1, 2), (1, 2), (0, 5)),
        differentiable=True,
    ),
    OpKind(
        name="delta_rule_grad",
        description="(query, key, value, decay, beta, dy) b t! g n!, b t! g n!, b t! g r p, "
        "b t! g r, b t! g r, b t! g r p -> b t! g n!, b t! g n!, b t! g r p, b t! g r, b t! g r: "
        "gradients of all five",
        reduction="sum",
        products=((1, 2), (1, 2), (1, 5), (1, 5), (0, 5), (0, 5)),
        extra_outputs=("key", "value", "decay", "beta"),
    ),
)

RECURRENCES = ("state_space_scan", "state_space_scan_grad", "delta_rule", "delta_rule_grad")
"""Kinds that take the tokens of a sequence one after another."""
