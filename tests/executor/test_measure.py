"""profile: a device of this machine that costs can read, measured once and then kept."""

import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from millrace.executor import measure
from millrace.executor.measure import (
    DOUBTFUL_S,
    RECHECK_S,
    cached_profile,
    keep_profile,
    kept_profile,
)
from millrace.executor.probes.probe_graphs import group_graph, group_sizes, pair_graph, ring_graph
from millrace.executor.probes.profiled_kernels import PROBES, cases
from millrace.executor.user_cache import cache_folder
from millrace.models.ops import OPS
from millrace.planner.actors.null_clock import run_to_completion
from millrace.planner.cluster import Cluster, Device, Link, MeasurementQuality
from millrace.planner.clusters import parse_cluster
from millrace.planner.costs import collective_duration_ns
from millrace.planner.proxies import PRICED_LIKE


def test_a_profile_is_measured_once_and_costs_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    device = cached_profile(2, seconds=0.1)
    assert cached_profile(2, seconds=0.1) == device
    assert device.measured is not None
    assert device.measured.rounds >= 1
    assert device.launch_ns > 0
    for per_s in (device.flops_per_s["fp32"], device.memory_bandwidth_bytes_per_s):
        assert 1e6 < per_s < 1e15, "of the unit that it is said to be of, on any machine"
    for points in (*device.kernels.values(), *device.collectives.values()):
        assert list(points) == sorted(points)
        assert all(work > 0 and duration_ns > 0 for work, duration_ns in points)
    collectives = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter", "send")
    assert set(device.collectives) == {f"{kind}/2" for kind in collectives}
    link = Link(latency_ns=0, bandwidth_bytes_per_s=1.0, source="unused")
    cluster = Cluster(
        name="local:2",
        device=device,
        devices_per_node=2,
        nodes=1,
        intra_node=link,
        inter_node=link,
        cores_per_node=2,
    )
    sizes_bytes, durations_ns = zip(*device.collectives["all_reduce/2"], strict=True)
    for size_bytes in sizes_bytes:
        found_ns = collective_duration_ns("all_reduce", size_bytes, 2, cluster)
        assert min(durations_ns) <= found_ns <= max(durations_ns) + 1


def test_a_profile_is_kept_for_its_key_until_it_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured: list[str] = []
    told: list[str] = []

    def profile_of(key: str, *, refresh: bool = False) -> Device:
        def measure() -> Device:
            measured.append(key)
            return parse_cluster("a100-sxm-80gb:1x1").device

        return kept_profile(key, measure, refresh=refresh, told=key, progress=told.append)

    first = profile_of("a")
    (path,) = (tmp_path / "millrace").iterdir()
    assert profile_of("a") == first
    assert measured == ["a"]
    for broken in (b"{ cut off", b'{"key":"\xff\xfe"}', b"", b"[" * 100_000):
        path.write_bytes(broken)
        measured.clear()
        assert profile_of("a") == profile_of("a") == first
        assert measured == ["a"]
    profile_of("b")
    profile_of("b", refresh=True)
    assert told == ["a"] * 5 + ["b"] * 2


def test_a_kept_profile_is_asked_now_and_then_whether_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked: list[str] = []
    told: list[str] = []
    answers = ["", "kernels take 2.00 times as long today"]

    def profile_now(device: Device) -> Device:
        def contradiction(kept_device: Device) -> str:
            asked.append(kept_device.name)
            return answers[len(asked) - 1]

        return kept_profile(
            "a",
            lambda: device,
            refresh=False,
            told="measuring",
            progress=told.append,
            contradiction=contradiction,
        )

    first, second = sample(), replace(sample(), name="second")
    assert profile_now(first) == first
    assert profile_now(second) == first
    assert asked == []
    (path,) = (tmp_path / "millrace").glob("*.json")
    long_ago = (path.stat().st_mtime - RECHECK_S - 1,) * 2
    os.utime(path, long_ago)
    assert profile_now(second) == profile_now(second) == first
    assert asked == [first.name]
    os.utime(path.with_suffix(".checked"), long_ago)
    assert profile_now(second) == second
    assert told == ["measuring", "kernels take 2.00 times as long today: measuring"]
    assert profile_now(first) == second


