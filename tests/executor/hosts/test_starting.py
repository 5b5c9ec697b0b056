"""Hosts and what is said to them: names, placement, PMI, frames and folders."""

import socket
from pathlib import Path

import pytest

from millrace.executor.hosts.folder_mirror import FolderMirror
from millrace.executor.hosts.frames import Beat, FilePart, FrameLine, Hello, Pmi
from millrace.executor.hosts.host_agent import Orders, host_number
from millrace.executor.hosts.host_list import HostRanks, Hosts, hosts_of, placed, start_command
from millrace.executor.hosts.pmi_server import PmiServer, process_mapping
from millrace.planner.errors import InfeasibleError, PlanError


def test_hosts_are_read_as_people_write_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hosts_of("a, b").names == ("a", "b")
    assert hosts_of("a", launcher="/x/exec").launcher == ("/x/exec",)
    file = tmp_path / "hostfile"
    file.write_text("pod-0 slots=8\n# none\npod-1:8\n\n")
    assert hosts_of(f"@{file}").names == ("pod-0", "pod-1")
    for text, said in (
        ("a,,b", "`` is no name"),
        ("a,b c", "`b c` is no name"),
        ("a:8", "`a:8` is no name"),
        ("-oProxyCommand=x", "is no name"),
        ("a,b,a", "`a` stands there twice"),
        ("@/none", "cannot be read"),
        ("slurm", "no job of Slurm"),
    ):
        with pytest.raises(PlanError, match=said):
            hosts_of(text)
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\necho node1; echo node2\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    hosts = hosts_of("slurm")
    assert hosts.names == ("node1", "node2")
    used = placed(hosts, 3, 2)
    [(numbers, command)] = start_command(hosts, used, ["python", "-c", "x y"])
    assert numbers == (0, 1)
    assert command[0] == "srun"
    assert command[-3:] == ["python", "-c", "x y"]
    assert "node1,node2" in command


def test_ranks_lie_as_the_nodes_of_the_plan_do() -> None:
    hosts = Hosts(names=("a", "b", "c"))
    assert placed(hosts, 3, 2) == (
        HostRanks(name="a", ranks=(0, 1)),
        HostRanks(name="b", ranks=(2,)),
    )
    with pytest.raises(InfeasibleError, match=r"4 nodes of 2, and there are 3 hosts: name 1 more"):
        placed(hosts, 8, 2)
    [(_, command), _] = start_command(hosts, placed(hosts, 4, 2), ["python", "-c", "it's"])
    assert command[-2:] == ["a", "exec 'python' '-c' 'it'\\''s' 'a'"]


def test_an_agent_knows_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = Orders(address="", port=0, token="", hosts=("10.0.0.1", "10.0.0.2"))
    assert host_number(addresses, "10.0.0.2") == 1
    orders = Orders(address="", port=0, token="", hosts=("node1", "node2.cluster"))
    monkeypatch.setenv("SLURMD_NODENAME", "node2")
    assert host_number(orders, None) == 1
    monkeypatch.setenv("SLURMD_NODENAME", "node1")
    assert host_number(orders, None) == 0
    monkeypatch.delenv("SLURMD_NODENAME")
    with pytest.raises(SystemExit, match=r"the hosts are node1, node2\.cluster"):
        host_number(orders, None)


def test_ranks_exchange_keys_and_wait_for_each_other() -> None:
    server = PmiServer([1, 1])
    assert server.request(0, "cmd=init pmi_version=1 pmi_subversion=1")[0][1].endswith("rc=0")
    assert server.request(0, "cmd=put kvsname=x key=a value=b=c") == [
        (0, "cmd=put_result rc=0 msg=success")
    ]
    assert server.request(0, "cmd=barrier_in") == []
    assert [rank for rank, _ in server.request(1, "cmd=barrier_in")] == [0, 1]
    assert server.request(1, "cmd=get kvsname=x key=a")[0][1].endswith("value=b=c")
    assert "rc=-1" in server.request(1, "cmd=get kvsname=x key=z")[0][1]
    assert "rc=-1" in server.request(1, "noise")[0][1]
    assert server.request(1, "cmd=abort exitcode=3") == []
    assert server.aborted == [1]
    assert process_mapping([4]) == "(vector,(0,1,4))"


def test_frames_arrive_as_they_were_sent_and_noise_closes_the_line() -> None:
    left, right = (FrameLine(end) for end in socket.socketpair())
    frames = [Hello("secret", 3), FilePart("board.0", 8, b"\0" * 10_000), Pmi(2, "cmd=x"), Beat()]
    left.send(*frames)
    assert right.receive() == frames
    assert right.receive() == []
    left.close()
    right.receive()
    assert right.is_closed
    right.close()
    noisy, heard = socket.socketpair()
    line = FrameLine(heard)
    noisy.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert line.receive() == []
    assert line.is_closed
    noisy.close()
    line.close()


def test_a_folder_is_mirrored_as_it_changes(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    sender, receiver = FolderMirror(here), FolderMirror(there)

    def mirror() -> list[str]:
        parts = list(sender.changes())
        for part in parts:
            receiver.receive(part)
        return [part.name for part in parts]

    (here / "job.json").write_text("{}")
    (here / "failure.0.draft").write_text("half")
    (here / "steps.1").write_bytes(bytes(200_000))
    assert mirror() == ["job.json", *["steps.1"] * 4]
    assert mirror() == []
    with (here / "steps.1").open("r+b") as file:
        file.seek(100_000)
        file.write(b"new")
    assert mirror() == ["steps.1"]
    assert (there / "steps.1").read_bytes() == (here / "steps.1").read_bytes()
    assert list(receiver.changes()) == []
    (there / "failure.1.json").write_text("[]")
    assert [part.name for part in receiver.changes()] == ["failure.1.json"]
    for name in ("../x", "/etc/x", ".hidden", ""):
        with pytest.raises(ValueError, match="no file of a job"):
            receiver.receive(FilePart(name, 0, b""))
