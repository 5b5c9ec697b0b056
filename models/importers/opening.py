"""Opening: whatever a user calls a model becomes a ModelSpec.

The one place that knows all importers. An imported graph lies in its specification, so that a plan
made of it needs the file no longer.
"""

import os
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from millrace.models.builder import PRECISIONS
from millrace.models.documents import as_text
from millrace.models.errors import ModelError
from millrace.models.graph import Graph
from millrace.models.spec import ModelSpec, graph_spec
from millrace.models.zoo.catalogue import (
    ALIASES,
    NAMES,
    approximations,
    canonical_name,
    model_spec,
)

KINDS = "a name of `millrace models`, a config.json or its folder, an .onnx or .pt2 file, or \
`package.module:function`"


INSTALL_TORCH = "pip install '.[torch]' in Millrace's checkout"

Told = Callable[[str], None]
Check = Callable[[Any, Any], str]


class _OpeningRequest(NamedTuple):
    path: Path
    seq_len: int | None
    precision: str
    notify: Told | None
    check: Check | None


def open_model(
    text: str,
    seq_len: int | None = None,
    precision: str = "fp32",
    *,
    told: Told | None = None,
    check: Check | None = None,
) -> ModelSpec:
    """Return the specification of a model, however it is named.

    Parameters
    ----------
    text : str
        A name of the zoo; the path of a Hugging Face `config.json` or of the folder that holds one;
        an `.onnx` or `.pt2` file; or `package.module:function`. A name of the zoo comes before a
        file of that name (`./gpt2` is the file).
    seq_len : int, optional
        Tokens of a sample; the model's longest, or what the file fixes, by default.
    precision : str
        fp64, fp32, tf32, bf16, fp16, fp8, mxfp8, mxfp4 or nvfp4.
    told : callable, optional
        Told in words what the user should know of an import.
    check : callable, optional
        Given a PyTorch program as imported and the program, says how well they agree.

    Raises
    ------
    ModelError
        Nothing of that name is known or there; the file is malformed, asks for what is not
        supported, or needs a package that is not installed; a sequence does not fit.
    """
    if precision not in PRECISIONS:
        choices = ", ".join(PRECISIONS)
        raise ModelError(f"there is no precision `{precision}`; choose one of {choices}")
    path = Path(text)
    reader = READERS.get(path.suffix.lower())
    if reader is not None:
        return _with_text_name(reader(_OpeningRequest(path, seq_len, precision, told, check)))
    if ":" not in text and (_looks_like_path(text) or not _in_zoo(text)) and _exists(path):
        return _with_text_name(_config(_OpeningRequest(path, seq_len, precision, told, check)))
    if _looks_like_path(text):
        raise ModelError(f"there is no file `{text}`; {_hub_hint(text) or f'a model is {KINDS}'}")
    return _noted(model_spec(text, seq_len, precision), text, told)


def _noted(spec: ModelSpec, text: str, told: Told | None) -> ModelSpec:
    """The specification, once the user was told what of the model its graph does not compute."""
    if told is not None:
        for clause in approximations(spec):
            told(f"`{text}`: {clause}")
    return spec


def _with_text_name(spec: ModelSpec) -> ModelSpec:
    """Specification under a name that is text; a file's may hold bytes that are none."""
    name = as_text(spec.name)
    graph = None if spec.graph is None else replace(spec.graph, name=as_text(spec.graph.name))
    return spec if name == spec.name else replace(spec, name=name, graph=graph)


# Endings of files that people have models in, and that are not read.
OTHER_FILES = (".py", ".yaml", ".yml", ".toml", ".pt", ".pth", ".bin", ".safetensors", ".gguf")


def _looks_like_path(text: str) -> bool:
    return os.sep in text or text.startswith(".") or Path(text).suffix.lower() in OTHER_FILES


