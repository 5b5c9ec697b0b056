"""Differences of two decoders: what of a model a trainer has no words for, and whether it costs.

A trainer's words for a model are checked by reading them back: what is read is what it trains.
"""

from millrace.models.zoo.decoder.config import DecoderConfig

# Fields that change numbers, not how long an op takes or how many there are. Some are left out of
# graphs altogether (`millrace.models.zoo.decoder.approximations`).
FREE = frozenset(
    {
        *("positions", "epsilon", "embedding_scale", "attention_scale", "init_std"),
        *("rope_base", "rope_interleaved", "window_rope_base", "rope_scaling", "rope_factor"),
        *("rope_amplitude", "rope_low", "rope_high", "rope_original", "rope_fast", "rope_slow"),
        *("rope_truncate", "score_cap", "sinks", "tempered_from", "gate_cap"),
        *("router", "router_groups", "kept_groups", "normalize_weights", "weight_scale"),
        *("balance_loss", "mtp_loss"),
    }
)


def differing_fields(
    wanted: DecoderConfig, trained: DecoderConfig
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Fields in which two decoders differ: those that cost time or memory, and those that do not.

    Parameters
    ----------
    wanted, trained : DecoderConfig
        The plan's, and what a trainer makes of its settings.
    """
    fields = [
        name
        for name in DecoderConfig.__struct_fields__
        if getattr(wanted, name) != getattr(trained, name)
    ]
    if all(map(wanted.has_experts, range(wanted.layers))):
        fields = [name for name in fields if name != "ffn_hidden"]  # no layer has such a part
    return (
        tuple(name for name in fields if name not in FREE),
        tuple(name for name in fields if name in FREE),
    )


def said(field: str, wanted: DecoderConfig, trained: DecoderConfig, trainer: str) -> str:
    """Sentence about a field that a trainer has no word for, and that costs nothing.

    Parameters
    ----------
    field : str
        Of DecoderConfig.
    wanted, trained : DecoderConfig
        The plan's, and what the trainer makes of its settings.
    trainer : str
        Name of the trainer.
    """
    values = (getattr(decoder, field) for decoder in (trained, wanted))
    shown, planned = (str(value) if value != "" else "none" for value in values)
    return (
        f"{trainer} trains the model with {field} {shown}, the plan has {planned}: that changes "
        f"numbers, not durations"
    )
