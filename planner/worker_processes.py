"""Worker processes: forked children that end with this process, however it ends.

A child holds one end of a line (a pair of sockets) and this process the other. Whatever ends this
process, the kernel closes its end; a thread of the child waits for nothing else and then ends the
child, and so on for the child's own children. Signals that ask to end are for this process alone:
a child ignores Ctrl-C, dies of SIGTERM as of SIGKILL, and is killed when this process goes on to
other things or leaves.
"""

import os
import select
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from millrace.planner.errors import ChildError

Asking = TypeVar("Asking")
Answer = TypeVar("Answer")
ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def end_with(line: int, last: Callable[[], None] = lambda: None) -> None:
    """End this process as soon as the other end of a line is closed.

    Parameters
    ----------
    line : int
        Descriptor of a pipe or socket; nothing is read from it.
    last : callable
        Called without arguments before the end, from a thread; the exit code is 1 all the same.
        Default: nothing.
    """

    def watch() -> None:
        poll = select.poll()
        poll.register(line, 0)  # that the other end has gone is reported unasked
        poll.poll()
        try:
            last()
        finally:
            os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


class Child:
    """A forked process that begins with all that is here.

    Parameters
    ----------
    life
        What it does; given its end of the line. What it raises is not told anywhere.

    Attributes
    ----------
    line
        This process's end.
    """

    def __init__(self, life: Callable[["Connection[Any, Any]"], None]) -> None:
        self.line, theirs = Pipe()
        self._code: int | None = None
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            with warnings.catch_warnings():
                # A child computes with arrays and ends; it needs no other thread.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._process = os.fork()
            if not self._process:
                self.line.close()
                _live(life, theirs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def answer(self) -> Any:
        """Next answer that the child sends; raises EOFError where it has ended."""
        try:
            return self.line.recv()
        except ConnectionResetError:
            raise EOFError from None

    def end(self) -> str:
        """Kill it, unless it has ended; return how it ended."""
        self.line.close()
        if self._code is None:
            with suppress(ProcessLookupError):
                os.kill(self._process, signal.SIGKILL)
            self._code = os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])
        return signal.Signals(-self._code).name if self._code < 0 else f"code {self._code}"


def _live(life: Callable[["Connection[Any, Any]"], None], line: "Connection[Any, Any]") -> None:
    """Run the life of a child and exit; nothing that was copied is flushed or closed twice."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        end_with(line.fileno())
        life(line)
        code = 0
    finally:
        os._exit(code)


def map_in_processes(
    work: Callable[[Asking], Answer], jobs: Sequence[Asking], processes: int
) -> Iterator[Answer]:
    """Answers of `work` to every job, in the order of the jobs, from several processes.

    Parameters
    ----------
    work : callable
        Function of one job; answers pickle. Where it raises in a process it is called again here.
    jobs : sequence
        The jobs; processes are forked with them, so they need not pickle.
    processes : int
        How many at the most; with one, or with one job, all is done here.

    Raises
    ------
    ChildError
        A process was ended from outside; says how. What `work` raises is raised as it is.
    """
    if processes == 1 or len(jobs) < 2:
        yield from map(work, jobs)
        return
    children: list[Child] = []
    try:
        with suppress(OSError):  # no more processes are allowed: fewer do it
            for _ in range(min(processes, len(jobs))):
                children.append(Child(partial(_serve, work, jobs)))
        yield from _answers(work, jobs, children) if children else map(work, jobs)
    finally:
        for child in children:
            child.end()


def _serve(
    work: Callable[[Asking], Answer], jobs: Sequence[Asking], line: "Connection[Any, Any]"
) -> None:
    """Do the jobs whose numbers come; an empty answer asks for the job to be done there."""
    while True:
        job = jobs[line.recv()]
        try:
            line.send((work(job),))
        except Exception:
            line.send(())


def _answers(
    work: Callable[[Asking], Answer], jobs: Sequence[Asking], children: list[Child]
) -> Iterator[Answer]:
    numbers = iter(range(len(jobs)))
    answers: dict[int, tuple[Answer, ...]] = {}
    busy: dict[object, tuple[Child, int]] = {}

    def hand(child: Child) -> None:
        number = next(numbers, None)
        if number is not None:
            busy[child.line] = child, number
            with suppress(OSError):  # it has ended, which its line tells next
                child.line.send(number)

    for child in children:
        hand(child)
    for position in range(len(jobs)):
        while position not in answers:
            for line in wait([child.line for child, _ in busy.values()]):
                child, number = busy.pop(line)
                try:
                    answer = child.answer()
                except EOFError:
                    raise ChildError(
                        f"one of {len(children)} processes was ended by {child.end()}; where "
                        f"memory had run out, fewer processes need less"
                    ) from None
                answers[number] = answer
                hand(child)
        answer = answers.pop(position)
        yield answer[0] if answer else work(jobs[position])  # which raises what it raised there
