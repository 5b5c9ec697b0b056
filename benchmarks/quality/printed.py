"""Output of commands that README and docs show, printed anew and put in its place.

Run `python -m benchmarks.quality.printed [FILE...] [--check] [--all]` from the root
of the repository. Without files it takes every page that a person wrote, and what is generated
(`printed_pages.py`: docs/cli.md, docs/schemas/ and the picture of the README).

A block is a fence of `console` lines: commands after `$ `, each followed by what it prints. A line
that is only `…` stands for any number of lines. A comment directly above the fence says what a
plain comparison must not expect:

    <!-- printed: measured -->                  figures are this machine's: words are compared
    <!-- printed: minutes -->                   run with --all only
    <!-- printed: $ python -m benchmarks.x -->  what follows, up to an empty line, is Markdown;
                                                words for it stand in front: `minutes, $ python`

Blocks of a page run in order in one scratch folder, from which `benchmarks` and `examples` are
reached as from the checkout. A fence of `python` or `toml` whose first line is a comment with the
name of a file, such as `# own.toml`, lies there as that file. What counts is stdout or, where
nothing is printed there, stderr. Seconds of the wall clock differ from run to run and are compared
by their form; other figures may differ by a hundredth, since processors round differently.

`--check` writes nothing and exits with 1 where a page shows something else than its commands print;
so does writing, where what is shown has another form than what is printed and a person has to look.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.quality.printed_pages import generated_pages

ROOT = Path(__file__).resolve().parents[2]
ELLIPSIS = "…"
SECONDS_LIMIT = 3600
ROUNDING = 0.01  # relative; what differs by more is stale
# Quantities with units, signs and group separators: `6.18 s`, `+3.0 %`, `50,460`, `1e-07`.
QUANTITY = re.compile(
    r"[-+]?\$?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?[KMGT]?"
    r"(?: ?(?:[kMGT]?token/s|images?/s|samples?/s|[KMG]iB|GB|ms|µs|ns|s|h|days?|%)(?!\w))?"
)
WALL_CLOCK = re.compile(
    r"(?<=searched for )[\d.,]+ (?:ms|s)|(?<=firings in )[\d.,]+ (?:ms|s)|"
    r'(?<="search_time_s": )[\d.e-]+|(?<="wall_time_s": )[\d.e-]+|(?<="seconds": )[\d.e-]+'
)
FILE = re.compile(
    r"^```(?:python|toml)\n(# ([\w-]+\.(?:py|toml))\n.*?)^```$", re.DOTALL | re.MULTILINE
)
DRAWN = re.compile(r"[\s━─┃│┏┓┗┛┡┩┳┻╇├┤┼└┘┴]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCommand:
    """One command of a block with the lines that the page shows of its output.

    `first` and `end` are the half-open range of those lines in the page, counted from 0.
    """

    text: str
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleBlock:
    """A fence of commands and outputs, and what its comment says of it."""

    commands: tuple[ShownCommand, ...]
    measured: bool = False
    minutes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A Markdown file and its lines."""

    path: Path
    lines: tuple[str, ...]


def read_page(path: Path) -> Page:
    """Page of a file."""
    return Page(path=path, lines=tuple(path.read_text("utf-8").split("\n")))


class MarkupError(Exception):
    """A comment or a fence that cannot be understood; the message names file and line."""


def blocks(page: Page) -> Iterator[ConsoleBlock]:
    """Yield the printed blocks of a page, in its order.

    Raises
    ------
    MarkupError
        Where a fence does not begin with a command, or a comment says something unknown.
    """
    options: dict[str, bool] = {}
    index = 0
    while index < len(page.lines):
        line = page.lines[index]
        where = f"{page.path.name}:{index + 1}"
        index += 1
        if comment := re.fullmatch(r"<!-- printed: (.+) -->", line):
            words, dollar, text = comment[1].partition("$ ")
            options = _options(words.removesuffix(", "), where)
            if dollar:
                end = _next(page.lines, index, lambda each: not each.strip())
                command = ShownCommand(text=text, first=index, end=end)
                yield ConsoleBlock(commands=(command,), **options)
                options, index = {}, end
            elif index >= len(page.lines) or page.lines[index] != "```console":
                raise MarkupError(f"{where}: the comment stands above no console fence")
        elif line == "```console":
            end = _next(page.lines, index, lambda each: each == "```")
            yield ConsoleBlock(commands=tuple(_commands(page.lines, index, end, where)), **options)
            options, index = {}, end + 1
        elif line.startswith("```") and line != "```":
            index = _next(page.lines, index, lambda each: each == "```") + 1


