"""The desk at which simulations are asked for: one worker, few who wait, little time for each."""

import threading
from typing import Any

from millrace.serving.planning_jobs import PlanShelf
from millrace.serving.questions import SimulationQuestion
from millrace.serving.refusals import RefusedError
from millrace.serving.worker_line import WorkerEndedError, WorkerLine

SIMULATION_S = 30.0
WAITING_MAX = 8


class SimulationDesk:
    """A worker for simulations, which is sent each plan once."""

    def __init__(self, shelf: PlanShelf, limit_s: float = SIMULATION_S) -> None:
        self._shelf = shelf
        self._limit_s = limit_s
        self._worker = WorkerLine()
        self._turn = threading.Lock()
        self._places = threading.BoundedSemaphore(WAITING_MAX)

    def start(self) -> None:
        """Start the worker, so that the first question does not wait for its imports."""
        self._worker.start()

    def end(self) -> None:
        """End the worker."""
        self._worker.end()

    def ask(self, task: str, question: SimulationQuestion) -> Any:
        """Answer of a task about a plan under changes.

        Parameters
        ----------
        task : str
            simulate, step or report.
        question : SimulationQuestion
            The plan and the changes.

        Raises
        ------
        RefusedError
            The plan is not there, a change is none, too many wait, or it takes too long.
        """
        text = self._shelf.text(question.plan)
        if not self._places.acquire(blocking=False):
            raise RefusedError(
                f"{WAITING_MAX} simulations wait already: ask again in a second", status=429
            )
        try:
            with self._turn:
                what_ifs = question.what_ifs.model_dump()
                message = {"task": task, "plan": question.plan, "text": text, "what_ifs": what_ifs}
                return self._worker.ask(message, self._limit_s)
        except WorkerEndedError:
            raise RefusedError("the process that simulated was ended: ask again", 503) from None
        finally:
            self._places.release()
