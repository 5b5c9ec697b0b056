"""Trials: a run, a fault in it, its end, what it left, and how it went on."""

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic, sleep
from typing import Any

from benchmarks.executor.namespaces import NetworkHost, NetworkHosts
from benchmarks.faults.harmed_runs import (
    EVERY,
    STEPS,
    HarmedRun,
    finished,
    host_options,
    run_command,
)
from benchmarks.faults.harms import KINDS, MOVED, RunFault, Target
from millrace.executor.values.checkpoint import checkpoints_in
from millrace.executor.values.manifest import step_of

END_S_MAX = 10.0  # in which all ranks stop after a fault that somebody notices
HANG_S = 120.0  # after which a run that hangs is ended here
CLEAN_S_MAX = 10.0
DISK_BYTES = 200 * 2**20
RESTARTED = "(restart 1 of 1)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Fault in a run.

    Attributes
    ----------
    kind
        Of the fault.
    question
        What runs.
    rank
        Who is harmed.
    moment
        When, as a share of what the run takes.
    restarts
        Whether the run may go on by itself.
    """

    number: int
    kind: str
    question: HarmedRun
    rank: int
    moment: float
    restarts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a trial.

    Attributes
    ----------
    ended_s
        Seconds from the fault to the end of the command, or to the restart; where a rank is slow,
        to the line that names it.
    is_in_time
        True if these are no more than there may be.
    code
        Exit code of the command.
    is_named
        True if the message names what was harmed; None where nothing is to be named.
    left
        What was left behind.
    is_equal
        True if all losses, in the end, are those of a run that nothing befell.
    said
        Last line on stderr.
    """

    trial: Trial
    ended_s: float
    is_in_time: bool
    code: int
    is_named: bool | None
    left: tuple[str, ...]
    is_equal: bool
    said: str

    def line(self) -> str:
        """Line of text about it."""
        trial = self.trial
        verdicts = {
            "late": not self.is_in_time,
            "not named": self.is_named is False,
            f"left {', '.join(self.left)}": bool(self.left),
            "losses differ": not self.is_equal,
        }
        bad = [verdict for verdict, holds in verdicts.items() if holds]
        on = " (goes on)" if trial.restarts else ""
        return (
            f"{trial.number:>3} {trial.kind:<10} {trial.question.name}, rank {trial.rank} at "
            f"{trial.moment:.0%}{on}: {self.ended_s:.1f} s, code {self.code}"
            f"{'; ' + '; '.join(bad).upper() + ' | ' + self.said if bad else ''}"
        )


@dataclass(slots=True)
class _Scene:
    """Place where a trial is: folders, and how the command reaches hosts."""

    temporary: Path
    saved: Path
    options: tuple[str, ...]
    hosts: Sequence[NetworkHost]


def outcome_of(trial: Trial, folder: Path, network: NetworkHosts | None) -> Outcome:
    """Outcome of a trial, carried out.

    Parameters
    ----------
    trial
        The trial.
    folder
        Where its files may lie.
    network
        Hosts; None: there are none.
    """
    with ExitStack() as stack:
        scene = stack.enter_context(_scene(trial, folder, network))
        fault = KINDS[trial.kind]
        saving = ["--checkpoint", str(scene.saved), "--checkpoint-every", str(EVERY)]
        saving += ["--checkpoint-keep", "3", *(["--restarts", "1"] if trial.restarts else [])]
        command = run_command(trial.question.plan, STEPS, *scene.options, *saving)
        segments = _segments(scene.hosts)
        errors = scene.temporary / "stderr"
        with errors.open("wb") as sink, (scene.temporary / "stdout").open("wb") as told:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=sink,
                env=_environment(scene),
                start_new_session=True,
            )
        ended_s, is_in_time = _harmed(trial, fault, process, scene, errors)
        code = process.wait()
        left = _left(scene, segments)
        said = errors.read_text(errors="replace")
        name = scene.hosts[_host_of(trial)].name if scene.hosts else ""
        expected = [words.format(rank=trial.rank, host=name) for words in fault.names]
        # The run was over before, or its rank, still starting, ignored an interrupt.
        was_lost = code == 0 and fault.ends and RESTARTED not in said
        return Outcome(
            trial=trial,
            ended_s=ended_s,
            is_in_time=is_in_time,
            code=code,
            is_named=None if was_lost or not expected else _names(said, expected, trial),
            left=left,
            is_equal=_goes_on_equally(trial, scene, code),
            said=said.strip().splitlines()[-1] if said.strip() else "",
        )


def _names(said: str, expected: Sequence[str], trial: Trial) -> bool | None:
    """True if a message names what was harmed; None where it had no bearing on the run."""
    if any(words in said for words in expected):
        return True
    if trial.kind == "full disk":
        return None  # there was no checkpoint left to write, or it fitted
    return False


@contextmanager
def _scene(trial: Trial, folder: Path, network: NetworkHosts | None) -> Any:
    temporary = Path(mkdtemp(prefix=f"trial{trial.number}-", dir=folder))
    saved = temporary / "saved"
    saved.mkdir()
    with ExitStack() as stack:
        if trial.kind == "full disk":
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(saved)],
                check=True,
            )
            stack.callback(subprocess.run, ["umount", "-l", str(saved)], check=False)
        options: tuple[str, ...] = ()
        hosts: tuple[NetworkHost, ...] = ()
        if trial.question.hosts > 1:
            assert network is not None
            hosts = network.hosts[: trial.question.hosts + trial.restarts]
            launcher = temporary / "launcher"
            launcher.write_text(
                f'#!/bin/sh\nhost="$1"; shift\n'
                f'exec {network.launcher} "$host" "export TMPDIR={temporary}; $*"\n'
            )
            launcher.chmod(0o755)
            options = host_options(hosts, launcher, network.address)
        yield _Scene(temporary, saved / "run", options, hosts)


