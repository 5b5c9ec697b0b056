"""Hybrid layers: models whose layers differ in kind, in Megatron-LM's settings and out of them.

Megatron-LM has two ways to say it. A hybrid pattern (`--hybrid-layer-pattern`) has a letter for
every part behind a norm, `|` between the chunks of a pipeline and `/` before what predicts further
tokens; another program trains these. A linear attention (`--linear-attention-freq`) is a GPT
whose layers have a gated delta net in place of attention, but for some.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.models.zoo.decoder.recurrent_sizes import (
    ATTENTION,
    DELTA_NET,
    DENSE,
    EXPERTS,
    STATE_SPACE,
    DeltaNet,
    StateSpace,
)
from millrace.planner.errors import InfeasibleError
from millrace.trainers.megatron.layer_patterns import layer_pattern, pattern_text
from millrace.trainers.trainer import SettingsError

PATTERN = "hybrid_layer_pattern"
PATTERNS = (PATTERN, "hybrid_override_pattern")  # and its name of 2024 and 2025
SPEC = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")
LETTERS = (STATE_SPACE, ATTENTION, DELTA_NET, DENSE, EXPERTS)
SPARSE = "D"  # attention of DeepSeek-V3.2
EXPANSION = 2  # features of all heads over those of the stream, where nothing says how many heads
VARIANT = "experimental_attention_variant"


class HybridPattern(NamedTuple):
    """Letter of every layer, layers of every chunk, and letters of a module for a further token."""

    letters: str
    chunks: tuple[int, ...]
    further: str
    modules: int


def given_pattern(values: Mapping[str, Any]) -> HybridPattern | None:
    """Hybrid pattern of some settings; None where there is none.

    Parameters
    ----------
    values : mapping
        By destination.

    Raises
    ------
    SettingsError
        The pattern has a letter that plans do not have.

    Examples
    --------
    >>> given_pattern({"hybrid_layer_pattern": "M-M-|M*M-/*E/*E"})
    HybridPattern(letters='M-M-M*M-', chunks=(4, 4), further='*E', modules=2)
    """
    text = next((values[name] for name in PATTERNS if values.get(name)), None)
    if text is None and values.get("is_hybrid_model"):
        text = STATE_SPACE * (values.get("num_layers") or 0)  # of Mamba alone
    if not text:
        return None
    main, *further = str(text).strip("\"'").split("/")
    chunks = [chunk.replace("[", "").replace("]", "") for chunk in main.split("|")]
    letters = "".join(chunks)
    for letter in (*letters, *"".join(further)):
        if letter not in (*LETTERS, SPARSE):
            raise SettingsError(
                f"--hybrid-layer-pattern {text}: plans have layers {' '.join(LETTERS)} and "
                f"{SPARSE}, and none of `{letter}`; to plan all as attention, add --ignore "
                f"hybrid-layer-pattern"
            )
    return HybridPattern(
        letters, tuple(map(len, chunks)), further[0] if further else "", len(further)
    )


def read_hybrid(
    values: Mapping[str, Any], config: Mapping[str, Any], notes: list[str]
) -> dict[str, Any]:
    """Fields of a decoder whose layers differ in kind; none where they do not.

    Parameters
    ----------
    values : mapping
        By destination, with the defaults of what is not given.
    config : mapping
        The other fields of the decoder.
    notes : list of str
        Gets sentences about what has no place in a plan.

    Raises
    ------
    SettingsError
        The pattern has a letter that plans do not have, or does not fit.
    """
    pattern = given_pattern(values)
    fields: dict[str, Any] = {}
    if pattern is not None:
        letters = pattern.letters.replace(SPARSE, ATTENTION)
        fields |= {"pattern": letters, "bare_layers": True, "dense_layers": ()}
        if pattern.further and pattern.further not in ("*E", "*-"):
            notes.append(
                f"modules for further tokens of layers {pattern.further}: planned with attention "
                f"and a feed-forward part"
            )
        if STATE_SPACE in letters:
            fields["state_space"] = _state_space(values, config)
    elif values.get(VARIANT) == "gated_delta_net":
        option, every = "--linear-attention-freq", values["linear_attention_freq"]
        linear = layer_pattern("--window-attn-skip-freq", every, config) if every else None
        if linear is None:
            raise SettingsError(
                f"{option} is missing: it says which layers have a gated delta net; every 4th has "
                f"attention with 4"
            )
        fields["pattern"] = "".join(DELTA_NET if here else ATTENTION for here in linear)
    if DELTA_NET in fields.get("pattern", ""):
        fields["delta_net"] = {
            "key_heads": values["linear_num_key_heads"],
            "value_heads": values["linear_num_value_heads"],
            "key_dim": values["linear_key_head_dim"],
            "value_dim": values["linear_value_head_dim"],
            "taps": values["linear_conv_kernel_dim"],
        }
    if values.get(VARIANT) == "dsa" or (pattern is not None and SPARSE in pattern.letters):
        fields |= _indexer(values)
    return fields


def _state_space(values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    head_dim = values["mamba_head_dim"]
    return {
        "heads": values["mamba_num_heads"] or EXPANSION * config["hidden"] // head_dim,
        "head_dim": head_dim,
        "groups": values["mamba_num_groups"],
        "state": values["mamba_state_dim"],
        "norm_groups": values["mamba_num_groups"],
    }


def _indexer(values: Mapping[str, Any]) -> dict[str, Any]:
    fields = {
        "index_topk": values["dsa_indexer_topk"],
        "index_heads": values["dsa_indexer_n_heads"],
        "index_dim": values["dsa_indexer_head_dim"],
        "index_interleaved": values["dsa_indexer_rope_interleaved"],
    }
    for name, dest in (("topk", "topk"), ("heads", "n_heads"), ("dim", "head_dim")):
        if not fields[f"index_{name}"]:
            option = f"--dsa-indexer-{dest.replace('_', '-')}"
            raise SettingsError(f"{option} is missing: it says how large the indexer is")
    return fields


def hybrid_values(config: DecoderConfig, chunk_layers: Sequence[int]) -> dict[str, Any]:
    """Settings of layers that differ in kind, by destination; none where they do not.

    Parameters
    ----------
    config : DecoderConfig
        The model.
    chunk_layers : sequence of int
        Layers of every chunk of the pipeline.

    Raises
    ------
    InfeasibleError
        Megatron-LM has no layers of such a kind; names it.
    """
    values: dict[str, Any] = {}
    if config.index_topk:
        values |= {
            VARIANT: "dsa",
            "dsa_indexer_topk": config.index_topk,
            "dsa_indexer_n_heads": config.index_heads,
            "dsa_indexer_head_dim": config.index_dim,
            "dsa_indexer_rope_interleaved": config.index_interleaved,
        }
    if not config.pattern:
        return values
    for layer, letter in enumerate(config.pattern):
        if letter not in LETTERS:
            raise InfeasibleError(
                f"layer {layer} is of kind `{letter}`: Megatron-LM has {' '.join(LETTERS)}; export "
                f"to another trainer"
            )
    if config.delta_net is not None:
        values |= _delta_values(config.delta_net)
    if is_hybrid(config):
        values |= _pattern_values(config, chunk_layers)
    elif DELTA_NET in config.pattern:
        linear = [int(letter == DELTA_NET) for letter in config.pattern]
        values |= {VARIANT: "gated_delta_net", "linear_attention_freq": pattern_text(linear)}
    return values


def is_hybrid(config: DecoderConfig) -> bool:
    """True if Megatron-LM trains a model by its hybrid program."""
    return config.bare_layers or STATE_SPACE in config.pattern


def _pattern_values(config: DecoderConfig, chunk_layers: Sequence[int]) -> dict[str, Any]:
    """Settings of a hybrid pattern: of each layer its parts, with a letter and a norm for each."""
    letters = [_letters(config, layer) for layer in range(config.layers)]
    ends = [sum(chunk_layers[:number]) for number in range(len(chunk_layers) + 1)]
    chunks = ["".join(letters[start:end]) for start, end in pairwise(ends)]
    further = f"/{ATTENTION}{EXPERTS if config.experts else DENSE}" * config.mtp_layers
    values: dict[str, Any] = {
        PATTERN: ("|".join(chunks) or "".join(letters)) + further,
        "num_layers": sum(map(len, letters)),
        "spec": list(SPEC),
    }
    sizes = config.state_space
    if sizes is not None:
        _check_mamba(sizes)
        values |= {
            "mamba_num_heads": sizes.heads,
            "mamba_head_dim": sizes.head_dim,
            "mamba_num_groups": sizes.groups,
            "mamba_state_dim": sizes.state,
        }
    return values


def _letters(config: DecoderConfig, layer: int) -> str:
    letter = config.pattern[layer]
    if config.bare_layers:
        return letter
    return letter + (EXPERTS if config.has_experts(layer) else DENSE)


def _check_mamba(sizes: StateSpace) -> None:
    fixed = {"taps": 4, "conv_bias": True, "bias": False, "norm_groups": sizes.groups}
    for field, value in fixed.items():
        if getattr(sizes, field) != value:
            raise InfeasibleError(
                f"state_space.{field} is {getattr(sizes, field)}: Megatron-LM's Mamba has {value}; "
                f"export to another trainer"
            )


def _delta_values(sizes: DeltaNet) -> dict[str, Any]:
    return {
        "linear_num_key_heads": sizes.key_heads,
        "linear_num_value_heads": sizes.value_heads,
        "linear_key_head_dim": sizes.key_dim,
        "linear_value_head_dim": sizes.value_dim,
        "linear_conv_kernel_dim": sizes.taps,
    }
