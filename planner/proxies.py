"""Proxies: the measured kinds that others, which a profile leaves out, are priced like.

A profile times the kinds that most of a step's time goes to. Any other takes as long as its like
takes on `factor` times the work (bytes, or FLOPs for kinds of products).
"""

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple


class Like(NamedTuple):
    """The kind whose table is read, and what the work is multiplied by."""

    kind: str
    factor: float = 1.0


def _same(kinds: str, like: Like) -> Iterator[tuple[str, Like]]:
    return ((kind, like) for kind in kinds.split())


def _table(*groups: Iterable[tuple[str, Like]]) -> dict[str, Like]:
    return {kind: like for group in groups for kind, like in group}


# Factors: time per byte of the NumPy kernels over that of the like's, on one core of a Xeon with
# AVX-512, arrays that no cache holds, in November 2026; rounded.
PRICED_LIKE: dict[str, Like] = _table(
    _same("tanh exp log sqrt rsqrt reciprocal sin cos broadcast arc_margin", Like("relu")),
    _same("scale shift concat", Like("relu", 0.7)),
    _same("quantise", Like("cast")),
    _same("constant", Like("relu", 1.2)),
    _same("leaky_relu sigmoid power prelu", Like("silu")),
    _same("clip is_positive", Like("silu", 0.7)),
    _same("softplus logistic_loss logistic_loss_grad", Like("silu", 1.5)),
    _same("gelu_erf", Like("gelu", 2.2)),
    _same("gelu_erf_grad", Like("gelu_grad", 1.8)),
    _same("silu_grad prelu_grad", Like("gelu_grad", 0.85)),
    _same("sigmoid_grad clip_grad softplus_grad power_grad", Like("gelu_grad", 0.6)),
    _same("is_positive_grad", Like("gelu_grad", 0.4)),
    _same("leaky_relu_grad tanh_grad exp_grad log_grad sqrt_grad", Like("gelu_grad", 0.4)),
    _same("rsqrt_grad reciprocal_grad sin_grad cos_grad", Like("gelu_grad", 0.4)),
    _same("clamped_swiglu", Like("swiglu", 1.5)),
    _same("clamped_swiglu_grad", Like("swiglu_grad", 1.5)),
    _same("arc_margin_grad", Like("mul")),
    _same("fill", Like("widen", 1.3)),
    _same("relative_bias", Like("widen", 3.5)),
    _same("relative_bias_grad", Like("sum", 6.5)),
    _same("l2_normalize", Like("rms_norm")),
    _same("l2_normalize_grad", Like("rms_norm_grad_input")),
    _same("softmax_grad masked_softmax_grad", Like("rms_norm_grad_input", 0.7)),
    _same("masked_softmax", Like("softmax")),
    _same("masked_softmax_grad_sink attention_sink_grad", Like("sum")),
    _same("attention_sink", Like("mul")),
    _same("channel_squares", Like("channel_sums", 1.8)),
    _same("avg_pool", Like("max_pool")),
    _same("avg_pool_grad", Like("max_pool_grad", 0.5)),
    _same("dispatch_grad", Like("combine")),
    _same("combine_grad_weight", Like("combine", 0.8)),
    _same("combine_grad_input", Like("dispatch", 1.3)),
    _same("expert_load", Like("top_k", 0.5)),
    _same("top_k_grad", Like("top_k", 0.15)),
    _same("biased_attention", Like("attention", 1.1)),
    _same("biased_attention_grad", Like("attention_grad", 1.1)),
    # Of 256 keys of which 64 are chosen: the kernels multiply with all of them.
    _same("sparse_attention", Like("attention", 8.0)),
    _same("sparse_attention_grad", Like("attention_grad", 8.0)),
    _same("choose_keys", Like("matmul", 10.0)),
    _same("seen_keys", Like("widen", 1.3)),
    _same("sinkhorn sinkhorn_grad", Like("softmax", 8.0)),
    _same("attention_round", Like("attention")),
    _same("causal_conv1d causal_conv1d_grad_input causal_conv1d_grad_weight", Like("mul", 8.0)),
    # Time per FLOP of the kernels in C over that of a product of 2048 x 512 x 1024, one core.
    _same("state_space_scan", Like("matmul", 14.0)),
    _same("delta_rule", Like("matmul", 10.0)),
    _same("state_space_scan_grad", Like("matmul", 32.0)),
    _same("delta_rule_grad", Like("matmul", 23.0)),
    _same("attention_grad_round", Like("attention_grad")),
    _same("newton_schulz", Like("matmul")),
    _same("momentum muon", Like("sgd")),
)


def priced_like(kind: str, tables: Collection[str], precision: str = "fp32") -> Like:
    """Kind whose table prices `kind`, out of the `tables` of a device, and its factor.

    It is the kind's own where there is one, or where its like has none either. A table may be told
    by size and by precision (`kind`, `kind/size`, `kind@precision`, `kind/size@precision`); those
    of another precision do not count.

    Parameters
    ----------
    kind : str
        Kind of an op; one that `PRICED_LIKE` lacks is its own like.
    tables : collection of str
        Names of the device's measured tables (`Device.kernels`).
    precision : str
        Precision of the op's arithmetic (fp32, bf16, ...).

    Examples
    --------
    >>> priced_like("tanh", {"relu", "matmul"})
    Like(kind='relu', factor=1.0)
    >>> priced_like("tanh", {"relu@bf16", "tanh@fp32"}, "bf16")
    Like(kind='relu', factor=1.0)
    """
    like = PRICED_LIKE.get(kind)
    if like is None or _is_measured(kind, tables, precision):
        return Like(kind)
    return like if _is_measured(like.kind, tables, precision) else Like(kind)


def _is_measured(kind: str, tables: Collection[str], precision: str) -> bool:
    if kind in tables or f"{kind}@{precision}" in tables:
        return True
    return any(
        name.startswith(f"{kind}/") and name.partition("@")[2] in ("", precision) for name in tables
    )
