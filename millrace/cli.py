"""CLI: one app, one file per group of commands, one door for everything that fails.

Exit codes are a contract: 0 done; 1 a well-formed question whose answer is no; 2 cannot be
understood; 3 failed while running; 130 interrupted. A failure is one sentence on stderr, and under
`--json` a document with that sentence as `error` on stdout.
"""

import gc
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from errno import ENAMETOOLONG
from functools import cache
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

import millrace

INTERRUPTED = 130
ASKED_TO_END = (signal.SIGTERM, signal.SIGHUP)
# Graphs and tables are many objects in hardly any cycles (5,000 in a search): looked through after
# every 700 new ones, Python's default, they take a tenth of a search's time. A compiled plan has
# 100,000 and more at once: looked through so often, they take a tenth of its prediction's.
COLLECTED = (1_000_000, 20, 100)

LONG = re.compile(r"\S{300,}")  # a name that no screen holds

START = (
    "Start with `millrace demo`, then for example "
    "`millrace plan llama3-8b --cluster h100:8x2 --global-batch 256 --precision bf16`."
)

app = typer.Typer(
    name="millrace",
    help="Plan, simulate, run and compare distributed training of large models.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"millrace {millrace.__version__}")
        raise typer.Exit


@app.callback(epilog=START)
def _front(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Plan, simulate, run and compare distributed training of large models."""


@cache
def filled_app() -> typer.Typer:
    """App with its commands, which take longer to import than `--version` should."""
    from millrace.commands import (
        catalogues,
        comparing,
        demo,
        help_pages,
        improving,
        planning,
        profiling,
        recommending,
        running,
        scaling,
        trainers,
        validating,
    )
    from millrace.serving import serve_command

    jobs = (demo, planning, scaling, recommending, serve_command, running, comparing)
    for group in (*jobs, trainers, improving, profiling, validating, catalogues):
        group.register(app)
    help_pages.arrange(app)
    return app


@cache  # to make it takes as long as most commands take to answer
def _parser() -> Callable[..., Any]:
    """Parser of the app."""
    return typer.main.get_command(filled_app())


def exit_code_of(error: BaseException) -> int | None:
    """Exit code of the contract for an error, None where it is a bug of ours."""
    from millrace.executor.errors import CheckpointError, DataError, ExecutorError
    from millrace.models.documents import FileError
    from millrace.models.errors import ModelError
    from millrace.planner.errors import (
        ChildError,
        ClusterError,
        InfeasibleError,
        PlanError,
        ProtocolError,
    )

    if isinstance(error, InfeasibleError):
        return 1
    refused = PlanError | ModelError | ClusterError | DataError | CheckpointError | FileError
    if isinstance(error, refused):
        return 2
    if isinstance(error, OSError) and error.errno == ENAMETOOLONG:  # what was given is no name
        return 2
    if isinstance(error, ExecutorError | ProtocolError | ChildError | OSError | MemoryError):
        return 3
    from millrace.simulator.errors import SimulationError  # a package that takes long to import

    return 2 if isinstance(error, SimulationError) else None


def _sentence(error: Exception) -> str:
    """Sentence that is printed of an error that we know."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"`{error.filename}`: {error.strerror.lower()}"
    return str(error) or type(error).__name__


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    """Leave through every `finally`, so that no rank outlives the command."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _deafen() -> None:
    """Ignore all further signals: from here on the exit code is decided."""
    for number in (signal.SIGINT, *ASKED_TO_END):
        if signal.getsignal(number) is _terminated:
            signal.signal(number, signal.SIG_IGN)


def _fail(sentence: str, code: int) -> int:
    """Print why the command failed, and return the exit code."""
    from millrace.output import error_document
    from millrace.stdio import NobodyReadsError, visible

    sentence = LONG.sub(lambda name: f"{name[0][:40]}…{name[0][-40:]}", sentence)
    print(f"millrace: {visible(sentence)}", file=sys.stderr)
    if "--json" in sys.argv[1:]:
        with suppress(OSError, NobodyReadsError):  # stdout may be what has failed
            error_document(sentence, code)
    return code


def run(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code.

    Parameters
    ----------
    arguments : list of str, optional
        The command line without the program's name; that of the process when left out.

    Raises
    ------
    SystemExit
        A command ended the process with a code that is no signal's.
    """
    from millrace.commands.options.usage_sentences import empty_value, usage_sentence
    from millrace.stdio import NobodyReadsError

    try:
        given = sys.argv[1:] if arguments is None else arguments
        if sentence := empty_value(given):
            return _fail(sentence, 2)
        code = _parser()(args=given or ["--help"], prog_name="millrace", standalone_mode=False)
        if code == INTERRUPTED:  # what the parser makes of Ctrl-C
            _deafen()
            return _fail("interrupted", INTERRUPTED)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        _deafen()
        return _fail("interrupted", INTERRUPTED)
    except SystemExit as end:
        _deafen()
        for number in ASKED_TO_END:
            if end.code == 128 + number:
                return _fail(f"ended by {number.name}", end.code)
        raise
    except NobodyReadsError:  # nothing more can be said there
        return 0
    except Exception as error:
        if os.environ.get("MILLRACE_TRACEBACK"):
            raise
        if hasattr(error, "format_message"):  # a usage error of the command line's parser
            return _fail(usage_sentence(error, given), 2)
        code = exit_code_of(error)
        if code is not None:
            return _fail(_sentence(error), code)
        return _fail(
            f"a bug in Millrace: {type(error).__name__}: {error} "
            f"(set MILLRACE_TRACEBACK=1 to see where)",
            3,
        )


def main() -> NoReturn:
    """Run the command line of this process."""
    from millrace.stdio import silence, take_over

    take_over()
    gc.set_threshold(*COLLECTED)
    for number in (signal.SIGINT, *ASKED_TO_END):
        if signal.getsignal(number) != signal.SIG_IGN:  # as `nohup` has it
            signal.signal(number, _terminated)
    code = run()
    _deafen()
    try:
        sys.stdout.flush()
    except Exception:  # it has been said, and is not to be said again by the interpreter
        silence(sys.stdout)
    sys.exit(code)
