"""Chosen tests: those near to a change, and those that are fast."""

import pytest

from tests.affected import affected, main
from tests.durations import DurationCollector
from tests.test_layering import ROOT


def test_a_change_reaches_the_tests_that_import_it_read_it_or_run_below_it() -> None:
    reached = {
        changed: affected([ROOT / changed])
        for changed in (
            "executor/kernels/rows/rms_norm.py",
            "planner/frameworks/frameworks.toml",
            "tests/gpu/conftest.py",
            "docs/questions.md",
        )
    }
    kernel, table, fixtures, page = reached.values()
    assert kernel["tests/executor/test_kernels.py"] < kernel["tests/test_families.py"]
    assert "tests/models/test_labels.py" not in kernel
    assert "tests/planner/frameworks/test_search_for_frameworks.py" in table
    assert {*fixtures} >= {"tests/gpu/test_kernels.py", "tests/test_layering.py"}
    assert "tests/executor/test_kernels.py" not in fixtures
    assert {*page} >= {"tests/test_printed.py", "tests/test_links.py"}
    for distances in reached.values():
        assert [*distances.values()] == sorted(distances.values())


def test_a_revision_that_git_does_not_know_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["no-such-revision"])
    assert "no-such-revision: no revision that git knows" in capsys.readouterr().err


def test_a_set_up_is_shared_by_the_fast_cases_that_ask_for_it() -> None:
    collector = DurationCollector()
    collector.setup_seconds = {"dear": {"gw0": 30.0}, "cheap": {"gw0": 0.5, "gw1": 0.5}}
    asked = {"slow": ("cheap",), "few": ("dear",), "fewer": ("dear",), "alone": ()}
    asked |= {f"many {number}": ("cheap",) for number in range(10)}
    collector.setups = {f"a.py::{case}": frozenset(keys) for case, keys in asked.items()}
    collector.seconds = {case: 9.0 if "slow" in case else 0.01 for case in collector.setups}
    (record,) = collector.durations().values()
    assert record.cases == 14
    assert record.slow == {"few": 15.0, "fewer": 15.0, "slow": 9.1}
    assert record.fast_s == pytest.approx(1.1, abs=0.05)  # ten pay for the cheap one
