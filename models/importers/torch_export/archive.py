"""Archives: a `.pt2` file copied without what its reader would run.

A file of `torch.export.save` is a zip of plain members: the program as JSON, raw bytes of weights.
Its reader in torch also takes pickles (example inputs, tensors of classes of their own), compiled
libraries, classes by the names of their modules, and expressions that it evaluates, and each of
these can run whatever the file's author wrote. Of what comes in here torch sees the plain members
alone, in an archive written anew, so that no two readers of zip files can disagree about it.
"""

import ast
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
_SYMPY = {
    "Symbol", "Integer", "Rational", "Float", "Infinity", "NegativeInfinity", "true", "false",
    "True", "False", "Add", "Mul", "Pow", "Mod", "Max", "Min", "Abs", "floor", "ceiling", "And",
    "Or", "Not", "Where", "Identity", "Equality", "Unequality", "LessThan", "GreaterThan",
    "StrictLessThan", "StrictGreaterThan", "FloorDiv", "CleanDiv", "CeilDiv", "PythonMod",
    "ModularIndexing", "CeilToInt", "FloorToInt", "TruncToInt", "RoundToInt", "TruncToFloat",
    "ToFloat", "RoundDecimal", "IntTrueDiv", "FloatTrueDiv", "FloatPow", "PowByNatural", "LShift",
    "RShift", "IsNonOverlappingAndDenseIndicator", "precision", "positive", "negative",
    "nonnegative", "nonpositive", "integer", "real", "zero", "nonzero", "finite", "infinite",
}  # fmt: skip
_NAMING = ("Symbol", "Integer", "Float")  # these take a text; others would evaluate it
_GROWING = ("Pow", "PowByNatural", "FloatPow", "LShift")
GROWING_MAX = 4
_TEXT = re.compile(r"[\w.+-]{0,64}")
EXPRESSION_LETTERS_MAX = 10_000


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
    """Members of the archive, no longer than the file has bytes, and one of each name."""
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
    """Key and value of every value that lies under a key."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield key, value
            yield from _values(value)
    elif isinstance(document, list):
        for value in document:
            yield from _values(value)


def _is_expression(text: Any) -> bool:
    """True if a text is what SymPy's `srepr` writes of sizes, and soon worked out."""
    if not isinstance(text, str) or len(text) > EXPRESSION_LETTERS_MAX:
        return False
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    growing = sum(isinstance(node, ast.Name) and node.id in _GROWING for node in nodes)
    return growing <= GROWING_MAX and all(map(_is_plain, nodes))


def _is_plain(node: ast.AST) -> bool:
    """True if a part of an expression is a size, a number, or a function of sizes."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=args):
            texts = any(
                isinstance(argument, ast.Constant) and type(argument.value) is str
                for argument in args
            )
            return (name in _NAMING or not texts) and (name not in _GROWING or _is_short(args[1:]))
        case ast.Name(id=name) | ast.keyword(arg=str(name)):
            return name in _SYMPY
        case ast.Constant(value=str(text)):
            return "__" not in text and _TEXT.fullmatch(text) is not None
        case ast.Constant(value=value):
            return isinstance(value, int | float) and abs(value) < 2**63
    return isinstance(node, ast.Expression | ast.Load | ast.UnaryOp | ast.USub)


def _is_short(exponent: list[ast.expr]) -> bool:
    """True if an exponent is one number of one digit: a larger power may have no end."""
    match exponent:
        case [ast.Call(func=ast.Name(id="Integer"), args=[number])]:
            return isinstance(ast.literal_eval(number), int) and abs(ast.literal_eval(number)) < 10
    return False


def _is_tree(text: Any) -> bool:
    """True if the structure of inputs or outputs names no module to import."""
    if not isinstance(text, str):
        return text is None
    return not any(marker in text for marker in ("\\u", "__enum__", "default_factory"))