def shown_files(page: Page) -> dict[str, str]:
    """Contents of the files that a page shows, by name."""
    return {name: text for text, name in FILE.findall("\n".join(page.lines))}


def _next(lines: Sequence[str], start: int, ends: Callable[[str], bool]) -> int:
    """Index of the first line from `start` on that ends what has begun, or of the page's end."""
    return next((i for i in range(start, len(lines)) if ends(lines[i])), len(lines))


def _options(text: str, where: str) -> dict[str, bool]:
    """Fields of a ConsoleBlock that a comment sets."""
    options: dict[str, bool] = {}
    for word in filter(None, text.split(", ")):
        if word in ("measured", "minutes"):
            options[word] = True
        else:
            raise MarkupError(f"{where}: `{word}` is none of measured, minutes")
    return options


def _commands(lines: Sequence[str], first: int, end: int, where: str) -> Iterator[ShownCommand]:
    """Yield the commands of a fence; one may go on behind a backslash."""
    if first == end or not lines[first].startswith("$ "):
        raise MarkupError(f"{where}: a console fence begins with `$ ` and a command")
    index = first
    while index < end:
        text = lines[index].removeprefix("$ ")
        while text.endswith("\\") and index + 1 < end:
            index += 1
            text = text[:-1] + lines[index].lstrip()
        shown = index + 1
        index = _next(lines, shown, lambda each: each.startswith("$ ") or each == "```")
        yield ShownCommand(text=text, first=shown, end=index)


def run(command: str, folder: Path) -> list[str]:
    """Lines that a command prints, without blanks at their ends.

    Parameters
    ----------
    command : str
        As it would be typed in a shell.
    folder : Path
        The current directory while it runs.
    """
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_LIMIT,
        check=False,
    )
    text = done.stdout if done.stdout.strip() else done.stderr
    lines = [line.rstrip() for line in text.rstrip("\n").split("\n")]
    return [line for line in lines if not line.endswith(f" {ELLIPSIS}") or done.stdout.strip()]


def exact(line: str) -> str:
    """Form of a line that is the same in every run: all of it but seconds of the wall clock."""
    return WALL_CLOCK.sub("#", line)


def words(line: str) -> str:
    """Form of a line whose figures have changed: all of it but quantities and drawn borders."""
    return DRAWN.sub(" ", QUANTITY.sub("#", line)).strip()


def cells(line: str) -> str:
    """Form of a line that was measured: of a table's row only how many cells it has."""
    return f"row of {line.count('│') - 1} cells" if line.startswith("│") else words(line)


def aligned(
    shown: Sequence[str], printed: Sequence[str], form: Callable[[str], str]
) -> list[str] | None:
    """Lines to show of an output, cut where the old ones are; None where the forms differ.

    Parameters
    ----------
    shown, printed : sequence of str
        What the page shows, with `…` for what it leaves out, and what the command prints.
    form : callable
        What a shown and a printed line must have in common: `exact`, `words` or `cells`.

    Examples
    --------
    >>> aligned(["step 2.0 s", "…", "loss 3"], ["step 2.1 s", "warm", "loss 4"], words)
    ['step 2.1 s', '…', 'loss 4']
    """
    forms = [form(line) for line in printed]
    result: list[str] = []
    position = 0
    pieces = _split(shown)
    for number, piece in enumerate(pieces):
        wanted = [form(line) for line in piece]
        starts = range(position, len(forms) + 1) if number else range(1)
        if piece and number == len(pieces) - 1:  # the end of what is shown is the output's
            starts = (
                range(max(len(forms) - len(wanted), position), len(forms)) if number else starts
            )
        fitting = [i for i in starts if forms[i : i + len(wanted)] == wanted]
        if not fitting:
            return None
        start = max(fitting, key=lambda i: _common_words(piece, printed[i : i + len(piece)]))
        result += [*([ELLIPSIS] if number else []), *printed[start : start + len(wanted)]]
        position = start + len(wanted)
    open_ended = len(pieces) > 1 and not pieces[-1]
    return result if open_ended or position == len(forms) else None


