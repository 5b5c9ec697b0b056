"""Host list of a run: names, the command that starts something there, and each host's ranks."""

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from millrace.planner.errors import InfeasibleError, PlanError

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20")
SLURM = "slurm"
NAME = re.compile(r"[A-Za-z0-9]([\w.-]*\w)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """Hosts that a run may use, in the order of a plan's nodes; those behind are spares.

    Attributes
    ----------
    names
        Names or addresses.
    launcher
        Program and its first arguments that run a command on a host, called with the host's name
        and the command behind it, as `ssh` is. Empty: Slurm's `srun`, once for all hosts.
    address
        Address of this machine that the hosts reach; None: that of the way to them.
    """

    names: tuple[str, ...]
    launcher: tuple[str, ...] = SSH
    address: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRanks:
    """Ranks of one host."""

    name: str
    ranks: tuple[int, ...]


def hosts_of(text: str, *, launcher: str | None = None, address: str | None = None) -> Hosts:
    """Hosts as the command line has them.

    Parameters
    ----------
    text
        Names with commas between them, `@FILE` (a line per host, as of an MPI operator), or
        `slurm` for those of the job that this runs in.
    launcher
        Program in place of ssh, called `LAUNCHER HOST COMMAND…`.
    address
        Address of this machine that the hosts reach.

    Raises
    ------
    PlanError
        A name is none, or stands there twice; the file is not there; this is no job of Slurm.

    Examples
    --------
    >>> hosts_of("node1,node2").names
    ('node1', 'node2')
    """
    start: tuple[str, ...] = SSH
    if text == SLURM:
        names, start = _slurm_hosts(), ()
    elif text.startswith("@"):
        names = _names_in(Path(text[1:]))
    else:
        names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if not NAME.fullmatch(name):
            raise PlanError(f"--hosts {text}: `{name}` is no name of a host, such as node1")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PlanError(f"--hosts {text}: `{twice[0]}` stands there twice")
    return Hosts(names=names, launcher=start if launcher is None else (launcher,), address=address)


def placed(hosts: Hosts, ranks: int, ranks_per_node: int) -> tuple[HostRanks, ...]:
    """Ranks of every host that is used: node n of the plan is host n.

    Parameters
    ----------
    hosts
        The hosts.
    ranks, ranks_per_node
        Of the plan.

    Raises
    ------
    InfeasibleError
        The plan has more nodes than there are hosts.

    Examples
    --------
    >>> [host.ranks for host in placed(Hosts(names=("a", "b", "c")), 4, 2)]
    [(0, 1), (2, 3)]
    """
    nodes = -(-ranks // ranks_per_node)
    if nodes > len(hosts.names):
        raise InfeasibleError(
            f"the plan's {ranks} ranks lie on {nodes} nodes of {ranks_per_node}, and there are "
            f"{len(hosts.names)} hosts: name {nodes - len(hosts.names)} more, or plan for fewer"
        )
    return tuple(
        HostRanks(
            name=hosts.names[node],
            ranks=tuple(range(node * ranks_per_node, min((node + 1) * ranks_per_node, ranks))),
        )
        for node in range(nodes)
    )


def start_command(
    hosts: Hosts, used: Sequence[HostRanks], command: Sequence[str]
) -> list[tuple[tuple[int, ...], list[str]]]:
    """Commands that start agents: for which of the used hosts, and what is run here.

    Parameters
    ----------
    hosts
        How something is started there.
    used
        The hosts.
    command
        What an agent is, as arguments; over ssh its host's name is put behind it.
    """
    if not hosts.launcher:
        names = ",".join(host.name for host in used)
        count = str(len(used))
        options = ["--nodes", count, "--ntasks", count, "--ntasks-per-node", "1", "--overlap"]
        srun = ["srun", *options, "--nodelist", names, "--kill-on-bad-exit=0", "--input=all"]
        return [(tuple(range(len(used))), [*srun, *command])]
    return [
        ((number,), [*hosts.launcher, host.name, _shell_line([*command, host.name])])
        for number, host in enumerate(used)
    ]


def _shell_line(words: Sequence[str]) -> str:
    """Words as a POSIX shell reads them; ssh hands a line to one."""
    return "exec " + " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)


def _names_in(path: Path) -> tuple[str, ...]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"--hosts @{path}: the file cannot be read: {error}") from None
    names = (line.partition("#")[0].split() for line in lines)
    return tuple(words[0].partition(":")[0] for words in names if words)


def _slurm_hosts() -> tuple[str, ...]:
    """Hosts of the job of Slurm that this runs in."""
    listed = os.environ.get("SLURM_JOB_NODELIST")
    if not listed:
        raise PlanError(
            "--hosts slurm: this is no job of Slurm (SLURM_JOB_NODELIST is not set): run it in "
            "one (`salloc`, `sbatch`), or name the hosts"
        )
    try:
        shown = subprocess.run(
            ["scontrol", "show", "hostnames", listed], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise PlanError(f"--hosts slurm: `scontrol show hostnames` failed: {error}") from None
    return tuple(shown.stdout.split())
