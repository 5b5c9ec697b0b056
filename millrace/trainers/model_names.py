"""Names and stated fields of models that settings describe by their sizes."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import PurePath
from typing import Any

import msgspec
from msgspec.structs import replace

from millrace.models.zoo.catalogue import (
    ALIASES,
    FAMILIES,
    NAMES,
    canonical_name,
    model_spec,
)

# Fields that runs of one model set differently, and that change no matrix.
_LOOSE = ("init_std", "token_std", "epsilon", "positions", "vocab", "capacity_factor", "rope_base")
_LOOSE_TOO = ("balance_loss", "mtp_layers", "mtp_loss", "normalize_weights", "ffn_hidden")
# Ends of names of a hub that tell models of one size apart by their training alone.
_VARIANTS = r"instruct|base|chat|hf|it|pt|sft|dpo|thinking|v0\.[1-3]|2507|bf16|deduped|\d+k"
# Later models of the sizes of earlier ones.
_LATER = {"qwen2.5": "qwen2", "llama3.3": "llama3.1"}
LANGUAGE = ("decoder", "gpt")
PADDING = 0.02  # by so much a vocabulary is padded, at most


def stated(family: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a model's configuration that are not their family's defaults.

    Parameters
    ----------
    family : str
        A family of the zoo.
    config : mapping
        Its fields.

    Examples
    --------
    >>> stated("decoder", {"layers": 2, "tied": False, "norm": "layer"})
    {'layers': 2, 'norm': 'layer'}
    """
    fields = {field.name: field for field in msgspec.structs.fields(FAMILIES[family].config)}
    return {name: value for name, value in config.items() if fields[name].default != value}


def known_name(path: str) -> str:
    """Name of the catalogue's model that a name of a hub, or the folder of one, speaks of, or none.

    Parameters
    ----------
    path : str
        Such as `meta-llama/Llama-3.1-8B-Instruct`, or a preset's file, `mixtral_8x7B_v0.1.yaml`.

    Examples
    --------
    >>> known_name("meta-llama/Meta-Llama-3-8B-Instruct"), known_name("/data/Qwen2.5-7B")
    ('llama3-8b', 'qwen2-7b')
    >>> known_name("Qwen/Qwen2-VL-7B-Instruct"), known_name("mixtral_8x7B_v0.1.yaml")
    ('', 'mixtral-8x7b')
    """
    stem = re.sub(r"\.ya?ml$", "", PurePath(path.strip("\"' /")).name.lower())
    words = re.split("[-_]", stem.removeprefix("meta-"))
    while len(words) > 1 and re.fullmatch(_VARIANTS, words[-1]):
        words.pop()
    squeezed = _squeezed("".join(words))
    names = {_squeezed(name): name for name in (*ALIASES, *NAMES)}
    for later, earlier in _LATER.items():
        squeezed = squeezed.replace(later, earlier)
    name = canonical_name(names[squeezed]) if squeezed in names else ""
    return name if name and model_spec(name).family in LANGUAGE else ""


def _squeezed(name: str) -> str:
    """Letters, digits and dots of a name alone."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def name_of(family: str, config: Mapping[str, Any]) -> str:
    """Name of the catalogue's model of these sizes, or one that tells the sizes.

    Parameters
    ----------
    family : str
        A family of the zoo.
    config : mapping
        Its fields.

    Examples
    --------
    >>> name_of("decoder", model_spec("llama3-8b").config)
    'llama3-8b'
    >>> name_of("gpt", {**model_spec("gpt2-small").config, "hidden": 1024, "vocab": 50304})
    'gpt-12x1024'
    """
    for name, vocab in alike(family, config).items():
        if abs(config["vocab"] / vocab - 1) <= PADDING:
            return name
    experts = f"-{config['experts']}e" if config.get("experts") else ""
    return f"{family}-{config['layers']}x{config['hidden']}{experts}"


def alike(family: str, config: Mapping[str, Any]) -> dict[str, int]:
    """Vocabularies of the catalogue's models of these sizes, by name.

    Parameters
    ----------
    family : str
        A family of the zoo.
    config : mapping
        Its fields; whatever its vocabulary.

    Examples
    --------
    >>> alike("gpt", {**model_spec("gpt2-small").config, "vocab": 1})
    {'gpt2-small': 50257, 'gpt3-125m': 50257}
    """
    shape = _shape(msgspec.convert(dict(config), FAMILIES[family].config))
    models = _catalogue(family).items()
    return {name: vocab for name, (other, vocab) in models if other == shape}


def _shape(sizes: msgspec.Struct) -> msgspec.Struct:
    """Sizes without what runs of one model set differently."""
    usual = {
        field.name: 1 if field.default is msgspec.NODEFAULT else field.default
        for field in msgspec.structs.fields(sizes)
        if field.name in (*_LOOSE, *_LOOSE_TOO)
    }
    if not getattr(sizes, "experts", 0):
        usual.pop("ffn_hidden", None)
    return replace(sizes, **usual)


@cache
def _catalogue(family: str) -> dict[str, tuple[msgspec.Struct, int]]:
    """Shapes and vocabularies of the catalogue's models of a family, by name."""
    specs = ((name, model_spec(name)) for name in NAMES)
    converted = (
        (name, msgspec.convert(spec.config, FAMILIES[family].config))
        for name, spec in specs
        if spec.family == family
    )
    return {name: (_shape(sizes), sizes.vocab) for name, sizes in converted}
