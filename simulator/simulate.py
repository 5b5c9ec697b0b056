"""Simulate: run an actor graph on a cluster in simulated time and say what came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import NamedTuple

import numpy as np

from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.trace import Span, Trace
from millrace.planner.actors.trace_lanes import lane_of
from millrace.planner.cluster import Cluster
from millrace.planner.compile.queue_orders import ALIKE, FiringsNs
from millrace.planner.costs import durations
from millrace.planner.costs.launch_overhead import Pacing, pacing_of
from millrace.planner.memory import device_overhead_bytes
from millrace.simulator.chunks.phase_times import PartTimes
from millrace.simulator.errors import SimulationError
from millrace.simulator.kernel import Kernel
from millrace.simulator.order_statistics import Lateness
from millrace.simulator.simulated_rank import Instance, Noise, instances_of
from millrace.simulator.step_split import split, stage_means, step_ends_ns, window_ns
from millrace.simulator.variation.representatives import SAMPLED, representatives


class SimulatedRun(NamedTuple):
    """A rank that was simulated, and how many ranks it stands for."""

    instance: Instance
    represents: int


STEPS_MAX = 10_000
FACTOR_MAX = 1e6  # of a straggler, or one over it


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Figures and trace of a simulated run.

    Attributes
    ----------
    trace
        Every firing of every simulated rank (no spans where they were not asked for).
    step_time_ns
        Steady: of the last step but one (of the last, if there are fewer than three), from the end
        of the step before, on the slowest rank.
    bubble_fraction
        Share of that time in which a rank neither computes nor takes part in a meeting whose data
        moves; mean over ranks.
    exposed_communication_ns
        Time of the step in which a rank's meeting moves data and the rank computes nothing; mean
        over ranks. See `simulator/step_split` for both.
    memory_bytes_max
        The largest arena of any rank.
    memory_by_kind
        Per program, the bytes of each kind of memory.
    firings
        Number of firings that were simulated.
    fidelity
        `op`, `block` or `stage`.
    busy_by_stage
        Share of that time in which a rank of each stage computes.
    runs
        What the simulated ranks saw, where spans were asked for, and `window_ns`, which of it the
        figures are of: what `simulator/account` reads. `chunks`: the times of the parts of every
        chunk, at stage and block fidelity, and `chunk_exposed_ns`: the communication that nothing
        hides inside them, per stage.
    """

    trace: Trace
    step_time_ns: int
    bubble_fraction: float
    exposed_communication_ns: int
    memory_bytes_max: int
    memory_by_kind: tuple[dict[str, int], ...]
    firings: int
    fidelity: str
    busy_by_stage: tuple[float, ...] = ()
    runs: tuple[SimulatedRun, ...] = field(default=(), compare=False, repr=False)
    window_ns: tuple[int, int] = (0, 0)
    chunks: tuple[PartTimes, ...] = ()
    chunk_exposed_ns: tuple[int, ...] = ()


def simulate(
    graph: ActorGraph,
    cluster: Cluster,
    *,
    steps: int = 3,
    plan_digest: str = "",
    jitter: float = 0.0,
    seed: int = 0,
    stragglers: Mapping[int, float] | None = None,
    spans: bool = True,
    folded: bool | None = None,
    durations_ns: Sequence[Sequence[int]] | None = None,
    pacing: Pacing | None = None,
    firings_ns: FiringsNs = ALIKE,
) -> Simulated:
    """Run `steps` steps of an actor graph in simulated time.

    Parameters
    ----------
    graph, cluster
        What runs, and where; rank r lies on device r.
    steps
        Number of training steps; three are the fewest that show the steady state.
    plan_digest
        Put into the trace.
    jitter
        Standard deviation of the logarithm of every duration, see `simulator/variation/noise`.
    seed
        Of the jitter.
    stragglers
        Rank → factor on the durations of its ops (2.0: half as fast).
    spans
        Keep every firing in the trace.
    folded
        Few ranks instead of every one (`simulator/variation/representatives`): exact without
        jitter, an estimate with it. None: unless ranks share cores.
    durations_ns
        One per program and actor, to replay measured times; None: those of `planner/costs`.
    pacing
        What holds computation back, of a graph whose actors stand for several ops; None: launches
        and contention of single ops, as the cluster's software has them.
    firings_ns
        Durations of a step's firings by program and actor, where they are not all alike.

    Raises
    ------
    SimulationError
        An option is out of its range, or folding is asked for where ranks share cores.
    ProtocolError
        The graph stops before its end.
    """
    named = dict(stragglers or {})
    _check(graph, cluster, steps, jitter, named)
    alike = cluster.cores_per_node is None
    if folded and not alike:
        raise SimulationError(
            "ranks that share cores hold up each other: simulate every rank (folded=False)"
        )
    folded = alike if folded is None else folded
    sampled = SAMPLED if jitter > 0 else 1
    chosen = representatives(graph, named, sampled=sampled if folded else graph.ranks)
    table = durations(graph, cluster) if durations_ns is None else durations_ns
    noise = Noise(jitter, seed, named)
    instances = instances_of(graph, cluster, chosen.ranks, steps, table, noise, firings_ns)
    lateness = Lateness(graph, chosen, instances) if folded and jitter > 0 else None
    Kernel(
        graph,
        instances,
        cores_per_node=cluster.cores_per_node,
        crowded_speed=cluster.device.crowded_speed,
        pacing=pacing_of(graph, cluster) if pacing is None else pacing,
        lateness=None if lateness is None else lateness.late_ns,
    ).run()
    return _simulated(graph, cluster, instances, chosen.counts, steps, plan_digest, spans)


