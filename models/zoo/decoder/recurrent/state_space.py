"""State space: the mixer of Mamba-2, whose heads read and write states that decay.

Published weights hold the projections as one, and the filters too: theirs are the parts here, one
behind the other.

Shape legend: b batch, t tokens, k hidden read, m features normed together, o hidden made; g groups
of r heads, n rows of a state, p features of a value.

Notes
-----
Dao and Gu, "Transformers are SSMs", arXiv 2405.21060 (2024), section 7 and figure 6. Time steps are
softplus of a projection and a bias, decays exp(-step exp(a)), both learned per head.
"""

from millrace.models.builder import GraphBuilder, dense
from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.models.zoo.decoder.recurrent.streams import (
    convolved,
    decays,
    head_parameter,
    projected,
    with_bias,
)
from millrace.models.zoo.decoder.recurrent_sizes import StateSpace
from millrace.models.zoo.norms import add_norm

VALUES, STATES, HEADS = "g r p", "g n", "g r"
STEP_LIMIT = 1e30  # steps without an upper limit are brought below this


def state_space(builder: GraphBuilder, config: DecoderConfig, x: str, layer: int) -> str:
    """Add the Mamba-2 mixer of one layer and return what it adds to the stream `x`.

    Parameters
    ----------
    builder : GraphBuilder
        Gets the ops and variables, in its current block.
    config : DecoderConfig
        Has the sizes of the layer, checked.
    x : str
        The normed residual stream, `b t k`.
    layer : int
        Number of the layer; all of a kind are alike.
    """
    sizes = config.state_space
    assert sizes is not None, "checked with the pattern"
    heads = {
        "g": sizes.groups,
        "r": sizes.heads // sizes.groups,
        "n": sizes.state,
        "p": sizes.head_dim,
    }

    def stream(part: str, dims: str) -> str:
        return projected(builder, config, f"ssm.{part}", x, dims, heads, bias=sizes.bias)

    def filtered(part: str, dims: str) -> str:
        name, taps = f"ssm.{part}", sizes.taps
        return convolved(builder, name, stream(part, dims), dims, taps, bias=sizes.conv_bias)

    gate = stream("z", VALUES)
    value, key, query = filtered("x", VALUES), filtered("b", STATES), filtered("c", STATES)
    step = _time_steps(builder, sizes, stream("dt", HEADS))
    decay = decays(builder, "ssm.a", step, HEADS, HEADS)
    labels = f"b t {VALUES}, b t {HEADS} -> b t {VALUES}"
    weighed = builder.apply("mul", "ssm.x.weighed", (value, step), labels)
    labels = f"b t! {STATES}!, b t! {STATES}!, b t! {VALUES}, b t! {HEADS} -> b t! {VALUES}"
    scanned = builder.apply("state_space_scan", "ssm.core", (query, key, weighed, decay), labels)
    skip = head_parameter(builder, "ssm.d.weight", value, HEADS, init="ones")
    labels = f"b t {VALUES}, {HEADS} -> b t {VALUES}"
    skipped = builder.apply("mul", "ssm.d", (value, skip), labels)
    labels = f"b t {VALUES}, b t {VALUES} -> b t {VALUES}"
    out = builder.apply("add", "ssm.sum", (scanned, skipped), labels)
    out = builder.apply("swiglu", "ssm.gated", (gate, out), labels)
    return _projected_out(builder, config, sizes, out)


def _time_steps(builder: GraphBuilder, sizes: StateSpace, x: str) -> str:
    step = with_bias(builder, "ssm.step", x, HEADS)
    labels = f"b t {HEADS} -> b t {HEADS}"
    step = builder.apply("softplus", "ssm.step", (step,), labels)
    if not sizes.step_min and not sizes.step_max:
        return step
    attributes = {"low": sizes.step_min, "high": sizes.step_max or STEP_LIMIT}
    return builder.apply("clip", "ssm.step.clip", (step,), labels, attributes=attributes)


def _projected_out(
    builder: GraphBuilder, config: DecoderConfig, sizes: StateSpace, out: str
) -> str:
    """Add the norm, over each group or all features, and the projection back to the stream."""
    dims = VALUES
    if sizes.norm_groups and sizes.norm_groups == sizes.groups > 1:
        dims = "g m"
        out = builder.apply("rearrange", "ssm.groups", (out,), f"b t {VALUES} -> b t g (r p)")
        out = _normed(builder, config, out, f"b t {dims}", "unscaled")
        weight = head_parameter(builder, "ssm.norm.weight", out, dims, init="ones")
        labels = f"b t {dims}, {dims} -> b t {dims}"
        out = builder.apply("mul", "ssm.normed", (out, weight), labels)
    elif sizes.norm_groups:
        dims = "m"
        out = builder.apply("rearrange", "ssm.features", (out,), f"b t {VALUES} -> b t (g r p)")
        out = _normed(builder, config, out, f"b t {dims}", "rms")
    labels = f"b t {dims}, {dims} o -> b t o"
    std = config.residual_std
    return dense(builder, "ssm.out", out, labels, {"o": config.hidden}, std=std, bias=sizes.bias)


def _normed(builder: GraphBuilder, config: DecoderConfig, x: str, dims: str, kind: str) -> str:
    return add_norm(builder, "ssm.norm", x, dims, kind=kind, epsilon=config.epsilon)
