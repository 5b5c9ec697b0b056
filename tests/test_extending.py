"""The page on extending is whole: all it shows is run, and what it says of tests is so.

`tests/test_printed.py` runs its commands in order, in processes of their own, on the files that it
shows, and compares what they print.
"""

import re
from pathlib import Path

import pytest

from benchmarks.quality.printed import blocks, read_page, shown_files
from millrace.models.ops import OPS
from millrace.planner.clusters import names
from millrace.planner.frameworks.framework_tables import frameworks
from millrace.planner.schedules import SCHEDULES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "extending.md"

# The table that each section adds to, as a test that takes every entry names it.
TABLES = {
    "A schedule": "SCHEDULES",
    "A collective algorithm": "collective_duration_ns",
    "An op": "OPS",
    "A framework": "frameworks()",
    "A device": "names()",
}


def sections() -> dict[str, str]:
    """Text of every section by its heading."""
    _, *parts = re.split(r"^## (.+)$", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def linked(text: str) -> list[Path]:
    """Files that a text links."""
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
    return [(PAGE.parent / target).resolve() for target in targets]


def paragraph(section: str, opening: str) -> str:
    """First paragraph of a section that opens so."""
    (text,) = re.findall(rf"\*\*{re.escape(opening)}.*?(?=\n\n)", section, re.DOTALL)[:1]
    return str(text)


def test_commands_of_the_page_take_every_file_that_it_shows() -> None:
    page = read_page(PAGE)
    commands = " ".join(command.text for block in blocks(page) for command in block.commands)
    files = shown_files(page)
    assert len(files) >= 7
    for name in files:
        others = " ".join(text for other, text in files.items() if other != name)
        read = f'"{name}"' in others or f"import {name.removesuffix('.py')}\n" in others
        assert name in commands or read, f"{name} is shown and never used"


@pytest.mark.parametrize("title", TABLES)
def test_a_section_has_an_example_its_output_its_tests_and_its_files(title: str) -> None:
    section = sections()[title]
    (*_, command) = re.findall(r"^```console\n\$ (?:.+\n)+```$", section, re.MULTILINE)
    assert command.count("\n") > 2, "a command and what it prints"
    assert re.search(r"^```(?:python|toml)\n# [\w-]+\.(?:py|toml)\n", section, re.MULTILINE)
    assert len(linked(section.partition("**Files of a contribution")[2])) >= 1


@pytest.mark.parametrize("title", TABLES)
def test_the_tests_that_take_an_entry_by_themselves_read_its_table(title: str) -> None:
    tests = [
        path
        for path in linked(paragraph(sections()[title], "Tests that take"))
        if path.name.startswith("test_") and path.suffix == ".py"
    ]
    assert tests
    for path in tests:
        text = path.read_text("utf-8")
        assert TABLES[title] in text, f"{path.name}: no {TABLES[title]}"


def test_the_examples_are_entries_that_the_package_has_not() -> None:
    entered = re.findall(
        r'^(?:SCHEDULES|OPS)\["(.+?)"\]|^name = "(card|our-trainer)"', PAGE.read_text(), re.M
    )
    assert len(entered) == 5
    assert {a or b for a, b in entered}.isdisjoint({*OPS, *names(), *frameworks(), *SCHEDULES})
