"""Training run: a plan compiled and checked, and one attempt at its steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec

from millrace.executor.backend import WORKERS, Backend
from millrace.executor.data import data_digest, open_dataset
from millrace.executor.drift.drift_watch import DriftReader, DriftWatch, ExpectedStep
from millrace.executor.drift.expected_step import expected_step
from millrace.executor.gpu.availability import require_gpu
from millrace.executor.hosts.host_list import Hosts
from millrace.executor.hosts.rank_runs import run_ranks
from millrace.executor.job import RunJob
from millrace.executor.processes import check_capacity
from millrace.executor.progress import ProgressReader
from millrace.executor.recording import recorded_bytes
from millrace.executor.supervision.stall_watch import StallLimit, StallWatch
from millrace.executor.training.measured import Measured, measured_of
from millrace.executor.training.orders import Saving, Supervision
from millrace.executor.values.checkpoint import checked_checkpoint, find_checkpoint
from millrace.executor.values.checkpoint_folder import locked_folder
from millrace.executor.values.committer import Committer, committer_of
from millrace.executor.values.manifest import Manifest, TrainedOn, manifest_of, staged_bytes
from millrace.executor.values.unsaved import Unsaved
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.compile import compile_plan
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.plan import Plan
from millrace.planner.sbp import local_shape, parse_nd_sbp


class Beginning(NamedTuple):
    """Beginning of an attempt.

    Attributes
    ----------
    checkpoint
        What it goes on from; None: initial values.
    step
        Steps made over all runs.
    differences
        Sentences on what was otherwise then.
    """

    checkpoint: Path | None = None
    step: int = 0
    differences: tuple[str, ...] = ()


@dataclass(slots=True)
class History:
    """Traces that attempts have left behind.

    Attributes
    ----------
    figures
        Loss and norm of the gradient by step, both counted from 0 over all runs.
    saved
        Steps made at the checkpoints that were completed.
    unsaved
        Steps that could not be saved, and why.
    """

    figures: dict[int, tuple[float, float]] = field(default_factory=dict)
    saved: set[int] = field(default_factory=set)
    unsaved: list[Unsaved] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """Steps of a plan that are to be made, however often they are tried.

    Attributes
    ----------
    plan, digest
        What is run, and the digest of the plan that this was made of.
    steps, data, seed, weights, spans
        As of `millrace.executor.launch.execute`.
    backend, saving, supervision
        Where it runs, what is saved, and who looks after it.
    """

    plan: Plan
    digest: str
    steps: int
    data: str | None
    seed: int
    weights: Path | None
    spans: bool
    backend: Backend
    saving: Saving
    supervision: Supervision

    @cached_property
    def graph(self) -> ActorGraph:
        """Actors of every rank."""
        return compile_plan(self.plan)

    @cached_property
    def trained_on(self) -> TrainedOn:
        """Samples that it trains on."""
        dataset = open_dataset(self.data, self.plan.model, self.seed)
        return TrainedOn(
            seed=self.seed,
            data=dataset.description,
            data_digest=data_digest(dataset, self.plan.model),
            global_batch=self.plan.global_batch,
        )

    @cached_property
    def contents(self) -> Manifest:
        """Manifest of what its ranks write together into a checkpoint."""
        return manifest_of(
            self.graph,
            model=self.plan.model.name,
            plan_digest=self.digest,
            trained_on=self.trained_on,
        )

    @cached_property
    def saves_in_background(self) -> bool:
        """True if checkpoints are written while steps go on, for which there is memory.

        Raises
        ------
        InfeasibleError
            This machine cannot hold the ranks.
        """
        saving = self.saving
        staged = saving.in_background and saving.every + saving.minutes > 0
        on_hosts = self.supervision.hosts is not None
        return check_machine(
            self.graph, self.backend, self.steps, self.spans, staged=staged, elsewhere=on_hosts
        )

    def begin(self, step: int | None = None) -> Beginning:
        """Beginning at a checkpoint of the folder: the last, or that of a step.

        Raises
        ------
        CheckpointError
            There is none, or it does not fit the model.
        """
        assert self.saving.folder is not None
        checkpoint, manifest = checked_checkpoint(
            self.saving.folder, self.graph, self.plan.model.name, step=step
        )
        earlier = manifest.trained_on
        differences = () if earlier is None else earlier.differences(self.trained_on)
        return Beginning(checkpoint, manifest.step, differences)

    def attempt(
        self, begin: Beginning, last_step: int, hosts: Hosts | None, history: History
    ) -> Measured:
        """Measurements of the steps from a beginning to the last.

        Parameters
        ----------
        begin
            Where to begin.
        last_step
            Steps made over all runs at the end.
        hosts
            Hosts that are there; None: this machine.
        history
            Takes what is known of steps even where the attempt fails.

        Raises
        ------
        RankFailedError
            A rank failed, or came no further; names the rank, the actor and the cause.
        ExecutorError
            The last state cannot be saved.
        """
        job = self._job(begin, last_step - begin.step)
        supervision = self.supervision
        with TemporaryDirectory(prefix="millrace-") as name:
            folder = Path(name)
            expected = None if self.backend.on_gpus else expected_step(self.plan, self.graph)
            watch = DriftWatch(
                self.graph, first_step=begin.step, expected=expected, tell=supervision.drifted
            )
            stalls = StallWatch(
                self.graph,
                folder,
                _stall_limit(supervision.stall_s, expected),
                first_step=begin.step,
            )
            reader = ProgressReader(folder, supervision.progress)
            committer = committer_of(
                job,
                folder,
                self.contents,
                minutes=self.saving.minutes,
                keep=self.saving.keep,
                tell=supervision.noted,
                # What a host has told of its steps may be lost with it.
                steps_told=None if hosts is None else lambda: 1 + max(reader.figures, default=-1),
            )
            job.save(folder)
            with _watches(job, folder, watch, stalls, committer, reader, history) as look:
                run_ranks(
                    WORKERS[self.backend.name],
                    1 if job.loopback else job.graph.ranks,
                    folder,
                    watch=look,
                    hosts=hosts,
                    ranks_per_node=self.plan.cluster.devices_per_node,
                    listening=supervision.note,
                )
            if committer is not None:
                committer.finish()
            return replace(
                measured_of(self.plan, job, folder, self.digest, self.trained_on.data),
                backend=self.backend.name,
                drift=tuple(watch.drifts),
                unsaved=tuple(history.unsaved),
            )

    def _job(self, begin: Beginning, steps: int) -> RunJob:
        return job_of(
            self.plan,
            self.graph,
            steps=steps,
            seed=self.seed,
            data=self.data,
            spans=self.spans,
            first_step=begin.step,
            resume=_absolute(begin.checkpoint),
            weights=None if begin.checkpoint is not None else _absolute(self.weights),
            checkpoint=_absolute(self.saving.folder),
            checkpoint_every=self.saving.every,
            checkpoint_in_background=self.saves_in_background,
            **self.backend.orders,
        )


@contextmanager
def _watches(
    job: RunJob,
    folder: Path,
    drifts: DriftWatch,
    stalls: StallWatch,
    committer: Committer | None,
    reader: ProgressReader,
    history: History,
) -> Iterator[Any]:
    """Function that looks after the ranks of a job, called over and over while they run.

    What is known at the end, however that comes, is kept in the history.
    """
    steps = DriftReader(job.graph, folder, drifts)

    def look() -> None:
        reader.read()
        steps.read()
        if committer is not None:
            committer.look()
        stalls.look()

    try:
        yield look
    finally:
        reader.read()
        history.figures.update(reader.figures)
        if committer is not None:
            committer.look()
            history.saved.update(committer.saved)
            history.unsaved += committer.unsaved
        steps.close()
        stalls.close()


@contextmanager
def saving_folder(run: TrainingRun, *, resume: bool) -> Iterator[None]:
    """Folder of checkpoints, held for as long as an attempt lasts.

    Parameters
    ----------
    run
        What is saved there.
    resume
        True if there must be a checkpoint.

    Raises
    ------
    CheckpointError
        Nothing can be written or resumed there.
    ExecutorError
        Another run saves there, or the disk is too full.
    """
    saving = run.saving
    if saving.folder is None:
        yield
        return
    if resume and not saving.folder.is_dir():
        find_checkpoint(saving.folder)
    with locked_folder(saving.folder, run.contents):
        yield


def check_machine(
    graph: ActorGraph,
    backend: Backend,
    steps: int,
    spans: bool,
    *,
    staged: bool = False,
    elsewhere: bool = False,
) -> bool:
    """Refuse what this machine cannot hold or run; True if it holds what is `staged` besides.

    Parameters
    ----------
    graph, backend, steps, spans
        What is to run, where, and whether the times of all firings are kept.
    staged
        Whether a copy of the state is wanted.
    elsewhere
        Whether the ranks lie on other hosts, of which nothing is known here.

    Raises
    ------
    InfeasibleError
        The machine cannot hold the ranks, or lacks what the backend needs; says what. Or shards of
        the plan are padded, as trainers of others have them.
    PlanError
        There are no steps.
    """
    if steps < 1:
        raise PlanError(f"{steps} steps: expected at least one")
    _check_even(graph)
    if elsewhere:
        return staged
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


def job_of(plan: Plan, graph: ActorGraph, **orders: Any) -> RunJob:
    """Job of a plan's ranks.

    Parameters
    ----------
    plan, graph
        The plan and its actors.
    orders
        Further fields of the job.
    """
    return RunJob(
        graph=graph,
        model=plan.model,
        variables={op.outputs[0]: op.attributes for op in plan.graph.ops if op.kind == "variable"},
        global_batch=plan.global_batch,
        microbatches=plan.microbatches,
        batch=plan.batch,
        **orders,
    )


def with_learning_rate(plan: Plan, learning_rate: float | None) -> Plan:
    """Plan with another peak of the learning rate; the plan itself for None.

    Parameters
    ----------
    plan
        The plan.
    learning_rate
        The peak.
    """
    if learning_rate is None:
        return plan
    training = msgspec.structs.replace(plan.training, learning_rate=learning_rate)
    return msgspec.structs.replace(plan, training=training)


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())


def _stall_limit(stall_s: float | None, expected: ExpectedStep | None) -> StallLimit | None:
    """Limit for a rank that comes no further: the caller's, or as the prediction has it."""
    if stall_s == 0:
        return None
    if stall_s is not None:
        return StallLimit(unpredicted_s=stall_s, gaps=0.0)
    return StallLimit(predicted_step_s=None if expected is None else expected.step_ns / 1e9)


def _check_even(graph: ActorGraph) -> None:
    """Refuse shards that are padded: kernels and checkpoints here know equal ones alone."""
    for register in (register for program in graph.programs for register in program.registers):
        try:
            local_shape(register.global_shape, parse_nd_sbp(register.sbp), graph.axis_sizes)
        except PlanError as error:
            raise InfeasibleError(
                f"`{register.tensor}`: {error}. Trainers that pad shards run this plan, Millrace "
                f"does not: plan with --framework millrace, or for a number of ranks that divides"
            ) from None
