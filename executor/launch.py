"""Launch of a plan's run: one process per rank, started again after failures if wanted."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from millrace.executor.backend import CPUS, WORKERS, Backend
from millrace.executor.data import open_dataset
from millrace.executor.errors import RankFailedError
from millrace.executor.hosts.rank_runs import run_ranks
from millrace.executor.training.measured import Measured, Restart, measured_of
from millrace.executor.training.orders import Saving, Supervision
from millrace.executor.training.training_run import (
    Beginning,
    History,
    TrainingRun,
    check_machine,
    job_of,
    saving_folder,
    with_learning_rate,
)
from millrace.executor.values.weights import check_weights
from millrace.models.zoo.catalogue import approximations
from millrace.planner.actors.trace import Trace
from millrace.planner.compile import compile_plan
from millrace.planner.plan import Plan

NOTHING_SAVED, UNSUPERVISED = Saving(), Supervision()


def execute(
    plan: Plan,
    *,
    steps: int,
    data: str | None = None,
    seed: int = 0,
    learning_rate: float | None = None,
    weights: Path | None = None,
    trace: bool = False,
    backend: Backend = CPUS,
    saving: Saving = NOTHING_SAVED,
    supervision: Supervision = UNSUPERVISED,
) -> Measured:
    """Train a plan for `steps` steps, one process per rank.

    Parameters
    ----------
    plan, steps, seed
        What to run, whatever its cluster is; how many steps; seed of initial values and samples.
    data, learning_rate
        A file or folder to train on (None: as `open_dataset` says); the peak, not the plan's.
    weights, trace
        A `.npz` of initial values (`millrace.executor.values.weights`); keep times of firings, not
        only of steps.
    backend, saving, supervision
        Where and how it runs, what is saved of it, and who looks after it.

    Raises
    ------
    ExecutorError
        A rank failed, or came no further; names the rank, the actor and the cause.
    InfeasibleError
        This machine cannot hold the ranks, or lacks what the backend needs; says what.
    DataError, CheckpointError
        The data, the weights or the checkpoint to resume is not there, or does not fit the model.
    """
    run = TrainingRun(
        plan=with_learning_rate(plan, learning_rate),
        digest=plan.digest(),
        steps=steps,
        data=data,
        seed=seed,
        weights=weights,
        spans=trace,
        backend=backend,
        saving=saving,
        supervision=supervision,
    )
    _ = run.trained_on  # Data that is not there is told before weights and memory are looked at.
    check_weights(weights, run.plan.graph, approximations(plan.model))
    _ = run.saves_in_background
    return _Attempts(run).measured()


class _Attempts:
    """Attempts at a run: the first, and others where a rank failed and it may go on."""

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self._hosts = run.supervision.hosts
        self._history = History()
        self._restarts: list[Restart] = []

    def measured(self) -> Measured:
        """Measurements of the attempt that came to the end, with the losses of those before."""
        first: Beginning | None = None
        while True:
            run, resumes = self._run, first is not None and bool(self._history.saved)
            with saving_folder(run, resume=run.saving.resume or resumes):
                if first is None:
                    begin = first = run.begin() if run.saving.resume else Beginning()
                    for sentence in begin.differences:
                        run.supervision.note(sentence)
                else:
                    begin = run.begin(max(self._history.saved)) if resumes else first
                try:
                    last = first.step + run.steps
                    measured = run.attempt(begin, last, self._hosts, self._history)
                except RankFailedError as error:
                    failure = error
                else:
                    return self._complete(measured, first)
            self._restart(failure, first)

    def _restart(self, failure: RankFailedError, first: Beginning) -> None:
        """Make ready for another attempt; raises the failure where there is none."""
        supervision = self._run.supervision
        if len(self._restarts) == supervision.restarts:
            raise failure
        nodes = self._without(failure)
        step = max(self._history.saved, default=first.step)
        self._restarts.append(
            Restart(
                step=step, cause=str(failure), rank=failure.rank, host=failure.host, nodes=nodes
            )
        )
        where = f"step {step}" if step else "the beginning"
        number = f"restart {len(self._restarts)} of {supervision.restarts}"
        on = "" if nodes is None else f", planned again for {nodes} node{'s' * (nodes > 1)}"
        supervision.note(f"{failure}; going on from {where}{on} ({number})")

    def _without(self, failure: RankFailedError) -> int | None:
        """Nodes of a new plan where a host is lost and none is to spare; None: the plan stays."""
        if failure.host is None or self._hosts is None:
            return None
        left = tuple(name for name in self._hosts.names if name != failure.host)
        plan = self._run.plan
        needed = -(-plan.ranks // plan.cluster.devices_per_node)
        if len(left) < needed and (not left or self._run.supervision.replan is None):
            raise failure
        self._hosts = replace(self._hosts, names=left)
        if len(left) >= needed:
            return None
        assert self._run.supervision.replan is not None
        again = self._run.supervision.replan(plan, len(left))
        self._run = replace(self._run, plan=again, digest=again.digest())
        return len(left)

    def _complete(self, measured: Measured, first: Beginning) -> Measured:
        """Measurements with what is known of the steps of earlier attempts."""
        before = [
            self._history.figures.get(step, (float("nan"), float("nan")))
            for step in range(first.step, measured.first_step)
        ]
        return replace(
            measured,
            losses=(*(loss for loss, _ in before), *measured.losses),
            gradient_norms=(*(norm for _, norm in before), *measured.gradient_norms),
            first_step=first.step,
            resumed_with=first.differences,
            restarts=tuple(self._restarts),
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
    check_machine(graph, CPUS, steps, spans=True)
    job = job_of(plan, graph, steps=steps, seed=0, data=None, spans=True, alone=True, **CPUS.orders)
    with TemporaryDirectory(prefix="millrace-") as name:
        job.save(Path(name))
        run_ranks(WORKERS[CPUS.name], graph.ranks, Path(name))
        return measured_of(plan, job, Path(name), "", description).trace
