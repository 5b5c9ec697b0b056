"""The verbs as a Python API: build, search, scale, compile, simulate, execute, compare.

Each takes and returns the documents (Graph, Plan, ActorGraph, Trace), so that a script can stop or
start anywhere on the road:

>>> from millrace import api
>>> graph = api.build("gpt2-small", batch=1)
>>> graph.parameter_count
124439808
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from re import fullmatch
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from millrace.compare import Comparison, join
from millrace.files import load_profile
from millrace.importing import opened
from millrace.models.graph import Graph
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.trace import Trace
from millrace.planner.cluster import Cluster, Software
from millrace.planner.errors import ClusterError
from millrace.planner.plan import MAX_GAP, Plan

if TYPE_CHECKING:
    from millrace.executor.backend import Backend
    from millrace.executor.launch import Measured
    from millrace.planner.search.report import Record
    from millrace.scaling import Failures
    from millrace.simulator.simulate import Simulated

Progress = Callable[[str], None]
Found = TypeVar("Found")


def build(
    model: str, *, batch: int = 1, seq_len: int | None = None, precision: str = "fp32"
) -> Graph:
    """Return the training graph of a model.

    Parameters
    ----------
    model : str
        A name of `millrace models`, a Hugging Face `config.json` or its folder, an `.onnx` or
        `.pt2` file, or `package.module:function`, which returns a forward Graph.
    batch : int
        Samples of one microbatch.
    seq_len : int, optional
        Tokens of a sample; the model's longest by default.
    precision : str
        fp64, fp32, tf32, bf16, fp16, fp8 or mxfp8.

    Raises
    ------
    ModelError
        The name, the sequence length or the precision does not exist, or the file cannot be read.
    """
    from millrace.models.zoo.catalogue import build_training

    return build_training(opened(model, seq_len, precision), TrainingSpec(), batch)


def cluster(
    text: str,
    *,
    profile: Path | None = None,
    measured: bool = True,
    progress: Progress | None = None,
) -> Cluster:
    """Return the cluster written as on the command line: `a100-sxm-80gb:8x16`, `local:4`, a file.

    Parameters
    ----------
    text : str
        The cluster.
    profile : Path, optional
        A device profile to use in place of the catalogue's device, or of this machine's own.
    measured : bool
        Measure this machine for `local:N` and `local-gpu:N`, once; else built-in figures of CPUs.
    progress : callable, optional
        Told in words when something takes long.

    Raises
    ------
    ClusterError
        The text has another form or names an unknown device.
    FileError
        The profile cannot be read.
    InfeasibleError
        This machine has fewer GPUs.
    ExecutorError
        This machine could not be measured.
    """
    from millrace.machine import catalogue_cluster, is_local, measured_cluster
    from millrace.planner.clusters import parse_cluster, validate

    if not is_local(text):
        found = catalogue_cluster(text, progress)
        if profile is None:
            return found
        return validate(msgspec.structs.replace(found, device=load_profile(profile)))
    if profile is not None or not measured:
        return parse_cluster(text, None if profile is None else load_profile(profile))
    return measured_cluster(text, progress)


def check_question(
    model: str,
    *,
    seq_len: int | None = None,
    precision: str = "fp32",
    pins: Mapping[str, str | int | bool] | None = None,
    optimize_for: str = "throughput",
    told: Progress | None = None,
) -> ModelSpec:
    """Return the model opened (`told` what to know of it), or raise what `search` would of all.

    Raises
    ------
    PlanError, ModelError
        A pin, the model or a size cannot be understood.
    InfeasibleError
        A pin asks for what this version cannot do.
    """
    from millrace.planner.search import Pins
    from millrace.planner.spending import check_objective

    check_objective(optimize_for)
    Pins.of(pins or {}).check()
    return opened(model, seq_len, precision, told)


def search(
    model: str | ModelSpec,
    on: Cluster,
    global_batch: int,
    *,
    seq_len: int | None = None,
    precision: str = "fp32",
    training: TrainingSpec | None = None,
    pins: Mapping[str, str | int | bool] | None = None,
    memory_limit_bytes: int | None = None,
    max_gap: float = MAX_GAP,
    seed: int = 0,
    optimize_for: str = "throughput",
    progress: Progress | None = None,
    record: "Record | None" = None,
) -> Plan:
    """Return the fastest plan that fits, with the evidence for it and its predicted figures.

    Parameters
    ----------
    model, seq_len, precision
        As for `build`; a model opened already brings its own length and precision.
    on : Cluster
        What to plan for; all its devices are used, unless `optimize_for` leaves some.
    global_batch : int
        Samples of a step.
    training : TrainingSpec, optional
        The optimizer and its schedule.
    pins : mapping, optional
        Choices fixed beforehand, by the names of `millrace.planner.search.Pins`.
    memory_limit_bytes : int, optional
        What the plan may use of a device; all of it by default.
    max_gap : float
        Stop within this fraction of the proven bound; 0 asks for the optimum.
    seed : int
        Written into the plan.
    optimize_for : str
        throughput; or cost or energy per token, for which fewer of the devices may be used.
    progress : callable, optional
        Told in words how far the search is.
    record : Record, optional
        Filled with what every layer did; `explain` reads it.

    Raises
    ------
    InfeasibleError
        No plan obeys the pins and fits the memory; names what binds.
    PlanError, ModelError
        A pin, the model or a size cannot be understood.
    """
    from millrace.planner.search import Pins, Pure, SearchRequest
    from millrace.planner.search.fleets import search_for

    plan = search_for(
        SearchRequest(
            model=opened(model, seq_len, precision, progress) if isinstance(model, str) else model,
            training=training or TrainingSpec(),
            cluster=on,
            global_batch=global_batch,
            pins=Pins.of(pins or {}),
            memory_limit_bytes=memory_limit_bytes,
            max_gap=max_gap,
            seed=seed,
        ),
        optimize_for,
        simulate=Pure(figures),
        progress=progress,
        record=record,
    )
    return plan if plan.figures else msgspec.structs.replace(plan, figures=figures(plan))


def scale(
    model: str | ModelSpec,
    clusters: Sequence[str],
    nodes: Sequence[int],
    global_batches: Sequence[int],
    *,
    networks: Sequence[str] = (),
    seq_len: int | None = None,
    precision: str = "fp32",
    framework: str | None = None,
    tokens: float | None = None,
    failures: "Failures | None" = None,
    worth: float | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Return a row for every cluster, network, batch and size, each planned and simulated.

    Parameters
    ----------
    model, seq_len, precision
        As for `search`.
    clusters : sequence of str
        As for `cluster`; `xNODES` may be left out.
    nodes, global_batches : sequence of int
        Sizes, and samples of a step.
    networks : sequence of str, optional
        In place of each cluster's own between its nodes, see
        `millrace.planner.clusters.fabrics.network`.
    framework : str, optional
        How software drives the devices, see `millrace.planner.clusters.framework`.
    tokens, failures, worth
        As in `millrace.scaling.Sweep`.
    progress : callable, optional
        Told a line for every point that is planned.

    Returns
    -------
    list of dict
        In the order asked; docs/scaling.md says what each key holds.

    Raises
    ------
    PlanError, ModelError, ClusterError
        A value cannot be understood; names the option and the value.
    """
    from millrace.planner.clusters import framework as software_of
    from millrace.planner.clusters.fabrics import network
    from millrace.scaling import WORTH, Sweep, sweep

    spec = opened(model, seq_len, precision, progress) if isinstance(model, str) else model
    asked = Sweep(
        model=spec,
        clusters=tuple((text, _resizable(text, progress)) for text in clusters),
        nodes=tuple(nodes),
        global_batches=tuple(global_batches),
        networks=tuple((text, partial(_named, "--network", network, text)) for text in networks),
        software=_named("--framework", software_of, framework or "default"),
        tokens=tokens,
        failures=failures,
        worth=WORTH if worth is None else worth,
    )
    return sweep(asked, lambda on, batch: search(spec, on, batch), progress)


