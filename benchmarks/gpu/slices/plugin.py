"""A plugin of pytest: every test leaves its line, and none goes on in a broken context.

`MILLRACE_GPU_TEST` names a file that holds the test under way, `MILLRACE_GPU_DONE` one with the
tests that are not run again. An error of a kernel stays with its context, so the process ends after
the test that broke it (exit code `BROKEN`).
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.lines import DETAILS, append

TEST, DONE = "MILLRACE_GPU_TEST", "MILLRACE_GPU_DONE"
BROKEN = 70
NEVER = "ortools"  # a node with GPUs runs plans and makes none

_reports: dict[str, list[pytest.TestReport]] = {}


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Write a line for a file whose tests are not known, because it cannot be imported."""
    if report.failed:
        details = str(report.longrepr).strip()[-DETAILS:]
        error = details.rpartition("\n")[2].removeprefix("E").strip()
        append(f"{report.nodeid}::collection", False, error=error, details=details)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what was run before."""
    if DONE not in os.environ:
        return
    done = set(Path(os.environ[DONE]).read_text().splitlines())
    left = [item for item in items if item.nodeid not in done]
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
    items[:] = left


def pytest_runtest_logstart(nodeid: str) -> None:
    """Say which test is under way."""
    if TEST in os.environ:
        Path(os.environ[TEST]).write_text(f"{nodeid}\n{time.time()}\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write a test's line when its last phase has ended, and look at the context."""
    _reports.setdefault(report.nodeid, []).append(report)
    if report.when != "teardown":
        return
    phases = _reports.pop(report.nodeid)
    wrong = next((phase for phase in phases if phase.failed), None)
    skipped = next((phase for phase in phases if phase.skipped), None)
    ok = False if wrong else None if skipped else True
    more: dict[str, Any] = {"seconds": round(sum(phase.duration for phase in phases), 3)}
    if said := wrong or skipped:
        more["error"] = _first_line(said)
    if wrong:
        more["details"] = str(wrong.longrepr)[-DETAILS:]
    if error := broken():
        ok, more["error"] = False, f"it broke the device's context: {error}"
    append(report.nodeid, ok, **more)
    if error:
        os._exit(BROKEN)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write how many tests there were, and whether anything was planned here."""
    figures = {"tests": session.testscollected, "planned_here": NEVER in sys.modules}
    append("tests", None, figures=figures)


def _first_line(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):  # of a skip: file, line, reason
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr).partition("\n")[0][:500]


def broken() -> str | None:
    """Error that the device's context holds, if CuPy is in use and there is one."""
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return None
    try:
        cupy.cuda.runtime.deviceSynchronize()
    except Exception as error:
        return str(error)
    return None
