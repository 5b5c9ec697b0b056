"""Differences of two models: what of a plan's a trainer has no words for, and whether it costs.

A trainer's words for a model are checked by reading them back: what is read is what it trains.
"""

from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.models.zoo.gpt import GptConfig

LanguageConfig = DecoderConfig | GptConfig

# Fields that change numbers, not how long an op takes or how many there are. Some are left out of
# graphs altogether (`millrace.models.zoo.decoder.approximations`). Of the places of experts, which
# cost, a sentence of their own is said.
FREE = frozenset(
    {
        *("positions", "epsilon", "embedding_scale", "attention_scale", "init_std", "token_std"),
        *("rope_base", "rope_interleaved", "window_rope_base", "rope_scaling", "rope_factor"),
        *("rope_amplitude", "rope_low", "rope_high", "rope_original", "rope_fast", "rope_slow"),
        *("rope_truncate", "score_cap", "sinks", "tempered_from", "tempered_scale"),
        *("gate_cap", "gate_slope"),
        *("router", "router_groups", "kept_groups", "normalize_weights", "weight_scale"),
        *("balance_loss", "mtp_loss", "capacity_factor"),
    }
)


def differing_fields(
    wanted: LanguageConfig, trained: LanguageConfig
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Fields in which two models differ: those that cost time or memory, and those that do not.

    Parameters
    ----------
    wanted, trained : DecoderConfig or GptConfig
        The plan's, and what a trainer makes of its settings; both of one kind.
    """
    fields = [
        name
        for name in type(wanted).__struct_fields__
        if getattr(wanted, name) != getattr(trained, name)
    ]
    if isinstance(wanted, DecoderConfig) and all(map(wanted.has_experts, range(wanted.layers))):
        fields = [name for name in fields if name != "ffn_hidden"]  # no layer has such a part
    return (
        tuple(name for name in fields if name not in FREE),
        tuple(name for name in fields if name in FREE),
    )


def said(field: str, wanted: LanguageConfig, trained: LanguageConfig, trainer: str) -> str:
    """Sentence about a field that a trainer has no word for, and that costs nothing.

    Parameters
    ----------
    field : str
        Of the configuration.
    wanted, trained : DecoderConfig or GptConfig
        The plan's, and what the trainer makes of its settings.
    trainer : str
        Name of the trainer.
    """
    if field == "capacity_factor":
        return (
            f"experts compute whatever tokens they are sent in {trainer}, an even share being "
            f"planned for; the plan has places for {getattr(wanted, field):g} times as many"
        )
    values = (getattr(config, field) for config in (trained, wanted))
    shown, planned = (str(value) if value != "" else "none" for value in values)
    return (
        f"{trainer} trains the model with {field} {shown}, the plan has {planned}: that changes "
        f"numbers, not durations"
    )
