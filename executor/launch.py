"""execute: run a plan on this machine, one process per rank, and say what happened."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec

from millrace.executor.backend import CPUS, WORKERS, Backend
from millrace.executor.data import data_digest, open_dataset
from millrace.executor.drift.drift_watch import (
    Drift,
    Drifted,
    DriftReader,
    DriftWatch,
    ExpectedStep,
)
from millrace.executor.drift.expected_step import expected_step
from millrace.executor.errors import CheckpointError
from millrace.executor.gpu.availability import require_gpu
from millrace.executor.gpu.memory_use import MemoryUse
from millrace.executor.hosts.rank_runs import run_ranks
from millrace.executor.job import RunJob
from millrace.executor.processes import check_capacity
from millrace.executor.progress import Progress, ProgressReader, gradient_norm, mean_loss
from millrace.executor.recording import load_recording, losses, recorded_bytes, trace_of
from millrace.executor.supervision.stall_watch import StallLimit, StallWatch
from millrace.executor.values.checkpoint import checked_checkpoint, find_checkpoint
from millrace.executor.values.checkpoint_folder import locked_folder
from millrace.executor.values.committer import Committer, Tell, committer_of
from millrace.executor.values.manifest import Manifest, TrainedOn, manifest_of, staged_bytes
from millrace.executor.values.unsaved import Unsaved
from millrace.executor.values.weights import check_weights
from millrace.models.zoo.catalogue import approximations
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.trace import Trace
from millrace.planner.compile import compile_plan
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.plan import Plan



@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Results and measurements of a run.

    Attributes
    ----------
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
    """

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

    @property
    def ranks(self) -> int:
        """Number of processes."""
        return len(self.trace.lanes)

    @property
    def step_time_ns(self) -> int:
        """Median step time of the slowest rank after the warm-up steps."""
        return self.trace.step_time_ns()


def execute(
    plan: Plan,
    *,
    steps: int,
    data: str | None = None,
    seed: int = 0,
    learning_rate: float | None = None,
    weights: Path | None = None,
    trace: bool = False,
    checkpoint: Path | None = None,
    checkpoint_every: int = 0,
    checkpoint_minutes: float = 0.0,
    checkpoint_keep: int = 0,
    in_background: bool = True,
    resume: bool = False,
    backend: Backend = CPUS,
    progress: Progress | None = None,
    drifted: Drifted | None = None,
    stall_s: float | None = None,
    noted: Tell | None = None,
) -> Measured:
    """Train a plan for `steps` steps, one process per rank on this machine.

    Parameters
    ----------
    plan, steps, seed
        What to run, whatever its cluster is; how many steps; seed of initial values and samples.
    data, learning_rate
        A file or folder to train on (None: as `open_dataset` says); the peak, not the plan's.
    weights, trace
        A `.npz` of initial values (`millrace.executor.values.weights`); keep times of firings, not
        only of steps.
    checkpoint, checkpoint_every, checkpoint_minutes
        Folder to save variables and optimizer state in: at the end, every so many steps, and when
        so many minutes have passed since the last checkpoint.
    checkpoint_keep
        How many of the last checkpoints stay; 0: all.
    in_background
        Write checkpoints while steps go on, where there is memory for a copy of the state.
    resume
        Go on from the last one there, which may be another plan's of the model.
    backend, progress
        Where and how it runs; called as `progress(step, loss)` after every step of all, from 0.
    drifted
        Called with a drift of the step time when it begins, and when it ends.
    stall_s
        Seconds in which every rank must come further; 0: for ever. None: as the prediction has it
        (`StallLimit`).
    noted
        Called with a sentence about a step that is not saved, and about what a resume changes.

    Raises
    ------
    ExecutorError
        A rank failed, or came no further; names the rank, the actor and the cause.
    InfeasibleError
        This machine cannot hold the ranks, or lacks what the backend needs; says what.
    DataError, CheckpointError
        The data, the weights or the checkpoint to resume is not there, or does not fit the model.
    """
    digest, plan = plan.digest(), _with_learning_rate(plan, learning_rate)
    trained_on = _trained_on(plan, data, seed)
    check_weights(weights, plan.graph, approximations(plan.model))
    graph = compile_plan(plan)
    staged = in_background and checkpoint_every + checkpoint_minutes > 0
    in_background = _check_machine(graph, backend, steps, trace, staged=staged)
    contents = manifest_of(graph, model=plan.model.name, plan_digest=digest, trained_on=trained_on)
    often = (checkpoint_every, checkpoint_minutes)
    with _folder_of(checkpoint, contents, resume=resume, often=often):
        begin = _begin(graph, plan, checkpoint, trained_on, noted) if resume else _Begin()
        job = _job(
            plan,
            graph,
            steps=steps,
            seed=seed,
            data=data,
            spans=trace,
            first_step=begin.step,
            resume=_absolute(begin.checkpoint),
            weights=_absolute(weights),
            checkpoint=_absolute(checkpoint),
            checkpoint_every=checkpoint_every,
            checkpoint_in_background=in_background,
            **backend.orders,
        )
        with TemporaryDirectory(prefix="millrace-") as name:
            expected = None if backend.on_gpus else expected_step(plan, graph)
            watch = DriftWatch(graph, first_step=begin.step, expected=expected, tell=drifted)
            stalls = StallWatch(
                graph, Path(name), _stall_limit(stall_s, expected), first_step=begin.step
            )
            committer = committer_of(
                job,
                Path(name),
                contents,
                minutes=checkpoint_minutes,
                keep=checkpoint_keep,
                tell=noted,
            )
            _run(job, Path(name), progress, WORKERS[backend.name], watch, stalls, committer)
            measured = _measured(job, Path(name), digest, plan.cluster.device.name, trained_on.data)
            return replace(
                measured,
                backend=backend.name,
                memory=_memory(Path(name)),
                drift=tuple(watch.drifts),
                unsaved=() if committer is None else tuple(committer.unsaved),
                resumed_with=begin.differences,
            )


