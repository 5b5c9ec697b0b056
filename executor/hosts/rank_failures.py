"""Failures of ranks: written down in the rank, read by whoever started it."""

import os
import signal
import traceback
from pathlib import Path
from time import perf_counter_ns

import msgspec

from millrace.executor.errors import ExecutorError, RankFailedError
from millrace.executor.hosts.local_ranks import RankEnded
from millrace.planner.errors import InfeasibleError

LAST_LINES, OUTPUT_BYTES = 5, 2**16


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Report that a rank writes before it ends early."""

    rank: int
    actor: str | None
    cause: str
    at_ns: int
    details: str
    infeasible: bool = False  # the question was well-formed, and the answer is no


def report_failure(folder: Path, rank: int, actor: str | None, error: BaseException) -> None:
    """Write down in a rank why it cannot go on, which is read when the rank has ended.

    Parameters
    ----------
    folder
        The job's folder.
    rank, actor
        Where it failed; the error may know the actor itself.
    error
        What happened.
    """
    infeasible = isinstance(error, InfeasibleError)
    if isinstance(error, ExecutorError):
        actor, cause = actor or error.actor, error.cause
    elif infeasible:
        cause = str(error)
    else:
        cause = f"{type(error).__name__}: {error}"
    failure = Failure(
        rank=rank,
        actor=actor,
        cause=cause,
        at_ns=perf_counter_ns(),
        details="".join(traceback.format_exception(error)),
        infeasible=infeasible,
    )
    draft = folder / f"failure.{rank}.draft"
    draft.write_bytes(msgspec.json.encode(failure))
    draft.replace(folder / f"failure.{rank}.json")


def failure_of(folder: Path, ended: RankEnded) -> ExecutorError | InfeasibleError:
    """Error that tells what went wrong: what the rank wrote that ended first, or how it died.

    Parameters
    ----------
    folder
        The job's folder.
    ended
        End of the first rank; what others wrote came of that.
    """
    path = folder / f"failure.{ended.rank}.json"
    if path.exists():
        failure = msgspec.json.decode(path.read_bytes(), type=Failure)
        error: ExecutorError | InfeasibleError
        if failure.infeasible:
            error = InfeasibleError(failure.cause)
        else:
            error = RankFailedError(failure.cause, rank=failure.rank, actor=failure.actor)
        error.add_note(failure.details)
        return error
    cause = ended.cause or _end_of(folder, ended.code)
    if ended.host is not None:  # the sentence names it, and its ranks
        error = RankFailedError(cause, host=ended.host)
        error.rank = ended.rank
        return error
    return RankFailedError(cause, rank=ended.rank)


def _end_of(folder: Path, code: int | None) -> str:
    """Words for the end of a process that has written nothing."""
    if code is None:
        return "the process ended, nobody knows how"
    if code < 0:
        return f"the process ended: {signal.strsignal(-code)} (signal {-code})"
    printed = ""
    for output in sorted(folder.glob("output*")):
        with output.open("rb") as file:
            file.seek(max(output.stat().st_size - OUTPUT_BYTES, 0), os.SEEK_SET)
            printed += file.read().decode(errors="replace")
    lines = [line for line in printed.splitlines() if line.strip()]
    said = f"; last lines of the ranks: {' | '.join(lines[-LAST_LINES:])}" if lines else ""
    return f"the process ended with code {code}{said}"
