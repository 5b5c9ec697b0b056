"""Load of the machine: what others take of the cores, as Linux counts it."""

import os
from pathlib import Path

import pytest

from millrace.executor.probes import machine_load
from millrace.executor.probes.machine_load import CoreTimes, MachineLoad, core_times, load_between


def test_times_are_those_of_the_usable_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 3})
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    stat = tmp_path / "stat"
    rows = [f"cpu{core} 100 10 20 300 5 1 2 {core} 0 0" for core in range(4)]
    stat.write_text("\n".join(["cpu 0 0 0 0 0 0 0 0 0 0", *rows, "ctxt 12"]))
    assert core_times(stat=stat) == CoreTimes(busy_s=2.66, steal_s=0.04, idle_s=6.1)


def test_nothing_is_known_where_the_system_does_not_say(tmp_path: Path) -> None:
    assert core_times(stat=tmp_path / "stat") is None
    (tmp_path / "stat").write_text("cpu0 of another form")
    assert core_times(stat=tmp_path / "stat") is None
    assert load_between(None, None, 0.0) is None


def test_busy_time_that_is_not_ours_is_that_of_others() -> None:
    before = CoreTimes(busy_s=10.0, steal_s=1.0, idle_s=5.0)
    after = CoreTimes(busy_s=18.0, steal_s=1.5, idle_s=6.5)
    assert load_between(before, after, 3.0) == MachineLoad(others=0.5, steal=0.05)
    assert load_between(before, after, 9.0) == MachineLoad(others=0.0, steal=0.05)
    assert load_between(before, before, 0.0) is None


def test_others_are_waited_for_a_little_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    loads = iter([0.9, 0.8, 0.05])
    monkeypatch.setattr(
        machine_load, "load_now", lambda: MachineLoad(others=next(loads), steal=0.0)
    )
    load = machine_load.wait_for_quiet(told.append)
    assert load is not None
    assert load.others == 0.05
    assert told == ["other programs take 90 % of the cores: waiting at most 5 s for them …"]
    monkeypatch.setattr(machine_load, "load_now", lambda: MachineLoad(others=0.9, steal=0.0))
    load = machine_load.wait_for_quiet(None, patience_s=0.0)
    assert load is not None
    assert load.is_busy
    monkeypatch.setattr(machine_load, "load_now", lambda: None)
    assert machine_load.wait_for_quiet(told.append) is None


def test_times_are_those_of_the_cores_that_are_asked_about(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu0 100 0 0 100 0 0 0 0\ncpu1 200 0 0 300 0 0 0 0\n")
    times = core_times({1}, stat=stat)
    assert times is not None
    assert (times.busy_s, times.idle_s) == (2.0, 3.0)
