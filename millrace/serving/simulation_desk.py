"""The desk at which simulations are asked for: one worker, few who wait, little time for each.

A second worker looks ahead: it answers what the page's sliders lead to, while nobody asks. Equal
questions have equal answers, so that either worker's may be kept.
"""

import threading
from collections import OrderedDict
from typing import Any

from millrace.serving.planning_jobs import PlanShelf
from millrace.serving.questions import SimulationQuestion, WhatIfs
from millrace.serving.refusals import RefusedError
from millrace.serving.sliders import likely_changes
from millrace.serving.worker_line import WorkerEndedError, WorkerLine

SIMULATION_S = 30.0
WAITING_MAX = 8
KEPT_FIGURES, KEPT_STEPS = 1000, 24


class AnswerShelf:
    """Answers to the latest questions, by task, plan and changes."""

    def __init__(self) -> None:
        self._answers: dict[str, OrderedDict[tuple[str, str], Any]] = {}
        self._lock = threading.Lock()

    def get(self, task: str, plan: str, changes: WhatIfs) -> Any:
        """Answer of a task, None where it is not there.

        Parameters
        ----------
        task, plan : str
            What was asked, of which plan.
        changes : WhatIfs
            Under which changes.
        """
        with self._lock:
            answers = self._answers.get(task)
            return None if answers is None else answers.get((plan, changes.model_dump_json()))

    def add(self, task: str, plan: str, changes: WhatIfs, answer: Any) -> None:
        """Keep an answer, and forget the oldest of its task where there are many.

        Parameters
        ----------
        task, plan, changes
            As for `get`.
        answer : object
            As the worker gave it.
        """
        with self._lock:
            answers = self._answers.setdefault(task, OrderedDict())
            answers[plan, changes.model_dump_json()] = answer
            if len(answers) > (KEPT_FIGURES if task == "simulate" else KEPT_STEPS):
                answers.popitem(last=False)


class Foresight:
    """A worker of low priority that answers what sliders lead to, from the question asked last."""

    def __init__(self, shelf: PlanShelf, answers: AnswerShelf) -> None:
        self._shelf, self._answers = shelf, answers
        self._worker = WorkerLine(niceness=10)
        self._asked: tuple[str, WhatIfs, WhatIfs] | None = None  # plan, changes, those before
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="foresight", daemon=True)

    def start(self) -> None:
        """Start the thread; its worker starts with the first plan."""
        self._thread.start()

    def end(self) -> None:
        """End the worker and the thread that asks it."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._worker.end()
        self._thread.join()

    def turn_to(self, plan: str, changes: WhatIfs) -> None:
        """Look ahead from a question that was just answered.

        Parameters
        ----------
        plan : str
            Which was asked about.
        changes : WhatIfs
            Under which it was simulated.
        """
        with self._changed:
            before = WhatIfs()
            if self._asked is not None and self._asked[0] == plan:
                if self._asked[1] == changes:
                    return
                before = self._asked[1]
            self._asked = plan, changes, before
            self._changed.notify_all()

    def _work(self) -> None:
        asked = None
        while True:
            with self._changed:
                while self._asked == asked and not self._ended:
                    self._changed.wait()
                asked = self._asked
                if self._ended:
                    return
            if asked is not None:
                self._look_ahead(*asked)

    def _look_ahead(self, plan: str, now: WhatIfs, before: WhatIfs) -> None:
        try:
            document, text = self._shelf.document(plan), self._shelf.text(plan)
        except RefusedError:
            return
        several_nodes = document["cluster"]["nodes"] > 1
        for changes in likely_changes(now, before, document["overlap"], several_nodes):
            if self._ended or self._asked != (plan, now, before):
                return
            if self._answers.get("simulate", plan, changes) is not None:
                continue
            try:
                answer = self._worker.ask(_message("simulate", plan, text, changes), SIMULATION_S)
            except WorkerEndedError:
                return
            except RefusedError:
                continue  # who asks for it is told why
            self._answers.add("simulate", plan, changes, answer)


class SimulationDesk:
    """A worker for simulations, and one that looks ahead."""

    def __init__(self, shelf: PlanShelf, limit_s: float = SIMULATION_S) -> None:
        self._shelf = shelf
        self._limit_s = limit_s
        self._worker = WorkerLine()
        self._answers = AnswerShelf()
        self._foresight = Foresight(shelf, self._answers)
        self._turn = threading.Lock()
        self._places = threading.BoundedSemaphore(WAITING_MAX)

    def start(self) -> None:
        """Start the worker, so that the first question does not wait for its imports."""
        self._worker.start()
        self._foresight.start()

    def end(self) -> None:
        """End both workers."""
        self._foresight.end()
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
        plan, changes = question.plan, question.what_ifs
        text = self._shelf.text(plan)
        answer = self._answers.get(task, plan, changes)
        if answer is None:
            answer = self._asked(task, plan, text, changes)
            self._answers.add(task, plan, changes, answer)
        if task == "simulate":
            self._foresight.turn_to(plan, changes)
        return answer

    def _asked(self, task: str, plan: str, text: str, changes: WhatIfs) -> Any:
        if not self._places.acquire(blocking=False):
            raise RefusedError(
                f"{WAITING_MAX} simulations wait already: ask again in a second", status=429
            )
        try:
            with self._turn:
                return self._worker.ask(_message(task, plan, text, changes), self._limit_s)
        except WorkerEndedError:
            raise RefusedError("the process that simulated was ended: ask again", 503) from None
        finally:
            self._places.release()


def _message(task: str, plan: str, text: str, changes: WhatIfs) -> dict[str, Any]:
    """Message to a worker."""
    return {"task": task, "plan": plan, "text": text, "what_ifs": changes.model_dump()}
