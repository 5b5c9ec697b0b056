"""Documents: the door through which every file of JSON, TOML or CSV comes in, and goes out.

What may lie in a file is not known before it is read: a device without an end, text in another
encoding, numbers that no machine word holds. All of it is refused here, by the file's name.
"""

import math
import os
import re
import secrets
import stat
import tomllib
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from contextlib import suppress
from difflib import get_close_matches
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

BYTES_MAX = 2**24
"""Most bytes of a document unless its kind says more; profiles and manifests have a hundredth."""
PIECE_BYTES = 2**20
WORD = 2**63
"""Whole numbers count bytes, nanoseconds and samples; none reaches the end of 64 bits."""
SCHEMA = "$schema"
"""Key by which a file names its JSON schema: editors read it, and no document has it as a value."""
_NAMES_SCHEMA = f"Object contains unknown field `{SCHEMA}`"
_UNKNOWN = re.compile(r"unknown field `([^`]+)`")
_LONG = re.compile(rb"[0-9]{19}")  # every number beyond 64 bits has 19 digits or more

Kind = TypeVar("Kind")
Refusal = type[ValueError]


class FileError(ValueError):
    """A file cannot be read or written, or is not what was asked for; names the path."""


def read_document(
    path: Path,
    kind: type[Kind],
    what: str,
    *,
    bytes_max: int = BYTES_MAX,
    error: Refusal = FileError,
) -> Kind:
    """Return the document of a JSON file.

    Parameters
    ----------
    path : Path
        A file, or a pipe.
    kind : type
        Type of the content: a Struct, or `Any`.
    what : str
        Noun by which a user calls the content, in the singular: "plan".
    bytes_max : int
        Most bytes of the file; a larger one is refused before it takes memory.
    error : type of ValueError
        Raised with the path, and with the key where one is wrong.

    Examples
    --------
    >>> read_document(Path("/dev/zero"), dict, "plan")
    Traceback (most recent call last):
    ...
    millrace.models.documents.FileError: `/dev/zero` is not a plan: it is not UTF-8 text
    """
    content = read_text(path, what, bytes_max=bytes_max, error=error)
    return decode_json(content, kind, f"`{path}` is not a {what}", error)


def read_text(path: Path, what: str, *, bytes_max: int, error: Refusal = FileError) -> bytes:
    """Bytes of a file of UTF-8 text, read only as far as it is some.

    Parameters
    ----------
    path : Path
        A file, or a pipe, whose bytes are checked as they come.
    what : str
        Noun by which a user calls the content, in the singular: "plan".
    bytes_max : int
        Most bytes of the content; more is refused before it takes memory.
    error : type of ValueError
        Raised for all that is refused; its text names the path.

    Raises
    ------
    error
        The file cannot be read, is larger, is not UTF-8, or holds a zero byte.
    """
    decoder = getincrementaldecoder("utf-8")()

    def check(piece: bytes) -> None:
        try:
            sound = "\0" not in decoder.decode(piece, final=not piece)
        except UnicodeDecodeError:
            sound = False
        if not sound:
            raise error(f"`{path}` is not a {what}: it is not UTF-8 text")

    return _content(path, what, bytes_max, error, check)


def read_bytes(path: Path, what: str, *, bytes_max: int, error: Refusal = FileError) -> bytes:
    """Content of a file, which is no pipe: what is no text may be as long as it is.

    Parameters
    ----------
    path : Path
        A regular file, text or not.
    what : str
        Noun by which a user calls the content, in the singular: "ONNX file".
    bytes_max : int
        Most bytes of the file; a larger one is refused unread.
    error : type of ValueError
        Raised for all that is refused; its text names the path.

    Raises
    ------
    error
        The file cannot be read, is no regular one, or is larger.
    """
    return _content(path, what, bytes_max, error, None)


