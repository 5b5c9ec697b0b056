"""Runs over hosts made of network namespaces: equal losses, causes by name, nothing left behind."""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from time import monotonic, sleep

import msgspec
import pytest

from benchmarks.executor.namespaces import NetworkHosts, network_hosts, why_unavailable
from millrace.executor.errors import RankFailedError
from millrace.executor.hosts.host_list import Hosts, hosts_of
from millrace.executor.hosts.job_remains import TOKEN
from millrace.executor.launch import execute
from millrace.executor.training.orders import Saving, Supervision
from millrace.planner.errors import InfeasibleError
from millrace.planner.plan import Plan
from tests.millrace.plans import data_parallel_pipeline

UNAVAILABLE = why_unavailable()
pytestmark = pytest.mark.skipif(UNAVAILABLE is not None, reason=str(UNAVAILABLE))
DEADLINE_S = 60.0
STEPS = 100_000  # more than a run makes before something happens to it


@pytest.fixture(scope="module")
def network() -> Iterator[NetworkHosts]:
    with network_hosts(3) as hosts:
        yield hosts


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder for temporary files here and on hosts; nothing is left in it, nor a rank."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert is_soon(lambda: not ranks())
    assert is_soon(lambda: not set(folder.glob("millrace-*")))


def is_soon(condition: Callable[[], bool]) -> bool:
    deadline = monotonic() + DEADLINE_S
    while not (came_true := condition()) and monotonic() < deadline:
        sleep(0.02)
    return came_true


def ranks() -> dict[int, int]:
    """Ranks of jobs of this process on all hosts, and their process ids."""
    pids = {}
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(f"{TOKEN}={os.getpid()}-".encode()) for word in words):
            rank = next((w for w in words if w.startswith(b"PMI_RANK=")), b"=-1")
            pids[int(rank[rank.index(b"=") + 1 :])] = int(path.parent.name)
    return pids


def hosts_in(network: NetworkHosts, count: int) -> Hosts:
    """Hosts whose temporary files lie where the test looks for them."""
    names = tuple(host.name for host in network)[:count]
    launcher = Path(tempfile.gettempdir()) / "launcher"
    launcher.write_text(
        f'#!/bin/sh\nhost="$1"; shift\n'
        f'exec {network.launcher} "$host" "export TMPDIR={launcher.parent}; $*"\n'
    )
    launcher.chmod(0o755)
    return Hosts(names=names, launcher=(str(launcher),), address=network.address)


def two_nodes() -> Plan:
    plan = data_parallel_pipeline()
    cluster = msgspec.structs.replace(plan.cluster, devices_per_node=2, nodes=2)
    return msgspec.structs.replace(plan, cluster=cluster)


@cache
def on_one_machine() -> list[float]:
    """Losses of a run that nothing befalls."""
    return list(execute(data_parallel_pipeline(), steps=40).losses)


def after(step: int, act: Callable[[], None]) -> Callable[[int, float], None]:
    """Progress that does something once, after a step."""
    left = [act]

    def told(ended: int, loss: float) -> None:
        if ended >= step and left:
            left.pop()()

    return told


def test_hosts_give_the_losses_of_one_machine(network: NetworkHosts, tmp_path: Path) -> None:
    """To the bit; checkpoints that they write together go on here, and the command listens once."""
    expected = on_one_machine()[:6]
    told: list[str] = []
    checkpoint = tmp_path / "saved"
    over_hosts = execute(
        two_nodes(),
        steps=4,
        trace=True,
        saving=Saving(folder=checkpoint),
        supervision=Supervision(hosts=hosts_in(network, 2), noted=told.append),
    )
    assert list(over_hosts.losses) == expected[:4]
    assert len(told) == 1
    assert told[0].startswith(f"listening on {network.address}:")
    assert {span.rank for span in over_hosts.trace.spans} == {0, 1, 2, 3}
    resumed = execute(two_nodes(), steps=2, saving=Saving(folder=checkpoint, resume=True))
    assert list(resumed.losses) == expected[4:]