def rehearse(plan: Plan, *, steps: int) -> Trace:
    """Trace of steps of a plan in which no rank meets another: what it computes, without waits.

    Kernels run where and in the order in which they do in a run, all ranks at once, on data of no
    meaning.

    Parameters
    ----------
    plan
        A plan for ranks of this machine.
    steps
        How many steps are made.

    Raises
    ------
    ExecutorError
        A rank failed; names the rank, the actor and the cause.
    InfeasibleError
        This machine cannot hold the ranks.
    DataError
        There is no data of what the model reads.
    """
    graph = compile_plan(plan)
    description = open_dataset(None, plan.model, 0).description
    _check_machine(graph, CPUS, steps, spans=True)
    job = _job(plan, graph, steps=steps, seed=0, data=None, spans=True, alone=True, **CPUS.orders)
    with TemporaryDirectory(prefix="millrace-") as name:
        job.save(Path(name))
        run_ranks(WORKERS[CPUS.name], graph.ranks, Path(name))
        return _measured(job, Path(name), "", plan.cluster.device.name, description).trace


def _folder_of(
    checkpoint: Path | None, contents: Manifest, *, resume: bool, often: tuple[int, float]
) -> AbstractContextManager[None]:
    """Folder of checkpoints, held for as long as the run lasts."""
    for number, unit in zip(often, ("steps", "minutes"), strict=True):
        if not 0 <= number < inf:
            raise CheckpointError(f"checkpoints every {number} {unit}: expected a number above 0")
    if checkpoint is None and (resume or any(often)):
        what = "resume from" if resume else "save in"
        raise CheckpointError(f"nothing to {what}: give the folder of the checkpoints as well")
    if checkpoint is None:
        return nullcontext()
    if resume and not checkpoint.is_dir():
        find_checkpoint(checkpoint)
    return locked_folder(checkpoint, contents)


def _trained_on(plan: Plan, data: str | None, seed: int) -> TrainedOn:
    """Samples that a run of a plan trains on."""
    dataset = open_dataset(data, plan.model, seed)
    return TrainedOn(
        seed=seed,
        data=dataset.description,
        data_digest=data_digest(dataset, plan.model),
        global_batch=plan.global_batch,
    )


