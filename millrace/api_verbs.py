"""The verbs as a Python API: build, search, scale, compile, simulate, execute, compare.

Each takes and returns documents (Graph, Plan, ActorGraph, Trace), so that a script can begin with
any of them and end with any. The other functions prepare a verb's arguments or say more of a plan.

>>> from millrace import api
>>> graph = api.build("gpt2-small", batch=1)
>>> graph.parameter_count
124439808
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.comparison import Comparison, join
from millrace.importing import open_checked
from millrace.models.graph import Graph
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.trace import Trace
from millrace.planner.cluster import Cluster
from millrace.planner.plan import MAX_GAP, Plan

if TYPE_CHECKING:
    from millrace.executor.backend import Backend
    from millrace.executor.drift.drift_watch import Drifted
    from millrace.executor.launch import Measured
    from millrace.planner.search.report import SearchLog
    from millrace.scaling import Failures
    from millrace.simulator.simulate import Simulated

Progress = Callable[[str], None]


def build(
    model: str, *, batch: int = 1, seq_len: int | None = None, precision: str = "fp32"
) -> Graph:
    """Training graph of a model: its forward pass, gradients and optimizer.

    Parameters
    ----------
    model : str
        A name of `millrace models`, a Hugging Face `config.json` or its folder, an `.onnx` or
        `.pt2` file, or `package.module:function`, which returns a forward Graph.
    batch : int
        Samples of one microbatch, for which the graph's shapes are written.
    seq_len : int, optional
        Tokens of a sample; the model's longest by default.
    precision : str
        fp64, fp32, tf32, bf16, fp16, fp8 or mxfp8: what the model computes in.

    Returns
    -------
    Graph
        Ops of all phases, with shapes for one microbatch of `batch` samples.

    Raises
    ------
    ModelError
        The name, the sequence length or the precision does not exist, or the file cannot be read.
    """
    from millrace.models.zoo.catalogue import build_training

    return build_training(open_checked(model, seq_len, precision), TrainingSpec(), batch)


def cluster(
    text: str,
    *,
    profile: Path | None = None,
    measured: bool = True,
    progress: Progress | None = None,
) -> Cluster:
    """Cluster that a text of the command line names.

    Unless its file says so, nothing is lost to software on it: `with_framework` adds a framework.

    Parameters
    ----------
    text : str
        `a100-sxm-80gb:8x16` (devices of a node x nodes), `local:4` (processes on this machine),
        `local-gpu:4` (its GPUs), or the path of a TOML file.
    profile : Path, optional
        A device profile to use in place of the catalogue's device or of this machine's own.
    measured : bool
        Measure this machine for `local:N` and `local-gpu:N` the first time, and keep the profile;
        else take built-in figures of CPUs.
    progress : callable, optional
        Called with a sentence where something takes long.

    Returns
    -------
    Cluster
        Validated, with devices, links and software.

    Raises
    ------
    ClusterError, FileError
        The text has another form or names an unknown device; the profile cannot be read.
    InfeasibleError, ExecutorError
        This machine has fewer GPUs, or could not be measured.
    """
    from millrace.requested_cluster import cluster_of

    return cluster_of(text, profile, measured, progress)


def check_question(
    model: str,
    *,
    seq_len: int | None = None,
    precision: str = "fp32",
    pins: Mapping[str, str | int | bool] | None = None,
    optimize_for: str = "throughput",
    told: Progress | None = None,
) -> ModelSpec:
    """Opened model, for `search`, once these arguments of it are known to make sense.

    Parameters
    ----------
    model : str
        As for `build`.
    seq_len : int, optional
        Tokens of a sample; the model's longest by default.
    precision : str
        As for `build`.
    pins : mapping, optional
        Choices fixed beforehand, by the names of `millrace.planner.search.Pins`.
    optimize_for : str
        throughput, cost or energy, as for `search`.
    told : callable, optional
        Called with a sentence for everything that was noticed in the model.

    Returns
    -------
    ModelSpec
        The model with its sequence length and precision.

    Raises
    ------
    PlanError, ModelError
        A pin, the objective, the model or a size cannot be understood.
    InfeasibleError
        A pin asks for what this version cannot do.
    """
    from millrace.planner.search import Pins
    from millrace.planner.token_cost import check_objective

    check_objective(optimize_for)
    Pins.of(pins or {}).check()
    return open_checked(model, seq_len, precision, told)


def search(
    model: str | ModelSpec,
    on: Cluster,
    global_batch: int,
    *,
    seq_len: int | None = None,
    precision: str | None = None,
    training: TrainingSpec | None = None,
    pins: Mapping[str, str | int | bool] | None = None,
    memory_limit_bytes: int | None = None,
    reserve: str | None = None,
    max_gap: float = MAX_GAP,
    simpler_within: float | None = None,
    seed: int = 0,
    optimize_for: str = "throughput",
    progress: Progress | None = None,
    record: "SearchLog | None" = None,
) -> Plan:
    """Fastest plan that fits, with the evidence for it and its predicted figures.

    Parameters
    ----------
    model : str or ModelSpec
        As for `build`, or one opened already, which brings its own length and precision.
    on : Cluster
        The cluster to plan for; all its devices are used, unless `optimize_for` leaves some.
    global_batch : int
        Samples of a step.
    seq_len : int, optional
        Tokens of a sample; the model's longest by default.
    precision : str, optional
        As for `build`; by default bf16, or fp16, on devices of the catalogue that have it, else
        fp32.
    training : TrainingSpec, optional
        The optimizer, its learning rate and schedule, and the form of attention.
    pins : mapping, optional
        Choices fixed beforehand, by the names of `millrace.planner.search.Pins`.
    memory_limit_bytes : int, optional
        Bytes that the plan may use of each device; by default all of them but the reserve.
    reserve : str, optional
        What of each device stays free where there is no limit: `5%`, `2GiB` or `0`. By default
        `millrace.planner.memory.DEFAULT_RESERVE` on devices of the catalogue, none on this machine.
    max_gap : float
        Stop within this fraction of the proven bound; 0 asks for the optimum.
    simpler_within : float, optional
        Share of the step by which a simpler plan may be slower than the fastest; by default what
        predictions of two plans differ by from measured runs, and 0 where the optimum is asked for.
    seed : int
        Written into the plan; the search itself is the same for every seed.
    optimize_for : str
        throughput; or cost or energy per token, for which fewer of the devices may be used.
    progress : callable, optional
        Called with a sentence that says how far the search is.
    record : SearchLog, optional
        Filled with what every layer did; `explain` reads it.

    Returns
    -------
    Plan
        With `figures` as the function `figures` gives them.

    Raises
    ------
    InfeasibleError
        No plan obeys the pins and fits the memory; names what binds.
    PlanError, ModelError, ClusterError
        A pin, the model, a size or the device's precision cannot be understood.
    """
    from millrace.figures import block_times, prediction_of
    from millrace.memory_reserve import reserve_on
    from millrace.planner.frameworks.framework_tables import capabilities
    from millrace.planner.search import Pins, Pure, SearchRequest
    from millrace.planner.search.choosing.simplest import RANKING_ERROR
    from millrace.planner.search.subclusters import search_for
    from millrace.requested_cluster import usual_precision

    precision = precision or usual_precision(on, model)
    within = RANKING_ERROR * (max_gap > 0) if simpler_within is None else simpler_within
    asked = SearchRequest(
        model=open_checked(model, seq_len, precision, progress)
        if isinstance(model, str)
        else model,
        training=training or TrainingSpec(),
        cluster=on,
        global_batch=global_batch,
        pins=Pins.of(pins or {}),
        memory_limit_bytes=memory_limit_bytes,
        reserve=reserve_on(on, reserve, memory_limit_bytes),
        max_gap=max_gap,
        simpler_within=within,
        seed=seed,
        runs=capabilities(on.software.name),
    )
    simulate_plan = Pure(prediction_of, block_times)

    def find(question: SearchRequest, log: "SearchLog | None") -> Plan:
        return search_for(question, optimize_for, simulate_plan, progress, log)

    if on.cores_per_node is None:
        plan = find(asked, record)
    else:
        from millrace.profiling.rehearsals import search_with_rehearsals

        plan = search_with_rehearsals(asked, find, progress, record)
    return plan if plan.figures else msgspec.structs.replace(plan, figures=figures(plan))


def scale(
    model: str | ModelSpec,
    clusters: Sequence[str],
    nodes: Sequence[int],
    global_batches: Sequence[int | str],
    *,
    networks: Sequence[str] = (),
    seq_len: int | None = None,
    precision: str | None = None,
    framework: str | None = None,
    reserve: str | None = None,
    training: TrainingSpec | None = None,
    pins: Mapping[str, str | int | bool] | None = None,
    memory_limit_bytes: int | None = None,
    prices: Mapping[str, float] | None = None,
    tokens: float | None = None,
    failures: "Failures | None" = None,
    jitter: float = 0.0,
    seed: int = 0,
    worth: float | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Rows of a sweep: every cluster, network, batch and size, each planned and simulated.

    Parameters
    ----------
    model : str or ModelSpec
        As for `search`.
    clusters : sequence of str
        As for `cluster`; `xNODES` may be left out.
    nodes : sequence of int
        Sizes, in nodes.
    global_batches : sequence of int or str
        Samples of a step; `8/device` grows with the devices.
    networks : sequence of str, optional
        Between the nodes (`8xhdr`; docs/clusters.md has all forms), in place of a cluster's own.
    seq_len : int, optional
        Tokens of a sample; the model's longest by default.
    precision : str, optional
        As for `build`; by default bf16, or fp16, where all clusters have it, else fp32.
    framework : str, optional
        The framework that drives all clusters, whatever their files say; see `with_framework`.
    reserve : str, optional
        What of each device stays free, as for `search`.
    training, pins, memory_limit_bytes : optional
        As for `search`, of every plan.
    prices : mapping, optional
        Dollars for an hour of a device, by the text of its cluster; `""`: of all other clusters.
    tokens : float, optional
        Tokens that a row's time, energy and cost are counted to; a million by default.
    failures : Failures, optional
        How often devices fail, and what that costs; by default they never do.
    jitter : float
        As for `simulate`: the mean and the tail of step times are estimated.
    seed : int
        Of the jitter.
    worth : float, optional
        The least marginal efficiency, a fraction, at which more devices pay; 0.5 by default.
    progress : callable, optional
        Called with lines on every point: that it is planned, how far its search is, its answer.

    Returns
    -------
    list of dict
        By cluster, then network, then batch, then size; docs/scaling.md says what each key holds.
        A row without a plan has the reason for that under `reason`.

    Raises
    ------
    PlanError, ModelError, ClusterError
        A value cannot be understood; names the option and the value.
    """
    from millrace.planner.clusters.fabrics import network
    from millrace.requested_cluster import read_option, usual_precision_on, with_nodes
    from millrace.scaling import WORTH, Sweep, sweep
    from millrace.scaling.batches import parse_batch

    precision = precision or usual_precision_on(clusters, model)
    spec = open_checked(model, seq_len, precision, progress) if isinstance(model, str) else model

    def driven(text: str) -> Cluster:
        on = read_option("--cluster", partial(cluster, progress=progress), with_nodes(text))
        return with_framework(on, framework, model=spec)

    asked = Sweep(
        model=spec,
        clusters=tuple((text, driven(text)) for text in clusters),
        nodes=tuple(nodes),
        global_batches=tuple(parse_batch(str(batch)) for batch in global_batches),
        networks=tuple(
            (text, partial(read_option, "--network", network, text)) for text in networks
        ),
        tokens=tokens,
        failures=failures,
        worth=WORTH if worth is None else worth,
        prices=prices or {},
        jitter=jitter,
        seed=seed,
    )

    def plan(on: Cluster, batch: int, tell: Progress) -> Plan:
        limit = memory_limit_bytes
        return search(
            spec,
            on,
            batch,
            training=training,
            pins=pins,
            memory_limit_bytes=limit,
            reserve=reserve,
            progress=tell,
        )

    return sweep(asked, plan, progress)


