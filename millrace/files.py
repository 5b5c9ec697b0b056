"""Documents on disk: read with the path in every error, written whole or not at all."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from millrace.chrome import chrome_trace
from millrace.models.graph import to_json
from millrace.planner.actors.trace import Trace
from millrace.planner.cluster import Device
from millrace.planner.clusters import validate
from millrace.planner.errors import ClusterError, PlanError
from millrace.planner.plan import Plan, check_plan, read_plan


class FileError(ValueError):
    """A file cannot be read or is not what was asked for; names the path (exit code 2)."""


def read_bytes(path: Path, what: str) -> bytes:
    """Return the content of a file.

    Raises
    ------
    FileError
        The file is not there, is a folder or may not be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise FileError(f"cannot read the {what} `{path}`: {reason}") from None


def load_plan(path: Path) -> Plan:
    """Read a Plan file whose numbers agree with one another.

    Raises
    ------
    FileError, PlanError, ClusterError
        Names the path and the key.
    """
    try:
        plan = check_plan(read_plan(read_bytes(path, "plan")))
        validate(plan.cluster)
        return plan
    except (PlanError, ClusterError) as error:
        raise type(error)(f"`{path}`: {error}") from None


def load_trace(path: Path) -> Trace:
    """Read a Trace file; raises FileError with the path and the offending key."""
    text = read_bytes(path, "trace")
    try:
        return msgspec.json.decode(text, type=Trace)
    except msgspec.DecodeError as error:
        hint = ""
        if b'"traceEvents"' in text[:200]:
            hint = ": this is Chrome's form; write the trace to a name that ends in .json instead"
        raise FileError(f"`{path}` is not a trace: {error}{hint}") from None


def load_profile(path: Path) -> Device:
    """Read a device profile; raises FileError with the path and the offending key."""
    try:
        return msgspec.json.decode(read_bytes(path, "device profile"), type=Device)
    except msgspec.DecodeError as error:
        raise FileError(
            f"`{path}` is not a device profile: {error}; `millrace profile -o FILE` writes one"
        ) from None


def is_chrome(path: Path) -> bool:
    """Whether a trace goes to this file in Chrome's form."""
    return path.name.endswith(".chrome.json")


def write_trace(path: Path, trace: Trace, counters: Iterable[dict[str, Any]] = ()) -> None:
    """Write a trace: in Chrome's form to `*.chrome.json`, else as the Trace document.

    Chrome's form also takes counters.
    """
    if is_chrome(path):
        write_bytes(path, msgspec.json.encode(chrome_trace(trace, counters)))
    else:
        write_bytes(path, to_json(trace))


def write_document(path: Path, document: object) -> None:
    """Write a document as indented JSON, in the deterministic order of its bytes."""
    write_bytes(path, msgspec.json.format(to_json(document), indent=1) + b"\n")


def check_writable(*paths: Path | None) -> None:
    """Raise FileError where a file could not be written, before the long work that fills it."""
    for path in paths:
        if path is None:
            continue
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


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file by way of a neighbour, so that no half-written file is left behind.

    Raises
    ------
    FileError
        The folder is not there or may not be written to.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.exists() and not path.is_file():  # /dev/stdout, a pipe: never to be replaced
            path.write_bytes(content)
            return
        partial.write_bytes(content)
        partial.replace(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError, IsADirectoryError) as error:
        reason = (error.strerror or str(error)).lower()
        raise FileError(f"cannot write `{path}`: {reason}") from None
    finally:
        with suppress(OSError):
            partial.unlink()
