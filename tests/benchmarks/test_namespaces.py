"""Hosts made of namespaces: each its own, joined by a network that can be cut, gone afterwards."""

import subprocess
from pathlib import Path

import pytest

from benchmarks.executor.namespaces import network_hosts, why_unavailable

REASON = why_unavailable()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")


def output(argv: list[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=20).stdout


def interfaces() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


def test_hosts_have_names_memory_and_addresses_of_their_own() -> None:
    before = interfaces()
    with network_hosts(2, rate_gbit=1) as hosts:
        first, second = hosts
        assert output(first.command("hostname")).strip() == first.name != second.name
        assert output(first.command("pwd")).strip() == str(Path.cwd())
        output(first.command("touch", "/dev/shm/segment"))
        assert not Path("/dev/shm/segment").exists()
        assert output(second.command("ls", "/dev/shm")) == ""
        assert output(second.command("ls", "/sys/class/net")).split() == ["eth0", "lo"]
        assert first.address in output(second.command("getent", "hosts", first.name))
        assert interfaces() != before
    assert interfaces() == before


def test_the_launcher_is_called_as_ssh_is() -> None:
    with network_hosts(2) as hosts:
        for host in hosts:
            for place in (host.name, host.address):
                said = output([str(hosts.launcher), "-x", place, "hostname;", '"echo"', "a  b"])
                assert said.splitlines() == [host.name, "a b"]
        unknown = subprocess.run(
            [hosts.launcher, "elsewhere", "true"], capture_output=True, text=True, check=False
        )
        assert unknown.returncode == 255
        assert "elsewhere" in unknown.stderr


@pytest.mark.parametrize("cut", [False, True])
def test_what_is_sent_over_a_cut_cable_vanishes(cut: bool) -> None:
    with network_hosts(2) as hosts:
        first, second = hosts
        code = f"""
import socket, sys
server = socket.create_server(("{first.address}", 0))
print(server.getsockname()[1], flush=True)
other = server.accept()[0]
print("joined", flush=True)
other.settimeout({0.3 if cut else 20})
try:
    print(other.recv(5).decode())
except TimeoutError:
    print("silence")
"""
        listener = subprocess.Popen(
            first.command("python3", "-c", code), stdout=subprocess.PIPE, text=True
        )
        with listener:
            assert listener.stdout is not None
            port = int(listener.stdout.readline())
            code = f"""
import socket, sys
other = socket.create_connection(("{first.address}", {port}))
sys.stdin.readline()
other.send(b"hello")
sys.stdin.readline()
"""
            sender = subprocess.Popen(
                second.command("python3", "-c", code), stdin=subprocess.PIPE, text=True
            )
            with sender:
                assert sender.stdin is not None
                assert listener.stdout.readline() == "joined\n"
                if cut:
                    first.cut()
                sender.stdin.write("\n")
                sender.stdin.flush()
                assert listener.stdout.readline() == ("silence\n" if cut else "hello\n")
                first.mend()
                sender.stdin.write("\n")


def test_hosts_are_removed_when_the_body_raises() -> None:
    before = interfaces()
    with pytest.raises(ZeroDivisionError), network_hosts(1):
        raise ZeroDivisionError
    assert interfaces() == before