def driven(cluster: Cluster, framework: str | None = None) -> Cluster:
    """Return the cluster driven as a framework does (`millrace.planner.clusters.framework`).

    Without one: as the cluster says, else by the default settings; ranks on CPUs as measured.

    Raises
    ------
    ClusterError
        There is no such framework.
    """
    from millrace.planner.clusters import framework as software_of

    said = cluster.software.name != Software().name
    if framework is None and (said or cluster.cores_per_node is not None):
        return cluster
    software = _named("--framework", software_of, framework or "default")
    return msgspec.structs.replace(cluster, software=software)


def _resizable(text: str, progress: Progress | None) -> Cluster:
    """The cluster of a text that need not say how many nodes there are."""
    sized = not fullmatch(r"[^:]+:[0-9]+", text) or text.startswith("local")
    whole = text if sized else f"{text}x1"
    return _named("--cluster", partial(cluster, progress=progress), whole)


def _named(option: str, read: Callable[..., Found], text: str, *rest: int) -> Found:
    """What `read` makes of an option's value; its refusal names the option."""
    try:
        return read(text, *rest)
    except ClusterError as error:
        raise ClusterError(f"{option} {text}: {error}") from None


def explain(plan: Plan, record: "Record") -> list[dict[str, Any]]:
    """Return what decided each choice of a plan: its nearest alternatives, and why they lose.

    Parameters
    ----------
    plan : Plan
        As `search` returned it.
    record : Record
        What that search filled.

    Returns
    -------
    list of dict
        `choice`, `value`, `alternative`, `effect` (by how much its step is longer, by the planner's
        cost), `reason`, `over_bytes`, `plan`, `parts_s` and `line`, which says it all in words.

    Examples
    --------
    >>> from millrace.planner.search.report import Record
    >>> record = Record()
    >>> plan = search("mlp", cluster("local:2", measured=False), 8, record=record)
    >>> explain(plan, record)[0]["choice"]
    'dp'
    """
    from millrace.planner.search.report.explain import explain as reasons

    assert record.answer is not None, "filled by the search that returned the plan"
    return [one.document for one in reasons(plan, record.answer)]


