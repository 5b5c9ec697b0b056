"""Hosts of a network, made of namespaces on this machine: for runs over several hosts, and faults.

`network_hosts` makes hosts that have each a network of their own, a host name, a `/dev/shm` and
System V memory; processes and files are the machine's. They are joined by a switch, to which the
caller's own network is plugged too. A host is held by one process, which ends when the caller does,
however that ends; the kernel then removes the host, its interfaces and the switch.
"""

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory

RIGHTS = "run this as root, or in a container with CAP_SYS_ADMIN and CAP_NET_ADMIN"
TOOLS = ("ip", "mount", "nsenter", "tc", "unshare")
NETWORK = "198.18"  # for benchmarks of networks (RFC 2544, section C.2.2, read 2026-11)
CALLER = 254  # the caller's number in its network; hosts are 1, 2, …
HOSTS_MAX = 32
# A shaped link may send so long at once, and holds back so much before it drops.
BURST_S, LATENCY_MS = 1e-3, 20
BURST_BYTES_MIN = 2**17  # of the largest packet that the kernel cuts into segments, two


class NamespacesUnavailableError(Exception):
    """Hosts that cannot be made here; says why, and what would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkHost:
    """Host of a network on this machine.

    Attributes
    ----------
    name
        Its host name, which the other hosts resolve; the caller does not.
    address
        Its address, by which hosts and caller reach it.
    """

    name: str
    address: str
    _anchor: int
    _switch: int
    _port: str

    def command(self, *argv: str) -> list[str]:
        """Command that runs `argv` on this host, in the caller's folder and environment."""
        return [*_inside(self._anchor), "env", f"--chdir={Path.cwd()}", *argv]

    def cut(self) -> None:
        """Cut the host off: what it sends or is sent vanishes in the switch, and nobody is told."""
        _ip(self._switch, "link", "set", self._port, "nomaster")

    def mend(self) -> None:
        """Let the switch carry the host's packets again."""
        _ip(self._switch, "link", "set", self._port, "master", "switch")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkHosts:
    """Hosts that reach each other, and are reached by the caller.

    Attributes
    ----------
    hosts
        The hosts.
    address
        The caller's own address in their network.
    launcher
        Program that stands for `ssh`: `LAUNCHER [-x …] HOST COMMAND…` runs a command on the host
        of that name or address, by a shell in the home folder, with an environment of its own.
    """

    hosts: tuple[NetworkHost, ...]
    address: str
    launcher: Path

    def __iter__(self) -> Iterator[NetworkHost]:
        return iter(self.hosts)

    def __len__(self) -> int:
        return len(self.hosts)

    def __getitem__(self, number: int) -> NetworkHost:
        return self.hosts[number]


def why_unavailable() -> str | None:
    """Reason why no hosts can be made on this machine; None where they can."""
    try:
        with network_hosts(1):
            return None
    except NamespacesUnavailableError as error:
        return str(error)


def _require_rights() -> None:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise NamespacesUnavailableError(
            f"hosts of namespaces need {', '.join(missing)}: install iproute2 and util-linux"
        )
    if os.geteuid() != 0:
        raise NamespacesUnavailableError(f"hosts of namespaces need the rights of root: {RIGHTS}")


@contextmanager
def network_hosts(count: int, *, rate_gbit: float | None = None) -> Iterator[NetworkHosts]:
    """Hosts on this machine, for as long as the context lasts.

    Parameters
    ----------
    count
        How many.
    rate_gbit
        What each host's cable carries each way, in Gbit/s; None: what the kernel can.

    Raises
    ------
    NamespacesUnavailableError
        The kernel does not allow it, or a program is missing; says which.
    """
    if not 1 <= count <= HOSTS_MAX:
        raise ValueError(f"{count} hosts: expected 1 to {HOSTS_MAX}")
    _require_rights()
    token = token_hex(3)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="millrace-hosts-")))
        network = f"{NETWORK}.{_free_network()}"
        names = [f"host{number}-{token}" for number in range(count)]
        addresses = [f"{network}.{number + 1}" for number in range(count)]
        table = folder / "hosts"
        lines = ["127.0.0.1 localhost", *map(" ".join, zip(addresses, names, strict=True))]
        table.write_text("".join(f"{line}\n" for line in lines))

        switch = stack.enter_context(_anchored("--net"))
        _ip(switch, "link", "add", "switch", "type", "bridge")
        _ip(switch, "link", "set", "switch", "up")
        _plug(switch, os.getpid(), f"mr{token}", "caller", f"{network}.{CALLER}")
        # The kernel removes a network some time after its last process; a cable's two ends at once.
        stack.callback(_ip, switch, "link", "delete", "caller")
        anchors = []
        for number, (name, address) in enumerate(zip(names, addresses, strict=True)):
            anchor = stack.enter_context(_anchored("--net", "--mount", "--uts", "--ipc"))
            _plug(switch, anchor, "eth0", f"port{number}", address)
            if rate_gbit is not None:
                _shape(anchor, "eth0", rate_gbit)
                _shape(switch, f"port{number}", rate_gbit)
            _run(*_inside(anchor), "sh", "-ec", FURNISH, name, str(table))
            anchors.append(anchor)
        yield NetworkHosts(
            hosts=tuple(
                NetworkHost(
                    name=name,
                    address=address,
                    _anchor=anchor,
                    _switch=switch,
                    _port=f"port{number}",
                )
                for number, (name, address, anchor) in enumerate(
                    zip(names, addresses, anchors, strict=True)
                )
            ),
            address=f"{network}.{CALLER}",
            launcher=_launcher(folder, names, addresses, anchors),
        )


