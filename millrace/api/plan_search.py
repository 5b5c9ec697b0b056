"""The search behind the verbs: from an opened model and a cluster to a Plan.

Documents in, documents out: `millrace.plan` opens its arguments and asks here, and so do sweeps.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from millrace.api.clusters import Progress, opened_cluster
from millrace.figures import prediction_of
from millrace.importing import open_checked
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import unit_of
from millrace.planner.cluster import Cluster
from millrace.planner.costs.op_batch import peak_flops_per_s
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.plan import MAX_GAP, Plan
from millrace.planner.token_cost import check_known, check_objective
from millrace.requested_cluster import is_local, usual_precision, with_software

if TYPE_CHECKING:
    from millrace.planner.frameworks.capabilities import Capabilities
    from millrace.planner.search import Pins
    from millrace.planner.search.search_log import SearchLog, SearchResult


def check_question(
    model: str | ModelSpec,
    *,
    seq_len: int | None = None,
    precision: str | None = None,
    pins: "Pins | None" = None,
    optimize_for: str = "throughput",
    progress: Progress | None = None,
) -> ModelSpec:
    """Opened model, once what can be refused without a cluster has been.

    Parameters
    ----------
    model : str or ModelSpec
        As for `millrace.api.plan_results.plan`.
    seq_len, precision, pins, optimize_for : optional
        As there; without a precision the model is opened in fp32.
    progress : callable, optional
        Called with a sentence for everything that was noticed in the model.

    Returns
    -------
    ModelSpec
        The model with its sequence length and precision.

    Raises
    ------
    PlanError, ModelError
        A pin, the objective, the model or a size cannot be understood, or an opened model is given
        another length or precision.
    InfeasibleError
        A pin asks for what this version cannot do.
    """
    check_objective(optimize_for)
    checked_pins(pins)
    if isinstance(model, str):
        return open_checked(model, seq_len, precision or "fp32", progress)
    for name, value in (("seq_len", seq_len), ("precision", precision)):
        if value not in (None, getattr(model, name)):
            raise PlanError(
                f"{name} is {value}, but the model `{model.name}` was opened with "
                f"{getattr(model, name)}: leave it out, or open the model anew"
            )
    return model


def opened_question(
    model: str | ModelSpec,
    cluster: str | Cluster,
    *,
    seq_len: int | None = None,
    precision: str | None = None,
    framework: str | None = None,
    pins: "Pins | None" = None,
    optimize_for: str = "throughput",
    profile: Path | None = None,
    progress: Progress | None = None,
) -> tuple[ModelSpec, Cluster]:
    """Model and cluster of a question; all else is checked before this machine is measured.

    Parameters
    ----------
    model, cluster, seq_len, precision, framework, pins, optimize_for
        As for `millrace.api.plan_results.plan`.
    profile : Path, optional
        Device profile of a cluster that is named by its text.
    progress : callable, optional
        Called with a sentence where something takes long, or was noticed.

    Returns
    -------
    tuple of ModelSpec and Cluster
        In the usual precision, and driven by the usual framework, where none is said.

    Raises
    ------
    PlanError, ModelError, ClusterError, InfeasibleError
        As for `check_question`; the cluster or the framework cannot be understood.
    """
    here = isinstance(cluster, str) and is_local(cluster)
    named = None if here else opened_cluster(cluster, profile, progress)
    if precision is None and isinstance(model, str):
        precision = usual_precision(named, model)
    spec = check_question(
        model,
        seq_len=seq_len,
        precision=precision,
        pins=pins,
        optimize_for=optimize_for,
        progress=progress,
    )
    on = named or opened_cluster(cluster, profile, progress)
    on = with_software(on, framework, unit_of(spec))
    check_known(on, optimize_for)
    for group in on.groups:
        peak_flops_per_s(group.device, spec.precision)
    return spec, on


def checked_pins(pins: "Pins | None") -> "Pins":
    """Pins, every value of its kind and in its range.

    Parameters
    ----------
    pins : Pins or None
        None: every choice is free.

    Raises
    ------
    PlanError, InfeasibleError
        They are no `Pins`; a value cannot be understood; two contradict each other.
    """
    from millrace.planner.search import Pins

    if pins is None:
        return Pins()
    if not isinstance(pins, Pins):
        raise PlanError(f"pins are {pins!r:.60}: expected millrace.Pins, such as Pins(tp=2)")
    checked = Pins.of(pins.document)
    checked.check()
    return checked


def search(
    model: ModelSpec,
    cluster: Cluster,
    global_batch: int,
    *,
    training: TrainingSpec | None = None,
    pins: "Pins | None" = None,
    memory_limit_bytes: int | None = None,
    reserve: str | None = None,
    max_gap: float = MAX_GAP,
    simpler_within: float | None = None,
    seed: int = 0,
    optimize_for: str = "throughput",
    progress: Progress | None = None,
    record: "SearchLog | None" = None,
    runs: "Capabilities | None" = None,
) -> Plan:
    """Fastest plan that fits, with the evidence for it and its predicted figures.

    Parameters
    ----------
    model : ModelSpec
        The model, in its sequence length and precision.
    cluster : Cluster
        The devices, and the framework that drives them: nothing is added to it.
    global_batch : int
        Samples of a step.
    training, pins, memory_limit_bytes, reserve, max_gap, simpler_within, seed, optimize_for
        As for `millrace.api.plan_results.plan`.
    progress : callable, optional
        Called with a sentence that says how far the search is.
    record : SearchLog, optional
        Filled with what every layer did.
    runs : Capabilities, optional
        What may be planned; by default what the cluster's framework can run.

    Returns
    -------
    Plan
        With its figures, as the simulator predicts them.

    Raises
    ------
    InfeasibleError
        No plan obeys the pins and fits the memory; names what binds.
    PlanError, ModelError, ClusterError
        A pin, a size or the device's precision cannot be understood.
    """
    from millrace.figures import block_times
    from millrace.memory_reserve import reserve_on
    from millrace.planner.frameworks.framework_tables import capabilities
    from millrace.planner.search import Pure, SearchRequest
    from millrace.planner.search.choosing.simplest import RANKING_ERROR
    from millrace.planner.search.subclusters import search_for

    asked = SearchRequest(
        model=model,
        training=training or TrainingSpec(),
        cluster=cluster,
        global_batch=global_batch,
        pins=checked_pins(pins),
        memory_limit_bytes=memory_limit_bytes,
        reserve=reserve_on(cluster, reserve, memory_limit_bytes),
        max_gap=max_gap,
        simpler_within=RANKING_ERROR * (max_gap > 0) if simpler_within is None else simpler_within,
        seed=seed,
        runs=runs or capabilities(cluster.software.name),
    )
    simulate_plan = Pure(prediction_of, block_times)

    def find(question: SearchRequest, log: "SearchLog | None") -> Plan:
        return search_for(question, optimize_for, simulate_plan, progress, log)

    if cluster.cores_per_node is None:
        plan = find(asked, record)
    else:
        from millrace.profiling.rehearsals import search_with_rehearsals

        plan = search_with_rehearsals(asked, find, progress, record)
    return with_figures(plan)


def with_figures(plan: Plan) -> Plan:
    """Plan with the figures that the simulator predicts of it, where it has none.

    Parameters
    ----------
    plan : Plan
        The plan, with figures or without.
    """
    if plan.figures:
        return plan
    return msgspec.structs.replace(plan, figures=prediction_of(plan).figures)


def planned_for_nodes(plan: Plan, nodes: int) -> Plan:
    """Plan of the same training on fewer nodes of the same cluster, as fast as they allow.

    Parameters
    ----------
    plan : Plan
        The plan whose training goes on.
    nodes : int
        How many nodes are left.

    Raises
    ------
    InfeasibleError
        The training does not fit these nodes; names what binds.
    """
    cluster = msgspec.structs.replace(plan.cluster, nodes=nodes)
    return search(plan.model, cluster, plan.global_batch, training=plan.training, seed=plan.seed)


def searched_again(plan: Plan, progress: Progress | None = None) -> "SearchResult":
    """Result of the search that made a plan, which is made once more.

    Parameters
    ----------
    plan : Plan
        A plan of `search`, with its model, cluster and pins.
    progress : callable, optional
        Called with a sentence that says how far the search is.

    Raises
    ------
    InfeasibleError
        The search finds another plan: it had another gap or objective, or was not this version's.
    """
    from millrace.planner.search import Pins
    from millrace.planner.search.search_log import SearchLog

    record = SearchLog()
    again = search(
        plan.model,
        plan.cluster,
        plan.global_batch,
        training=plan.training,
        pins=Pins.of(plan.pins),
        memory_limit_bytes=plan.memory_limit_bytes or None,
        seed=plan.seed,
        progress=progress,
        record=record,
    )
    if again.digest() != plan.digest() or record.answer is None:
        raise InfeasibleError(
            f"the plan {plan.digest()} cannot be explained: its question, with the search's usual "
            f"options, now has another plan ({again.digest()}); explain the result of millrace.plan"
        )
    return record.answer
