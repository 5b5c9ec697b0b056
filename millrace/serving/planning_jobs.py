"""Planning jobs: questions that wait, are searched one after another, and can be cancelled."""

import threading
from collections import OrderedDict
from hashlib import sha256
from secrets import token_hex
from time import monotonic
from typing import Any

from millrace.serving.questions import PlanQuestion
from millrace.serving.refusals import RefusedError
from millrace.serving.worker_line import WorkerEndedError, WorkerLine

SEARCH_S = 300.0  # that one search may take
WAITING_MAX = 8
JOBS_MAX, PLANS_MAX = 64, 32
QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"


class PlanningJob:
    """A question and what has become of it so far."""

    def __init__(self, question: PlanQuestion) -> None:
        self.name = token_hex(8)
        self.question = question
        self.state = QUEUED
        self.progress = ""
        self.plan: str | None = None
        self.refusal: dict[str, Any] | None = None
        self.began_s = monotonic()
        self.seconds: float | None = None

    @property
    def document(self) -> dict[str, Any]:
        """JSON document about the job."""
        taken = monotonic() - self.began_s if self.seconds is None else self.seconds
        return {
            "job": self.name,
            "state": self.state,
            "progress": self.progress,
            "seconds": round(taken, 3),
            "plan": self.plan,
            **(self.refusal or {"error": None, "field": None}),
        }


class PlanShelf:
    """Plans that were made, by name: the document of each and what a page shows of it."""

    def __init__(self) -> None:
        self._plans: OrderedDict[str, tuple[str, dict[str, Any]]] = OrderedDict()
        self._by_question: dict[str, str] = {}
        self._lock = threading.Lock()

    def add(self, question: PlanQuestion, text: str, document: dict[str, Any]) -> str:
        """Name of a plan, under which it is there from now on.

        Parameters
        ----------
        question : PlanQuestion
            The question that it answers.
        text : str
            The plan as JSON.
        document : dict
            What a page shows of it.
        """
        name = sha256(text.encode()).hexdigest()[:16]
        with self._lock:
            self._plans[name] = text, document | {"plan": name}
            self._by_question[question.model_dump_json()] = name
            if len(self._plans) > PLANS_MAX:
                gone, _ = self._plans.popitem(last=False)
                self._by_question = {
                    asked: plan for asked, plan in self._by_question.items() if plan != gone
                }
        return name

    def name_of(self, question: PlanQuestion) -> str | None:
        """Name of the plan that answers a question, None where there is none yet."""
        with self._lock:
            return self._by_question.get(question.model_dump_json())

    def text(self, name: str) -> str:
        """Plan as JSON."""
        return self._entry(name)[0]

    def document(self, name: str) -> dict[str, Any]:
        """Document about a plan, as a page shows it."""
        return self._entry(name)[1]

    def _entry(self, name: str) -> tuple[str, dict[str, Any]]:
        with self._lock:
            if name not in self._plans:
                raise RefusedError(
                    f"there is no plan `{name}` here: the server keeps the last {PLANS_MAX} and "
                    f"forgets them when it ends; plan again",
                    status=404,
                )
            self._plans.move_to_end(name)
            return self._plans[name]


class PlanningJobs:
    """Queue of planning jobs, which one worker takes one after another."""

    def __init__(self, shelf: PlanShelf, search_s: float = SEARCH_S) -> None:
        self._shelf = shelf
        self._search_s = search_s
        self._worker = WorkerLine()
        self._jobs: OrderedDict[str, PlanningJob] = OrderedDict()
        self._waiting: list[PlanningJob] = []
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="planning", daemon=True)

    def start(self) -> None:
        """Start the worker, so that the first question does not wait for its imports."""
        self._worker.start()
        self._thread.start()

    def end(self) -> None:
        """End the worker and the thread that asks it."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._worker.end()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, question: PlanQuestion) -> PlanningJob:
        """Job of a question, done at once where it was answered before.

        Parameters
        ----------
        question : PlanQuestion
            Within the bounds of a page.

        Raises
        ------
        RefusedError
            Too many wait.
        """
        job = PlanningJob(question)
        job.plan = self._shelf.name_of(question)
        with self._changed:
            if job.plan is not None:
                job.state, job.seconds = DONE, 0.0
            elif len(self._waiting) >= WAITING_MAX:
                raise RefusedError(
                    f"{WAITING_MAX} searches wait already: cancel one, or ask again when one has "
                    f"ended",
                    status=429,
                )
            else:
                self._waiting.append(job)
                self._changed.notify_all()
            self._jobs[job.name] = job
            if len(self._jobs) > JOBS_MAX:
                self._forget_an_ended_job()
        return job

    def _forget_an_ended_job(self) -> None:
        for name, job in self._jobs.items():
            if job.state not in (QUEUED, RUNNING):
                del self._jobs[name]
                return

    def job(self, name: str) -> PlanningJob:
        """Job of a name."""
        with self._changed:
            if name not in self._jobs:
                raise RefusedError(f"there is no job `{name:.40}` here: plan again", status=404)
            return self._jobs[name]

    def cancel(self, name: str) -> PlanningJob:
        """Job of a name, which is not searched for any more.

        Parameters
        ----------
        name : str
            The job's; nothing happens to one that has ended.
        """
        job = self.job(name)
        with self._changed:
            was_running = job.state == RUNNING
            if job.state in (QUEUED, RUNNING):
                job.state = CANCELLED
                job.seconds = monotonic() - job.began_s
            if job in self._waiting:
                self._waiting.remove(job)
        if was_running:
            self._worker.end()
        return job

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._ended:
                    self._changed.wait()
                if self._ended:
                    return
                job = self._waiting.pop(0)
                job.state = RUNNING
            self._search(job)
            if not self._ended:
                self._worker.start()  # anew, where the search was cancelled

    def _search(self, job: PlanningJob) -> None:
        def tell(sentence: str) -> None:
            job.progress = sentence

        message = {"task": "search", "question": job.question.model_dump(exclude_none=True)}
        refusal = None
        try:
            answer = self._worker.ask(message, self._search_s, tell)
            plan = self._shelf.add(job.question, answer["plan"], answer["document"])
        except RefusedError as refused:
            refusal = refused.document | {"status": refused.status}
        except WorkerEndedError:
            refusal = {
                "error": "the process that searched was ended; where memory had run out, ask for "
                "fewer devices",
                "field": None,
            }
        with self._changed:
            if job.state == CANCELLED:
                return
            job.seconds = monotonic() - job.began_s
            if refusal is None:
                job.plan, job.state = plan, DONE
            else:
                job.refusal = {key: refusal[key] for key in ("error", "field")}
                job.state = FAILED
