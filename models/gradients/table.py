"""The table of rules: one per differentiable kind, as a test holds it to the op table."""

from models.gradients import layers, layout, products
from models.gradients.tape import Rule
from models.ops import FUNCTIONS

RULES: dict[str, Rule] = {
    **dict.fromkeys(FUNCTIONS, products.pointwise),
    "add": products.add,
    "arc_margin": products.arc_margin,
    "attention": layers.attention,
    "avg_pool": layers.avg_pool,
    "batch_norm": layers.batch_norm,
    "biased_attention": layers.attention,
    "broadcast": products.broadcast,
    "cast": layout.cast,
    "combine": layers.combine,
    "concat": layout.concat,
    "conv": layers.conv,
    "cross_entropy": products.cross_entropy,
    "dispatch": layers.dispatch,
    "dropout": products.dropout,
    "embedding": layers.embedding,
    "l2_normalize": layers.l2_normalize,
    "layer_norm": layers.layer_norm,
    "logistic_loss": products.logistic_loss,
    "matmul": products.matmul,
    "max_pool": layers.max_pool,
    "mul": products.matmul,
    "narrow": layout.narrow,
    "prelu": products.prelu,
    "rearrange": layout.rearrange,
    "relative_bias": layers.relative_bias,
    "repeat": layout.repeat,
    "rms_norm": layers.rms_norm,
    "rotary": layers.rotary,
    "scale": products.scale,
    "shift": products.shift,
    "softmax": products.softmax,
    "sum": products.sum_,
    "swiglu": products.swiglu,
    "top_k": layers.top_k,
    "widen": layout.widen,
}
