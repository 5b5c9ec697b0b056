"""Sweep: clusters × networks × batches × sizes, a row for each, equal questions asked once."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from millrace.figures import plan_summary
from millrace.models.spec import ModelSpec
from millrace.models.zoo.catalogue import unit_of
from millrace.planner.cluster import Cluster, Link
from millrace.planner.clusters import validate
from millrace.planner.clusters.parsing import LOCAL, LOCAL_GPU
from millrace.planner.errors import ClusterError, InfeasibleError, PlanError
from millrace.planner.plan import Plan
from millrace.scaling.batches import Batch, batch_text
from millrace.scaling.bottlenecks import RESOURCES, resources, step_bottlenecks
from millrace.scaling.jittered_steps import jittered_steps
from millrace.scaling.prices import EVERY, check_prices, priced
from millrace.scaling.series import WORTH, fill_efficiencies

# Each device has its share of 2 TB/s, which a storage of Meta sustained for 16,384 GPUs ("The Llama
# 3 Herd of Models", 2024, section 3.3.1).
CHECKPOINT_BYTES_PER_S = 2e12 / 16384
# ByteDance's MegaScale finds and diagnoses a failure within 10 minutes on average (Jiang et al.,
# "MegaScale: Scaling Large Language Model Training to More Than 10,000 GPUs", 2024, section 6.3).
RESTART_S = 600.0
MILLION = 1e6

# A row holds these choices of its plan.
CHOICES = (
    *("dp", "tp", "pp", "cp", "ep", "etp", "zero", "sequence_parallel", "micro_batch"),
    *("microbatches", "schedule", "interleave", "recompute", "offload", "gap"),
)
FIGURES = (
    *("step_time_s", "step_time_range_s", "step_time_compared_with", "device_doubt"),
    "profile_warning",
    *("tokens_per_s", "mfu", "tflops_per_gpu", "memory_bytes_max", "reserve_bytes"),
)
ANSWERS = (
    *FIGURES,
    *("step_time_jitter_mean_s", "step_time_jitter_p95_s", "jitter_steps"),
    *("goodput_fraction", "goodput_tokens_per_s", "checkpoint_interval_s"),
    *("time_s", "energy_j", "cost_usd"),
    *("binds", "binds_fraction", "next", "next_fraction"),
    *(f"{name}_fraction" for name in RESOURCES),
    *("parts", *CHOICES),
)

Row = dict[str, Any]
Progress = Callable[[str], None]
PointSearch = Callable[[Cluster, int, Progress], Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Rate of failures of devices, and the cost of one.

    Attributes
    ----------
    mtbf_hours : float
        Mean time between failures of one device, with its share of host and network.
    checkpoint_bytes_per_s : float, optional
        Rate at which all devices together write a checkpoint; None: `CHECKPOINT_BYTES_PER_S` each.
    restart_s : float
        Seconds from a failure to the first step after it.
    """

    mtbf_hours: float
    checkpoint_bytes_per_s: float | None = None
    restart_s: float = RESTART_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Sweep that is asked for: one model on clusters, networks, batches and sizes.

    Attributes
    ----------
    model : ModelSpec
        The model.
    clusters : tuple of (str, Cluster)
        Name as asked, and the cluster; its number of nodes is replaced by each of `nodes`.
    nodes : tuple of int
        Sizes, in nodes.
    global_batches : tuple of Batch
        Samples of a step.
    networks : tuple of (str, callable)
        Name as asked → the link of a device of a node of so many devices, in place of the
        cluster's own between nodes; none: its own alone.
    tokens : float, optional
        Tokens to which time, energy and cost are counted; None: a million.
    failures : Failures, optional
        None: nothing fails.
    worth : float
        The least marginal efficiency that pays, see `millrace.scaling.series`.
    prices : mapping
        Dollars per device and hour in place of the catalogue's, see `millrace.scaling.prices`.
    jitter : float
        Standard deviation of the logarithm of every duration; 0: every step is alike.
    seed : int
        Of the jitter.
    """

    model: ModelSpec
    clusters: tuple[tuple[str, Cluster], ...]
    nodes: tuple[int, ...]
    global_batches: tuple[Batch, ...]
    networks: tuple[tuple[str, Callable[[int], Link]], ...] = ()
    tokens: float | None = None
    failures: Failures | None = None
    worth: float = WORTH
    prices: Mapping[str, float] = field(default_factory=dict)
    jitter: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for number in self.nodes:
            if number < 1:
                raise PlanError(f"--nodes {number}: expected whole numbers of at least 1")
        for option, numbers in (("--nodes", self.nodes), ("--global-batch", self.global_batches)):
            if not numbers:
                raise PlanError(f"{option} holds no number: expected some, such as 1,2,4")
        check_prices(self.prices, [name for name, _ in self.clusters])
        if not 0 <= self.jitter <= 1:
            raise PlanError(f"--jitter {self.jitter:g}: expected 0 to 1 (0.1 is ten percent)")
        if not 0 < self.worth <= 1:
            raise PlanError(f"--worth {self.worth:g}: expected above 0 and at most 1")
        if self.tokens is not None and not 0 < self.tokens < float("inf"):
            raise PlanError(f"--tokens {self.tokens:g}: expected a number above 0")
        failures = self.failures
        if failures is not None:
            for option, value, least in (
                ("--mtbf-hours", failures.mtbf_hours, "above 0"),
                ("--checkpoint-rate", failures.checkpoint_bytes_per_s, "above 0"),
                ("--restart-minutes", failures.restart_s / 60, "0 or more"),
            ):
                if value is not None and not (value > 0 or (value == 0 and least[0] == "0")):
                    raise PlanError(f"{option} {value:g}: expected {least}")


def sweep(asked: Sweep, search: PointSearch, progress: Progress | None = None) -> list[Row]:
    """Rows of every combination: by cluster, then network, then batch, then size.

    Parameters
    ----------
    asked : Sweep
        The combinations.
    search : callable
        Plans the model for a cluster and a batch, with the simulator's figures, and tells lines.
    progress : callable, optional
        Told which question is put to the search, the lines of that search, and its answer.

    Returns
    -------
    list of dict
        Every row has every key; `reason` says why there is no plan, and is None where there is one.

    Raises
    ------
    ClusterError
        A cluster cannot be sized, or no row could be understood.
    """
    lines = list(_lines(asked))
    total = sum(len(line) for line in lines)
    answers: dict[bytes, Row] = {}
    faults: list[ClusterError] = []
    rows: list[Row] = []
    for line in lines:
        line_rows: list[Row] = []
        for row, cluster in line:
            key = _key(cluster, row["global_batch"])
            if key not in answers:
                place = f"{len(rows) + len(line_rows) + 1} of {total}, {_point_text(row)}"
                tell = partial(_tell_point, progress, place)
                tell("planning")
                answers[key] = _answer(asked, row, partial(search, cluster), tell, faults)
                tell(_answer_text(row, answers[key]))
            line_rows.append(row | answers[key])
        fill_efficiencies(line_rows, asked.worth)
        rows += line_rows
    if faults and len(faults) == len(answers):
        raise faults[0]
    return rows


def _lines(asked: Sweep) -> Iterator[list[tuple[Row, Cluster]]]:
    """Yield rows as far as they are asked, with their clusters, a line at a time."""
    for name, unpriced in asked.clusters:
        base = priced(unpriced, asked.prices.get(name, asked.prices.get(EVERY)))
        for network, link in asked.networks or ((None, None),):
            joined = base if link is None else _joined(base, link)
            for batch in asked.global_batches:
                yield [
                    (_question(asked, name, base, network, nodes, batch), _sized(joined, nodes))
                    for nodes in asked.nodes
                ]


def _question(
    asked: Sweep, name: str, base: Cluster, network: str | None, nodes: int, batch: Batch
) -> Row:
    devices = base.devices_per_node * nodes
    return {
        "model": asked.model.name,
        "cluster": name,
        "network": network,
        "nodes": nodes,
        "devices_per_node": base.devices_per_node,
        "devices": devices,
        "price_usd_per_gpu_hour": base.device.price_usd_per_hour,
        "global_batch": batch.global_batch(devices),
        "batch_per_device": batch.samples if batch.per_device else None,
        "seq_len": asked.model.seq_len,
        "precision": asked.model.precision,
        "framework": base.software.name,
        "unit": unit_of(asked.model),
        "tokens": asked.tokens or MILLION,
    }


def _joined(base: Cluster, link: Callable[[int], Link]) -> Cluster:
    return msgspec.structs.replace(base, inter_node=link(base.devices_per_node))


def _sized(base: Cluster, nodes: int) -> Cluster:
    """Cluster with another number of nodes, named after it."""
    if base.others:
        raise ClusterError(
            f"--cluster {base.name}: it has several kinds of device, of which --nodes {nodes} does "
            f"not say how many there are; sweep each kind alone"
        )
    gpus = base.name.startswith(f"{LOCAL_GPU}:")
    if base.cores_per_node is not None or gpus:
        if nodes > 1:
            form = LOCAL_GPU if gpus else LOCAL
            raise ClusterError(
                f"--nodes {nodes}: {base.name} is this machine alone; write --nodes 1, and its "
                f"sizes as --cluster {form}:1,{form}:2"
            )
        return base
    name = f"{base.name.removesuffix(f'x{base.nodes}')}x{nodes}"
    return validate(msgspec.structs.replace(base, name=name, nodes=nodes))


def _key(cluster: Cluster, batch: int) -> bytes:
    """Key of all that an answer depends on: neither names, nor a network that joins nothing."""
    alone = cluster.inter_node if cluster.nodes > 1 else cluster.intra_node
    bare = msgspec.structs.replace(cluster, name="", inter_node=alone)
    return msgspec.json.encode((bare, batch))


def _answer(
    asked: Sweep,
    row: Row,
    search: Callable[[int, Progress], Plan],
    tell: Progress,
    faults: list[ClusterError],
) -> Row:
    """Answer to a row's question: the plan's figures, or the reason why there is none."""
    unanswered = dict.fromkeys(ANSWERS)
    try:
        plan = search(row["global_batch"], tell)
    except InfeasibleError as error:
        return unanswered | {"reason": str(error)}
    except ClusterError as error:  # such as a device without the precision
        faults.append(error)
        return unanswered | {"reason": str(error)}
    summary = plan_summary(plan)
    figures = {name: summary[name] for name in (*FIGURES, *CHOICES)}
    figures |= _goodput(asked.failures, plan) | _jittered(asked, plan)
    useful = figures.get("goodput_fraction", 1.0)
    if asked.jitter:
        useful *= figures["step_time_s"] / figures["step_time_jitter_mean_s"]
    figures["goodput_tokens_per_s"] = figures["tokens_per_s"] * useful
    if useful > 0:
        price = summary["cost_usd_per_mtoken"]
        per_token = {
            "time_s": 1 / figures["tokens_per_s"],
            "energy_j": summary["energy_j_per_token"],
            "cost_usd": None if price is None else price / MILLION,
        }
        for name, spent in per_token.items():
            figures[name] = None if spent is None else spent * row["tokens"] / useful
    return unanswered | figures | _binding(plan) | {"reason": None}


def _jittered(asked: Sweep, plan: Plan) -> Row:
    if not asked.jitter:
        return {}
    assert plan.prediction is not None
    step_s = plan.prediction.step_time_s
    lengths = jittered_steps(plan, asked.jitter, asked.seed)
    return {
        "step_time_jitter_mean_s": step_s * lengths.mean,
        "step_time_jitter_p95_s": step_s * lengths.tail,
        "jitter_steps": lengths.steps,
    }


def _goodput(failures: Failures | None, plan: Plan) -> Row:
    if failures is None:
        return {}
    from millrace.simulator.failures import goodput

    assert plan.prediction is not None
    rate = failures.checkpoint_bytes_per_s or CHECKPOINT_BYTES_PER_S * plan.ranks
    estimate = goodput(
        plan.prediction.step_time_s,
        plan.ranks,
        failures.mtbf_hours,
        checkpoint_bytes(plan),
        rate,
        failures.restart_s,
    )
    return {"goodput_fraction": estimate.fraction, "checkpoint_interval_s": estimate.interval_s}


def checkpoint_bytes(plan: Plan) -> int:
    """Bytes that a run is resumed from: all parameters, and moments of the trained, in fp32."""
    moments = 2 if plan.training.optimizer == "adamw" else int(plan.training.momentum > 0)
    graph = plan.graph
    return 4 * (graph.parameter_count + moments * graph.trained_count)


def _binding(plan: Plan) -> Row:
    """Resource that takes most of the step, the next one, and the shares of all."""
    parts = step_bottlenecks(plan)
    shares = resources(parts)
    first, then = sorted(shares, key=lambda name: -shares[name])[:2]
    return {
        "binds": _named(first, parts),
        "binds_fraction": shares[first],
        "next": _named(then, parts) if shares[then] else None,
        "next_fraction": shares[then],
        **{f"{name}_fraction": share for name, share in shares.items()},
        "parts": parts,
    }


def _named(resource: str, parts: dict[str, float]) -> str:
    """Name of a resource's largest part; `all_reduce between nodes` of the links between nodes."""
    return next(name for name in parts if name.endswith(RESOURCES[resource]))


def _tell_point(progress: Progress | None, place: str, text: str) -> None:
    if progress is not None:
        progress(f"{place}: {text}")


def _point_text(row: Row) -> str:
    network = f", {row['network']}" if row["network"] else ""
    return f"{row['devices']} devices of {row['cluster']}{network}, batch {batch_text(row)}"


def _answer_text(row: Row, point_row: Row) -> str:
    if point_row["reason"] is not None:
        return "no plan"
    return f"{point_row['tokens_per_s']:,.0f} {row['unit']}s/s"
