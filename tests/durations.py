"""Durations of the tests' cases: which count as fast, and the record of them, renewed by a command.

`durations.json` holds, for each file, how many cases it has, the seconds of the fast ones together,
and the slow ones with their seconds. Whatever it does not name is fast. ``python -m
tests.durations`` runs all tests and writes it anew; ``python -m tests.durations tests/planner``
does so for a part.

A case takes its own seconds and its share of the set-ups that it has in common with other fast
cases (fixtures of a wide scope, cached functions of the tests): a set-up of a minute that three
cases look at makes each of them slow, one that five hundred look at makes none.
"""

import functools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

RECORD = Path(__file__).with_name("durations.json")
SLOW_S = 0.25
RECORDING = "MILLRACE_RECORD_DURATIONS"
ON_A_GPU = "tests/gpu/"  # skipped where there is none, and never fast


class FileDurations(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cases of one file: their number, the seconds of fast ones together, and of each slow one."""

    cases: int
    fast_s: float
    slow: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """Seconds of all cases together."""
        return self.fast_s + sum(self.slow.values())


def recorded() -> dict[str, FileDurations]:
    """Durations of `durations.json`, by the path of the file of tests."""
    return msgspec.json.decode(RECORD.read_bytes(), type=dict[str, FileDurations])


def mark_fast(items: list[pytest.Item]) -> None:
    """Give every case the mark `fast` that the record does not know as slow."""
    durations = recorded()
    for item in items:
        path, _, case = item.nodeid.partition("::")
        record = durations.get(path)
        left_out = item.get_closest_marker("exhaustive") or path.startswith(ON_A_GPU)
        if not left_out and (record is None or case not in record.slow):
            item.add_marker("fast")


class SharedSetups:
    """Set-ups of this process that more than one case may use, with their seconds.

    Parameters
    ----------
    seconds
        Of each set-up, with the set-ups that it asked for itself.
    asked
        The set-ups that the case under way asked for.
    computed_s
        Seconds of those that it was the first to ask for.
    """

    def __init__(self) -> None:
        self.seconds: dict[Hashable, float] = {}
        self.asked: set[Hashable] = set()
        self.computed_s = 0.0
        self._depth = 0

    @contextmanager
    def asking(self, key: Hashable) -> Iterator[None]:
        """Take note of a set-up that is asked for, and time it where it is computed now."""
        known_s, start = self.seconds.get(key), time.perf_counter()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            elapsed_s = self.seconds.setdefault(key, time.perf_counter() - start)
            if not self._depth:
                self.asked.add(key)
                self.computed_s += elapsed_s if known_s is None else 0.0

    def cached(self, function: Callable[..., Any]) -> Any:
        """Return what `functools.cache` does, its computations timed, for functions of tests."""
        cached = real_cache(function)
        if not function.__module__.startswith("tests."):
            return cached

        @functools.wraps(cached)
        def timed(*args: Hashable, **kwargs: Hashable) -> Any:
            with self.asking((function, args, tuple(kwargs.items()))):
                return cached(*args, **kwargs)

        return timed

    def take(self, fixtures: set[Hashable]) -> tuple[float, dict[str, float]]:
        """Seconds that the case spent on set-ups, and the seconds of all that it asked for.

        Parameters
        ----------
        fixtures
            Keys of the fixtures of wide scope that the case uses.
        """
        asked = (self.asked | fixtures) & self.seconds.keys()
        computed_s, self.asked, self.computed_s = self.computed_s, set(), 0.0
        return computed_s, {str(key): self.seconds[key] for key in asked}


real_cache = functools.cache
shared_setups = SharedSetups()


def fixture_keys(item: pytest.Item) -> set[Hashable]:
    """Keys of the fixtures of wide scope that a case uses."""
    indices = item.callspec.indices if hasattr(item, "callspec") else {}
    definitions = item._fixtureinfo.name2fixturedefs if hasattr(item, "_fixtureinfo") else {}
    return {
        (definition.baseid, definition.argname, indices.get(definition.argname))
        for stack in definitions.values()
        for definition in stack
        if definition.scope != "function"
    }


class CaseTimer:
    """Timer of the process in which cases run: their seconds go on with their last reports."""

    def __init__(self) -> None:
        self.elapsed_s: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        """Time the set-up of fixtures of wide scope."""
        if fixturedef.scope == "function":
            return (yield)
        index = getattr(request, "param_index", None) if hasattr(request, "param") else None
        with shared_setups.asking((fixturedef.baseid, fixturedef.argname, index)):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Iterator[None]:
        """Add to a case's last report its own seconds, and the set-ups it needed with theirs."""
        report = yield
        elapsed_s = self.elapsed_s.pop(item.nodeid, 0.0) + call.duration
        if call.when != "teardown":
            self.elapsed_s[item.nodeid] = elapsed_s
            return report
        computed_s, setups = shared_setups.take(fixture_keys(item))
        report.user_properties.append(("seconds", elapsed_s - computed_s))
        report.user_properties.append(("setups", setups))
        return report


class DurationCollector:
    """Collector of a whole session: the seconds of every case and of the set-ups it shares."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.setups: dict[str, frozenset[str]] = {}
        self.setup_seconds: dict[str, dict[str, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a case's seconds from its last report."""
        properties = dict(report.user_properties)
        if report.when == "teardown" and "seconds" in properties:
            self.seconds[report.nodeid] = properties["seconds"]
            self.setups[report.nodeid] = frozenset(properties["setups"])
            for key, seconds in properties["setups"].items():
                process = getattr(report, "worker_id", "")
                self.setup_seconds.setdefault(key, {})[process] = seconds

    def costs(self) -> dict[str, float]:
        """Seconds of every case, with its share of what it has in common with others like it.

        A case is slow if it is so with its share among the fast ones, of which there are then
        fewer; the share of a slow case is that among all.
        """
        slow, everybody = set[str](), self.with_shares(self.setups)
        while True:
            costs = self.with_shares(case for case in self.setups if case not in slow)
            grown = {case for case, seconds in costs.items() if seconds >= SLOW_S} - slow
            if not grown:
                return {case: everybody[case] if case in slow else costs[case] for case in costs}
            slow |= grown

    def with_shares(self, sharing: Iterable[str]) -> dict[str, float]:
        """Seconds of every case, with its share of set-ups that those which share them pay."""
        users = Counter(key for case in sharing for key in self.setups[case])
        shares = {
            key: sum(seconds.values()) / max(1, users[key])
            for key, seconds in self.setup_seconds.items()
        }
        return {
            case: seconds + sum(shares[key] for key in self.setups[case])
            for case, seconds in self.seconds.items()
        }

    def durations(self) -> dict[str, FileDurations]:
        """Durations of the files whose cases ran."""
        by_file: dict[str, dict[str, float]] = {}
        for nodeid, seconds in sorted(self.costs().items()):
            path, _, case = nodeid.partition("::")
            by_file.setdefault(path, {})[case] = seconds
        return {
            path: FileDurations(
                cases=len(cases),
                fast_s=rounded(sum(s for s in cases.values() if s < SLOW_S)),
                slow={case: rounded(s) for case, s in cases.items() if s >= SLOW_S},
            )
            for path, cases in by_file.items()
        }


def rounded(seconds: float) -> float:
    """Seconds to two digits: more of them differ from run to run."""
    return float(f"{seconds:.2g}")


def start_recording(config: pytest.Config) -> None:
    """Time set-ups and cases of this process, where the command has asked for it."""
    if os.environ.get(RECORDING):
        functools.cache = shared_setups.cached
        config.pluginmanager.register(CaseTimer())


def main(arguments: list[str]) -> int:
    """Run all tests, or those that the arguments name, and write their durations."""
    os.environ[RECORDING] = "1"
    collector = DurationCollector()
    status = pytest.main(["-q", "-n", "2", "--dist", "worksteal", *arguments], plugins=[collector])
    durations = recorded() if arguments and RECORD.exists() else {}
    durations |= collector.durations()
    there = {path: record for path, record in sorted(durations.items()) if Path(path).exists()}
    RECORD.write_text(json.dumps(msgspec.to_builtins(there), indent=1) + "\n")
    on_cpus = [record for path, record in there.items() if not path.startswith(ON_A_GPU)]
    cases = sum(record.cases for record in there.values())
    fast = sum(record.cases - len(record.slow) for record in on_cpus)
    fast_s = sum(record.fast_s for record in on_cpus)
    seconds = sum(record.seconds for record in there.values())
    print(f"{cases} cases in {seconds:.0f} s, of which {fast} are fast: {fast_s:.0f} s")
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