def _content(
    path: Path, what: str, bytes_max: int, error: Refusal, check: Callable[[bytes], None] | None
) -> bytes:
    """Content of a file, refused before more than `bytes_max` are held; `check` as it comes."""
    try:
        with path.open("rb", buffering=0) as file:  # a pipe's bytes are checked as they come
            file_stat = os.fstat(file.fileno())
            if stat.S_ISREG(file_stat.st_mode) and file_stat.st_size > bytes_max:
                raise error(_too_large(path, what, f"{file_stat.st_size} bytes", bytes_max))
            if check is None:
                if not stat.S_ISREG(file_stat.st_mode):
                    raise error(f"the {what} `{path}` cannot be read: it is no regular file")
                return file.readall()
            content = BytesIO()
            while piece := file.read(PIECE_BYTES):
                check(piece)
                if content.tell() + len(piece) > bytes_max:
                    raise error(_too_large(path, what, "more", bytes_max))
                content.write(piece)
            check(b"")
            return content.getvalue()
    except FileNotFoundError as wrong:
        reason = f"{_reason(wrong)}{_near_name(path)}"
        raise error(f"the {what} `{path}` cannot be read: {reason}") from None
    except OSError as wrong:
        raise error(f"the {what} `{path}` cannot be read: {_reason(wrong)}") from None
    except ValueError as wrong:
        if isinstance(wrong, error):
            raise
        raise error(f"the {what} `{path}` cannot be read: {wrong}") from None  # a name with a zero


def _near_name(path: Path) -> str:
    """File of the folder whose name comes near, as the end of a sentence; empty where none does."""
    with suppress(OSError, ValueError):
        alike = [other.stem for other in path.parent.iterdir() if other.suffix == path.suffix]
        close = get_close_matches(path.stem, sorted(alike), n=1, cutoff=0.7)
        return f"; did you mean `{path.with_stem(close[0])}`?" if close else ""
    return ""


def _too_large(path: Path, what: str, size: str, bytes_max: int) -> str:
    return f"the {what} `{path}` has {size}; expected at most {bytes_max} bytes"


