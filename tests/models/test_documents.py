"""Documents: whatever lies in a file, it is read or refused by the file's name."""

import os
import threading
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from millrace.models.documents import FileError, decode_toml, read_bytes, read_document, read_text


class DocumentSizes(msgspec.Struct, forbid_unknown_fields=True):
    schema_version: Annotated[int, msgspec.Meta(ge=2, le=2)] = 2
    share: float = 0.0
    counts: dict[str, int] = {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "truncated"),
        (b'{"share": "x"}', r"Expected `float`, got `str` - at `\$.share`"),
        (b'{"shear": 1}', "unknown field `shear`"),
        (b'{"counts": {"\xc0": 1}}', "not UTF-8 text"),
        ('{"share": 1}'.encode("utf-16"), "not UTF-8 text"),
        (b'{"share": 1}\xe2\x82', "not UTF-8 text"),
        (b'{"share": 1}\0', "not UTF-8 text"),
        (b'{"counts": {"a": 1' + b"0" * 400 + b"}}", r"more than 64 bits - at `\$.counts.a`"),
        (b'{"counts": {"a": -9223372036854775809}}', "more than 64 bits"),
        (b'{"counts": {"a": 1' + b"0" * 5000 + b"}}", "out of range"),
        (b'{"share": 1' + b"0" * 400 + b"}", r"out of range - at `\$.share`"),
        (b'{"share": 1e999}', "out of range"),
        (b'{"share": NaN}', "malformed"),
        (b'{"counts": ' + b'{"a":' * 100_000, "nested too deep|Expected `int`"),
        (
            b'{"schema_version": 99}',
            r"Expected `int` <= 2 - at `\$.schema_version`; it is of another",
        ),
        (b" " * 2000, "has 2000 bytes; expected at most 1024 bytes"),
    ],
)
def test_what_is_no_document_is_refused_with_path_and_place(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "sizes.json"
    path.write_bytes(content)
    with pytest.raises(FileError, match=rf"(?s)sizes\.json`.*({said})"):
        read_document(
            path, DocumentSizes, "table of sizes", bytes_max=1024 if b"  " in content else 2**20
        )


def test_whole_numbers_up_to_63_bits_are_read(tmp_path: Path) -> None:
    path = tmp_path / "sizes.json"
    path.write_bytes(b'{"counts": {"a": 9223372036854775807, "b": -9223372036854775808}}')
    sizes = read_document(path, DocumentSizes, "table of sizes")
    assert sizes.counts == {"a": 2**63 - 1, "b": -(2**63)}


def test_the_caller_says_which_error_it_is(tmp_path: Path) -> None:
    class OwnError(ValueError):
        pass

    with pytest.raises(OwnError, match="no such file"):
        read_document(tmp_path / "none.json", DocumentSizes, "table of sizes", error=OwnError)
    with pytest.raises(OwnError, match="is a directory"):
        read_document(tmp_path, DocumentSizes, "table of sizes", error=OwnError)
    with pytest.raises(OwnError, match="cannot be read: embedded null byte"):
        read_document(tmp_path / "a\0b", DocumentSizes, "table of sizes", error=OwnError)
    with pytest.raises(OwnError, match="too long"):
        read_document(tmp_path / ("a" * 5000), DocumentSizes, "table of sizes", error=OwnError)


def test_a_device_without_an_end_is_refused_at_once() -> None:
    with pytest.raises(FileError, match="not UTF-8 text"):
        read_text(Path("/dev/zero"), "plan", bytes_max=2**40)
    with pytest.raises(FileError, match="the model `/dev/zero` cannot be read: it is no regular"):
        read_bytes(Path("/dev/zero"), "model", bytes_max=2**31)


def test_a_file_with_a_hole_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "hole"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(FileError, match="has 1099511627776 bytes"):
        read_bytes(path, "model", bytes_max=2**31)


def test_a_pipe_is_read_to_its_end_with_letters_across_its_pieces(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    text = "aé" * 1_000_001

    def write() -> None:
        path.write_text(text, "utf-8")

    writer = threading.Thread(target=write)
    writer.start()
    assert read_text(path, "text", bytes_max=2**22).decode() == text
    writer.join()


def test_text_without_an_end_is_read_to_the_limit() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a" * 4097)
    with pytest.raises(FileError, match="has more; expected at most 4096 bytes"):
        read_text(Path(f"/dev/fd/{reading}"), "text", bytes_max=4096)
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("share = inf", "finite number"),
        ("counts.a = 9_223_372_036_854_775_808", r"64 bits - at `\$.counts.a`"),
        ("share = ", "Invalid value"),
        ("share = [1]", r"Expected `float`, got `array` - at `\$.share`"),
        ("shear = 1", "unknown field `shear`"),
        ("schema_version = 1", "Expected `int` >= 2"),
        ("share = " + "[" * 100_000, "nested too deep"),
    ],
)
def test_toml_is_refused_as_json_is(text: str, said: str) -> None:
    with pytest.raises(FileError, match=f"^cluster file `a.toml`: .*{said}"):
        decode_toml(text, DocumentSizes, "cluster file `a.toml`")