def recommend(
    model: str | ModelSpec,
    clusters: Sequence[str],
    tokens: float,
    *,
    within_s: float | None = None,
    budget_usd: float | None = None,
    nodes: Sequence[int] = (),
    global_batches: Sequence[int | str] = (),
    seq_len: int | None = None,
    precision: str | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """Rows of a sweep with what a run of tokens takes on each, and the choice among them.

    Parameters
    ----------
    model : str or ModelSpec
        As for `search`.
    clusters : sequence of str
        As for `scale`.
    tokens : float
        Tokens (images, samples) of the run.
    within_s : float, optional
        Seconds within which the run has to end; by default it may take any time.
    budget_usd : float, optional
        Dollars that the run may cost; by default any.
    nodes, global_batches : sequence, optional
        As for `scale`; by default powers of two around what the deadline asks of the devices, and
        batches of four million tokens, or just below.
    seq_len : int, optional
        Tokens of a sample; the model's longest by default.
    precision : str, optional
        As for `scale`.
    **asked
        Further arguments of `scale`.

    Returns
    -------
    dict
        `rows`, those of `scale` with `makes_it` and `on_frontier`; and `choice`, with the rows
        `cheapest` and `fastest` of those that make it, and `nearest` where none does.

    Raises
    ------
    PlanError, ModelError, ClusterError
        A value cannot be understood; names the option and the value.
    """
    from millrace.requested_cluster import read_option, usual_precision_on, with_nodes
    from millrace.scaling.recommendation import recommendation, usual_batch, usual_nodes

    precision = precision or usual_precision_on(clusters, model)
    spec = open_checked(model, seq_len, precision) if isinstance(model, str) else model
    sizes = nodes
    if not sizes:
        named = [read_option("--cluster", cluster, with_nodes(text)) for text in clusters]
        sizes = usual_nodes(spec, named, tokens, within_s)
    batches = global_batches or (usual_batch(spec),)
    rows = scale(spec, clusters, sizes, batches, tokens=tokens, **asked)
    return recommendation(rows, within_s, budget_usd)


def with_framework(
    cluster: Cluster, framework: str | None = None, *, model: ModelSpec | None = None
) -> Cluster:
    """Cluster with a framework's launches, overlap, fusion and buckets; `search` keeps to it.

    Parameters
    ----------
    cluster : Cluster
        As `cluster` returns it.
    framework : str, optional
        A name in `planner/frameworks/frameworks.toml`; `any` has the whole space of plans.
        Without one the cluster's own framework stays, or else megatron-core is taken (jax-xla on a
        torus, `any` for models of other things than tokens); ranks on CPUs stay as they were
        measured.
    model : ModelSpec, optional
        The model that is planned for; a language model by default.

    Returns
    -------
    Cluster
        The same devices and links, with the framework as `software`.

    Raises
    ------
    ClusterError
        There is no such framework.
    """
    from millrace.models.zoo.catalogue import unit_of
    from millrace.requested_cluster import with_software

    return with_software(cluster, framework, "token" if model is None else unit_of(model))


def explain(plan: Plan, record: "SearchLog") -> list[dict[str, Any]]:
    """Reasons for each choice of a plan: its nearest alternatives, and why they lost.

    Parameters
    ----------
    plan : Plan
        As `search` returned it.
    record : SearchLog
        As that search filled it.

    Returns
    -------
    list of dict
        `choice`, `value`, `alternative`, `effect` (the fraction by which its step is longer, in the
        planner's cost), `reason`, `over_bytes`, `plan`, `parts_s` and `line`: all of it in words.

    Examples
    --------
    >>> from millrace.planner.search.report import SearchLog
    >>> record = SearchLog()
    >>> plan = search("mlp", cluster("local:2", measured=False), 8, record=record)
    >>> explain(plan, record)[0]["choice"]
    'dp'
    """
    from millrace.planner.search.report.explain import explain as reasons

    assert record.answer is not None, "filled by the search that returned the plan"
    return [reason.document for reason in reasons(plan, record.answer)]


def figures(plan: Plan) -> dict[str, Any]:
    """Figures that the simulator predicts of a plan, as `plan.figures` holds them.

    Parameters
    ----------
    plan : Plan
        As `search` returns it; its own figures are not read.

    Returns
    -------
    dict
        `step_time_s`, `tokens_per_s`, `tflops_per_gpu`, `mfu` (a fraction, or None),
        `memory_bytes_max` of any device, `memory_by_kind` (bytes by kind, for every stage),
        `busy_fraction`, `busy_by_stage`, and `fidelity`: op by op, or by whole stages where the
        plan is large.
        With offloaded optimizer state `host_memory_bytes_max` too.
    """
    from millrace.figures import prediction_of

    return prediction_of(plan).figures


def compile(plan: Plan) -> ActorGraph:
    """Actor graph of a plan: actors, registers and queues, proven to run to their end.

    Parameters
    ----------
    plan : Plan
        With its model, mesh and signatures.

    Returns
    -------
    ActorGraph
        One program per group of ranks that do the same.

    Raises
    ------
    PlanError, ProtocolError
        The plan does not fit its model or mesh; the actors that are named wait for each other.
    """
    from millrace.planner.compile import compile_plan

    return compile_plan(plan)


def simulate(
    plan: Plan,
    *,
    steps: int = 3,
    jitter: float = 0.0,
    stragglers: Mapping[int, float] | None = None,
    seed: int = 0,
    fidelity: str | None = None,
    detailed: bool = False,
) -> "Simulated":
    """Simulated run of the plan on the cluster it was made for: a Trace and its figures.

    Parameters
    ----------
    plan : Plan
        The plan that runs, on the cluster that it holds.
    steps : int
        Training steps; the last but one gives the figures.
    jitter : float
        Standard deviation of the logarithm of every duration (0.1: about ten percent).
    stragglers : mapping, optional
        The factor on the durations of a rank's ops, by rank (2.0: half as fast).
    seed : int
        Of the random numbers of the jitter.
    fidelity : str, optional
        `op` fires every actor, `block` the blocks of chunks, `stage` whole parts of chunks, without
        the whole model compiled. Default: `op` for small plans, `stage` for large ones.
    detailed : bool
        Keep what `millrace.simulator.account.account_of` needs for its tables of the step.

    Returns
    -------
    Simulated
        The `trace`, the step time in ns, bubble, exposed communication and memory.

    Raises
    ------
    SimulationError, PlanError
        An option is out of its range; the plan does not fit its model, mesh or cluster.
    """
    from millrace.simulator import predict

    return predict(
        plan,
        steps=steps,
        jitter=jitter,
        stragglers=stragglers,
        seed=seed,
        fidelity=fidelity,
        detailed=detailed,
    )


def transfer(plan: Plan, *, on: Cluster | None = None, precision: str | None = None) -> Plan:
    """The plan as it would be on another cluster or in another precision, for `simulate`.

    Mesh, stages, schedule and layouts stay as they are; `search` may find better ones.

    Parameters
    ----------
    plan : Plan
        As `search` returns it.
    on : Cluster, optional
        A cluster of as many devices, with the framework that drives it (`with_framework`).
    precision : str, optional
        As for `build`.

    Returns
    -------
    Plan
        Without figures and evidence, which were those of the first plan.

    Raises
    ------
    InfeasibleError
        The cluster has another number of devices, or the plan has no place for what the precision
        adds.
    PlanError
        There is no such precision.

    Examples
    --------
    >>> plan = search("mlp", cluster("a100:2x1"), 8)
    >>> transfer(plan, on=cluster("h200:2x1"), precision="bf16").model.precision
    'bf16'
    """
    from millrace.transfer import in_precision, on_cluster

    changed = plan if on is None else on_cluster(plan, on)
    return changed if precision is None else in_precision(changed, precision)


def execute(
    plan: Plan,
    *,
    steps: int = 50,
    data: Path | None = None,
    seed: int = 0,
    learning_rate: float | None = None,
    weights: Path | None = None,
    trace: bool = True,
    checkpoint: Path | None = None,
    checkpoint_every: int = 0,
    resume: bool = False,
    backend: "Backend | None" = None,
    progress: Callable[[int, float], None] | None = None,
    drifted: "Drifted | None" = None,
) -> "Measured":
    """Train the plan on this machine, one process per rank.

    Parameters
    ----------
    plan : Plan
        The plan to run, whatever its cluster is.
    steps : int
        Training steps.
    data : Path, optional
        File or folder to train on; the Python standard library's source files by default.
    seed : int
        Of the initial values and of the order of samples.
    learning_rate : float, optional
        The peak, in place of the plan's.
    weights : Path, optional
        A `.npz` file of initial values by the names of variables; the seed gives the others.
    trace : bool
        Keep the times of every firing, which `compare` needs; else the ends of steps alone.
    checkpoint : Path, optional
        Folder to save variables and optimizer state in at the end.
    checkpoint_every : int
        Save there after every so many steps as well; 0: at the end alone.
    resume : bool
        Go on from the last checkpoint there.
    backend : Backend, optional
        Where and how it runs (`millrace.executor.backend`); on this machine's CPUs by default.
    progress : callable, optional
        Called as `progress(step, loss)` after every step.
    drifted : callable, optional
        Called with a `Drift` when steps leave the band of the first ones or of the prediction, and
        when they are back.

    Returns
    -------
    Measured
        The step time in ns, the loss of every step, the `drift` of steps, and the `trace`.

    Raises
    ------
    ExecutorError
        A rank failed; names the rank, the actor and the cause.
    DataError, CheckpointError
        Data or checkpoint are not there, or do not fit the model.
    InfeasibleError
        This machine cannot hold the ranks, or lacks what the backend needs; says what.
    """
    from millrace.executor.backend import CPUS
    from millrace.executor.launch import execute as run

    return run(
        plan,
        steps=steps,
        data=None if data is None else str(data),
        seed=seed,
        learning_rate=learning_rate,
        weights=weights,
        trace=trace,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        resume=resume,
        backend=backend or CPUS,
        progress=progress,
        drifted=drifted,
    )


def compare(plan: Plan, measured: Trace) -> Comparison:
    """Join of the plan's prediction with a measured trace, actor by actor.

    Parameters
    ----------
    plan : Plan
        The plan that was run; it is simulated op by op.
    measured : Trace
        `trace` of what `execute` returned, with the times of firings.

    Returns
    -------
    Comparison
        Seconds per step by actor, cause and phase; the relative error of the step time, its causes
        and the critical paths.

    Raises
    ------
    PlanError
        The trace is of another plan, or holds no finished step or no firings.
    """
    return join(simulate(plan, fidelity="op").trace, measured, plan)
