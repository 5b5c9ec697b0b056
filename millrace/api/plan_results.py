"""Plan results: the fastest plan (`millrace.plan`), or one from a file (`millrace.load`)."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from millrace.api.clusters import Progress
from millrace.api.explanations import ExplanationResult
from millrace.api.plan_figures import PlanChoices, PlanPrediction
from millrace.api.plan_search import opened_question, search, searched_again
from millrace.api.views import ResultView, ShownResult, check_matplotlib, table_view
from millrace.figures import idle_devices, plan_summary
from millrace.files import load_plan, write_document
from millrace.models.graph import Graph
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import beyond_positions, unit_of
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.cluster import Cluster
from millrace.planner.clusters.doubts import profile_warning
from millrace.planner.plan import MAX_GAP, Evidence, Plan
from millrace.units import format_percent, format_rate, format_seconds

if TYPE_CHECKING:
    from millrace.pictures.picture_file import Picture
    from millrace.planner.search import Pins
    from millrace.planner.search.search_log import SearchLog


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanResult(ShownResult):
    """Plan, with what is predicted of it and why it is so.

    Attributes
    ----------
    plan : Plan
        The document: model, cluster and every decision.
    search_time_s : float, optional
        Seconds that the search took; None of a plan from a file.
    search_log : SearchLog, optional
        What the search did, layer by layer; None of a plan from a file.
    """

    tables_in_text = False

    plan: Plan
    search_time_s: float | None = field(default=None, compare=False)
    search_log: "SearchLog | None" = field(default=None, compare=False)

    @cached_property
    def prediction(self) -> PlanPrediction:
        """Step time, speed, memory and cost that the simulator predicts."""
        return PlanPrediction.of(self.plan)

    @cached_property
    def choices(self) -> PlanChoices:
        """Degrees, schedule, recomputation and all else that can be pinned."""
        return PlanChoices.of(self.plan)

    @property
    def evidence(self) -> Evidence | None:
        """Bound, gap and alternatives of the search; None of a plan that was not searched."""
        return self.plan.evidence

    @property
    def graph(self) -> Graph:
        """Training graph of the plan's model, for one microbatch."""
        return self.plan.graph

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what is seldom meant, or what the prediction is in doubt of."""
        return plan_notes(self.plan)

    @property
    def document(self) -> dict[str, Any]:
        """Fields as `millrace plan --json` has them."""
        summary = plan_summary(self.plan) | {"search_time_s": self.search_time_s}
        if self.search_log is not None:
            summary["layers"] = self.search_log.timed(summary["layers"])
        return summary

    def explain(self, progress: Progress | None = None) -> ExplanationResult:
        """Reasons for each choice: the nearest alternatives, and why they lost.

        The plan of a file is searched once more.

        Parameters
        ----------
        progress : callable, optional
            Called with a sentence that says how far that search is.

        Raises
        ------
        InfeasibleError
            The plan of a file is not what its question has for an answer now.
        """
        from millrace.drawing import headline
        from millrace.planner.search.report.explain import explain

        answer = None if self.search_log is None else self.search_log.answer
        reasons = explain(self.plan, answer or searched_again(self.plan, progress))
        return ExplanationResult(plan_text=headline(self.plan), reasons=reasons)

    def compile(self) -> ActorGraph:
        """Actor graph of the plan: actors, registers and queues, proven to run to their end.

        Raises
        ------
        PlanError, ProtocolError
            The plan does not fit its model or mesh; the actors that are named wait for each other.
        """
        from millrace.planner.compile import compile_plan

        return compile_plan(self.plan)

    def save(self, path: str | Path) -> None:
        """Write the plan to a file, which `millrace.load` and the commands read.

        Parameters
        ----------
        path : str or Path
            The file.

        Raises
        ------
        FileError
            It cannot be written.
        """
        write_document(Path(path), self.plan)

    def picture(self, of: str = "all") -> "Picture":
        """Picture of the plan, for a notebook or a file; its step is simulated for it.

        Parameters
        ----------
        of : str
            plan (stages, mesh and layout), schedule, memory, or all of them.

        Raises
        ------
        PlanError
            There is no such picture.
        MissingMatplotlibError
            matplotlib is not installed.
        """
        check_matplotlib()
        from millrace.pictures.plan_poster import picture

        return picture(self.plan, of)

    @property
    def view(self) -> ResultView:
        """View in a terminal and in a notebook."""
        from millrace.drawing import headline
        from millrace.tables.stages import stage_table

        fullest = self.plan.cluster.device.memory_bytes
        stages = [sum(kinds.values()) / fullest for kinds in self.prediction.memory_by_kind]
        bars = stages if fullest and len(stages) == self.plan.stages else ()
        return ResultView(
            title=headline(self.plan),
            figures=_figure_texts(self),
            tables=(table_view(stage_table(self.plan), bars, "memory filled"),),
            notes=self.notes,
        )


def _figure_texts(planned: PlanResult) -> tuple[tuple[str, str], ...]:
    """Figures of a plan by name, as `millrace plan` prints them."""
    from millrace.drawing import filled, question_text

    prediction, evidence, unit = planned.prediction, planned.evidence, unit_of(planned.plan.model)
    mfu = "unknown" if prediction.mfu is None else format_percent(prediction.mfu)
    spent = {
        f"${{:.3g}} per million {unit}s": prediction.cost_usd_per_mtoken,
        f"{{:.3g}} J per {unit}": prediction.energy_j_per_token,
    }
    cost = ", ".join(text.format(value) for text, value in spent.items() if value)
    figures = {
        "question": question_text(planned.plan),
        "predicted step time": format_seconds(prediction.step_time_s),
        "range of step time": prediction.step_time_compared_with,
        "speed": f"{format_rate(prediction.tokens_per_s, unit)}, "
        f"{format_rate(prediction.tflops_per_gpu * 1e12, 'FLOP')} per device, mfu {mfu}",
        "memory": filled(planned.plan, prediction.memory_bytes_max),
    }
    if cost:
        figures["cost"] = cost
    if evidence is not None:
        figures["gap"] = (
            f"{format_percent(evidence.gap)}: objective {format_seconds(evidence.objective_s)}, "
            f"bound {format_seconds(evidence.bound_s)}; {evidence.candidates} candidates"
        )
    return tuple(figures.items())


def plan_notes(plan: Plan) -> tuple[str, ...]:
    """Sentences on what a plan does that is seldom meant, or what its figures are in doubt of.

    Parameters
    ----------
    plan : Plan
        The plan, with its model and cluster.
    """
    texts = (idle_devices(plan), beyond_positions(plan.model), profile_warning(plan.cluster))
    return tuple(text for text in texts if text)


def document_of(planned: PlanResult | Plan) -> Plan:
    """Plan of a result, or the plan itself.

    Parameters
    ----------
    planned : PlanResult or Plan
        As functions of the API take it.
    """
    return planned.plan if isinstance(planned, PlanResult) else planned


class PlanInterrupted(KeyboardInterrupt):
    """A search was interrupted; `result` is its best plan so far, with the gap that was left."""

    def __init__(self, result: PlanResult) -> None:
        self.result = result
        super().__init__("the search was interrupted; its best plan so far is at hand")


def plan(
    model: str | ModelSpec,
    cluster: str | Cluster,
    *,
    global_batch: int,
    seq_len: int | None = None,
    precision: str | None = None,
    framework: str | None = None,
    pins: "Pins | None" = None,
    training: TrainingSpec | None = None,
    memory_limit_bytes: int | None = None,
    reserve: str | None = None,
    max_gap: float = MAX_GAP,
    simpler_within: float | None = None,
    seed: int = 0,
    optimize_for: str = "throughput",
    top: int = 5,
    progress: Progress | None = None,
) -> PlanResult:
    """Fastest plan that fits, as `millrace plan` finds it.

    Parameters
    ----------
    model : str or ModelSpec
        A name of `millrace models`, a Hugging Face `config.json` or its folder, an `.onnx` or
        `.pt2` file, or `package.module:function`; or a model opened already, which brings its
        sequence length and precision.
    cluster : str or Cluster
        `h100:8x16` (devices of a node x nodes), `local:4`, `local-gpu:4`, or a TOML file; or a
        Cluster of `millrace.cluster`. All its devices are used, unless `optimize_for` leaves some.
    global_batch : int
        Samples of a step.
    seq_len : int, optional
        Tokens of a sample; the model's longest by default.
    precision : str, optional
        fp64, fp32, tf32, bf16, fp16, fp8, mxfp8, mxfp4 or nvfp4. By default bf16, or
        fp16, on devices of the catalogue that have it, else fp32.
    framework : str, optional
        Framework that runs the plan, which keeps to what that can run. By default the cluster's, or
        else megatron-core on GPUs, jax-xla on TPUs, Millrace on this machine; `any` has the whole
        space of plans.
    pins : Pins, optional
        Choices fixed beforehand: `Pins(tp=4)`.
    training : TrainingSpec, optional
        The optimizer, its learning rate and schedule, and the form of attention.
    memory_limit_bytes : int, optional
        Bytes that the plan may use of each device; by default all of them but the reserve.
    reserve : str, optional
        Memory of each device that stays free where there is no limit: `5%`, `2GiB` or `0`. By
        default `millrace.planner.memory.DEFAULT_RESERVE` on devices of the catalogue, none on this
        machine.
    max_gap : float
        Stop within this fraction of the proven bound; 0 asks for the optimum.
    simpler_within : float, optional
        Fraction of the step by which a simpler plan may be slower than the fastest; by default what
        predictions of two plans differ by from measured runs, and 0 where the optimum is asked for.
    seed : int
        Written into the plan; the search itself is the same for every seed.
    optimize_for : str
        throughput; or cost or energy per token, for which fewer of the devices may be used.
    top : int
        Alternatives that the evidence lists, at most.
    progress : callable, optional
        Called with a sentence that says how far the search is.

    Returns
    -------
    PlanResult
        The plan, its prediction, and the evidence of the search.

    Raises
    ------
    InfeasibleError
        No plan obeys the pins and fits the memory; names what binds.
    PlanError, ModelError, ClusterError
        A pin, the model, a size, the cluster or the framework cannot be understood.
    PlanInterrupted
        Interrupted (Ctrl-C) once there was a plan: `result` is the best so far.

    Examples
    --------
    >>> import millrace
    >>> planned = millrace.plan("mlp", "a100:2x1", global_batch=8, pins=millrace.Pins(dp=2))
    >>> planned.choices.dp, planned.prediction.step_time_s > 0
    (2, True)
    """
    from millrace.planner.search import SearchInterrupted
    from millrace.planner.search.search_log import SearchLog

    spec, on = opened_question(
        model,
        cluster,
        seq_len=seq_len,
        precision=precision,
        framework=framework,
        pins=pins,
        optimize_for=optimize_for,
        progress=progress,
    )
    began, log = perf_counter(), SearchLog(clock=perf_counter, top=top)

    def result(chosen: Plan) -> PlanResult:
        return PlanResult(plan=chosen, search_time_s=perf_counter() - began, search_log=log)

    try:
        chosen = search(
            spec,
            on,
            global_batch,
            training=training,
            pins=pins,
            memory_limit_bytes=memory_limit_bytes,
            reserve=reserve,
            max_gap=max_gap,
            simpler_within=simpler_within,
            seed=seed,
            optimize_for=optimize_for,
            progress=progress,
            record=log,
        )
    except SearchInterrupted as stopped:
        raise PlanInterrupted(result(stopped.plan)) from None
    return result(chosen)


def load(path: str | Path, *, trust: bool = False) -> PlanResult:
    """Plan of a file, of `PlanResult.save` or `millrace plan -o`.

    Parameters
    ----------
    path : str or Path
        The file.
    trust : bool
        Take a plan whose model is a function (`package.module:function`), which is called wherever
        the plan is used.

    Raises
    ------
    PlanError
        It cannot be read or is no plan, or its model is a function and the file is not trusted.
    ClusterError
        Its cluster is not valid.
    """
    return PlanResult(plan=load_plan(Path(path), trust=trust))
