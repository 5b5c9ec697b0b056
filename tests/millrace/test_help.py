"""Help: pages that wait for no heavy library, and say what is so."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from millrace.cli import filled_app
from millrace.commands.examples import EXAMPLES
from millrace.commands.help_pages import COMMANDS, OPTIONS
from millrace.commands.options import option_words
from millrace.commands.options.sweep_options import texts
from millrace.models.builder import PRECISIONS
from millrace.models.training.unfused_attention import FLASH
from millrace.models.zoo.catalogue import NAMES, canonical_name
from millrace.planner.clusters import framework, parse_cluster
from millrace.planner.frameworks.capabilities import DISPATCHERS
from millrace.planner.memory import DEFAULT_RESERVE
from millrace.planner.plan import COUNT_MAX, MAX_GAP, SEED_MAX
from millrace.planner.schedules import SCHEDULES

HEAVY = ("numpy", "ortools", "networkx", "simpy", "scipy", "matplotlib", "mpi4py", "rich")
NEVER_LOOKED_UP = ("ortools", "networkx", "simpy", "scipy", "matplotlib", "mpi4py", "torch", "onnx")


def test_no_page_of_help_imports_a_heavy_library() -> None:
    """All pages in one process: a heavy library is told with the page that brought it."""
    code = (
        "import contextlib, io, sys\n"
        "from millrace.cli import filled_app, run\n"
        "names = [command.name for command in filled_app().registered_commands]\n"
        "for page in ([], *([name] for name in names)):\n"
        "    with contextlib.redirect_stdout(io.StringIO()):\n"
        "        assert run([*page, '--help']) == 0\n"
        f"    brought = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "    if brought: sys.exit(f'{page} --help brings {brought}')\n"
        "assert len(names) > 10"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_looks_up_imports_no_library_that_only_planning_and_running_need() -> None:
    plan = Path(__file__).parents[1] / "executor" / "plans" / "bf16-tp2.json"
    lines = ["--version"], ["models", "gpt2-small"], ["clusters"], ["show", str(plan)]
    code = (
        "import contextlib, io, sys\n"
        "from millrace.cli import run\n"
        f"for line in {lines!r}:\n"
        "    with contextlib.redirect_stdout(io.StringIO()):\n"
        "        assert run(line) == 0\n"
        f"    brought = [name for name in {NEVER_LOOKED_UP!r} if name in sys.modules]\n"
        "    if brought: sys.exit(f'{line} brings {brought}')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_words_of_options_are_those_of_their_owners() -> None:
    for words, names in (
        (option_words.PRECISIONS, PRECISIONS),
        (option_words.SCHEDULES, SCHEDULES),
        (option_words.DISPATCHERS, DISPATCHERS),
    ):
        assert words == ", ".join(names)
    assert f"{DEFAULT_RESERVE.fraction:.0%}" == option_words.RESERVE
    assert option_words.FLASH == FLASH
    limits = option_words.COUNT_MAX, option_words.MAX_GAP, option_words.SEED_MAX
    assert limits == (COUNT_MAX, MAX_GAP, SEED_MAX)


def commands() -> tuple[Any, Any]:
    """The app as its parser has it, and its context."""
    app: Any = typer.main.get_command(filled_app())
    return app, app.make_context("millrace", ["models"])


def test_every_example_parses_and_names_what_there_is() -> None:
    app, context = commands()
    for line in (line for rows in EXAMPLES.values() for _, line in rows):
        program, name, *words = shlex.split(line)
        assert program == "millrace", line
        values = app.get_command(context, name).make_context(name, words, parent=context).params
        for model in (values.get("model"), *(values.get("names") or ())):
            assert model is None or name == "clusters" or canonical_name(model) in NAMES, line
        clusters = values.get("cluster") or ()
        for text in [clusters] if isinstance(clusters, str) else texts("--cluster", clusters):
            where = text if "x" in text else f"{text}x1"
            assert text.startswith("local") or parse_cluster(where), line
        runner = values.get("framework")
        assert runner is None or framework(runner), line


def test_every_command_has_two_or_three_examples_below_its_page(call) -> None:
    app, context = commands()
    assert set(app.list_commands(context)) == set(EXAMPLES)
    for name, rows in EXAMPLES.items():
        assert 2 <= len(rows) <= 3
        assert all(words[:2] == ["millrace", name] for words in (line.split() for _, line in rows))
        _, page, _ = call(name, "--help")
        for aim, line in rows:
            assert f"# {aim}\n" in page
            assert line in page.replace(" \\\n      ", " ")


def test_sections_name_commands_and_options_that_there_are(call) -> None:
    app, context = commands()
    assert set(app.list_commands(context)) == {name for row in COMMANDS.values() for name in row}
    for name, sections in OPTIONS.items():
        named = [option for options in sections.values() for option in options]
        parameters = {parameter.name for parameter in app.get_command(context, name).params}
        assert set(named) <= parameters
        assert len(set(named)) == len(named)
        _, page, _ = call(name, "--help")
        assert all(f"\n{title}:\n" in page for title in (*sections, "Answer", "Examples"))


@pytest.mark.parametrize("columns", [80, 100])
def test_pages_fit_their_terminal(call, monkeypatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in EXAMPLES:
        _, page, _ = call(name, "--help")
        assert [line for line in page.splitlines() if len(line) > columns] == []