def as_text(name: str) -> str:
    """File name as text, with `?` for bytes that are no text."""
    return name.encode("utf-8", "replace").decode()


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file by way of a neighbour, so that no half-written file is left behind.

    The neighbour has a name that nobody can foresee, and is made new: in a folder that others may
    write to, none of them has put something else in its place.

    Parameters
    ----------
    path : Path
        File to make or replace; a pipe or device (`/dev/stdout`) is written to directly.
    content : bytes
        All that the file holds afterwards.

    Raises
    ------
    FileError
        The folder is not there or may not be written to; the path is a folder or has a zero byte.
    OSError
        Writing failed (the disk is full); names the path, but for a broken pipe.
    """
    partial = path.with_name(f".millrace-{secrets.token_hex(8)}")
    try:
        if path.exists() and not path.is_file():  # /dev/stdout, a pipe: never to be replaced
            path.write_bytes(content)
            return
        with partial.open("xb") as file:
            file.write(content)
        partial.replace(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError, IsADirectoryError) as error:
        raise FileError(f"cannot write `{path}`: {_reason(error)}") from None
    except BrokenPipeError:  # stdout's pipe may break too
        raise
    except OSError as error:
        raise OSError(f"cannot write `{path}`: {_reason(error)}") from None
    except ValueError as error:
        raise FileError(f"cannot write `{path}`: {error}") from None  # a name with a zero
    finally:
        with suppress(OSError, ValueError):
            partial.unlink()


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def decode_json(content: bytes, kind: type[Kind], where: str, error: Refusal = FileError) -> Kind:
    """Document of a JSON text.

    Parameters
    ----------
    content : bytes
        The text, in UTF-8.
    kind : type
        Type of the document, which it is checked against: a Struct, or `Any`. A Struct's text may
        name a JSON schema beside its own keys, which is left out.
    where : str
        Begins the message of `error`: "`<path>` is not a plan".
    error : type of ValueError
        Raised for all that is wrong with the text.

    Raises
    ------
    error
        The text is no JSON or not of `kind`, is nested too deep, has a float beyond a double, or,
        unless `kind` is `Any`, a whole number beyond 64 bits.
    """

    def decoded() -> Kind:
        try:
            document = msgspec.json.decode(content, type=kind)
        except msgspec.ValidationError as wrong:
            if str(wrong) != _NAMES_SCHEMA:
                raise
            document = msgspec.json.decode(_without_schema(content), type=kind)
        if kind is not Any and _LONG.search(content):
            _check_numbers(msgspec.json.decode(content))
        return document

    return _decoded(decoded, kind, where, error)


def decode_toml(
    text: str,
    kind: type[Kind],
    where: str,
    error: Refusal = FileError,
    completed: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> Kind:
    """Document of a TOML text.

    Parameters
    ----------
    text : str
        The file's text, decoded.
    kind : type
        Type of the document, which its values are converted to: a Struct.
    where : str
        Begins the message of `error`: "cluster file `<path>`".
    error : type of ValueError
        Raised for all that is wrong with the text.
    completed : callable
        Fills in what a text may leave out, before its values are converted.

    Raises
    ------
    error
        The text is no TOML or not of `kind`, is nested too deep, or has a whole number beyond 64
        bits or a number that is not finite.
    """

    def decoded() -> Kind:
        values = tomllib.loads(text)
        _check_schema(values.pop(SCHEMA, ""))
        _check_numbers(values)
        return msgspec.convert(completed(values), type=kind)

    return _decoded(decoded, kind, where, error)


def _without_schema(content: bytes) -> bytes:
    """JSON text of an object without the schema that it names, which is for editors."""
    values = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    _check_schema(msgspec.json.decode(values.pop(SCHEMA)))
    return msgspec.json.encode(values)


def _check_schema(name: object) -> None:
    if not isinstance(name, str):
        raise ValueError(f"expected the name of a JSON schema - at `$.{SCHEMA}`")


def _decoded(decode: Callable[[], Kind], kind: object, where: str, error: Refusal) -> Kind:
    """Document that `decode` returns; anything that a decoder raises becomes one `error`."""
    try:
        return decode()
    except RecursionError:
        raise error(f"{where}: its values are nested too deep") from None
    except (ValueError, OverflowError) as wrong:  # decoders raise both
        hint = _near_key(str(wrong), kind)
        if "`$.schema_version`" in str(wrong):
            hint = "; it is of another version, write it anew"
        raise error(f"{where}: {wrong}{hint}") from None


def _near_key(wrong: str, kind: object) -> str:
    """Key that an unknown one comes near to, as the end of a sentence; empty where none does."""
    if not (unknown := _UNKNOWN.search(wrong)):
        return ""
    keys: set[str] = set()
    _collect_keys(kind, keys, set())
    close = get_close_matches(unknown[1], sorted(keys), n=1)
    if close == [unknown[1]]:
        return f"; `{close[0]}` belongs under {' or '.join(_places(kind, close[0]))}"
    return f"; did you mean `{close[0]}`?" if close else ""


def _places(kind: object, key: str) -> list[str]:
    """Keys of a type of document, in brackets, whose values have a key."""
    places = []
    for field in msgspec.structs.fields(kind):  # type: ignore[arg-type]
        keys: set[str] = set()
        _collect_keys(field.type, keys, set())
        places += [f"[{field.name}]"] if key in keys else []
    return places


def _collect_keys(kind: object, keys: set[str], seen: set[object]) -> None:
    """Gather the keys of a type of document, and of all types that lie in it."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in seen:
        seen.add(kind)
        for field in msgspec.structs.fields(kind):
            keys.add(field.encode_name)
            _collect_keys(field.type, keys, seen)
    for part in get_args(kind):
        _collect_keys(part, keys, seen)


def _check_numbers(document: Any) -> None:
    """Raise ValueError where a number is none that a machine word holds; names its place."""
    for place, number in _numbers(document, "$"):
        if isinstance(number, int) and not -WORD <= number < WORD:
            raise ValueError(f"a whole number of more than 64 bits - at `{place}`")
        if not math.isfinite(number):
            raise ValueError(f"expected a finite number, got {number} - at `{place}`")


def _numbers(value: Any, place: str) -> Iterator[tuple[str, int | float]]:
    if isinstance(value, dict):
        for name, child in value.items():
            yield from _numbers(child, f"{place}.{name}")
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _numbers(child, f"{place}[{index}]")
    elif isinstance(value, int | float):
        yield place, value
