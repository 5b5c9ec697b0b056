"""Reading a `config.json`: the file, its model type and class, and the specification made of it."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from millrace.models.builder import PRECISIONS
from millrace.models.documents import BYTES_MAX, decode_json, read_text
from millrace.models.errors import ModelError
from millrace.models.importers.huggingface.keys import Keys, shown
from millrace.models.importers.huggingface.mapping import ModelType
from millrace.models.importers.huggingface.model_types import MODEL_TYPES, NOT_EXPRESSIBLE
from millrace.models.spec import ModelSpec
from millrace.models.zoo.catalogue import FAMILIES
from millrace.models.zoo.family import check_length

FILE_NAME = "config.json"
# Strings, and the numbers that Python writes into JSON, which has none of these.
_PYTHONS = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\bInfinity\b|\bNaN\b')


class UnreadError(ModelError):
    """A configuration that no reader reads; its class may."""


def read_config(
    path: str | Path,
    *,
    seq_len: int | None = None,
    precision: str = "fp32",
    told: Callable[[str], None] | None = None,
) -> ModelSpec:
    """Return the specification of the model that a Hugging Face configuration describes.

    Parameters
    ----------
    path : str or Path
        A `config.json` under any name, or the folder that holds one.
    seq_len : int, optional
        Tokens of a sample; by default the longest sequence the configuration names.
    precision : str
        fp64, fp32, tf32, bf16 or fp16.
    told : callable, optional
        Told in words which parts of the file's model are not imported.

    Raises
    ------
    UnreadError
        Its model type or class is not among those known; a value has the wrong type, is out of
        range or asks for something not supported.
    ModelError
        The file is not there or is no configuration; a sequence does not fit.

    Notes
    -----
    A key that is missing has the default that transformers (release 5) gives it. Dropout is left
    out: published models are trained further without it.
    """
    file = config_file(path)
    return config_spec(_object(file), file, seq_len=seq_len, precision=precision, told=told)


def config_file(path: str | Path) -> Path:
    """File of a configuration that is named by itself or by its folder."""
    return Path(path) / FILE_NAME if Path(path).is_dir() else Path(path)


def raw_values(file: Path) -> dict[str, Any]:
    """Values of a configuration that `read_config` decoded, with infinities as Python reads them.

    Parameters
    ----------
    file : Path
        Holds a JSON object.
    """
    values: dict[str, Any] = json.loads(
        read_text(file, "configuration", bytes_max=BYTES_MAX, error=ModelError)
    )
    return values


def config_spec(
    values: Mapping[str, Any],
    file: Path,
    *,
    seq_len: int | None = None,
    precision: str = "fp32",
    told: Callable[[str], None] | None = None,
) -> ModelSpec:
    """Specification of the model that a decoded configuration describes.

    Parameters
    ----------
    values : mapping
        The configuration's JSON object.
    file : Path
        Where it is from, for messages and for the name of a model that has none.
    seq_len, precision, told
        As `read_config` takes them.

    Raises
    ------
    ModelError
        As `read_config` says.
    """
    if precision not in PRECISIONS:
        choices = ", ".join(PRECISIONS)
        raise ModelError(f"there is no precision `{precision}`; choose one of {choices}")
    keys = Keys(values=values, where=f"configuration `{file}`")
    try:
        model_type = _model_type(keys)
        mapped = model_type.read(keys, _architecture(keys, model_type, file))
    except ModelError as error:
        raise UnreadError(str(error)) from None
    if told is not None:
        for note in mapped.notes:
            told(note)
    spec = ModelSpec(
        name=keys.text("_name_or_path", "", null="") or file.absolute().parent.name or file.stem,
        family=mapped.family,
        config=mapped.config,
        seq_len=mapped.seq_len if seq_len is None else seq_len,
        precision=precision,
    )
    family = FAMILIES[spec.family]
    try:
        check_length(spec)
        family.check(spec, msgspec.convert(spec.config, family.config))
    except ModelError as error:
        raise ModelError(f"{keys.where}: {error}") from None
    return spec


def _object(file: Path) -> dict[str, Any]:
    """Return the JSON object that a file holds."""
    content = read_text(file, "configuration", bytes_max=BYTES_MAX, error=ModelError)
    where = f"configuration `{file}` is not JSON"
    values = decode_json(strict_json(content), Any, where, ModelError)
    if not isinstance(values, dict):
        raise ModelError(f"configuration `{file}` holds {shown(values)}; expected a JSON object")
    return values


def _model_type(keys: Keys) -> ModelType:
    named = keys.text("model_type", "", null="")
    if not named:
        state = "null" if "model_type" in keys.values else "missing"
        raise ModelError(
            f"{keys.where}: `model_type` is {state}; expected the name of a model type of "
            f"transformers, such as llama or qwen3_moe"
        )
    if named in NOT_EXPRESSIBLE:
        raise keys.error("model_type", NOT_EXPRESSIBLE[named])
    if named and named not in MODEL_TYPES:
        raise keys.error("model_type", "no reader knows it")
    return keys.choice("model_type", MODEL_TYPES)


def strict_json(content: bytes) -> bytes:
    """JSON of what Python writes as JSON: null for infinities and for what is no number.

    Parameters
    ----------
    content : bytes
        In UTF-8.

    Examples
    --------
    >>> strict_json(b'{"a": [0.0, Infinity], "NaN": "-Infinity"}')
    b'{"a": [0.0, null], "NaN": "-Infinity"}'
    """
    return _PYTHONS.sub(lambda hit: hit[0] if hit[0].startswith(b'"') else b"null", content)


def _by_class(file: Path, classes: Sequence[str]) -> str:
    """Advice to import a class with another head than a language model's."""
    if len(classes) != 1 or not classes[0].isidentifier():
        return ""
    call = f"transformers.{classes[0]}(config)"
    return (
        f"; its class may import through torch.export, in Python: config = "
        f"transformers.AutoConfig.from_pretrained({str(file.parent)!r}); module = {call}; "
        f"imported = millrace.importing.import_module(module, "
        f"(torch.zeros(1, 128, dtype=torch.int64),))"
    )


def _architecture(keys: Keys, model_type: ModelType, file: Path) -> str:
    """Return the class that `architectures` names, or the model type's first."""
    named = keys.texts("architectures")
    if not named:
        return model_type.classes[0]
    if len(named) > 1 or named[0] not in model_type.classes:
        choices = ", ".join(model_type.classes)
        how = _by_class(file, named)
        raise keys.error("architectures", f"expected a list of one of {choices}{how}")
    return named[0]
