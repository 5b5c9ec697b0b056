"""A server of the page in a process of its own, and one small plan that it has made."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.executor.sources import ROOT
from tests.extras import optional

SMALL = {
    "model": "gpt2-small",
    "cluster": "a100:2x1",
    "global_batch": 32,
    "seq_len": 512,
    "pins": {"pp": 2, "micro_batch": 4},
}
ANSWER_S = 60


class ServedPage:
    """A running `millrace serve`, asked over HTTP."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(
        self, path: str, body: Any = None, method: str | None = None, **headers: str
    ) -> tuple[int, Any]:
        """Status and document of an answer."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        named = {"content-type": "application/json"} if content is not None else {}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        request = Request(self.address + path, content, named, method=method)
        try:
            with urlopen(request, timeout=ANSWER_S) as answer:
                status, text = answer.status, answer.read()
        except HTTPError as refusal:
            status, text = refusal.code, refusal.read()
        return status, json.loads(text)

    def job(self, question: Any) -> dict[str, Any]:
        """Job of a question, once it has ended."""
        status, job = self.ask("api/plan", question)
        assert status == 202, job
        limit = monotonic() + ANSWER_S
        while job["state"] in ("queued", "running") and monotonic() < limit:
            sleep(0.05)
            status, job = self.ask(f"api/jobs/{job['job']}")
        return dict(job)


@pytest.fixture(scope="session")
def served() -> Iterator[ServedPage]:
    optional("fastapi", "serve")
    command = [sys.executable, "-m", "millrace", "serve", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        match = re.search(r"http://127\.0\.0\.1:\d+/", line)
        try:
            assert match, line
            yield ServedPage(match[0])
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()


@pytest.fixture(scope="session")
def small_plan(served: ServedPage) -> str:
    job = served.job(SMALL)
    assert job["state"] == "done", job
    return str(job["plan"])