def _hub_hint(text: str) -> str:
    """Advice for a name of a hub, `owner/model`; empty for what can be none."""
    owner, _, name = text.partition("/")
    if not owner or owner.startswith(".") or not name or "/" in name or _exists(Path(owner)):
        return ""
    close = [zoo_name for zoo_name in (*NAMES, *ALIASES) if _squeezed(zoo_name) in _squeezed(name)]
    nearest = max(close, key=len, default="")
    zoo = f"; the zoo's `{canonical_name(nearest)}` comes near" if nearest else ""
    return (
        f"models are not fetched from a hub: get its config.json (`hf download {text} "
        f"config.json`) and give the path of that{zoo}"
    )


def _squeezed(name: str) -> str:
    """Letters and digits of a name alone: `Llama-3-8B` is `llama38b`."""
    return "".join(character for character in name.lower() if character.isalnum())


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # the name is too long or has a zero byte
        return False


def _in_zoo(text: str) -> bool:
    try:
        canonical_name(text)
    except ModelError:
        return False
    return True


def _config(question: _OpeningRequest) -> ModelSpec:
    from millrace.models.importers.huggingface import UnreadError, read_config

    try:
        spec = read_config(
            question.path,
            seq_len=question.seq_len,
            precision=question.precision,
            told=lambda note: _tell(question, [note]),
        )
    except UnreadError as refusal:
        return _by_class(question, refusal)
    return _noted(spec, str(question.path), question.notify)


def _by_class(question: _OpeningRequest, refusal: ModelError) -> ModelSpec:
    """Specification of a configuration that no reader reads, by its class of transformers."""
    if missing := [name for name in ("torch", "transformers") if find_spec(name) is None]:
        raise ModelError(
            f"{refusal}; its class may be read instead, which needs {' and '.join(missing)}: "
            f"{INSTALL_TORCH}"
        )
    from millrace.models.importers.huggingface import config_file, raw_values
    from millrace.models.importers.torch_export.classes import ClassRequest, class_spec

    file = config_file(question.path)
    values = raw_values(file)
    request = ClassRequest(
        values=values,
        name=str(values.get("_name_or_path") or file.absolute().parent.name or file.stem),
        seq_len=question.seq_len,
        precision=question.precision,
    )
    try:
        return class_spec(request, told=lambda note: _tell(question, [note]))
    except ModelError as error:
        raise ModelError(f"{refusal}; by its class: {error}") from None


def _onnx(question: _OpeningRequest) -> ModelSpec:
    from millrace.models.importers.onnx import import_file

    imported = import_file(
        question.path, loss=None, seq_len=question.seq_len, precision=question.precision
    )
    _tell(question, imported.notes)
    return _of_graph(imported.graph, question)


def _tell(question: _OpeningRequest, notes: Iterable[str]) -> None:
    if question.notify is not None:
        for note in notes:
            question.notify(f"`{question.path}`: {note}")


def _torch_export(question: _OpeningRequest) -> ModelSpec:
    if not question.path.is_file():
        raise ModelError(f"`{question.path}` cannot be read: there is no such file")
    if find_spec("torch") is None:
        raise ModelError(
            f"`{question.path}`: reading .pt2 files needs the package torch: {INSTALL_TORCH}"
        )
    from millrace.models.importers.torch_export import import_program, load

    program = load(question.path)
    imported = import_program(program, name=question.path.stem, precision=question.precision)
    _tell(question, imported.notes)
    if question.check is not None:
        _tell(question, [question.check(imported, program)])
    return _of_graph(imported.graph, question)


def _of_graph(graph: Graph, question: _OpeningRequest) -> ModelSpec:
    """Specification that holds its graph, of the sequence length that was asked for."""
    if question.seq_len not in (None, graph.tokens_per_sample):
        raise ModelError(
            f"`{question.path}` fixes sequences of {graph.tokens_per_sample} tokens, "
            f"{question.seq_len} were asked for; leave the length out or export the model again"
        )
    return graph_spec(graph, question.precision)


READERS: dict[str, Callable[[_OpeningRequest], ModelSpec]] = {
    ".json": _config,
    ".onnx": _onnx,
    ".pt2": _torch_export,
}
