"""Configs of rotary positions, in their older and their newer form.

The older form has `rope_theta` and `rope_scaling` beside the other keys, the newer one a
`rope_parameters` that holds both.
"""

from math import log, sqrt

from millrace.models.importers.huggingface.keys import Keys
from millrace.models.spec import Config

PROPORTIONAL = "proportional"
KINDS = {
    "default": "",
    "linear": "linear",
    "llama3": "llama3",
    "yarn": "yarn",
    PROPORTIONAL: PROPORTIONAL,
}
BASE = 10000.0
BASE_MAX = 1e15


def rotary_fields(
    keys: Keys,
    head_dim: int,
    positions: int,
) -> Config:
    """Return the fields of a DecoderConfig that say how heads are turned by position.

    Parameters
    ----------
    keys : Keys
        Those of the whole configuration.
    head_dim, positions : int
        Features of a head that may turn, and the longest sequence.
    """
    section = rope_section(keys)
    base = section.number("rope_theta", keys.number("rope_theta", BASE, null=BASE), most=BASE_MAX)
    outer = keys.number("partial_rotary_factor", 1.0, most=1.0, null=1.0)
    share = section.number("partial_rotary_factor", outer, most=1.0, null=outer)
    turned = int(head_dim * share)
    kind = _kind(section)
    if kind == PROPORTIONAL:
        return _proportional_fields(section, head_dim, share, base)
    if turned % 2 and share < 1 and kind != "yarn":
        # transformers turns one feature more, by angles of as many features as were asked for
        base, turned = base ** ((turned + 1) / turned), turned + 1
    fields: Config = {"rotary_dims": turned, "rope_base": base}
    if not kind:
        return fields
    original = _original_positions(keys, section, positions)
    fields |= {
        "rope_scaling": kind,
        "rope_factor": _factor(section, positions / original),
        "rope_amplitude": _amplitude(keys, positions),
    }
    if kind == "llama3":
        return fields | {
            "rope_low": section.number("low_freq_factor"),
            "rope_high": section.number("high_freq_factor"),
            "rope_original": original,
        }
    if kind == "yarn":
        return fields | {
            "rope_fast": section.number("beta_fast", 32.0, least=1e-3, null=32.0),
            "rope_slow": section.number("beta_slow", 1.0, least=1e-3, null=1.0),
            "rope_original": original,
            "rope_truncate": section.flag("truncate", True, null=True),
        }
    return fields


def _proportional_fields(section: Keys, head_dim: int, share: float, base: float) -> Config:
    """Fields of angles that are the first of as many as a whole head has (Gemma 4)."""
    turned = 2 * int(share * head_dim // 2)
    factor = section.number("factor", 1.0, null=1.0, least=1e-3, most=1e6)
    fields: Config = {"rotary_dims": turned, "rope_base": base ** (turned / head_dim)}
    return fields if factor == 1 else fields | {"rope_scaling": "linear", "rope_factor": factor}


def angles_by_layer(keys: Keys, head_dim: int, full_head_dim: int) -> tuple[Keys, Config]:
    """Return keys with the angles of layers that see all keys, and the fields of all others.

    The fields are those of layers with a window, where their angles differ. Angles are written in
    two forms: as other models write them, with `rope_local_base_freq` beside them (Gemma 3), or as
    a `rope_parameters` for each kind of layer.

    Parameters
    ----------
    keys : Keys
        Those of the whole configuration, with defaults.
    head_dim, full_head_dim : int
        Features of a head, and of one in layers that see all keys.

    Raises
    ------
    ModelError
        Angles of layers with a window are stretched.
    """
    name = "rope_local_base_freq"
    local = keys.number(name, least=1.0) if keys.has(name) else 0.0
    kinds = keys.section("rope_parameters")
    if not (kinds.has("full_attention") or kinds.has("sliding_attention")):
        return keys, {"window_rope_base": local}
    short, long = kinds.section("sliding_attention"), kinds.section("full_attention")
    if short.text("rope_type", "default", null="default") != "default":
        raise short.error("rope_type", "angles of layers with a window are not stretched")
    local = short.number("rope_theta", local or BASE, least=1.0, null=local or BASE)
    usual = keys.number("partial_rotary_factor", 1.0, most=1.0, null=1.0)
    shares = [
        kind.number("partial_rotary_factor", usual, most=1.0, null=usual) for kind in (short, long)
    ]
    differ = shares[0] != shares[1] or head_dim != full_head_dim
    turned = int(head_dim * shares[0]) if differ else 0
    stretched = {"rope_parameters": long.values}
    return keys.without("rope_scaling", "rope_parameters").over(stretched), {
        "window_rope_base": local,
        "window_rotary_dims": turned,
    }


def rope_section(keys: Keys) -> Keys:
    """Return the object that says how positions were stretched; an empty one where none does."""
    return keys.section(
        "rope_scaling" if keys.section("rope_scaling").values else "rope_parameters"
    )


def _amplitude(keys: Keys, positions: int) -> float:
    """Return the factor of YaRN on every turned query and key (1 for other scalings).

    Peng et al., arXiv 2309.00071 (2023), equation 15, in the form that DeepSeek gave it.
    """
    section = rope_section(keys)
    if _kind(section) != "yarn":
        return 1.0
    if section.has("attention_factor"):
        return section.number("attention_factor", least=1e-3)
    factor = _factor(section, positions / _original_positions(keys, section, positions))
    over = section.number("mscale", 0.0, null=0.0)
    under = section.number("mscale_all_dim", 0.0, null=0.0)
    if over and under:
        return _temperature(factor, over) / _temperature(factor, under)
    return _temperature(factor, 1.0)


def latent_scale(keys: Keys, head_dim: int, positions: int) -> float:
    """Factor on the scores of latent attention; 0 for the default."""
    section = rope_section(keys)
    weight = section.number("mscale_all_dim", 0.0, null=0.0)
    if not _kind(section) or not weight:
        return 0.0
    factor = _factor(section, positions / _original_positions(keys, section, positions))
    return _temperature(factor, weight) ** 2 / sqrt(head_dim)


def _kind(section: Keys) -> str:
    name = "rope_type" if "rope_type" in section.values else "type"
    return section.choice(name, KINDS, "default", null="default")


def _original_positions(keys: Keys, section: Keys, positions: int) -> int:
    name = "original_max_position_embeddings"
    inner = section.integer(name, positions, null=positions)
    return keys.integer(name, inner, null=inner)


def _factor(section: Keys, ratio: float) -> float:
    return section.number("factor", null=ratio, least=1e-3, most=1e6)


def _temperature(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * log(factor) + 1
