"""Archives: a `.pt2` file copied without what its reader would run.

A file of `torch.export.save` is a zip of plain members: the program as JSON, raw bytes of weights.
Its reader in torch also takes pickles (example inputs, tensors of classes of their own), compiled
libraries, classes by the names of their modules, and expressions that it evaluates, and each of
these can run whatever the file's author wrote. Of what comes in here torch sees the plain members
alone, in an archive written anew, so that no two readers of zip files can disagree about it.
"""

import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from millrace.models.errors import ModelError

JSON_BYTES_MAX = 2**28
"""The program of a thousand layers, with the lines of source that each call comes from."""
PLAIN = re.compile(
    r"archive_format|archive_version|byteorder|\.data/\w+|models/[^/]+\.json"
    r"|data/weights/(weight_\d+|[^/]+_weights_config\.json)"
    r"|data/constants/(tensor_\d+|[^/]+_constants_config\.json)"
)
INPUTS = re.compile(r"data/sample_inputs/[^/]+\.pt")  # read by torch, and never by us
OLDER = "serialized_exported_program.json"
CALLS = ("torch.", "_operator.", "math.")
_SYMPY = frozenset(
    (
        *(
            "Symbol",
            "Integer",
            "Rational",
            "Float",
            "Add",
            "Mul",
            "Pow",
            "Mod",
            "Max",
            "Min",
            "Abs",
        ),
        *("And", "Or", "Not", "Abs", "Equality", "Unequality", "LessThan", "GreaterThan", "floor"),
        *("StrictLessThan", "StrictGreaterThan", "ceiling", "Infinity", "NegativeInfinity"),
        *("true", "false", "True", "False", "precision", "positive", "negative", "nonnegative"),
        *("nonpositive", "integer", "real", "zero", "nonzero", "finite", "infinite", "FloorDiv"),
        *("ModularIndexing", "Where", "PythonMod", "CleanDiv", "CeilToInt", "FloorToInt"),
        *("CeilDiv", "LShift", "RShift", "PowByNatural", "FloatPow", "FloatTrueDiv", "Identity"),
        *("IntTrueDiv", "IsNonOverlappingAndDenseIndicator", "TruncToFloat", "TruncToInt"),
        *("RoundToInt", "RoundDecimal", "ToFloat"),
    )
)
_EXPRESSION = re.compile(r"(?:[A-Za-z]\w*|'[\w.+-]*'|-?\d{1,19}(?:\.\d*)?|[(), =])*")
_NAME = re.compile(r"(?<!')\b[A-Za-z]\w*\b(?!')")


@contextmanager
def plain_archive(path: Path) -> Iterator[IO[bytes]]:
    """Yield a copy of an archive without what runs; it is gone afterwards.

    Raises
    ------
    ModelError
        It is not a zip of plain members, or one of them is needed and would run; names it.
    """
    with TemporaryFile() as copy:
        try:
            with zipfile.ZipFile(path) as archive, zipfile.ZipFile(copy, "w") as plain:
                for entry in _entries(path, archive):
                    _copy(path, archive, entry, plain)
        except (zipfile.BadZipFile, NotImplementedError, EOFError, RecursionError) as error:
            raise ModelError(f"`{path}` is not an exported program: {error}") from None
        copy.seek(0)
        yield copy


def _entries(path: Path, archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """The members, known to be as long as the file has bytes, and one of each name."""
    entries = archive.infolist()
    if any(entry.filename == OLDER for entry in entries):
        raise ModelError(
            f"`{path}` is of the form of torch before 2.8, whose weights are a pickle; where you "
            f"trust it, load it with torch.export.load and save it with torch 2.8 or newer"
        )
    if len({entry.filename for entry in entries}) != len(entries):
        raise ModelError(f"`{path}` is not an exported program: it has two members of one name")
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            raise ModelError(
                f"`{path}` is not an exported program: `{entry.filename}` is compressed; "
                f"torch.export.save writes what is not"
            )
    if sum(entry.file_size for entry in entries) > os.path.getsize(path):
        raise ModelError(f"`{path}` is not an exported program: its members overlap")
    return entries


def _copy(
    path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, plain: zipfile.ZipFile
) -> None:
    """Copy a member where it is plain; leave it out where nothing needs it."""
    name = entry.filename.partition("/")[2]
    if INPUTS.fullmatch(name):
        plain.writestr(entry.filename, b"")
    elif name.endswith(".json") and PLAIN.fullmatch(name):
        if entry.file_size > JSON_BYTES_MAX:
            raise ModelError(
                f"`{path}`: `{name}` has {entry.file_size} bytes; expected {JSON_BYTES_MAX}"
            )
        content = archive.read(entry)
        _check_json(path, name, content)
        plain.writestr(entry.filename, content)
    elif PLAIN.fullmatch(name):
        with archive.open(entry) as source, plain.open(entry.filename, "w", force_zip64=True) as to:
            shutil.copyfileobj(source, to, 2**20)


def _check_json(path: Path, name: str, content: bytes) -> None:
    """Raise ModelError where a JSON member asks for more than plain data."""
    try:
        document = json.loads(content)
    except ValueError as error:
        raise ModelError(f"`{path}` is not an exported program: `{name}`: {error}") from None
    for key, value in _values(document):
        if key == "use_pickle" and value is not False:
            raise ModelError(
                f"`{path}`: `{name}` names a pickled tensor, which could run anything and is not "
                f"read; export the model with plain tensors"
            )
        unknown = (
            (key == "expr_str" and not _is_expression(value))
            or (key in ("in_spec", "out_spec") and not _is_tree(value))
            or (key == "target" and isinstance(value, str) and not value.startswith(CALLS))
        )
        if unknown:
            raise ModelError(
                f"`{path}`: `{name}` has `{key}` {value!r:.80}, which torch.export does not write"
            )


def _values(document: Any) -> Iterator[tuple[str, Any]]:
    """Every value that lies under a key, with it."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield key, value
            yield from _values(value)
    elif isinstance(document, list):
        for value in document:
            yield from _values(value)


def _is_expression(text: Any) -> bool:
    """Whether a text is what SymPy's `srepr` writes of sizes."""
    if not isinstance(text, str) or not _EXPRESSION.fullmatch(text) or "__" in text:
        return False
    return all(name in _SYMPY for name in _NAME.findall(text))


def _is_tree(text: Any) -> bool:
    """Whether the structure of inputs or outputs names no module to import."""
    if not isinstance(text, str):
        return text is None
    return not any(one in text for one in ("\\u", "__enum__", "default_factory"))
