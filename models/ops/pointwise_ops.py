"""Pointwise ops: rows of elementwise functions, each with its gradient `<name>_grad` of (x, dy).

A function is one entry of `FUNCTIONS` here and one pair of formulas in every backend.
"""

from millrace.models.ops.kind import OpKind

FUNCTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "relu": ("max(x, 0)", ()),
    "leaky_relu": ("x where positive, else slope x", ("slope",)),
    "gelu": ("the tanh form, as GPT-2 has it", ()),
    "gelu_erf": ("x Phi(x), the exact form, as BERT has it", ()),
    "silu": ("x / (1 + exp(-x))", ()),
    "sigmoid": ("1 / (1 + exp(-x))", ()),
    "tanh": ("tanh(x)", ()),
    "softplus": ("log(1 + exp(x))", ()),
    "exp": ("exp(x)", ()),
    "log": ("log(x)", ()),
    "sqrt": ("square root", ()),
    "rsqrt": ("1 / square root", ()),
    "reciprocal": ("1 / x", ()),
    "power": ("x to the power `exponent`", ("exponent",)),
    "sin": ("sin(x)", ()),
    "cos": ("cos(x)", ()),
    "clip": ("x brought between `low` and `high`", ("low", "high")),
    "is_positive": ("1 where x is positive, else 0", ()),
}

# Those that models of the zoo may name as their `activation`.
ACTIVATIONS = ("gelu", "gelu_erf", "relu", "silu", "tanh", "sigmoid")

# Functions whose slope is zero: nothing is trained through them.
FLAT = ("is_positive",)

# Functions whose slope at their result is that at x: relu(x) is positive exactly where x is.
SLOPE_OF_RESULT = ("relu",)

# A library of products can apply these to a product before it writes it, and their gradients to
# its gradient: cuBLASLt's epilogues GELU_AUX and DGELU (the tanh form), cuBLAS 13 guide.
AFTER_PRODUCTS = ("gelu",)

# Batch norm can apply these to an element before it writes it.
AFTER_CHANNEL_NORMS = ("relu",)


def _rows() -> tuple[OpKind, ...]:
    rows: list[OpKind] = []
    for name, (formula, attributes) in FUNCTIONS.items():
        joins = ("product",) if name in AFTER_PRODUCTS else ()
        alone = ("channel_norm",) if name in AFTER_CHANNEL_NORMS else ()
        rows.append(
            OpKind(
                name=name,
                description=f"b t n -> b t n: {formula}",
                attributes=attributes,
                differentiable=True,
                joins=(*joins, *alone),
                fused_by_frameworks=True,
            )
        )
        rows.append(
            OpKind(
                name=f"{name}_grad",
                description="(x, dy) b t n, b t n -> b t n: dy times the slope at x",
                linear=(1,),
                attributes=attributes,
                joins=joins,
                fused_by_frameworks=True,
            )
        )
    return tuple(rows)


ROWS = (
    *_rows(),
    OpKind(
        name="swiglu",
        description="(gate, up) b t n, b t n -> b t n: silu(gate) up",
        linear=(1,),
        differentiable=True,
        fused_by_frameworks=True,
    ),
    OpKind(
        name="swiglu_grad",
        description="(gate, up, dy) b t n, b t n, b t n -> b t n, b t n: dgate and dup",
        linear=(2,),
        extra_outputs=("up",),
        fused_by_frameworks=True,
    ),
    OpKind(
        name="clamped_swiglu",
        description="(gate, up) b t n, b t n -> b t n: g sigmoid(`slope` g) (u + `shift`), g the "
        "gate or `cap` where it is more, u up brought between -`cap` and `cap` (gpt-oss)",
        attributes=("cap", "slope", "shift"),
        differentiable=True,
        fused_by_frameworks=True,
    ),
    OpKind(
        name="clamped_swiglu_grad",
        description="(gate, up, dy) b t n, b t n, b t n -> b t n, b t n: dgate and dup",
        linear=(2,),
        extra_outputs=("up",),
        attributes=("cap", "slope", "shift"),
        fused_by_frameworks=True,
    ),
    OpKind(
        name="prelu",
        description="(x, slope) b y x c, c -> b y x c: x where positive, else slope x",
        differentiable=True,
        fused_by_frameworks=True,
    ),
    OpKind(
        name="prelu_grad",
        description="(x, slope, dy) b y x c, c, b y x c -> b y x c, c: dx and dslope",
        linear=(2,),
        reduction="sum",
        extra_outputs=("slope",),
        fused_by_frameworks=True,
    ),
    OpKind(
        name="dropout",
        description="b t n -> b t n: x / (1 - rate), or 0 with probability `rate`; the bits follow "
        "from seed, `op` (the forward op's name), step, sample in the global batch and index in "
        "the sample, so neither the split nor the microbatch changes them",
        linear="joint",
        attributes=("rate", "op"),
        differentiable=True,
        fused_by_frameworks=True,
    ),
)
