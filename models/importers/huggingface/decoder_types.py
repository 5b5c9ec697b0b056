"""Decoder types: the table of `decoder_types.toml`, a row for each model type that is a decoder.

A row says what transformers' configuration class says (the keys it has, with their defaults) and
what its modelling class does whatever the configuration holds (the features). What a key means is
the same for all types and stands in `decoder_features.py`; a key that a row does not have is not
read, as the class does not read it. So a new type is a few lines, here a Llama whose norms stand
behind attention and feed-forward part, and over all features of queries and keys::

    [olmo2]
    classes = ["Olmo2ForCausalLM"]
    like = "llama"
    keys = { vocab_size = 50304, rms_norm_eps = 1e-5 }
    fields = { pre_norms = false, post_norms = true, qk_norm = "rms", qk_norm_whole = true }
"""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from millrace.models.documents import decode_toml
from millrace.models.errors import ModelError

TABLE = Path(__file__).with_name("decoder_types.toml")
NULL = "null"
"""Stands for JSON's null in the table, as TOML has none."""


class DecoderType(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the table.

    Attributes
    ----------
    classes : tuple of str
        Values of `architectures` that are understood; none for a row that others are like.
    like : str
        The row whose keys, names, flags, fields and `only` this one adds to.
    keys : dict
        Keys of the configuration class, by their own names, with their defaults.
    without : tuple of str
        Keys of the row it is like that this class does not have.
    names : dict
        What a key is called by the other rows, where this type has a name of its own for it.
    flags : dict
        Fields that a true or false sets, where those of `decoder_features.FLAGS` are not meant.
    fields : dict
        Fields of a DecoderConfig that the modelling class fixes.
    only : dict
        Values of keys that are supported alone.
    rope : dict
        `rope_parameters` of a configuration that says nothing of positions.
    full_every : tuple of int
        Every so many layers one sees all keys where `layer_types` is missing; and its place among
        them (the last, if left out).
    full_also : tuple of int
        Further such layers; -1 is the last.
    unturned : str
        "full" where layers that see all keys turn nothing by position.
    positions : str
        "rotary", "learned", "sinusoids" or "none".
    last_angle_at_base : bool
        The last sinusoid turns by one over the base; the one behind it would, where this is false.
    family : str
        Family of the zoo.
    """

    classes: tuple[str, ...] = ()
    like: str = ""
    keys: dict[str, Any] = {}
    without: tuple[str, ...] = ()
    names: dict[str, str] = {}
    flags: dict[str, tuple[str, ...]] = {}
    fields: dict[str, Any] = {}
    only: dict[str, Any] = {}
    rope: dict[str, Any] = {}
    full_every: tuple[int, ...] = ()
    full_also: tuple[int, ...] = ()
    unturned: str = ""
    positions: str = ""
    last_angle_at_base: bool = False
    family: str = "decoder"


@cache
def decoder_types() -> dict[str, DecoderType]:
    """Rows of the table that have classes, by model type, with all that they are like.

    Raises
    ------
    ModelError
        The table is malformed, or a row is like one that does not stand before it.
    """
    text = TABLE.read_text(encoding="utf-8")
    tables = decode_toml(text, dict[str, dict[str, Any]], f"table `{TABLE.name}`", ModelError)
    merged: dict[str, DecoderType] = {}
    for name, table in tables.items():
        entries = {entry: _joined(value) for entry, value in table.items()}
        row = msgspec.convert(entries, DecoderType)
        if row.like and row.like not in merged:
            raise ModelError(f"table `{TABLE.name}`: `{name}` is like `{row.like}`: put that first")
        merged[name] = _merged(merged[row.like], row) if row.like else _with_nulls(row)
    return {name: row for name, row in merged.items() if row.classes}


def _merged(base: DecoderType, row: DecoderType) -> DecoderType:
    """Row with what the one has that it is like; its own entries go before."""
    row = _with_nulls(row)
    inherited = {name: value for name, value in base.keys.items() if name not in row.without}
    parts = ("names", "flags", "fields", "only")
    return msgspec.structs.replace(
        row,
        **{part: getattr(base, part) | getattr(row, part) for part in parts},
        keys=inherited | row.keys,
        rope=row.rope or base.rope,
        full_every=row.full_every or base.full_every,
        unturned=row.unturned or base.unturned,
        positions=row.positions or base.positions,
    )


def _joined(value: Any) -> Any:
    """Table that was written in several, as a long one does not fit in a line."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        return value
    return {key: inner for item in value for key, inner in item.items()}


def _with_nulls(row: DecoderType) -> DecoderType:
    keys = {name: None if value == NULL else value for name, value in row.keys.items()}
    return msgspec.structs.replace(row, keys=keys)