def figures(plan: Plan, fits: Callable[[dict[str, Any]], bool] | None = None) -> dict[str, Any]:
    """Return what the simulator predicts of a plan: step time, speed, memory by kind.

    `fidelity` says how finely it was simulated: op by op, or by whole stages where it is large.

    Parameters
    ----------
    plan : Plan
        The plan.
    fits : callable, optional
        Told the figures of memory, which are known first. Where it says no, the plan is not
        simulated and they are returned alone.
    """
    from millrace.figures import memory_figures, predicted_figures
    from millrace.planner.memory import plan_memory
    from millrace.planner.plan import plan_graph
    from millrace.simulator import forecast

    graph = plan_graph(plan)
    memory = plan_memory(plan, graph)
    held = memory_figures([one.by_kind for one in memory])
    if fits is not None and not fits(held):
        return held
    return predicted_figures(plan, forecast(plan, graph, memory), graph)


def compile(plan: Plan) -> ActorGraph:
    """Return the plan compiled: actors, registers and queues, proven to run to their end.

    Raises
    ------
    PlanError
        The plan does not fit its model or mesh.
    ProtocolError
        The graph cannot run to its end; names the actors that wait for each other.
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
    """Return what the plan would do on the cluster it was made for: a Trace and its figures.

    Parameters
    ----------
    plan : Plan
    steps : int
        Training steps; the last but one gives the figures.
    jitter : float
        Standard deviation of the logarithm of every duration (0.1: about ten percent).
    stragglers : mapping, optional
        Rank to factor on the durations of its ops (2.0: half as fast).
    seed : int
        Of the jitter.
    fidelity : str, optional
        `op` fires every actor, `block` the blocks of chunks, `stage` whole parts of chunks, without
        the whole model compiled. Default: `op` for small plans, `stage` for large ones.
    detailed : bool
        Keep what `millrace.simulator.account` needs.

    Raises
    ------
    SimulationError
        An option is out of its range.
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
) -> "Measured":
    """Train the plan on this machine, one process per rank, and return times, losses and a Trace.

    Parameters
    ----------
    plan, steps
        What to run, and for how many training steps.
    data : Path, optional
        File or folder to train on; the Python standard library's source files by default.
    seed, learning_rate
        Of the initial values and of the samples; the peak in place of the plan's.
    weights : Path, optional
        A `.npz` file of initial values by the names of variables; the seed gives the others.
    trace : bool
        Keep every firing's times; without, the Trace holds the ends of steps only.
    checkpoint, checkpoint_every, resume
        Folder to save variables and optimizer state in, at the end and every so many steps; go on
        from the last checkpoint there.
    backend : Backend, optional
        Where and how it runs (`millrace.executor.backend`); on this machine's CPUs by default.
    progress : callable, optional
        Called as `progress(step, loss)` after every step.

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
    )


def compare(plan: Plan, measured: Trace) -> Comparison:
    """Return the join of the plan's prediction with a measured trace, actor by actor.

    Raises
    ------
    PlanError
        The trace is of another plan, or holds no finished step.
    """
    return join(simulate(plan, fidelity="op").trace, measured)