# $0 is the host's name, $1 the table of all hosts. /sys shows the network that one mounts it in.
FURNISH = """
hostname "$0"
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount --bind "$1" /etc/hosts
mount -t sysfs sysfs /sys
"""

LAUNCHER = """#!/bin/sh
# Stands for ssh between hosts of namespaces: [OPTIONS] HOST COMMAND…
while :; do
  case "$1" in
    -[BbcDEeFIiJLlmOopQRSWw]) shift 2 ;;
    -*) shift ;;
    *) break ;;
  esac
done
case "$1" in
HOSTS
  *) echo "ssh: Could not resolve hostname $1" >&2; exit 255 ;;
esac
shift
exec nsenter --target "$anchor" --net --mount --uts --ipc env -i \\
  HOME="$HOME" USER="$USER" SHELL=/bin/sh PATH=/usr/local/bin:/usr/bin:/bin \\
  sh -c 'cd "$HOME" && exec sh -c "$0"' "$*"
"""


def _launcher(folder: Path, names: list[str], addresses: list[str], anchors: list[int]) -> Path:
    """Write the program that stands for ssh."""
    hosts = "\n".join(
        f"  {name}|{address}) anchor={anchor} ;;"
        for name, address, anchor in zip(names, addresses, anchors, strict=True)
    )
    path = folder / "launcher"
    path.write_text(LAUNCHER.replace("HOSTS", hosts))
    path.chmod(stat.S_IRWXU)
    return path


def _free_network() -> int:
    """Number of a network that this machine has no address in."""
    used = _run("ip", "-4", "-o", "address")
    # Who makes hosts at the same time does not see these yet, so each begins somewhere else.
    first = int(token_hex(1), 16)
    for number in (*range(first, 256), *range(first)):
        if f"{NETWORK}.{number}." not in used:
            return number
    raise NamespacesUnavailableError(f"all networks of {NETWORK}.0.0/16 are in use")


@contextmanager
def _anchored(*namespaces: str) -> Iterator[int]:
    """Process that holds new namespaces; it ends when its input does, thus with the caller."""
    with subprocess.Popen(
        ["unshare", *namespaces, "cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as anchor:
        assert anchor.stdin is not None
        assert anchor.stdout is not None
        assert anchor.stderr is not None
        try:
            with suppress(BrokenPipeError):
                anchor.stdin.write(b"\n")
                anchor.stdin.flush()
            if not anchor.stdout.readline():
                cause = anchor.stderr.read().decode(errors="replace").strip()
                raise NamespacesUnavailableError(
                    f"the kernel gives no namespaces ({cause}): {RIGHTS}"
                )
            yield anchor.pid
        finally:
            anchor.kill()


def _plug(switch: int, anchor: int, interface: str, port: str, address: str) -> None:
    """Lay a cable from a namespace to a port of the switch, and give its end there an address."""
    peer = ("peer", "name", port, "netns", str(switch))
    _ip(anchor, "link", "add", interface, "type", "veth", *peer)
    _ip(switch, "link", "set", port, "master", "switch", "up")
    _ip(anchor, "address", "add", f"{address}/24", "dev", interface)
    _ip(anchor, "link", "set", interface, "up")
    if anchor != os.getpid():
        _ip(anchor, "link", "set", "lo", "up")


def _shape(anchor: int, interface: str, rate_gbit: float) -> None:
    """Let an interface send so much and no more."""
    burst = max(int(rate_gbit * 1e9 / 8 * BURST_S), BURST_BYTES_MIN)
    shape = f"rate {int(rate_gbit * 1e6)}kbit burst {burst} latency {LATENCY_MS}ms"
    _run(*_network_of(anchor), *f"tc qdisc add dev {interface} root tbf {shape}".split())


def _ip(anchor: int, *arguments: str) -> None:
    _run(*_network_of(anchor), "ip", *arguments)


def _network_of(anchor: int) -> list[str]:
    return [] if anchor == os.getpid() else ["nsenter", "--target", str(anchor), "--net"]


def _inside(anchor: int) -> list[str]:
    return ["nsenter", "--target", str(anchor), "--net", "--mount", "--uts", "--ipc"]


def _run(*argv: str) -> str:
    completed = subprocess.run(argv, capture_output=True, text=True, check=False)
    if completed.returncode:
        cause = completed.stderr.strip() or f"it ended with {completed.returncode}"
        raise NamespacesUnavailableError(f"`{' '.join(argv)}` failed: {cause}")
    return completed.stdout