def _environment(scene: _Scene) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(scene.temporary)}


def _harmed(
    trial: Trial,
    fault: RunFault,
    process: "subprocess.Popen[bytes]",
    scene: _Scene,
    errors: Path,
) -> tuple[float, bool]:
    """Seconds from the fault to the end of the run or its restart, and whether that is in time."""
    sleep(trial.moment * trial.question.seconds)
    while process.poll() is None and (target := _target(trial, process.pid, scene)) is None:
        sleep(0.01)
    if process.poll() is not None:
        return 0.0, True
    assert target is not None
    harmed_s = monotonic()
    undo = fault.harm(target)
    if trial.kind == "full disk" and trial.number % 2:
        sleep(1.0)
        undo()  # somebody makes room
    deadline_s = HANG_S if not fault.ends else END_S_MAX
    if fault.stalls:
        deadline_s += trial.question.stall_s
    is_over = _over(process, errors, trial)
    while not is_over() and monotonic() - harmed_s < max(deadline_s, HANG_S):
        sleep(0.02)
    ended_s = monotonic() - harmed_s
    undo()
    with suppress(subprocess.TimeoutExpired):
        process.wait(HANG_S)
    if process.poll() is None:
        process.kill()
    return ended_s, ended_s <= deadline_s


def _over(process: "subprocess.Popen[bytes]", errors: Path, trial: Trial) -> Callable[[], bool]:
    """Function that tells whether a run has ended, has begun to go on, or has named the slow."""

    def is_over() -> bool:
        if process.poll() is not None:
            return True
        said = errors.read_text(errors="replace")
        if trial.kind == "slow rank" and MOVED.format(rank=trial.rank) in said:
            return True
        return trial.restarts and RESTARTED in said

    return is_over


def _host_of(trial: Trial) -> int:
    return trial.rank * trial.question.hosts // trial.question.ranks


def _target(trial: Trial, command: int, scene: _Scene) -> Target | None:
    """Run to be harmed; None before its ranks are there."""
    pids: dict[int, int] = {}
    agent = None
    name = scene.hosts[_host_of(trial)].name if scene.hosts else None
    for pid, words in _processes(scene):
        rank = next((word for word in words if word.startswith("PMI_RANK=")), None)
        if rank is not None:
            pids[int(rank.partition("=")[2])] = pid
        elif name is not None and _is_agent(pid, name):
            # A rank that it has forked is called alike until it executes another program.
            agent = pid if agent is None else min(agent, pid)
    if trial.rank not in pids or (name is not None and agent is None):
        return None
    return Target(
        command=command,
        pids=pids,
        rank=trial.rank,
        agent=agent,
        host=None if name is None else scene.hosts[_host_of(trial)],
        disk=scene.saved.parent,
    )


def _is_agent(pid: int, host: str) -> bool:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        return len(words) > 4 and words[-2] == host and "host_agent" in words[3]
    return False


def _processes(scene: _Scene) -> list[tuple[int, list[str]]]:
    """Processes of a trial and their environments."""
    mark = f"TMPDIR={scene.temporary}"
    processes = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if mark in words:
                processes.append((int(path.parent.name), words))
    return processes


def _segments(hosts: Sequence[NetworkHost]) -> set[str]:
    """Names of MPI's shared-memory segments, on this machine and on hosts."""
    names = {str(path) for path in Path("/dev/shm").glob("mpich_*")}
    for host in hosts:
        listed = subprocess.run(
            host.command("ls", "/dev/shm"), capture_output=True, text=True, check=True
        )
        names |= {f"{host.name}:{name}" for name in listed.stdout.split() if "mpich" in name}
    return names


def _left(scene: _Scene, segments: set[str]) -> tuple[str, ...]:
    """Names of what a run has left behind, some time after its end."""
    deadline = monotonic() + CLEAN_S_MAX
    while True:
        left = [f"process {pid}" for pid, _ in _processes(scene)]
        left += [str(path) for path in scene.temporary.glob("millrace-*")]
        if not left or monotonic() > deadline:
            break
        sleep(0.05)
    segments_left = sorted(name for name in _segments(scene.hosts) - segments if ":" in name)
    return (*left, *segments_left)


def _goes_on_equally(trial: Trial, scene: _Scene, code: int) -> bool:
    """True if the losses of a run, gone on to its end, are those of one that nothing befell."""
    expected = trial.question.losses
    if code == 0:
        document = json.loads((scene.temporary / "stdout").read_text())
        return tuple(document["loss"]) == expected
    steps = [step_of(path.name) or 0 for path in checkpoints_in(scene.saved)]
    steps_made = max(steps, default=0)
    if steps_made == STEPS:
        return True
    options = [*scene.options, "--checkpoint", str(scene.saved)]
    options += ["--resume"] if steps_made else []
    command = run_command(trial.question.plan, STEPS - steps_made, *options)
    try:
        document = finished(command, scene.temporary)
    except RuntimeError as error:
        print(error)
        return False
    return tuple(document["loss"]) == expected[steps_made:]