def close(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """True if lines of one form have the same figures, up to the rounding of processors.

    A search compares sums of many floats, whose last digits depend on the order of a processor's
    vector units: figures may differ by `ROUNDING`, everything else may not.
    """
    figures = [
        [QUANTITY.findall(WALL_CLOCK.sub("", line)) for line in lines] for lines in (shown, printed)
    ]
    return all(
        old == new
        or (_unit(old) == _unit(new) and isclose(_size(old), _size(new), rel_tol=ROUNDING))
        for before, after in zip(*figures, strict=True)
        for old, new in zip(before, after, strict=True)
    )


def _unit(quantity: str) -> str:
    """Quantity without its figures: sign, prefix and unit."""
    return re.sub(r"[\d,.]+", "", quantity)


def _size(quantity: str) -> float:
    """Magnitude of a quantity in its own unit."""
    figures = re.search(r"\d[\d,]*(?:\.\d+)?", quantity)
    return float(figures[0].replace(",", "")) if figures else 0.0


def _common_words(shown: Sequence[str], printed: Sequence[str]) -> int:
    """Number of words at the same place of the same line; tells lines of one form apart."""
    pairs = zip(shown, printed, strict=True)
    return sum(a == b for old, new in pairs for a, b in zip(old.split(), new.split(), strict=False))


def _split(shown: Sequence[str]) -> list[list[str]]:
    """Runs of lines between the lines that stand for others."""
    pieces: list[list[str]] = [[]]
    for line in shown:
        if line.strip() == ELLIPSIS:
            pieces.append([])
        else:
            pieces[-1].append(line.rstrip())
    return pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """A page with the output of today, and what a person has to look at.

    `stale` names the commands whose output has other figures, `changed` those whose output has
    another form, with that output; these stay in the page as they were.
    """

    lines: tuple[str, ...]
    stale: tuple[str, ...]
    changed: tuple[str, ...]


def renewed(page: Page, *, minutes: bool = False) -> Renewed:
    """Page with what its commands print now.

    Parameters
    ----------
    page : Page
        Its blocks run in order in one scratch folder.
    minutes : bool
        Also run what takes minutes.
    """
    lines, stale, changed = list(page.lines), [], []
    with tempfile.TemporaryDirectory(prefix="printed-") as name:
        folder = Path(name)
        for linked in ("benchmarks", "examples"):
            (folder / linked).symlink_to(ROOT / linked)
        for shown_file, text in shown_files(page).items():
            (folder / shown_file).write_text(text, "utf-8")
        shift = 0
        for block in blocks(page):
            if block.minutes and not minutes:
                continue
            for command in block.commands:
                shown = page.lines[command.first : command.end]
                printed = run(command.text, folder)
                where = f"{page.path.relative_to(ROOT)}:{command.first}: `{command.text}`"
                forms = (exact, words, cells) if block.measured else (exact, words)
                fits = (aligned(shown, printed, form) for form in forms)
                output = next((each for each in fits if each is not None), None)
                if output is None:
                    changed.append("\n    ".join((f"{where} prints another form:", *printed)))
                    continue
                if not block.measured and not close(shown, output):
                    stale.append(where)
                lines[command.first + shift : command.end + shift] = output
                shift += len(output) - len(shown)
    return Renewed(lines=tuple(lines), stale=tuple(stale), changed=tuple(changed))


def pages() -> list[Path]:
    """Markdown files of the repository that a person wrote."""
    folders = ("", "benchmarks", "docs", "docs/decisions", "examples")
    written = [path for folder in folders for path in sorted((ROOT / folder).glob("*.md"))]
    return [path for path in written if path != ROOT / "docs" / "cli.md"]


def main(
    files: Annotated[list[Path] | None, typer.Argument()] = None,
    check: Annotated[
        bool, typer.Option(help="Write nothing; exit with 1 where one is stale.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also what takes minutes.")] = False,
) -> None:
    """Print anew what README and docs show of commands."""
    for file in files or ():
        if not file.resolve().is_relative_to(ROOT) or not file.is_file():
            sys.exit(f"{file}: give a Markdown file of the repository")
    failed = False
    for path in [file.resolve() for file in files] if files else pages():
        page = read_page(path)
        result = renewed(page, minutes=everything)
        failed |= bool(result.changed or (check and result.stale))
        for text in (*result.changed, *(f"{where} is stale" for where in result.stale)):
            print(text, file=sys.stderr)
        if not check and result.lines != page.lines:
            path.write_text("\n".join(result.lines), "utf-8")
            print(f"{path.relative_to(ROOT)} written", file=sys.stderr)
    for path, text in {} if files else generated_pages():
        if path.exists() and path.read_text("utf-8") == text:
            continue
        failed |= check
        print(f"{path.relative_to(ROOT)} {'is stale' if check else 'written'}", file=sys.stderr)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    raise SystemExit(failed)


if __name__ == "__main__":
    try:
        typer.run(main)
    except MarkupError as error:
        sys.exit(str(error))
