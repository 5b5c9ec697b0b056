"""Worker process of the server: one computes plans, another simulations.

Messages are JSON. One comes in, `{task, …}`; any number of `{progress}` go out, then `{answer}` or
`{refused, status, field}`. It ends when the server does, and is killed where it takes too long.
"""

import gc
import os
import signal
import sys
from collections import OrderedDict
from collections.abc import Mapping
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import msgspec

from millrace.models.documents import FileError
from millrace.models.errors import ModelError
from millrace.planner.errors import ChildError, ClusterError, PlanError, ProtocolError
from millrace.planner.plan import Plan
from millrace.planner.worker_processes import end_with
from millrace.serving.documents.plan_documents import plan_document
from millrace.serving.documents.step_documents import report_figures, step_document
from millrace.serving.engine_calls import searched
from millrace.serving.questions import PlanQuestion, WhatIfs
from millrace.serving.refusals import RefusedError, field_of
from millrace.serving.what_if_figures import WhatIfFigures
from millrace.simulator import SimulationError

PLANS = 8
COLLECTED = (1_000_000, 20, 100)  # as `millrace/cli.py` has it, for the same reason
UNDERSTOOD = (
    *(PlanError, ModelError, ClusterError, FileError, SimulationError),
    *(ProtocolError, ChildError, MemoryError),
)
TELL_S = 0.15  # between two sentences about progress


class PlanWorker:
    """Tasks of the process, by name; plans and what is measured of them are kept between calls."""

    def __init__(self, line: "Connection[Any, Any]") -> None:
        self._line = line
        self._plans: OrderedDict[str, Plan] = OrderedDict()
        self._what_ifs = WhatIfFigures()
        self._tasks = {
            "search": self._search,
            "simulate": self._simulate,
            "step": self._step,
            "report": self._report,
        }

    def answer(self, message: Mapping[str, Any]) -> Any:
        """Answer to one message.

        Parameters
        ----------
        message : mapping
            `task` and its arguments.
        """
        return self._tasks[message["task"]](message)

    def _search(self, message: Mapping[str, Any]) -> dict[str, Any]:
        question = PlanQuestion.model_validate(message["question"])
        last_s = 0.0

        def tell(sentence: str) -> None:
            nonlocal last_s
            if perf_counter() - last_s > TELL_S:
                last_s = perf_counter()
                self._line.send_bytes(msgspec.json.encode({"progress": sentence}))

        began = perf_counter()
        plan = searched(question, tell)
        document = plan_document(plan, message["question"])
        document["search_time_s"] = perf_counter() - began
        return {"plan": msgspec.json.encode(plan).decode(), "document": document}

    def _plan(self, message: Mapping[str, Any]) -> Plan:
        """Plan that a message names; its text comes with the first message about it."""
        digest = message["plan"]
        if digest not in self._plans:
            self._plans[digest] = msgspec.json.decode(message["text"], type=Plan)
            if len(self._plans) > PLANS:
                self._plans.popitem(last=False)
        self._plans.move_to_end(digest)
        return self._plans[digest]

    def _simulate(self, message: Mapping[str, Any]) -> dict[str, Any]:
        began = perf_counter()
        changes = WhatIfs.model_validate(message["what_ifs"])
        figures = self._what_ifs.figures(message["plan"], self._plan(message), changes)
        return figures | {"simulated_in_s": perf_counter() - began}

    def _step(self, message: Mapping[str, Any]) -> dict[str, Any]:
        changes = WhatIfs.model_validate(message["what_ifs"])
        plan = self._plan(message)
        changed, simulated = self._what_ifs.simulated(message["plan"], plan, changes, detailed=True)
        return step_document(changed, simulated)

    def _report(self, message: Mapping[str, Any]) -> str:
        """Page of `millrace simulate --html`."""
        from millrace.reporting import report_page
        from millrace.simulator.account import account_of

        changes = WhatIfs.model_validate(message["what_ifs"])
        plan, simulated = self._what_ifs.simulated(
            message["plan"], self._plan(message), changes, detailed=True
        )
        figures = report_figures(plan, simulated)
        return report_page(plan, simulated, account_of(plan, simulated), figures.items())


def refusal(error: Exception) -> dict[str, Any]:
    """Message that says why there is no answer.

    Parameters
    ----------
    error : Exception
        What a task raised.
    """
    if isinstance(error, RefusedError):
        return {"refused": error.sentence, "status": error.status, "field": error.field}
    sentence = str(error) or type(error).__name__
    if not isinstance(error, UNDERSTOOD):
        sentence = f"a bug in Millrace: {type(error).__name__}: {sentence}"
        return {"refused": sentence, "status": 500, "field": ""}
    kinds = {ModelError: "model", ClusterError: "cluster"}
    default = next((field for kind, field in kinds.items() if isinstance(error, kind)), "")
    return {"refused": sentence, "status": 422, "field": field_of(sentence, default)}


def work(line: "Connection[Any, Any]") -> None:
    """Answer messages until the server closes the line.

    Parameters
    ----------
    line : Connection
        To the server.
    """
    worker = PlanWorker(line)
    while True:
        try:
            message = msgspec.json.decode(line.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            answer = {"answer": worker.answer(message)}
        except Exception as error:
            answer = refusal(error)
        line.send_bytes(msgspec.json.encode(answer))


def main() -> None:
    """Begin with a line, of a descriptor, and a niceness; Ctrl-C is for the server alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(*COLLECTED)
    os.nice(int(sys.argv[2]))
    line: Connection[Any, Any] = Connection(int(sys.argv[1]))
    end_with(line.fileno())
    work(line)


if __name__ == "__main__":
    main()
