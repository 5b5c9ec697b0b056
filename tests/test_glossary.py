"""The glossary is true of the code: its links lead somewhere, and its names are there."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parent.parent / "docs" / "glossary.md"


class GlossaryEntry(NamedTuple):
    word: str
    names: tuple[str, ...]
    files: tuple[Path, ...]


def entries(text: str) -> Iterator[GlossaryEntry]:
    """The entries of lists, a paragraph each, and of tables, a row each.

    Of an entry the head holds its names: all before the first colon, or a row's first cell.
    """
    for line in re.findall(r"^(?:- \*\*.+(?:\n  .+)*|\| \*\*.+)$", text, re.MULTILINE):
        head = line.split(" | ")[0] if line.startswith("|") else re.split(r":\s", line)[0]
        (word,) = re.findall(r"\*\*(.+?)\*\*", head)
        yield GlossaryEntry(word, tuple(re.findall(r"`(.+?)`", head)), tuple(linked(line)))


def linked(text: str) -> Iterator[Path]:
    """The files that a text links; links within the page lead to none."""
    for target in re.findall(r"\]\(([^)]*)\)", text):
        if not target.startswith("#"):
            yield PAGE.parent / target.partition("#")[0]


def says(file: Path, name: str) -> bool:
    """True if a file holds a name that is no part of a longer one."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", file.read_text()) is not None


def test_every_file_that_the_glossary_links_exists():
    missing = [str(file) for file in linked(PAGE.read_text()) if not file.is_file()]
    assert missing == []


def test_every_name_of_an_entry_occurs_in_a_file_that_the_entry_links():
    for entry in entries(PAGE.read_text()):
        assert entry.files, f"`{entry.word}` links no file"
        for name in entry.names:
            assert any(says(file, name) for file in entry.files), f"{entry.word}: `{name}`"


def test_a_word_has_one_entry():
    words = Counter(entry.word for entry in entries(PAGE.read_text()))
    assert len(words) >= 150
    assert [word for word, count in words.items() if count > 1] == []
