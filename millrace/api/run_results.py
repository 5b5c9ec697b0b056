"""Run results: the steps of a plan that was trained, one process per rank (`millrace.run`)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.api.data_frames import data_frame, firings_frame
from millrace.api.plan_results import PlanResult, document_of
from millrace.api.plan_search import planned_for_nodes
from millrace.api.views import ResultView, ShownResult, check_matplotlib
from millrace.figures import speed
from millrace.files import write_trace
from millrace.models.zoo.catalogue import unit_of
from millrace.planner.actors.trace import Trace
from millrace.planner.clusters.doubts import profile_warning
from millrace.planner.errors import PlanError
from millrace.planner.plan import Plan
from millrace.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from pandas import DataFrame

    from millrace.executor.drift.drift_watch import Drift, Drifted
    from millrace.executor.training.measured import Measured, Restart
    from millrace.executor.training.orders import Saving
    from millrace.executor.values.unsaved import Unsaved
    from millrace.pictures.picture_file import Picture


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunResult(ShownResult):
    """Steps of a plan as they were measured, and what they came to.

    Attributes
    ----------
    plan : Plan
        The plan that was run.
    trace : Trace
        Ends of all steps, and the times of every firing unless they were left out.
    step_time_s : float
        Median seconds of a step of the slowest rank, after five warm-up steps.
    tokens_per_s, tflops_per_gpu, mfu
        As of a `PlanPrediction`.
    loss : tuple of float
        Mean loss per valid token of every step.
    gradient_norms : tuple of float
        Norm of the mean gradient of every step, before clipping.
    first_step : int
        Steps made by earlier runs.
    data : str
        Description of what it trained on.
    ranks : int
        Number of processes.
    backend : str
        numpy or cupy.
    memory_bytes : mapping, optional
        On GPUs: bytes of the fullest rank by region.
    drift : tuple of Drift
        Where steps left their band, and the actor that moved.
    smallest_top_k_margin : float, optional
        Least margin by which a token chose its experts.
    unsaved : tuple of Unsaved
        Steps whose checkpoint could not be written, with `path` and `reason`.
    resumed_with : tuple of str
        Sentences on what it resumed with that the checkpoint was not trained with.
    restarts : tuple of Restart
        Failures after which it went on from a checkpoint. The plan is the last one, and the trace
        that of the steps since the last restart.
    """

    plan: Plan
    trace: Trace
    step_time_s: float
    tokens_per_s: float
    tflops_per_gpu: float
    mfu: float | None
    loss: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    first_step: int
    data: str
    ranks: int
    backend: str
    memory_bytes: Mapping[str, int] | None = None
    drift: "tuple[Drift, ...]" = field(default=())
    smallest_top_k_margin: float | None = None
    unsaved: "tuple[Unsaved, ...]" = ()
    resumed_with: tuple[str, ...] = ()
    restarts: "tuple[Restart, ...]" = ()

    @property
    def document(self) -> dict[str, Any]:
        """Figures as `millrace run --json` has them."""
        document = {
            "step_time_s": self.step_time_s,
            "profile_warning": profile_warning(self.plan.cluster),
            "unit": unit_of(self.plan.model),
            "tokens_per_s": self.tokens_per_s,
            "tflops_per_gpu": self.tflops_per_gpu,
            "mfu": self.mfu,
            "loss": self.loss,
            "first_step": self.first_step,
            "data": self.data,
            "ranks": self.ranks,
            "backend": self.backend,
            "drift": msgspec.to_builtins(self.drift),
            "unsaved": msgspec.to_builtins(self.unsaved),
            "resumed_with": self.resumed_with,
            "restarts": msgspec.to_builtins(self.restarts),
        }
        if self.memory_bytes is not None:
            document["memory_bytes"] = dict(self.memory_bytes)
        if self.smallest_top_k_margin is not None:
            document["smallest_top_k_margin"] = self.smallest_top_k_margin
        return document

    def save_trace(self, path: str | Path) -> None:
        """Write the trace; to `*.chrome.json` in the form that Perfetto reads.

        Parameters
        ----------
        path : str or Path
            The file.

        Raises
        ------
        FileError
            It cannot be written.
        """
        write_trace(Path(path), self.trace)

    def to_pandas(self) -> "DataFrame":
        """DataFrame of the steps: `step` from 1, `step_time_s`, `loss`, `gradient_norm`.

        Raises
        ------
        MissingPandasError
            pandas is not installed.
        """
        before: list[float | None] = [None] * (len(self.loss) - self.trace.steps)  # of a restart
        times_s = [*before, *(step_ns / 1e9 for step_ns in self.trace.step_times_ns())]
        columns = zip(times_s, self.loss, self.gradient_norms, strict=True)
        return data_frame(
            {"step": step, "step_time_s": step_s, "loss": loss, "gradient_norm": norm}
            for step, (step_s, loss, norm) in enumerate(columns, start=self.first_step + 1)
        )

    def firings_to_pandas(self) -> "DataFrame":
        """DataFrame of the trace, a row for every firing; see `millrace.api.data_frames`.

        Raises
        ------
        MissingPandasError
            pandas is not installed.
        """
        return firings_frame(self.trace)

    def picture(self) -> "Picture":
        """Picture of the loss over the steps.

        Raises
        ------
        MissingMatplotlibError
            matplotlib is not installed.
        """
        check_matplotlib()
        from millrace.pictures.run_pictures import losses_picture

        return losses_picture(self.loss)

    @property
    def view(self) -> ResultView:
        """View in a terminal and in a notebook."""
        from millrace.drawing import headline
        from millrace.tables.drifts import drift_text

        first, last = self.first_step + 1, self.first_step + len(self.loss)
        rate = format_rate(self.tokens_per_s, unit_of(self.plan.model))
        figures = {
            "trained on": self.data,
            "step time": f"{format_seconds(self.step_time_s)}, {rate} on {self.ranks} ranks "
            f"({self.backend})",
            "loss": f"{self.loss[0]:.4f} after step {first}, {self.loss[-1]:.4f} after step {last}",
        }
        if self.memory_bytes is not None:
            parts = (f"{name} {format_bytes(size)}" for name, size in self.memory_bytes.items())
            figures["memory of the fullest rank"] = ", ".join(parts)
        notes = (
            *self.resumed_with,
            *(drift_text(drift) for drift in self.drift),
            *(unsaved.sentence for unsaved in self.unsaved),
        )
        return ResultView(title=headline(self.plan), figures=tuple(figures.items()), notes=notes)


def _saving(
    folder: Path | None, resume: bool, options: Mapping[str, float | None], weights: Path | None
) -> "Saving":
    """Orders of saving, given every, minutes and keep by their options."""
    from millrace.executor.training.orders import Saving

    if resume and folder is None:
        raise PlanError("--resume goes on from a saved state: give its folder with --checkpoint")
    for option, number in options.items():
        if number is not None and folder is None:
            raise PlanError(f"{option} is for saved states: give their folder with --checkpoint")
        if number is not None and not 0 < number < inf:
            raise PlanError(f"{option} {number}: expected a number above 0")
    if resume and weights is not None:
        raise PlanError("--resume goes on with the values it saved: leave --weights out")
    every, minutes, keep = (number or 0 for number in options.values())
    return Saving(folder=folder, every=int(every), minutes=minutes, keep=int(keep), resume=resume)


def run(
    planned: PlanResult | Plan,
    *,
    steps: int = 50,
    data: str | Path | None = None,
    backend: str = "numpy",
    eager: bool = False,
    loopback: bool = False,
    deterministic: bool = False,
    learning_rate: float | None = None,
    seed: int = 0,
    weights: str | Path | None = None,
    trace: bool = True,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
    checkpoint_minutes: float | None = None,
    checkpoint_keep: int | None = None,
    resume: bool = False,
    progress: Callable[[int, float], None] | None = None,
    drifted: "Drifted | None" = None,
    stall_s: float | None = None,
    noted: Callable[[str], None] | None = None,
    restarts: int = 0,
    hosts: str | None = None,
    launcher: str | None = None,
    address: str | None = None,
) -> RunResult:
    """Train a plan on this machine or on hosts, one process per rank.

    Parameters
    ----------
    planned : PlanResult or Plan
        The plan to run, whatever its cluster is.
    steps : int
        Training steps.
    data : str or Path, optional
        File or folder to train on; the Python standard library's source files by default.
    backend : str
        numpy: on this machine's CPUs; cupy: on its GPUs, one per rank.
    eager, loopback, deterministic : bool
        On GPUs: actor by actor in place of a captured step; all ranks on one GPU, to check a plan;
        equal bits every time.
    learning_rate : float, optional
        The peak, in place of the plan's.
    seed : int
        Of the initial values and of the order of samples.
    weights : str or Path, optional
        A `.npz` file of initial values by the names of variables; the seed gives the others.
    trace : bool
        Keep the times of every firing, which `compare` needs; else the ends of steps alone.
    checkpoint : str or Path, optional
        Folder to save variables and optimizer state in at the end.
    checkpoint_every : int, optional
        Save there after every so many steps as well.
    checkpoint_minutes : float, optional
        Save there as well when so many minutes have passed since the last checkpoint.
    checkpoint_keep : int, optional
        How many of the last checkpoints stay there; all by default.
    resume : bool
        Go on from the last checkpoint there.
    progress : callable, optional
        Called as `progress(step, loss)` after every step.
    drifted : callable, optional
        Called with a `Drift` when steps leave the band of the first ones or of the prediction, and
        when they are back.
    stall_s : float, optional
        Seconds in which every rank must come further; 0: for ever. By default 10 s and ten
        predicted steps, or a minute where nothing is predicted for this machine.
    noted : callable, optional
        Called with a sentence about a checkpoint that cannot be written, about what a resume
        does otherwise than before, about restarts, and about where the command listens.
    restarts : int
        How often the run may go on from its last checkpoint by itself when a rank fails.
    hosts : str, optional
        Hosts of the ranks: names with commas between them, `@FILE`, or `slurm`. Node n of the plan
        lies on host n; hosts behind these are spares. By default all ranks are on this machine.
    launcher : str, optional
        Program in place of ssh that runs a command on a host: `LAUNCHER HOST COMMAND…`.
    address : str, optional
        Address of this machine that hosts reach; by default that of the way to them.

    Returns
    -------
    RunResult
        The step time, the loss of every step, and the trace.

    Raises
    ------
    ExecutorError
        A rank failed; names the rank, the actor and the cause.
    PlanError, DataError, CheckpointError
        Options do not go together; data or checkpoint are not there, or do not fit the model.
    InfeasibleError
        This machine cannot hold the ranks, or lacks what the backend needs; says what.
    """
    from millrace.executor.backend import Backend
    from millrace.executor.hosts.host_list import hosts_of
    from millrace.executor.launch import execute
    from millrace.executor.training.orders import Supervision

    if learning_rate is not None and not 0 < learning_rate < inf:
        raise PlanError(f"--lr {learning_rate}: expected a learning rate above 0")
    initial, folder = (None if name is None else Path(name) for name in (weights, checkpoint))
    often = {
        "--checkpoint-every": checkpoint_every,
        "--checkpoint-minutes": checkpoint_minutes,
        "--checkpoint-keep": checkpoint_keep,
    }
    saving = _saving(folder, resume, often, initial)
    plan = document_of(planned)
    measured = execute(
        plan,
        steps=steps,
        data=None if data is None else str(data),
        seed=seed,
        learning_rate=learning_rate,
        weights=initial,
        trace=trace,
        backend=Backend(name=backend, eager=eager, loopback=loopback, deterministic=deterministic),
        saving=saving,
        supervision=Supervision(
            stall_s=stall_s,
            restarts=restarts,
            hosts=None if hosts is None else hosts_of(hosts, launcher=launcher, address=address),
            replan=planned_for_nodes,
            progress=progress,
            drifted=drifted,
            noted=noted,
        ),
    )
    return _result_of(plan, measured)


def _result_of(plan: Plan, measured: "Measured") -> RunResult:
    """Result of what was measured of a plan, or of the one that it was planned again to."""
    plan = measured.plan if measured.restarts else plan
    step_time_s = measured.step_time_ns / 1e9
    return RunResult(
        plan=plan,
        trace=measured.trace,
        step_time_s=step_time_s,
        **speed(plan, step_time_s)._asdict(),
        loss=measured.losses,
        gradient_norms=measured.gradient_norms,
        first_step=measured.first_step,
        data=measured.data,
        ranks=measured.ranks,
        backend=measured.backend,
        memory_bytes=measured.memory,
        drift=measured.drift,
        smallest_top_k_margin=measured.smallest_top_k_margin,
        unsaved=measured.unsaved,
        resumed_with=measured.resumed_with,
        restarts=measured.restarts,
    )
