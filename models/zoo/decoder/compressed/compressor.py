"""Compressor: keys that stand for several tokens, as sums weighed by a softmax of their own.

A key stands for `ratio` tokens. Overlapping ones weigh features of these and other features of the
`ratio` tokens before, so that a key is made of twice as many.

Shape legend: b batch, t tokens, w compressed keys, r tokens of one, j the same with those before, z
series of features (of the tokens before, of a key's own), d features of a key, k hidden.

Notes
-----
DeepSeek-AI, "DeepSeek-V4", arXiv 2606.19348 (2026), sections 2.3.1 and 2.3.2; tokens behind the
last full `ratio` stand for nothing.
"""

from typing import NamedTuple

import numpy as np

from millrace.models.builder import GraphBuilder, dense
from millrace.models.zoo.decoder.attention import rotary_attributes
from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.models.zoo.norms import add_norm

HIDDEN = -1e30
"""Logit of what is not there."""


class Summaries(NamedTuple):
    """Keys to be compressed: their sizes, and what they are called.

    Attributes
    ----------
    name : str
        Begins the names of ops and weights.
    width : int
        Features of a key.
    ratio : int
        Tokens that a key stands for.
    overlapping, frozen : bool
        Keys overlap; nothing here is trained.
    """

    name: str
    width: int
    ratio: int
    overlapping: bool
    frozen: bool = False


def compressed_keys(
    builder: GraphBuilder, config: DecoderConfig, x: str, layer: int, how: Summaries
) -> str:
    """Add the compressed keys of a layer, normed and turned [b w d].

    Parameters
    ----------
    builder, config, x, layer
        As for any attention.
    how : Summaries
        Their sizes.
    """
    values, logits = (_pairs(builder, config, x, how, part) for part in ("values", "logits"))
    labels = "b w d j! -> b w d j!"
    weights = builder.apply("softmax", f"{how.name}.weights", (logits,), labels)
    labels = "b w d j, b w d j -> b w d"
    keys = builder.apply("mul", f"{how.name}.sums", (values, weights), labels)
    epsilon = config.epsilon
    keys = add_norm(
        builder, f"{how.name}.norm", keys, "b w d", kind="rms", epsilon=epsilon, frozen=how.frozen
    )
    attributes = {**rotary_attributes(config, layer), "step": how.ratio}
    labels = "b t d! -> b t d!"  # positions are those of `t`
    return builder.apply("rotary", f"{how.name}.rotary", (keys,), labels, attributes=attributes)


def _pairs(builder: GraphBuilder, config: DecoderConfig, x: str, how: Summaries, part: str) -> str:
    """Add what every key is made of, or weighed by [b w d j]."""
    name, inner = f"{how.name}.{part}", "z d" if how.overlapping else "d"
    sizes = {"z": 2, "d": how.width} if how.overlapping else {"d": how.width}
    labels, std = f"b t k, k {inner} -> b t {inner}", config.init_std
    features = dense(builder, name, x, labels, sizes, std=std, bias=False, frozen=how.frozen)
    batch, tokens, *rest = builder.tensors[features].shape
    windows = tokens // how.ratio
    if tokens % how.ratio:
        full = ((batch, windows * how.ratio, *rest),)
        labels, start = f"b t! {inner} -> b u! {inner}", {"start": 0}
        features = builder.apply(
            "narrow", f"{name}.full", (features,), labels, shapes=full, attributes=start
        )
    apart = ((batch, windows, how.ratio, *rest),)
    dims = f"b w r {inner}"
    labels = f"b (w r) {inner} -> {dims}"
    features = builder.apply("rearrange", f"{name}.apart", (features,), labels, shapes=apart)
    if part == "logits":
        bias = builder.parameter(
            f"{name}.bias",
            f"r {inner}",
            apart[0][2:],
            init="zeros",
            decay=False,
            frozen=how.frozen,
        )
        features = builder.apply(
            "add", f"{name}.biased", (features, bias), f"{dims}, r {inner} -> {dims}"
        )
    if not how.overlapping:
        return builder.apply("rearrange", f"{name}.pairs", (features,), f"{dims} -> b w d r")
    return _overlapped(builder, how, name, features, hidden=part == "logits")


def _overlapped(
    builder: GraphBuilder, how: Summaries, name: str, features: str, *, hidden: bool
) -> str:
    """Add one series of the tokens before and the other of a key's own, side by side."""
    batch, windows, ratio, _, width = builder.tensors[features].shape
    series, shape = [], (batch, windows, ratio, 1, width)
    for place, which in enumerate(("before", "own")):
        labels, start = "b w r z! d -> b w r y! d", {"start": place}
        series.append(
            builder.apply(
                "narrow", f"{name}.{which}", (features,), labels, shapes=(shape,), attributes=start
            )
        )
    before, current = series
    if windows == 1:
        labels = "b w r y d -> b w (y d) r"
        return builder.apply("rearrange", f"{name}.pairs", (current,), labels)
    labels, start = "b w! r y d -> b v! r y d", {"start": 0}
    shorter = ((batch, windows - 1, *shape[2:]),)
    before = builder.apply(
        "narrow", f"{name}.earlier", (before,), labels, shapes=shorter, attributes=start
    )
    labels, start = "b v! r y d -> b w! r y d", {"start": 1}
    before = builder.apply(
        "widen", f"{name}.later", (before,), labels, shapes=(shape,), attributes=start
    )
    if hidden:
        none = np.where(np.arange(windows) == 0, HIDDEN, 0.0)
        first = builder.constant(f"{name}.none", "w", none)
        labels = "b w r y d, w -> b w r y d"
        before = builder.apply("add", f"{name}.hidden", (before, first), labels)
    labels = "b w r! y d, b w q! y d -> b w j! y d"
    both = ((batch, windows, 2 * ratio, 1, width),)
    pairs = builder.apply("concat", f"{name}.both", (before, current), labels, shapes=both)
    return builder.apply("rearrange", f"{name}.pairs", (pairs,), "b w j y d -> b w (y d) j")
