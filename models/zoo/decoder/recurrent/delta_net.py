"""Delta net: gated, with a decay of every head, and Kimi delta attention, with one of every row.

Published weights hold several projections as one, and the filters too: theirs are the parts here.

Shape legend: b batch, t tokens, k hidden read, c features of a gate's narrow vector, o hidden made;
g heads of keys, r heads of values of each, n features of a key, p of a value.

Notes
-----
Yang, Kautz and Hatamizadeh, "Gated delta networks", arXiv 2412.06464 (2024), section 3.4, in
Qwen3-Next's form (release of September 2025); Kimi Team, "Kimi Linear", arXiv 2510.26692 (2025),
section 4: decays and gates by two narrow products, gates by a sigmoid. Ling 3, in the release that
transformers 5.24 has, bounds the decays.
"""

from math import sqrt

from millrace.models.builder import GraphBuilder, dense
from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.models.zoo.decoder.recurrent.streams import (
    convolved,
    decays,
    projected,
    with_bias,
)
from millrace.models.zoo.decoder.recurrent_sizes import DeltaNet
from millrace.models.zoo.norms import add_norm

KEYS, VALUES, HEADS, ROWS = "g n", "g r p", "g r", "g r n"
LENGTH_EPSILON = 1e-6  # added to the squared length of queries and keys, by flash-linear-attention


def delta_net(builder: GraphBuilder, config: DecoderConfig, x: str, layer: int) -> str:
    """Add the gated delta net of one layer and return what it adds to the stream `x`.

    Parameters and errors as for `state_space`.
    """
    sizes, heads = _sizes(config)
    gate = projected(builder, config, "delta.z", x, VALUES, heads)
    given = projected(builder, config, "delta.a", x, HEADS, heads)
    mixed = _recurred(builder, config, sizes, x, given, HEADS)
    labels = f"b t {VALUES}, b t {VALUES} -> b t {VALUES}"
    return _projected_out(
        builder, config, builder.apply("swiglu", "delta.gated", (gate, mixed), labels)
    )


def kimi_delta(builder: GraphBuilder, config: DecoderConfig, x: str, layer: int) -> str:
    """Add the Kimi delta attention of one layer and return what it adds to the stream `x`.

    Parameters and errors as for `state_space`.
    """
    sizes, heads = _sizes(config)

    def by_narrow(part: str, dims: str) -> str:
        if not sizes.gate_rank:
            return projected(builder, config, f"delta.{part}", x, dims, heads)
        narrow = projected(builder, config, f"delta.{part}.narrow", x, "c", heads)
        labels = f"b t c, c {dims} -> b t {dims}"
        widths = {label: heads[label] for label in dims.split()}
        name, std = f"delta.{part}", config.init_std
        return dense(builder, name, narrow, labels, widths, std=std, bias=False)

    gate = by_narrow("z", VALUES)
    mixed = _recurred(builder, config, sizes, x, by_narrow("a", ROWS), ROWS)
    gate = builder.apply("sigmoid", "delta.z.open", (gate,), f"b t {VALUES} -> b t {VALUES}")
    labels = f"b t {VALUES}, b t {VALUES} -> b t {VALUES}"
    return _projected_out(
        builder, config, builder.apply("mul", "delta.gated", (mixed, gate), labels)
    )


def _sizes(config: DecoderConfig) -> tuple[DeltaNet, dict[str, int]]:
    sizes = config.delta_net
    assert sizes is not None, "checked with the pattern"
    return sizes, {
        "g": sizes.key_heads,
        "r": sizes.value_heads // sizes.key_heads,
        "n": sizes.key_dim,
        "p": sizes.value_dim,
        "c": sizes.gate_rank,
    }


def _recurred(
    builder: GraphBuilder, config: DecoderConfig, sizes: DeltaNet, x: str, given: str, decaying: str
) -> str:
    """Add the recurrence, its decays made of `given`, and the norm of every head's features."""
    _, heads = _sizes(config)

    def filtered(part: str, dims: str) -> str:
        name = f"delta.{part}"
        stream = projected(builder, config, name, x, dims, heads)
        return convolved(builder, name, stream, dims, sizes.taps)

    query, key, value = filtered("q", KEYS), filtered("k", KEYS), filtered("v", VALUES)
    query = _of_length(builder, "delta.q", query, 1 / sqrt(sizes.key_dim))
    key = _of_length(builder, "delta.k", key, 1.0)
    beta = projected(builder, config, "delta.b", x, HEADS, heads)
    labels = f"b t {HEADS} -> b t {HEADS}"
    beta = builder.apply("sigmoid", "delta.beta", (beta,), labels)
    if sizes.beta_scale != 1:
        factor = {"factor": sizes.beta_scale}
        beta = builder.apply("scale", "delta.beta.scaled", (beta,), labels, attributes=factor)
    step = with_bias(builder, "delta.step", given, decaying)
    if not sizes.decay_bound:
        labels = f"b t {decaying} -> b t {decaying}"
        step = builder.apply("softplus", "delta.step", (step,), labels)
    decay = decays(builder, "delta.rate", step, decaying, HEADS, bound=sizes.decay_bound)
    mark = "!" if decaying == ROWS else ""
    labels = (
        f"b t! {KEYS}!, b t! {KEYS}!, b t! {VALUES}, b t! {decaying}{mark}, b t! {HEADS} "
        f"-> b t! {VALUES}"
    )
    mixed = builder.apply("delta_rule", "delta.core", (query, key, value, decay, beta), labels)
    dims = f"b t {VALUES}"
    return add_norm(
        builder, "delta.norm", mixed, dims, kind="rms", epsilon=sizes.epsilon or config.epsilon
    )


def _of_length(builder: GraphBuilder, name: str, x: str, length: float) -> str:
    """Add the scaling of every head's features to a length, by their root mean square."""
    size = builder.tensors[x].shape[-1]
    epsilon, dims = LENGTH_EPSILON / size, f"b t {KEYS}"
    normed = add_norm(builder, f"{name}.norm", x, dims, kind="unscaled", epsilon=epsilon)
    factor = {"factor": length / sqrt(size)}
    return builder.apply("scale", f"{name}.unit", (normed,), f"{dims} -> {dims}", attributes=factor)


def _projected_out(builder: GraphBuilder, config: DecoderConfig, x: str) -> str:
    labels, std = f"b t {VALUES}, {VALUES} o -> b t o", config.residual_std
    return dense(builder, "delta.out", x, labels, {"o": config.hidden}, std=std, bias=False)