def _check_machine(
    graph: ActorGraph, backend: Backend, steps: int, spans: bool, *, staged: bool = False
) -> bool:
    """Refuse what this machine cannot hold or run; True if it holds what is `staged` besides."""
    if steps < 1:
        raise PlanError(f"{steps} steps: expected at least one")
    on_host = [
        program.host_bytes + recorded_bytes(program, steps, spans=spans)
        for program in graph.programs
        for _ in program.ranks
    ]
    copies = [staged_bytes(graph, rank) for program in graph.programs for rank in program.ranks]
    if backend.on_gpus:
        require_gpu(backend.processes(graph.ranks))
        arenas = [0] * len(on_host)
    else:
        arenas = [program.memory_bytes for program in graph.programs for _ in program.ranks]
    needed = [size + host for size, host in zip(arenas, on_host, strict=True)]
    if backend.on_gpus and backend.loopback:
        needed, copies = [sum(needed)], [sum(copies)]
    check_capacity(needed)
    if not staged:
        return False
    try:
        check_capacity([size + copy for size, copy in zip(needed, copies, strict=True)])
    except InfeasibleError:
        return False
    return True


def _with_learning_rate(plan: Plan, learning_rate: float | None) -> Plan:
    if learning_rate is None:
        return plan
    training = msgspec.structs.replace(plan.training, learning_rate=learning_rate)
    return msgspec.structs.replace(plan, training=training)


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())


def _job(plan: Plan, graph: ActorGraph, **orders: Any) -> RunJob:
    return RunJob(
        graph=graph,
        model=plan.model,
        variables={op.outputs[0]: op.attributes for op in plan.graph.ops if op.kind == "variable"},
        global_batch=plan.global_batch,
        microbatches=plan.microbatches,
        batch=plan.batch,
        **orders,
    )


class _Begin(NamedTuple):
    """Checkpoint to go on from, steps that were made, and what was otherwise then, in sentences."""

    checkpoint: Path | None = None
    step: int = 0
    differences: tuple[str, ...] = ()


def _begin(
    graph: ActorGraph, plan: Plan, folder: Path | None, trained_on: TrainedOn, tell: Tell | None
) -> _Begin:
    """Begin of a run that resumes; tells what is not as it was."""
    assert folder is not None
    checkpoint, manifest = checked_checkpoint(folder, graph, plan.model.name)
    earlier = manifest.trained_on
    differences = () if earlier is None else earlier.differences(trained_on)
    if tell is not None:
        for sentence in differences:
            tell(sentence)
    return _Begin(checkpoint, manifest.step, differences)


def _run(
    job: RunJob,
    folder: Path,
    progress: Progress | None,
    worker: str,
    drift_watch: DriftWatch,
    stalls: StallWatch,
    committer: Committer | None,
) -> None:
    """Run a job's ranks, which write their recordings in its folder."""
    job.save(folder)
    reader = _Progress(folder, progress)
    steps = DriftReader(job.graph, folder, drift_watch)

    def watch() -> None:
        reader.read()
        steps.read()
        if committer is not None:
            committer.look()
        stalls.look()

    try:
        run_ranks(worker, 1 if job.loopback else job.graph.ranks, folder, watch=watch)
        if committer is not None:
            committer.finish()
    finally:
        steps.close()
        stalls.close()


def _stall_limit(stall_s: float | None, expected: ExpectedStep | None) -> StallLimit | None:
    """Limit for a rank that comes no further: the caller's, or as the prediction has it."""
    if stall_s == 0:
        return None
    if stall_s is not None:
        return StallLimit(unpredicted_s=stall_s, gaps=0.0)
    return StallLimit(predicted_step_s=None if expected is None else expected.step_ns / 1e9)


def _measured(job: RunJob, folder: Path, digest: str, device: str, data: str) -> Measured:
    ranks = range(job.graph.ranks)
    recordings = [load_recording(folder / f"rank.{rank}.npz") for rank in ranks]
    totals = max((recording.totals for recording in recordings), key=len)
    margin = min(recording.smallest_margin for recording in recordings)
    return Measured(
        trace=trace_of(job.graph, recordings, plan_digest=digest, device=device),
        losses=losses(recordings),
        gradient_norms=tuple(squares**0.5 / max(count, 1.0) for _, count, squares in totals),
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
