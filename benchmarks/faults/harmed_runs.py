"""Plans that are run and harmed, and what they come to when nothing befalls them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

import millrace
from benchmarks.executor.namespaces import NetworkHost, NetworkHosts
from millrace.models.graph import to_json

MODEL, SEQ_LEN, GLOBAL_BATCH = "gpt-demo", 32, 16
STEPS, EVERY = 40, 4
# Degrees of dp, tp and pp, and the hosts over which the ranks are spread evenly.
SHAPES = (
    ((2, 1, 1), 1),
    ((1, 1, 2), 2),
    ((1, 2, 2), 2),
    ((2, 1, 2), 1),
    ((4, 1, 1), 2),
    ((3, 1, 2), 3),
    ((2, 2, 2), 1),
    ((2, 1, 4), 2),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmedRun:
    """Plan that is run.

    Attributes
    ----------
    plan
        Its file.
    ranks, hosts
        How many there are.
    stall_s
        Seconds after which its prediction takes a silent rank for stalled.
    losses
        Of every step, when nothing befalls it.
    seconds
        What the command takes then.
    """

    plan: Path
    ranks: int
    hosts: int
    stall_s: float
    losses: tuple[float, ...]
    seconds: float

    @property
    def name(self) -> str:
        """Name of its plan and where it runs."""
        return f"{self.plan.stem} on {self.hosts} host{'s' * (self.hosts > 1)}"


def questions(folder: Path, ranks_max: int, network: NetworkHosts | None) -> list[HarmedRun]:
    """Questions that can be asked here, each run once.

    Parameters
    ----------
    folder
        Where plans are written.
    ranks_max
        The most ranks of a plan.
    network
        Hosts; None: there are none.
    """
    return list(_questions(folder, ranks_max, network))


def _questions(folder: Path, ranks_max: int, network: NetworkHosts | None) -> Iterator[HarmedRun]:
    for (dp, tp, pp), hosts in SHAPES:
        ranks = dp * tp * pp
        if ranks > ranks_max or (hosts > 1 and network is None):
            continue
        batch = GLOBAL_BATCH if GLOBAL_BATCH % (2 * dp) == 0 else 2 * dp * pp
        result = millrace.plan(
            MODEL,
            millrace.cluster(f"local:{ranks}", progress=print),
            global_batch=batch,
            seq_len=SEQ_LEN,
            pins=millrace.Pins(dp=dp, tp=tp, pp=pp),
            max_gap=0.5,
        )
        plan = result.plan
        cluster = msgspec.structs.replace(
            plan.cluster, devices_per_node=ranks // hosts, nodes=hosts
        )
        path = folder / f"dp{dp}tp{tp}pp{pp}.json"
        path.write_bytes(to_json(msgspec.structs.replace(plan, cluster=cluster)))
        begun_s = monotonic()
        options: tuple[str, ...] = ()
        if network is not None and hosts > 1:
            # A rank's share of the cores decides its threads, and these the bits of its products.
            options = host_options(network.hosts[:hosts], network.launcher, network.address)
        document = finished(run_command(path, STEPS, *options), folder)
        assert plan.prediction is not None
        yield HarmedRun(
            plan=path,
            ranks=ranks,
            hosts=hosts,
            stall_s=10.0 + 10.0 * plan.prediction.step_time_s,
            losses=tuple(document["loss"]),
            seconds=monotonic() - begun_s,
        )


def host_options(
    hosts: Sequence[NetworkHost], launcher: Path | str, address: str
) -> tuple[str, ...]:
    """Options of a run on hosts, which a program reaches in place of ssh."""
    names = ",".join(host.name for host in hosts)
    return ("--hosts", names, "--launcher", str(launcher), "--address", address)


def run_command(plan: Path, steps: int, *options: str) -> list[str]:
    """Command that runs a plan."""
    words = [sys.executable, "-m", "millrace", "run", str(plan), "--steps", str(steps), "--json"]
    return [*words, *options]


def finished(command: list[str], temporary: Path) -> dict[str, Any]:
    """Document of a run that nothing befalls; an error tells what it says."""
    ended = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "TMPDIR": str(temporary)}
    )
    if ended.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed: {ended.stderr[-500:]}")
    document: dict[str, Any] = json.loads(ended.stdout)
    return document
