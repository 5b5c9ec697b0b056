"""Streams of a recurrent layer: what its projections make of the residual stream, and convolved.

Shape legend: b batch, t tokens, k hidden; the dims of a stream's heads are the caller's.
"""

from millrace.models.builder import GraphBuilder, dense
from millrace.models.zoo.decoder.config import DecoderConfig


def projected(
    builder: GraphBuilder,
    config: DecoderConfig,
    name: str,
    x: str,
    dims: str,
    sizes: dict[str, int],
    *,
    bias: bool = False,
) -> str:
    """Add a projection of `b t k` to `b t` and these dims of heads."""
    labels = f"b t k, k {dims} -> b t {dims}"
    widths = {label: sizes[label] for label in dims.split()}
    return dense(builder, name, x, labels, widths, std=config.init_std, bias=bias)


def convolved(
    builder: GraphBuilder,
    name: str,
    x: str,
    dims: str,
    taps: int,
    *,
    bias: bool = False,
    active: bool = True,
) -> str:
    """Add the causal convolution of every feature by itself, and if `active` silu of it."""
    shape = builder.tensors[x].shape[2:]
    filters = builder.parameter(f"{name}.conv.weight", f"{dims} j", (*shape, taps), std=taps**-0.5)
    labels = f"b t! {dims}, {dims} j! -> b t! {dims}"
    x = builder.apply("causal_conv1d", f"{name}.conv", (x, filters), labels)
    if bias:
        x = with_bias(builder, f"{name}.conv", x, dims)
    if not active:
        return x
    return builder.apply("silu", f"{name}.active", (x,), f"b t {dims} -> b t {dims}")


def with_bias(builder: GraphBuilder, name: str, x: str, dims: str) -> str:
    """Add a bias of these dims of heads, which starts at zero and does not decay."""
    added = head_parameter(builder, f"{name}.bias", x, dims, init="zeros")
    return builder.apply("add", f"{name}.biased", (x, added), f"b t {dims}, {dims} -> b t {dims}")


def head_parameter(builder: GraphBuilder, name: str, x: str, dims: str, *, init: str) -> str:
    """Add a parameter of the dims of heads that `x` has behind `b t`; it does not decay."""
    shape = builder.tensors[x].shape[2:]
    return builder.parameter(name, dims, shape[: len(dims.split())], init=init, decay=False)


def decays(
    builder: GraphBuilder, name: str, step: str, dims: str, heads: str, bound: float = 0.0
) -> str:
    """Add the logarithms of decays: minus `step` times a positive number of every head.

    The number is the exponential of a parameter, which starts at zero. With a `bound` above zero
    the logarithms are minus that times the sigmoid of the product.
    """
    logarithm = head_parameter(builder, f"{name}.weight", step, heads, init="zeros")
    rate = builder.apply("exp", f"{name}.rate", (logarithm,), f"{heads} -> {heads}")
    labels = f"b t {dims}, {heads} -> b t {dims}"
    fallen = builder.apply("mul", f"{name}.fallen", (step, rate), labels)
    attributes = {"factor": -(bound or 1.0)}
    labels = f"b t {dims} -> b t {dims}"
    if bound:
        fallen = builder.apply("sigmoid", f"{name}.share", (fallen,), labels)
    return builder.apply("scale", f"{name}.decay", (fallen,), labels, attributes=attributes)