def _check(
    graph: ActorGraph,
    cluster: Cluster,
    steps: int,
    jitter: float,
    stragglers: Mapping[int, float],
) -> None:
    if not 1 <= steps <= STEPS_MAX:
        raise SimulationError(
            f"steps is {steps}: expected 1 to {STEPS_MAX:,}; a few show the steady state"
        )
    if not (isfinite(jitter) and 0 <= jitter <= 1):
        raise SimulationError(f"jitter is {jitter}: expected 0 to 1 (0.1 is ten percent)")
    if graph.ranks > cluster.devices:
        raise SimulationError(
            f"`{graph.name}` has {graph.ranks} ranks, but cluster `{cluster.name}` has "
            f"{cluster.devices} devices"
        )
    for rank, factor in stragglers.items():
        if not 0 <= rank < graph.ranks:
            raise SimulationError(f"straggler {rank}: the ranks are 0 to {graph.ranks - 1}")
        if not 1 / FACTOR_MAX <= factor <= FACTOR_MAX:
            raise SimulationError(
                f"straggler {rank}: factor {factor}, expected {1 / FACTOR_MAX:g} to "
                f"{FACTOR_MAX:g} (2.0: it takes twice)"
            )


def _simulated(
    graph: ActorGraph,
    cluster: Cluster,
    instances: Sequence[Instance],
    represents: Sequence[int],
    steps: int,
    plan_digest: str,
    spans: bool,
) -> Simulated:
    """Figures and trace of a run, from what its instances saw."""
    ends = tuple(
        tuple(step_ends_ns(instance.program, instance.ends, steps)) for instance in instances
    )
    begin_ns, end_ns = window_ns(ends)
    parts = [
        split(instance.program, instance.begins, instance.ends, begin_ns, end_ns)
        for instance in instances
    ]
    shares = np.asarray(represents) / sum(represents)
    bubble_ns = float(np.dot([part.bubble_ns for part in parts], shares))
    exposed_ns = float(np.dot([part.exposed_ns for part in parts], shares))
    trace = Trace(
        source="simulated",
        plan_digest=plan_digest,
        device=cluster.device.name,
        steps=steps,
        lanes=tuple(
            lane_of(graph, instance.rank, count)
            for instance, count in zip(instances, represents, strict=True)
        ),
        step_end_ns=ends,
        spans=tuple(_spans(instances)) if spans else (),
    )
    memory = tuple(
        program.memory_bytes_by_kind | device_overhead_bytes(program.memory_bytes, cluster)
        for program in graph.programs
    )
    return Simulated(
        trace=trace,
        step_time_ns=end_ns - begin_ns,
        bubble_fraction=bubble_ns / (end_ns - begin_ns) if end_ns > begin_ns else 0.0,
        exposed_communication_ns=round(exposed_ns),
        memory_bytes_max=max(sum(kinds.values()) for kinds in memory),
        memory_by_kind=memory,
        firings=sum(len(column) for instance in instances for column in instance.ends),
        fidelity="op",
        busy_by_stage=stage_means(
            (instance.program for instance in instances),
            (part.busy_ns / max(end_ns - begin_ns, 1) for part in parts),
            represents,
        ),
        runs=tuple(map(SimulatedRun, instances, represents)) if spans else (),
        window_ns=(begin_ns, end_ns),
    )


def _spans(instances: Sequence[Instance]) -> list[Span]:
    """Spans of all firings, by rank and then by start."""
    spans: list[Span] = []
    for instance in instances:
        rows = [
            (start, actor, firing, end)
            for actor, (starts, ends) in enumerate(zip(instance.starts, instance.ends, strict=True))
            for firing, (start, end) in enumerate(zip(starts, ends, strict=True))
        ]
        rows.sort()
        spans.extend(
            Span(instance.rank, actor, firing, start, end, instance.work_ns(actor, firing))
            for start, actor, firing, end in rows
        )
    return spans
