"""Blocks of README and docs that show commands equal what `benchmarks.quality.printed` prints.

Blocks that take minutes are printed by that command alone.
"""

import re
from pathlib import Path

import pytest

from benchmarks.quality.printed import (
    ROOT,
    ConsoleBlock,
    MarkupError,
    Page,
    ShownCommand,
    aligned,
    blocks,
    cells,
    close,
    exact,
    pages,
    read_page,
    renewed,
    run,
    shown_files,
    words,
)
from benchmarks.quality.printed_pages import generated_pages

LANGUAGES = {"console", "sh", "python", "json", "toml", "yaml", "text"}  # text: drawings


def page(text: str) -> Page:
    return Page(path=ROOT / "page.md", lines=tuple(text.split("\n")))


def quick(path: Path) -> bool:
    return any(not block.minutes for block in blocks(read_page(path)))


@pytest.mark.parametrize(
    "path", [path for path in pages() if quick(path)], ids=lambda path: path.name
)
def test_a_page_shows_what_its_commands_print(path: Path) -> None:
    result = renewed(read_page(path))
    wrong = [*result.changed, *(f"{where} is stale" for where in result.stale)]
    assert not wrong, "\n".join([*wrong, "python -m benchmarks.quality.printed writes it anew"])


def test_generated_pages_are_those_of_the_code() -> None:
    stale = [
        str(path.relative_to(ROOT))
        for path, text in generated_pages()
        if not path.exists() or path.read_text("utf-8") != text
    ]
    assert not stale, "python -m benchmarks.quality.printed writes them anew"


def test_every_fence_says_what_it_holds_and_output_stands_below_its_command() -> None:
    for path in pages():
        opens = True
        for number, line in enumerate(read_page(path).lines, 1):
            if fence := re.match(r"\s*```(.*)", line):
                if opens:
                    assert fence[1] in LANGUAGES, f"{path.name}:{number}: ```{fence[1]}"
                opens = not opens
        assert opens, f"{path.name}: a fence is not closed"
        assert all(block.commands for block in blocks(read_page(path)))


def test_blocks_are_found_with_their_comments_commands_and_lines() -> None:
    text = (
        "<!-- printed: measured, minutes -->\n"
        "```console\n$ first \\\n    --more\none\n$ second\n```\n"
        "```sh\n$ not this\n```\n<!-- printed: $ table -->\n| a |\n|---|\n\nend\n"
        "<!-- printed: minutes, $ slow -->\n| b |\n\n"
        "```console\n$ third\n```"
    )
    assert list(blocks(page(text))) == [
        ConsoleBlock(
            commands=(
                ShownCommand(text="first --more", first=4, end=5),
                ShownCommand(text="second", first=6, end=6),
            ),
            measured=True,
            minutes=True,
        ),
        ConsoleBlock(commands=(ShownCommand(text="table", first=11, end=13),)),
        ConsoleBlock(commands=(ShownCommand(text="slow", first=16, end=17),), minutes=True),
        ConsoleBlock(commands=(ShownCommand(text="third", first=20, end=20),)),
    ]


def test_a_fence_that_names_a_file_is_that_file() -> None:
    text = (
        "```toml\n# own.toml\nnodes = 2\n```\n```python\nprint(1)\n```\n"
        "```python\n# two.py\nprint(2)\n```\n```sh\n# three.py\n```"
    )
    assert shown_files(page(text)) == {
        "own.toml": "# own.toml\nnodes = 2\n",
        "two.py": "# two.py\nprint(2)\n",
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("```console\nno command\n```", "page.md:1: a console fence begins with"),
        ("<!-- printed: sometimes -->\n```console\n$ a\n```", "`sometimes` is none of"),
        ("<!-- printed: measured -->\ntext", "stands above no console fence"),
    ],
)
def test_markup_that_cannot_be_understood_is_refused_with_its_line(
    text: str, sentence: str
) -> None:
    with pytest.raises(MarkupError, match=re.escape(sentence)):
        list(blocks(page(text)))


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        (["a", "b"], ["a", "b"], ["a", "b"]),
        (["a"], ["a", "b"], None),
        (["…", "b"], ["a", "b"], ["…", "b"]),
        (["a", "…"], ["a", "b", "c"], ["a", "…"]),
        (["a", "…", "a"], ["a", "b", "a"], ["a", "…", "a"]),
        (["a", "…", "b", "…", "c"], ["a", "x", "b", "c"], ["a", "…", "b", "…", "c"]),
        (["a", "…", "b", "…", "c"], ["a", "c", "b", "x"], None),
        ([], ["a"], None),
        ([], [], []),
    ],
)
def test_an_output_is_cut_where_the_page_cuts_it(
    shown: list[str], printed: list[str], expected: list[str] | None
) -> None:
    assert aligned(shown, printed, exact) == expected


def test_lines_agree_but_for_seconds_figures_or_cells() -> None:
    assert exact("gap 7 %, searched for 1.6 s") == exact("gap 7 %, searched for 950 ms")
    assert exact("gap 7 %, searched for 1.6 s") != exact("gap 8 %, searched for 1.6 s")
    assert words("step time 194 ms, 5.29 ktoken/s") == words("step time 1.2 s, 870 token/s")
    assert words("│ idle   │ 0 s │") == words("│ idle │ 1.20 ms │")
    assert words("│ idle │ 0 s │") != words("│ compute │ 0 s │")
    assert cells("│ idle │ 0 s │") == cells("│ compute │ 0 s │")


def test_figures_may_differ_by_what_processors_round_and_no_more() -> None:
    assert close(["gap 7.00 %, searched for 1 s"], ["gap 7.02 %, searched for 2 s"])
    assert not close(["gap 7.0 %"], ["gap 7.2 %"])
    assert not close(["1.00 s of 1,000"], ["1.00 ms of 1,000"])
    assert not close(["error +3.0 %"], ["error -3.0 %"])
    assert close(["│ idle │ 0 s │"], ["│ idle │ 0 s │"])


def test_of_lines_that_differ_in_figures_alone_the_one_that_was_shown_is_kept() -> None:
    printed = ["net on 2: 10 ms", "net on 4: 11 ms", "end"]
    assert aligned(["…", "net on 4: 9 ms", "…"], printed, words) == ["…", "net on 4: 11 ms", "…"]
    assert aligned(["…", "net on 8: 9 ms", "…"], printed, words) == ["…", "net on 2: 10 ms", "…"]


def test_stale_figures_are_renewed_and_another_form_is_left_to_a_person() -> None:
    text = "```console\n$ echo step 3 s\nstep 2 s\n$ echo other\nthing\n```"
    result = renewed(page(text))
    assert result.lines == tuple(text.replace("step 2 s", "step 3 s").split("\n"))
    assert result.stale == ("page.md:2: `echo step 3 s`",)
    assert result.changed == ("page.md:4: `echo other` prints another form:\n    other",)


def test_a_command_that_prints_nothing_but_errors_shows_these(tmp_path: Path) -> None:
    assert run("echo out; echo err >&2", tmp_path) == ["out"]
    assert run("echo planning … >&2; echo refused >&2; exit 1", tmp_path) == ["refused"]
