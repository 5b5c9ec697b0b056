"""Optional packages that some tests need: absent, those tests skip and say which extra brings them.

What skipped so is remembered: once the extras are there, `pytest --extras` runs it and nothing
else. `MILLRACE_EXTRAS=torch,browser` (set by the full check) turns a skip for want of these into a
failure.
"""

import importlib
import os
import re
import warnings
from collections import Counter
from types import ModuleType
from typing import Any

import pytest

CACHED = "millrace/extras"


def optional(name: str, extra: str = "torch") -> ModuleType:
    """Import a package, or skip the module of tests that needs it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module = importlib.import_module(name)
        except ImportError:
            if extra in os.environ.get("MILLRACE_EXTRAS", "").split(","):
                raise
        else:
            if name.partition(".")[0] == "torch":
                # Threads of its pool spin while they wait for each other: on shared cores a step
                # of a small model takes a hundred times as long with two of them as with one.
                importlib.import_module("torch").set_num_threads(1)
            return module
    pytest.skip(f"{name} is not installed: pip install '.[{extra}]'", allow_module_level=True)


class MissingExtras:
    """Extras for want of which a session skips, by the module or the case that does."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.cache = getattr(config, "cache", None)  # none under `-p no:cacheprovider`
        self.extras: dict[str, str] = {}
        if config.getoption("extras"):
            config.args = self.cache.get(CACHED, []) if self.cache else []
            if not config.args:
                raise pytest.UsageError("--extras: no tests skipped for want of an extra before")

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Any:
        """Say of a module that skips that it does, not `optional`: xdist hands on unlike ones."""
        report = yield
        if report.skipped:
            report.longrepr = (str(collector.path), *report.longrepr[1:])
        return report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.remember(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.remember(report)

    def remember(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        """Take note of a skip for want of an extra."""
        match = re.search(r"pip install '\.\[(\w+)\]'", str(report.longrepr))
        if report.skipped and match:
            self.extras[report.nodeid] = match[1]

    def pytest_sessionfinish(self) -> None:
        collected_all = not self.config.getoption("extras")
        if self.cache and collected_all and not hasattr(self.config, "workerinput"):
            self.cache.set(CACHED, sorted(self.extras))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for extra, count in sorted(Counter(self.extras.values()).items()):
            terminalreporter.line(
                f"{count} modules and cases skipped: pip install '.[{extra}]', then pytest --extras"
            )
