"""Recurrent sizes: those of layers that go through a sequence by a state, and the layers' order.

A pattern has a letter for every layer, those of Megatron-Core's hybrid patterns
(megatron/core/ssm/mamba_hybrid_layer_allocation.py, read 2026-11), `K` for Kimi delta attention,
`C` for a gated short convolution (LFM2), `R` for a gated linear recurrence (Griffin) and `H` for
attention and a state space side by side (Falcon-H1).
"""

import msgspec

from millrace.models.errors import ModelError

STATE_SPACE, ATTENTION, DELTA_NET, KIMI_DELTA, SHORT_CONVOLUTION = "M", "*", "G", "K", "C"
BOTH, GATED_UNIT = "H", "R"
DENSE, EXPERTS = "-", "E"
KINDS = {
    STATE_SPACE: "state_space",
    ATTENTION: "attention",
    DELTA_NET: "delta_net",
    KIMI_DELTA: "kimi_delta",
    SHORT_CONVOLUTION: "convolution",
    BOTH: "attention_and_state_space",
    GATED_UNIT: "gated_unit",
    DENSE: "dense",
    EXPERTS: "experts",
}
"""What a letter stands for, as templates name it."""


class StateSpace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a Mamba-2 mixer.

    Attributes
    ----------
    heads, head_dim : int
        Heads, and features of a value.
    groups, state : int
        Groups of heads that share what writes the state and what reads it; its rows.
    taps : int
        Tokens that the convolution before the scan sees.
    conv_bias, bias : bool
        The convolution has biases; so have the projections.
    norm_groups : int
        The norm behind the scan is over so many parts of all features (`groups` or 1; 0: no norm).
    step_min, step_max : float
        What the time steps are brought between (`step_max` 0: no upper limit).
    """

    heads: int
    head_dim: int
    groups: int
    state: int
    taps: int = 4
    conv_bias: bool = True
    bias: bool = False
    norm_groups: int = 1
    step_min: float = 0.0
    step_max: float = 0.0


class DeltaNet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a gated delta net, or of Kimi delta attention.

    Attributes
    ----------
    key_heads, value_heads : int
        Heads of queries and keys, each of which serves value_heads / key_heads heads of values.
    key_dim, value_dim : int
        Features of a query or key, and of a value.
    taps : int
        Tokens that the convolution before the recurrence sees.
    gate_rank : int
        Width through which the decays and gates of Kimi delta attention are made (0: straight from
        the stream, as in Ling 3).
    decay_bound : float
        Logarithms of decays are minus this times a sigmoid (0: a softplus without bound).
    beta_scale : float
        What the sigmoid that says how much a key is overwritten is multiplied by (2: states may
        change their sign, Grazzi et al., arXiv 2411.12537).
    epsilon : float
        That of the norm behind the recurrence (0: as the model's other norms).
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int = 4
    gate_rank: int = 0
    decay_bound: float = 0.0
    beta_scale: float = 1.0
    epsilon: float = 0.0


class GatedUnit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a gated linear recurrence.

    Attributes
    ----------
    width, blocks : int
        Features, each with a state of one number, and blocks of them that make each other's gates.
    taps : int
        Tokens that the convolution before the recurrence sees.
    """

    width: int
    blocks: int
    taps: int = 4


def check_gated_unit(name: str, sizes: GatedUnit) -> None:
    """Raise ModelError where the sizes of a gated linear recurrence do not fit together."""
    _positive(name, "gated_unit", sizes, ("width", "blocks", "taps"))
    if sizes.width % sizes.blocks:
        raise ModelError(
            f"{name}: `gated_unit`: width ({sizes.width}) is not divisible by blocks "
            f"({sizes.blocks})"
        )


def check_state_space(name: str, sizes: StateSpace) -> None:
    """Raise ModelError where the sizes of a Mamba-2 mixer do not fit together."""
    _positive(name, "state_space", sizes, ("heads", "head_dim", "groups", "state", "taps"))
    if sizes.heads % sizes.groups:
        raise ModelError(
            f"{name}: `state_space`: heads ({sizes.heads}) is not divisible by groups "
            f"({sizes.groups})"
        )
    if sizes.norm_groups not in (0, 1, sizes.groups):
        raise ModelError(
            f"{name}: `state_space`: norm_groups is {sizes.norm_groups}; use 0, 1 or groups "
            f"({sizes.groups})"
        )


def check_delta_net(name: str, sizes: DeltaNet) -> None:
    """Raise ModelError where the sizes of a delta net do not fit together."""
    fields = ("key_heads", "value_heads", "key_dim", "value_dim", "taps")
    _positive(name, "delta_net", sizes, fields)
    _positive(name, "delta_net", sizes, ("gate_rank", "decay_bound"), least=0)
    if sizes.value_heads % sizes.key_heads:
        raise ModelError(
            f"{name}: `delta_net`: value_heads ({sizes.value_heads}) is not divisible by key_heads "
            f"({sizes.key_heads})"
        )


def check_pattern(name: str, pattern: str, layers: int, *, bare: bool) -> None:
    """Raise ModelError where a pattern is not one of so many layers."""
    if bare and not pattern:
        raise ModelError(f"{name}: `bare_layers` needs a `pattern`")
    if pattern and len(pattern) != layers:
        raise ModelError(
            f"{name}: `pattern` is for {len(pattern)} layers, `layers` is {layers}; make them equal"
        )
    letters = [letter for letter in KINDS if bare or letter not in (DENSE, EXPERTS)]
    for layer, letter in enumerate(pattern):
        if letter not in letters:
            raise ModelError(
                f"{name}: `pattern` has `{letter}` at layer {layer}; use {' '.join(letters)}"
                + ("" if bare else " (and `bare_layers` for others)")
            )


def _positive(
    name: str, field: str, sizes: msgspec.Struct, parts: tuple[str, ...], least: int = 1
) -> None:
    for part in parts:
        if (value := getattr(sizes, part)) < least:
            raise ModelError(f"{name}: `{field}`: {part} is {value}, below {least}")