def test_hosts_multiply_by_the_kernels_that_the_command_was_told_to(
    network: NetworkHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Nehalem")
    here = execute(data_parallel_pipeline(), steps=4)
    over_hosts = execute(two_nodes(), steps=4, supervision=Supervision(hosts=hosts_in(network, 2)))
    assert over_hosts.gradient_norms == here.gradient_norms


SRUN = """#!/bin/bash
# Stands for srun: a task on every node of the list, each with the input of this one.
while :; do
  case "$1" in
    --nodelist) nodes="${2//,/ }"; shift 2 ;;
    --overlap|--*=*) shift ;;
    --*) shift 2 ;;
    *) break ;;
  esac
done
input=$(cat)
for node in $nodes; do
  echo "$input" | LAUNCHER "$node" "export SLURMD_NODENAME=$node; exec $(printf '%q ' "$@")" &
done
wait
"""


def test_slurm_starts_an_agent_on_every_node_and_a_rank_that_is_killed_there_is_named(
    network: NetworkHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over_ssh = hosts_in(network, 2)
    programs = {
        "srun": SRUN.replace("LAUNCHER", over_ssh.launcher[0]),
        "scontrol": f"#!/bin/sh\necho {' '.join(over_ssh.names)}\n",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "some[1-2]")
    hosts = hosts_of("slurm", address=network.address)
    measured = execute(two_nodes(), steps=2, supervision=Supervision(hosts=hosts))
    assert list(measured.losses) == on_one_machine()[:2]
    killed = after(1, lambda: os.kill(ranks()[3], signal.SIGKILL))
    with pytest.raises(RankFailedError, match=r"^rank 3: the process ended: Killed"):
        execute(two_nodes(), steps=STEPS, supervision=Supervision(hosts=hosts, progress=killed))


def test_a_rank_that_is_stopped_on_another_host_is_named(network: NetworkHosts) -> None:
    stopped = after(3, lambda: os.kill(ranks()[2], signal.SIGSTOP))
    with pytest.raises(RankFailedError, match=r"^rank 2, actor .* its process is stopped"):
        execute(
            two_nodes(),
            steps=STEPS,
            supervision=Supervision(hosts=hosts_in(network, 2), progress=stopped, stall_s=2.0),
        )


def test_a_host_that_is_cut_off_is_named_and_a_spare_takes_its_place(
    network: NetworkHosts, tmp_path: Path
) -> None:
    """Losses are those of a run that nothing befell; what runs on the lost host ends by itself."""
    told: list[str] = []
    try:
        measured = execute(
            two_nodes(),
            steps=40,
            saving=Saving(folder=tmp_path / "saved", every=2),
            supervision=Supervision(
                hosts=hosts_in(network, 3),
                restarts=1,
                progress=after(8, network[1].cut),
                noted=told.append,
            ),
        )
    finally:
        network[1].mend()
    losses = enumerate(zip(measured.losses, on_one_machine(), strict=True))
    assert [(step, *pair) for step, pair in losses if pair[0] != pair[1]] == []
    [restart] = measured.restarts
    assert (restart.host, restart.rank) == (network[1].name, 2)
    name = network[1].name
    assert f"host `{name}`, which has ranks 2 to 3, is lost: it has not answered" in restart.cause
    assert any("(restart 1 of 1)" in sentence for sentence in told)


def test_a_lost_host_without_a_spare_is_planned_around(
    network: NetworkHosts, tmp_path: Path
) -> None:
    """Losses agree but for the order of additions."""
    smaller = msgspec.structs.replace(data_parallel_pipeline())
    asked: list[int] = []

    def replan(plan: Plan, nodes: int) -> Plan:
        asked.append(nodes)
        cluster = msgspec.structs.replace(plan.cluster, devices_per_node=4, nodes=1)
        return msgspec.structs.replace(smaller, cluster=cluster)

    killed = after(5, lambda: os.kill(agent_of(network[0].name), signal.SIGKILL))
    measured = execute(
        two_nodes(),
        steps=20,
        saving=Saving(folder=tmp_path / "saved", every=2),
        supervision=Supervision(
            hosts=hosts_in(network, 2), restarts=1, replan=replan, progress=killed
        ),
    )
    assert asked == [1]
    assert [restart.nodes for restart in measured.restarts] == [1]
    assert measured.losses == pytest.approx(on_one_machine()[:20], rel=1e-5)


def agent_of(host: str) -> int:
    """Process id of the agent of a host."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[-2:-1] == [host.encode()] and b"host_agent" in b" ".join(words[:5]):
            return int(path.parent.name)
    raise AssertionError(f"no agent on {host}")


def test_hosts_that_cannot_be_used_are_told_with_the_reason(network: NetworkHosts) -> None:
    hosts = hosts_in(network, 2)
    nowhere = Hosts(
        names=(network[0].name, "nowhere"), launcher=hosts.launcher, address="127.0.0.1"
    )
    with pytest.raises(
        RankFailedError, match=r"host `.*is lost: `.*ended with code.*(does not reach|resolve)"
    ):
        execute(two_nodes(), steps=1, supervision=Supervision(hosts=nowhere))
    with pytest.raises(InfeasibleError, match=r"lie on 2 nodes of 2, and there are 1 hosts"):
        execute(two_nodes(), steps=1, supervision=Supervision(hosts=hosts_in(network, 1)))
