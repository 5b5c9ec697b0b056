"""Recheck of a kept profile: what contradicts it, and what does not."""

import pytest
from msgspec.structs import replace

from millrace.executor.errors import ExecutorError
from millrace.executor.probes import recheck
from millrace.executor.probes.machine_load import MachineLoad
from millrace.executor.probes.probe_timing import ProbeRequest, Timings
from millrace.executor.probes.recheck import contradiction, difference
from millrace.planner.cluster import Device, MeasurementQuality
from millrace.planner.clusters import device


def profiled(**quality: float) -> Device:
    return replace(
        device("h100-sxm-80gb"),
        kernels={"matmul": ((10, 1100), (20, 2100)), "gelu": ((5, 600),)},
        collectives={"all_reduce/2": ((64, 1000), (128, 2000))},
        measured=MeasurementQuality(rounds=3, **quality),
    )


def timed(factor: float = 1.0, collectives: float = 1.0) -> Timings:
    """Timings of a rank that takes so many times as long as the profile says."""

    def slower(duration_ns: int) -> int:
        return round(factor * duration_ns) - 100

    return Timings(
        launch_ns=100,
        kernels={
            "matmul": [(10, slower(1100)), (20, slower(2100))],
            "gelu": [(5, slower(600)), (7, 1)],
            "new": [(1, 1)],
        },
        collectives={
            "all_reduce/2": [(64, round(collectives * 1000)), (128, round(collectives * 2000))]
        },
    )


@pytest.mark.parametrize(
    ("timings", "quality", "said"),
    [
        (timed(), {}, ""),
        (timed(1.25), {}, ""),
        (timed(0.8), {}, ""),
        (timed(1.35), {}, "kernels take 1.35 times as long as in the kept profile"),
        (timed(0.5), {}, "kernels take 0.50 times as long as in the kept profile"),
        (timed(1.35), {"spread": 0.09}, ""),
        (timed(1.0, 1.9), {}, ""),
        (timed(1.0, 2.2), {}, "collectives take 2.20 times as long as in the kept profile"),
        (timed(1.0, 0.4), {}, "collectives take 0.40 times as long as in the kept profile"),
    ],
)
def test_a_profile_is_contradicted_beyond_its_spread_and_a_margin(timings, quality, said) -> None:
    assert difference(profiled(**quality), [timings, timings]) == said


def test_a_busy_machine_contradicts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recheck, "load_now", lambda watched_s: None)
    load = MachineLoad(others=0.5, steal=0.0)
    orders: list[ProbeRequest] = []

    def timed_ranks(ranks: int, order: ProbeRequest) -> list[Timings]:
        orders.append(order)
        return [replace(timed(3.0), load=load)] * ranks

    monkeypatch.setattr(recheck, "timed_ranks", timed_ranks)
    assert contradiction(4, 2, profiled()) == ""
    assert (orders[0].cores, orders[0].tables) == (2, recheck.TABLES)
    load = MachineLoad(others=0.0, steal=0.0)
    assert contradiction(5, 2, profiled()) == "", "too many to be started for this"
    assert contradiction(4, 2, profiled()).startswith("kernels take 3.00 times as long as in")


def test_a_profile_of_a_busy_machine_is_contradicted_by_a_quiet_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for others, said in (
        (0.0, "the kept profile was taken while the machine was busy"),
        (0.5, ""),
    ):
        load = MachineLoad(others=others, steal=0.0)
        monkeypatch.setattr(recheck, "load_now", lambda watched_s, load=load: load)
        assert contradiction(2, 2, profiled(others=0.4)).startswith(said)
        assert bool(contradiction(2, 2, profiled(others=0.4))) == bool(said)


def test_a_check_that_cannot_be_made_contradicts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed_ranks(ranks: int, order: ProbeRequest) -> list[Timings]:
        raise ExecutorError("no process")

    monkeypatch.setattr(recheck, "load_now", lambda watched_s: None)
    monkeypatch.setattr(recheck, "timed_ranks", timed_ranks)
    assert contradiction(2, 2, profiled()) == ""
