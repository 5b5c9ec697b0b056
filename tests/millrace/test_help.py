"""Help: pages that wait for no heavy library, and say what is so."""

import subprocess
import sys

from millrace.commands import option_words
from millrace.models.builder import PRECISIONS
from millrace.models.unfused_attention import FLASH
from millrace.planner.frameworks.capabilities import DISPATCHERS
from millrace.planner.memory import DEFAULT_RESERVE
from millrace.planner.plan import MAX_GAP, SEED_MAX
from millrace.planner.schedules import SCHEDULES

HEAVY = ("numpy", "ortools", "networkx", "simpy", "scipy", "matplotlib", "mpi4py", "rich")


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


def test_words_of_options_are_those_of_their_owners() -> None:
    for words, names in (
        (option_words.PRECISIONS, PRECISIONS),
        (option_words.SCHEDULES, SCHEDULES),
        (option_words.DISPATCHERS, DISPATCHERS),
    ):
        assert words == ", ".join(names)
    assert f"{DEFAULT_RESERVE.fraction:.0%}" == option_words.RESERVE
    assert (option_words.FLASH, option_words.MAX_GAP, option_words.SEED_MAX) == (
        FLASH,
        MAX_GAP,
        SEED_MAX,
    )
