"""Files of documents: read with the path in every error, written whole or not at all."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from millrace.models.documents import (
    BYTES_MAX,
    SCHEMA,
    FileError,
    Kind,
    Refusal,
    decode_json,
    read_text,
    write_bytes,
)
from millrace.models.errors import ModelError
from millrace.models.graph import Graph, to_json
from millrace.models.zoo.catalogue import FUNCTION, canonical_name
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.trace import Trace
from millrace.planner.cluster import Device
from millrace.planner.clusters import validate
from millrace.planner.errors import ClusterError, PlanError
from millrace.planner.plan import Plan, check_plan
from millrace.traces.chrome import chrome_trace

PLAN_BYTES_MAX = 2**27
"""A plan of 126 layers has 50 kB; one with an imported graph, constants and all, megabytes."""
TRACE_BYTES_MAX = 2**29
"""Fifteen million firings: a day's work to look at, and some gigabytes once they are read."""


SCHEMAS: dict[type, str] = {
    Graph: "graph",
    Plan: "plan",
    ActorGraph: "actor_graph",
    Trace: "trace",
    Device: "profile",
}
"""Name in docs/schemas of what is written, by its type."""
KINDS: dict[str, tuple[type | None, str]] = {
    "chunks": (Plan, "a plan, as `millrace plan -o` writes it"),
    "lanes": (Trace, "a trace, as `millrace run --trace` writes it"),
    "traceEvents": (None, "a trace in Chrome's form"),
    "programs": (None, "an actor graph"),
    "tensors": (None, "a graph"),
    "flops_per_s": (Device, "a device profile, as `millrace profile -o` writes it"),
    "model_type": (None, "the configuration of a model, for `millrace plan`"),
}
"""Keys that one kind of document alone has."""


def load_plan(path: Path, *, trust: bool = False) -> Plan:
    """Read a Plan file.

    Parameters
    ----------
    path : Path
        The file.
    trust : bool
        Take a plan of a model that is a function (`package.module:function`), which is called
        wherever the plan is used: whoever wrote the file says what runs.

    Raises
    ------
    PlanError
        It cannot be read or is no plan, by the path and the offending key; or its model is a
        function, and the file is not trusted.
    ClusterError
        Its cluster is not valid.
    """
    if _is_model(str(path)) and not path.exists():
        raise PlanError(
            f"`{path}` is a model, and no file of a plan: `millrace plan {path} … -o plan.json` "
            f"makes one"
        )
    text = read_text(path, "plan", bytes_max=PLAN_BYTES_MAX, error=PlanError)
    plan = _decoded(text, Plan, f"`{path}` is not a plan", PlanError)
    if plan.model.family == FUNCTION and not trust:
        raise PlanError(
            f"the plan `{path}` calls the function `{plan.model.name}` for its model: give --trust "
            f"(trust=True) where you trust its author"
        )
    try:
        validate(check_plan(plan).cluster)
    except (PlanError, ClusterError) as error:
        raise type(error)(f"`{path}`: {error}") from None
    return plan


def load_trace(path: Path) -> Trace:
    """Read a Trace file and check it; raises FileError with the path and the offending place."""
    text = read_text(path, "trace", bytes_max=TRACE_BYTES_MAX)
    if b'{"traceEvents"' in text[:200] or b'"displayTimeUnit"' in text[:20]:
        raise FileError(
            f"`{path}` is a trace in Chrome's form; write it to a name that ends in .json instead"
        )
    where = f"`{path}` is not a trace"
    try:
        return _decoded(text, Trace, where).validate()
    except PlanError as error:
        raise FileError(f"{where}: {error}") from None


def load_profile(path: Path) -> Device:
    """Read a device profile, as `millrace profile -o` writes it; raises FileError."""
    text = read_text(path, "device profile", bytes_max=BYTES_MAX)
    return _decoded(text, Device, f"`{path}` is not a device profile")


def _is_model(text: str) -> bool:
    try:
        return bool(canonical_name(text))
    except ModelError:
        return False


def _decoded(text: bytes, kind: type[Kind], where: str, error: Refusal = FileError) -> Kind:
    """Document of a JSON text; where it is one of another kind, the refusal says which."""
    try:
        return decode_json(text, kind, where, error)
    except error as wrong:
        with suppress(msgspec.DecodeError):
            keys = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            for key, (owner, noun) in KINDS.items():
                if key in keys and owner is not kind:
                    raise error(f"{where}: it is {noun}") from None
        raise wrong from None


def is_chrome(path: Path) -> bool:
    """True if a trace goes to this file in Chrome's form: its name ends in `.chrome.json`."""
    return path.name.endswith(".chrome.json")


def write_trace(path: Path, trace: Trace, counters: Iterable[dict[str, Any]] = ()) -> None:
    """Write a trace: in Chrome's form to `*.chrome.json`, else as the Trace document.

    Parameters
    ----------
    path : Path
        The file; its name decides the form.
    trace : Trace
        The trace to write.
    counters : iterable of dict
        Counter events that Chrome's form takes beside it.

    Raises
    ------
    FileError
        The file cannot be written.
    """
    if is_chrome(path):
        write_bytes(path, msgspec.json.encode(chrome_trace(trace, counters)))
    else:
        write_bytes(path, document_bytes(trace))


def write_document(path: Path, document: object) -> None:
    """Write a document as indented JSON, in the deterministic order of its bytes.

    Parameters
    ----------
    path : Path
        The file.
    document : object
        Whatever `to_json` takes: a Plan, a Trace, a Device.

    Raises
    ------
    FileError
        The file cannot be written.
    """
    write_bytes(path, msgspec.json.format(document_bytes(document), indent=1) + b"\n")


def document_bytes(document: object) -> bytes:
    """JSON text of a document, which begins with the name of its schema where there is one.

    Parameters
    ----------
    document : object
        As for `write_document`.
    """
    content = to_json(document)
    if (name := SCHEMAS.get(type(document))) is None:
        return content
    named = msgspec.json.encode({SCHEMA: f"docs/schemas/{name}.schema.json"})
    return named[:-1] + b"," + content[1:]


def check_writable(*paths: Path | None, read: Iterable[Path] = ()) -> None:
    """Raise FileError where a file could not be written, before the long work that fills it.

    Parameters
    ----------
    paths : Path or None
        What is written to, each another file.
    read : iterable of Path
        What is read: none of it is to be replaced.
    """
    taken = {os.path.realpath(path): "this command reads it" for path in read}
    for path in paths:
        if path is None:
            continue
        place = os.path.realpath(path)
        if place in taken and (path.is_file() or not path.exists()):
            raise FileError(f"cannot write `{path}`: {taken[place]}; give another name")
        taken[place] = "this command writes it already"
        if path.is_dir():
            raise FileError(f"cannot write `{path}`: it is a folder; give a file's name")
        if not path.parent.is_dir():
            raise FileError(f"cannot write `{path}`: there is no folder `{path.parent}`")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise FileError(f"cannot write `{path}`: permission denied")


def make_folder(path: Path) -> None:
    """Make a folder, with those above it; raises FileError where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise FileError(f"cannot make the folder `{path}`: {reason}") from None