def test_a_doubtful_profile_is_asked_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked: list[Device] = []
    doubtful = replace(sample(), measured=MeasurementQuality(rounds=3, others=0.9))
    for _ in range(3):
        for path in (tmp_path / "millrace").glob("*"):
            os.utime(path, (path.stat().st_mtime - DOUBTFUL_S - 1,) * 2)
        kept_profile(
            "a",
            lambda: doubtful,
            refresh=False,
            told="",
            progress=None,
            contradiction=lambda device: asked.append(device) or "",
        )
    assert asked == [doubtful] * 2


def test_a_profile_with_costs_of_a_run_is_kept_and_held_against_the_measured_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked: list[str] = []
    monkeypatch.setattr(measure, "profile", lambda ranks, **_: sample())
    monkeypatch.setattr(
        measure, "contradiction", lambda ranks, cores, device: asked.append(device.name) or ""
    )
    assert cached_profile(2) == sample()
    for name in ("once", "twice"):
        keep_profile(2, replace(sample(), name=name))
        (path,) = (tmp_path / "millrace").glob("*.json")
        os.utime(path, (0, 0))
        path.with_suffix(".checked").unlink(missing_ok=True)
        assert cached_profile(2).name == name
    assert asked == [sample().name] * 2
    assert cached_profile(2, refresh=True) == cached_profile(2) == sample()
    told: list[str] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))
    keep_profile(2, sample(), unkept=told.append)
    assert told[0].startswith("the measurement is not kept: ")


def a_file(root: Path) -> None:
    (root / "millrace").write_text("")


def a_folder_in_its_place(root: Path) -> None:
    kept_profile("a", sample, refresh=False, told="", progress=None)
    (path,) = (root / "millrace").iterdir()
    path.unlink()
    (path / "more").mkdir(parents=True)


def a_disk_that_is_full(root: Path) -> None:
    (root / "millrace").symlink_to("/proc/self")  # where nothing can be made


def sample() -> Device:
    return parse_cluster("a100-sxm-80gb:1x1").device


@pytest.mark.parametrize("spoil", [a_file, a_folder_in_its_place, a_disk_that_is_full])
def test_a_profile_that_cannot_be_kept_is_used_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spoil(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    told: list[str] = []
    profile = kept_profile("a", sample, refresh=False, told="measuring", progress=told.append)
    assert profile == sample()
    assert told[0] == "measuring"
    assert told[1].startswith("the measurement is not kept: ")
    assert "it is made every time" in told[1]
    assert sorted(tmp_path.rglob("*")) == before


def test_the_cache_lies_in_the_home_of_the_user_where_nothing_else_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache_folder() == tmp_path / "cache" / "millrace"
    monkeypatch.setenv("HOME", str(tmp_path))
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert cache_folder() == tmp_path / ".cache" / "millrace"
    monkeypatch.setenv("HOME", "")
    assert cache_folder() == Path(pwd.getpwuid(os.getuid()).pw_dir) / ".cache" / "millrace"


def test_every_kind_that_computes_is_timed_or_priced_like_one_that_is() -> None:
    without_kernel = {"variable", "repeat"}
    timed = {probe.kind for probe in PROBES}
    assert timed.isdisjoint(PRICED_LIKE)
    assert timed | set(PRICED_LIKE) == set(OPS) - without_kernel
    assert {like.kind for like in PRICED_LIKE.values()} <= timed


def test_probes_have_work_to_be_charged_by() -> None:
    works = {}
    for case in cases():
        works.setdefault(case.context.kind, []).append(case.work)
    assert all(work > 0 for kind_works in works.values() for work in kind_works)


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_probe_graphs_run_to_their_end(ranks: int) -> None:
    assert group_sizes(ranks)[-1] == ranks
    for size in group_sizes(ranks):
        graph = group_graph(ranks, size)
        assert graph.ranks == ranks
        meetings = [actor.meeting for actor in graph.programs[0].actors]
        assert {len(graph.members(0, m)) for m in meetings if m is not None} == {size}
        assert run_to_completion(graph) > 0
    for graph in (pair_graph(ranks), ring_graph(5)):
        assert run_to_completion(graph) > 0
