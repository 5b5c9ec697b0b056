"""Measured: results and measurements of a run."""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import msgspec

from millrace.executor.backend import CPUS
from millrace.executor.drift.drift_watch import Drift
from millrace.executor.gpu.memory_use import MemoryUse
from millrace.executor.job import RunJob
from millrace.executor.progress import gradient_norm
from millrace.executor.recording import load_recording, losses, trace_of
from millrace.executor.values.unsaved import Unsaved
from millrace.planner.actors.trace import Trace
from millrace.planner.plan import Plan


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """Failure after which a run went on.

    Attributes
    ----------
    step
        Steps made over all runs at the checkpoint that it went on from.
    cause
        The failure in one sentence, with its rank and actor.
    rank, host
        What was lost: a rank, and its host where that was lost with all its ranks.
    nodes
        Nodes of the plan that it went on with, where it had to be planned again.
    """

    step: int
    cause: str
    rank: int | None = None
    host: str | None = None
    nodes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Results and measurements of a run.

    Attributes
    ----------
    plan
        What was run, in the end: another plan than at first where a host was lost.
    trace
        Ends of all steps, and the spans of all firings if they were asked for.
    losses
        Mean loss per valid token of every step.
    gradient_norms
        Norm of the mean gradient of every step, before clipping.
    first_step
        Steps made by earlier runs.
    data
        What it trained on, in a few words.
    memory
        On GPUs: bytes of the fullest rank by region, and beside them `context`, `host`, all that
        is in use on the `device`, and what was `grown` after the first captured step.
    drift
        Where steps left their band, and the actor that moved.
    smallest_top_k_margin
        By how much, at the least, an expert that a token chose beat one that it did not, over all
        ranks; None without experts. Sums in another order may flip a choice of a tiny margin.
    unsaved
        Steps whose checkpoint could not be written, and why.
    resumed_with
        Sentences on what it resumed with that the checkpoint was not trained with.
    restarts
        Failures after which it went on from a checkpoint. The trace is of the steps since the last
        of them.
    """

    plan: Plan
    trace: Trace
    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    data: str
    first_step: int = 0
    backend: str = CPUS.name
    memory: dict[str, int] | None = None
    drift: tuple[Drift, ...] = ()
    smallest_top_k_margin: float | None = None
    unsaved: tuple[Unsaved, ...] = ()
    resumed_with: tuple[str, ...] = ()
    restarts: tuple[Restart, ...] = ()

    @property
    def ranks(self) -> int:
        """Number of processes."""
        return len(self.trace.lanes)

    @property
    def step_time_ns(self) -> int:
        """Median step time of the slowest rank after the warm-up steps."""
        return self.trace.step_time_ns()


def measured_of(plan: Plan, job: RunJob, folder: Path, digest: str, data: str) -> Measured:
    """Measurements that the ranks of a job have written.

    Parameters
    ----------
    plan
        What was run.
    job, folder
        The job and its folder.
    digest
        Of the plan as the trace has it.
    data
        What it trained on.
    """
    ranks = range(job.graph.ranks)
    recordings = [load_recording(folder / f"rank.{rank}.npz") for rank in ranks]
    totals = max((recording.totals for recording in recordings), key=len)
    margin = min(recording.smallest_margin for recording in recordings)
    device = plan.cluster.device.name
    return Measured(
        plan=plan,
        trace=trace_of(job.graph, recordings, plan_digest=digest, device=device),
        losses=losses(recordings),
        gradient_norms=tuple(gradient_norm(each) for each in totals),
        memory=_memory(folder),
        data=data,
        first_step=job.first_step,
        smallest_top_k_margin=margin if isfinite(margin) else None,
    )


def _memory(folder: Path) -> dict[str, int] | None:
    """Bytes of the fullest rank's memory by region; None where ranks have not said."""
    uses = [
        msgspec.json.decode(path.read_bytes(), type=MemoryUse)
        for path in sorted(folder.glob("memory.*.json"))
    ]
    if not uses:
        return None
    fullest = max(uses, key=lambda use: sum(use.regions.values()))
    return {
        **fullest.regions,
        "context": fullest.context_bytes,
        "libraries": fullest.library_bytes,
        "host": fullest.host_bytes,
        "device": fullest.device_used_bytes,
        "grown": fullest.grown_bytes,
    }
