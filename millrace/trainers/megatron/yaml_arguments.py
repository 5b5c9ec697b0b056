"""Arguments of Megatron in YAML: `--name: value` in a section, `--yaml-cfg`, Primus.

A file of Primus names a preset for its model, another file, which is given too or is a model of the
catalogue.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from millrace.models.zoo.catalogue import model_spec
from millrace.trainers.megatron.given_arguments import GivenArguments
from millrace.trainers.megatron.model_values import model_values
from millrace.trainers.model_names import known_name
from millrace.trainers.trainer import SettingsError, SettingsSource
from millrace.trainers.yaml_text import read_yaml

SUFFIXES = (".yaml", ".yml")
DEPTH_MAX = 20
ENVIRONMENT = re.compile(r"[A-Z][A-Z0-9_]*")  # names of variables, in a section of their own
VARIABLE = re.compile(r"\$\{(\w+)(?::-?([^{}]*))?\}|\$(\w+)")
WORDS = {"": None, "null": None, "none": None, "true": True, "false": False}
# What Primus sets where neither preset nor file says otherwise (primus/configs, read 2026-11).
PRIMUS = {"bf16": True, "use_distributed_optimizer": True, "sequence_parallel": True}
FOREIGN = ("model", "policy", "trainer")  # sections of NeMo's and other YAML
# Keys of Primus beside its modules.
HEAD = ("work_group", "user_name", "exp_name", "workspace", "framework", "config", "model", "bases")


def yaml_texts(source: SettingsSource) -> list[tuple[str, str]]:
    """Names and texts of a source's YAML files."""
    return [(name, text) for name, text in source.files.items() if name.endswith(SUFFIXES)]


def add_yaml(given: GivenArguments, source: SettingsSource, assumed: list[str]) -> list[str]:
    """Add what YAML files give; returned are names of variables and of Primus' own keys.

    Keys are options (`--num-layers`) or destinations (`num_layers`), in sections or not.
    `${NAME}` and `${NAME:default}` are the source's values.

    Parameters
    ----------
    given : GivenArguments
        Where they go.
    source : SettingsSource
        Its files.
    assumed : list of str
        Gets sentences about presets.

    Raises
    ------
    SettingsError
        A file is no YAML, or names a preset that is neither given nor a model of the catalogue.

    Examples
    --------
    >>> given = GivenArguments()
    >>> text = "{ENV_VARS: {A: 1}, MODEL_ARGS: {--num-layers: '${L}', --bf16: 1}}"
    >>> add_yaml(given, SettingsSource(files={"a.yaml": text}, values={"L": "2"}), [])
    ['A']
    >>> given["num_layers"], given["bf16"]
    (2, True)
    """
    documents = {
        PurePath(name).name: read_yaml(text, f"`{name}`") for name, text in yaml_texts(source)
    }
    others: list[str] = []
    presets: set[str] = set()
    for name, document in documents.items():
        if foreign := [part for part in FOREIGN if isinstance(document.get(part), dict)]:
            raise SettingsError(
                f"`{name}`: with a section `{foreign[0]}` it is NeMo's, Megatron-Bridge's or "
                f"another's, and not read; give Megatron-LM's arguments, or the command line of "
                f"run_recipe.py with overrides"
            )
        for module in _modules(document):
            for dest, value in PRIMUS.items():
                given.add_pair(dest, value)
            preset = str(_filled(module.get("model"), source.values) or "")
            presets |= _add_preset(given, preset, documents, source, assumed) if preset else set()
    for name, document in documents.items():
        for key, value in () if name in presets else _leaves(document, 0):
            if key in HEAD or ENVIRONMENT.fullmatch(key):
                others.append(key)
            else:
                given.add_pair(key, _filled(value, source.values))
    return others


def _modules(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the modules of a file of Primus."""
    modules = document.get("modules")
    for module in modules.values() if isinstance(modules, dict) else ():
        if isinstance(module, dict) and "overrides" in module:
            if module.get("framework", "megatron") != "megatron":
                raise SettingsError(
                    f"framework: {module['framework']}: of Primus only Megatron's files are read; "
                    f"give the settings that {module['framework']} takes itself"
                )
            yield module


def _add_preset(
    given: GivenArguments,
    name: str,
    documents: Mapping[str, Mapping[str, Any]],
    source: SettingsSource,
    assumed: list[str],
) -> set[str]:
    """Add what a preset gives; returned are the files that it is made of."""
    model = known_name(name)
    files = list(_bases(name, documents))
    if not files and model:
        values, _ = model_values(model_spec(model, precision="bf16"), 1)
        for dest in ("seq_length", "padded_vocab_size"):
            del values[dest]
        for dest, value in values.items():
            given.add_pair(dest, value)
        assumed.append(
            f"{name} is {model} of the catalogue, with what Primus sets, {', '.join(PRIMUS)}; what "
            f"else the preset sets is not known: give its file too for that"
        )
    elif not files:
        raise SettingsError(
            f"model: {name}: this preset of Primus is not given; give its file too, with those "
            f"that its `bases` name, or a name of the catalogue (`millrace models`)"
        )
    for file in files:
        for key, value in documents[file].items():
            if key not in HEAD:
                given.add_pair(key, _filled(value, source.values))
    return {*files}


def _bases(name: str, documents: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield names of a preset's files, the first first; none where one is not given."""
    chain, pending = list[str](), [name]
    while pending:
        file = PurePath(pending.pop()).name
        if file not in documents or len(chain) > DEPTH_MAX:
            return
        chain.append(file)
        bases = documents[file].get("bases") or []
        pending += [str(base) for base in bases] if isinstance(bases, list) else [str(bases)]
    yield from reversed(chain)


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    """Value with its variables filled in, as far as they are given or have a default."""
    if isinstance(value, list):
        return [_filled(item, values) for item in value]
    if not isinstance(value, str) or "$" not in value:
        return value

    def named(hit: re.Match[str]) -> str:
        name, default = hit[1] or hit[3], hit[2]
        return str(values.get(name, hit[0] if default is None else default))

    text = VARIABLE.sub(named, value)
    return text if text == value else WORDS.get(text.strip().lower(), text)


def _leaves(document: Mapping[Any, Any], depth: int) -> Iterator[tuple[str, Any]]:
    """Yield keys with values that are no mappings, of all sections."""
    if depth > DEPTH_MAX:
        raise SettingsError(f"YAML nests more than {DEPTH_MAX} sections")
    for key, value in document.items():
        if isinstance(value, dict):
            yield from _leaves(value, depth + 1)
        else:
            yield str(key), value
