"""Simulation results: a plan on its own cluster, or on another (`millrace.simulate`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from millrace.api.clusters import Progress, opened_cluster
from millrace.api.data_frames import firings_frame
from millrace.api.plan_figures import range_fields
from millrace.api.plan_results import PlanResult, document_of, plan_notes
from millrace.api.views import ResultView, ShownResult
from millrace.figures import layout_bytes, shortage, simulated_spending, speed
from millrace.files import write_trace
from millrace.models.zoo.catalogue import unit_of
from millrace.planner.actors.trace import Trace
from millrace.planner.cluster import Cluster
from millrace.planner.clusters.doubts import profile_warning
from millrace.planner.plan import Plan
from millrace.requested_cluster import with_software
from millrace.units import format_percent, format_rate, format_seconds

if TYPE_CHECKING:
    from pandas import DataFrame

    from millrace.simulator.account import Account
    from millrace.simulator.simulate import Simulated

NO_MFU = "unknown: no peak for this precision, or masked attention, counted in full, exceeds it"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SimulationResult(ShownResult):
    """Simulated steps of a plan: their figures, and a trace of every firing.

    Attributes
    ----------
    plan : Plan
        The plan that was simulated, on its cluster.
    planned : Plan
        The plan that was given: another where another cluster, precision or framework was tried.
    trace : Trace
        Firings of every simulated rank.
    step_time_s : float
        Seconds of a steady step.
    step_time_range_s, step_time_compared_with, device_doubt, tokens_per_s, tflops_per_gpu, mfu
        As of a `PlanPrediction`.
    bubble_fraction : float
        Fraction of the step in which the average device waits.
    exposed_communication_s : float
        Seconds of the step in which it only communicates.
    memory_bytes_max : int
        Bytes that the fullest device holds.
    memory_by_kind : tuple of mapping
        Bytes of a device of every program, by kind.
    cost_usd_per_mtoken, energy_j_per_token : float, optional
        Dollars for a million tokens and joules for one; None where price or power is not known.
    planned_step_time_s : float, optional
        Step time of the plan that was given, where another was tried.
    firings : int
        Number of firings that were simulated.
    fidelity : str
        What fired: `op`, `block` or `stage`.
    account : Account, optional
        Tables of where the step goes, with `detailed`.
    wall_time_s : float
        Seconds that the simulation took.
    """

    plan: Plan
    planned: Plan
    simulated: "Simulated" = field(compare=False)
    trace: Trace
    step_time_s: float
    step_time_range_s: tuple[float, float] | None
    step_time_compared_with: str
    device_doubt: str
    tokens_per_s: float
    tflops_per_gpu: float
    mfu: float | None
    bubble_fraction: float
    exposed_communication_s: float
    memory_bytes_max: int
    memory_by_kind: tuple[Mapping[str, int], ...]
    cost_usd_per_mtoken: float | None
    energy_j_per_token: float | None
    planned_step_time_s: float | None
    firings: int
    fidelity: str
    account: "Account | None" = field(default=None, compare=False)
    wall_time_s: float = field(default=0.0, compare=False)

    @property
    def shortage(self) -> str:
        """Sentence on the stage that lacks memory; empty where all fit."""
        return shortage(self.plan, self.memory_by_kind)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what is seldom meant, lacks memory or is in doubt."""
        return (*plan_notes(self.plan), *filter(None, (self.shortage,)))

    @property
    def document(self) -> dict[str, Any]:
        """Figures as `millrace simulate --json` has them."""
        cluster, model, bounds = self.plan.cluster, self.plan.model, self.step_time_range_s
        return {
            "step_time_s": self.step_time_s,
            "step_time_range_s": None if bounds is None else list(bounds),
            "step_time_compared_with": self.step_time_compared_with,
            "device_doubt": self.device_doubt,
            "profile_warning": profile_warning(cluster),
            "unit": unit_of(model),
            "tokens_per_s": self.tokens_per_s,
            "tflops_per_gpu": self.tflops_per_gpu,
            "mfu": self.mfu,
            "bubble_fraction": self.bubble_fraction,
            "exposed_communication_s": self.exposed_communication_s,
            "memory_bytes_max": self.memory_bytes_max,
            "layout_bytes_max": layout_bytes(self.plan),
            "firings": self.firings,
            "fidelity": self.fidelity,
            "wall_time_s": self.wall_time_s,
            "cluster": cluster.name,
            "precision": model.precision,
            "framework": cluster.software.name,
            "cost_usd_per_mtoken": self.cost_usd_per_mtoken,
            "energy_j_per_token": self.energy_j_per_token,
            "planned_step_time_s": self.planned_step_time_s,
        }

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
        from millrace.reporting import memory_counters

        courses = self.account.memory if self.account else ()
        write_trace(Path(path), self.trace, memory_counters(courses))

    def to_pandas(self) -> "DataFrame":
        """DataFrame of the trace, a row for every firing; see `millrace.api.data_frames`.

        Raises
        ------
        MissingPandasError
            pandas is not installed.
        """
        return firings_frame(self.trace)

    @property
    def view(self) -> ResultView:
        """View in a terminal and in a notebook."""
        from millrace.drawing import headline

        figures = tuple(figure_texts(self).items())
        return ResultView(title=headline(self.plan), figures=figures, notes=self.notes)


def figure_texts(result: SimulationResult, timed: bool = True) -> dict[str, str]:
    """Figures of a simulation by name, as `millrace simulate` prints them.

    Parameters
    ----------
    result : SimulationResult
        The simulation.
    timed : bool
        Say how long it took, which differs every time.
    """
    from millrace.drawing import memory_text

    unit, before_s = unit_of(result.plan.model), result.planned_step_time_s
    texts = {}
    if before_s:
        more = format_percent(result.step_time_s / before_s - 1, signed=True)
        price, cluster = result.cost_usd_per_mtoken, result.plan.cluster
        texts = {
            "tried": f"{cluster.name}, {result.plan.model.precision}, {cluster.software.name}",
            "step time as planned": f"{format_seconds(before_s)}, now {more}",
            "cost": "no price is known" if price is None else f"${price:.3g} per million {unit}s",
        }
    texts |= {
        "step time": format_seconds(result.step_time_s),
        "range of step time": result.step_time_compared_with,
        "speed": format_rate(result.tokens_per_s, unit),
        "mfu": NO_MFU if result.mfu is None else format_percent(result.mfu),
        "bubble": format_percent(result.bubble_fraction),
        "exposed communication": format_seconds(result.exposed_communication_s),
        "memory of the fullest device": memory_text(result.plan, result.memory_bytes_max),
    }
    if timed:
        coarse = "" if result.fidelity == "op" else f" at {result.fidelity} fidelity"
        took = format_seconds(result.wall_time_s)
        texts["simulated"] = f"{result.firings:,} firings in {took}{coarse}"
    return texts


def tried_plan(
    plan: Plan,
    cluster: str | Cluster | None,
    precision: str | None,
    framework: str | None,
    progress: Progress | None = None,
) -> Plan:
    """Plan as it would be on another cluster, in another precision or by another framework.

    Mesh, stages, schedule and layouts stay as they are; `millrace.plan` may find better ones.

    Parameters
    ----------
    plan : Plan
        The plan; it is returned where nothing else is asked for.
    cluster : str or Cluster or None
        A cluster of as many devices.
    precision, framework : str or None
        The precision, and the framework that drives the cluster.
    progress : callable, optional
        Called with a sentence where this machine is measured.

    Raises
    ------
    InfeasibleError
        The cluster has another number of devices, or the plan has no place for what the precision
        adds.
    PlanError, ClusterError
        There is no such precision, cluster or framework.
    """
    from millrace.transfer import in_precision, on_cluster, software_kept

    if cluster is not None:
        on = with_software(software_kept(plan, opened_cluster(cluster, None, progress)), framework)
        plan = on_cluster(plan, on)
    elif framework is not None:
        plan = on_cluster(plan, with_software(plan.cluster, framework))
    return plan if precision is None else in_precision(plan, precision)


def simulate(
    planned: PlanResult | Plan,
    *,
    cluster: str | Cluster | None = None,
    precision: str | None = None,
    framework: str | None = None,
    steps: int = 3,
    jitter: float = 0.0,
    stragglers: Mapping[int, float] | None = None,
    seed: int = 0,
    fidelity: str | None = None,
    detailed: bool = False,
    progress: Progress | None = None,
) -> SimulationResult:
    """Simulated run of a plan on the cluster it was made for, or on another.

    Parameters
    ----------
    planned : PlanResult or Plan
        The plan that runs.
    cluster : str or Cluster, optional
        Try it on this cluster of as many devices: mesh, stages, schedule and layouts stay.
    precision, framework : str, optional
        Try it in this precision, and by this framework.
    steps : int
        Training steps, of which one gives the figures.
    jitter : float
        Standard deviation of the logarithm of every duration (0.1: about ten percent).
    stragglers : mapping, optional
        The factor on the durations of a rank's ops, by rank (2.0: half as fast).
    seed : int
        Of the random numbers of the jitter.
    fidelity : str, optional
        `op` fires every actor, `block` the blocks of chunks, `stage` whole parts of chunks, without
        the whole model compiled. By default `op` for small plans, `stage` for large ones.
    detailed : bool
        Account for the step too: tables of its stages, computing, communication and memory.
    progress : callable, optional
        Called with a sentence where this machine is measured for `cluster`.

    Returns
    -------
    SimulationResult
        Step time, speed, bubble, memory, and the trace.

    Raises
    ------
    SimulationError, PlanError, ClusterError
        An option is out of its range; the plan does not fit its model, mesh or cluster.
    InfeasibleError
        The cluster has another number of devices.
    """
    from millrace.simulator import predict
    from millrace.simulator.account import account_of

    given = document_of(planned)
    plan = tried_plan(given, cluster, precision, framework, progress)
    began = perf_counter()
    simulated = predict(
        plan,
        steps=steps,
        jitter=jitter,
        stragglers=stragglers,
        seed=seed,
        fidelity=fidelity,
        detailed=detailed,
    )
    account = account_of(plan, simulated) if detailed else None
    step_time_s, spent = simulated.step_time_ns / 1e9, simulated_spending(plan, simulated)
    return SimulationResult(
        plan=plan,
        planned=given,
        simulated=simulated,
        trace=simulated.trace,
        step_time_s=step_time_s,
        **range_fields(plan, step_time_s),
        **speed(plan, step_time_s)._asdict(),
        bubble_fraction=simulated.bubble_fraction,
        exposed_communication_s=simulated.exposed_communication_ns / 1e9,
        memory_bytes_max=simulated.memory_bytes_max,
        memory_by_kind=simulated.memory_by_kind,
        cost_usd_per_mtoken=spent["cost_usd_per_mtoken"],
        energy_j_per_token=spent["energy_j_per_token"],
        planned_step_time_s=given.figures.get("step_time_s") if plan is not given else None,
        firings=simulated.firings,
        fidelity=simulated.fidelity,
        account=account,
        wall_time_s=perf_counter() - began,
    )
