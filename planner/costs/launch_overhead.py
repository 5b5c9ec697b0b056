"""Launch overhead and contention (*pacing*): launches and moving data hold computation back.

* *Launches.* A rank's host launches the actors of a compute queue in their order, one after the
  other, and runs ahead of the device within a step; the next step's launches begin when the queue's
  last firing of this one is over. A firing begins no earlier than it is launched. One launch does
  what an optimizer does to many variables; a meeting that is no bucket's is launched before what
  reads it.
* *Contention.* While a meeting of a rank moves data, what the rank computes keeps a share of its
  speed.

An actor may stand for several launches (merged actors, parts of chunks). It is then one piece of
computation that begins when the first is launched plus a *lag*: as much as the later ones, waiting
for their launches, push back its end.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from millrace.models.labels import EXPERT, parse
from millrace.models.ops import kinds_where
from millrace.planner.actors.graph import Actor, ActorGraph, Program
from millrace.planner.cluster import Cluster, Software
from millrace.planner.costs.actors import firing_of_actor
from millrace.planner.costs.expert_routing import expert_launches

# Phases in which frameworks do some kinds of ops for all variables in one launch: PyTorch's
# `torch._foreach` functions, and apex's `multi_tensor_apply`, which DeepSpeed takes for Adam
# (ops/adam/fused_adam.py) and Megatron-LM for norms, Adam and casts of float16 (core/optimizer; it
# copies those of bfloat16 one by one, which is left out here). Read 2026-11.
TOGETHER = kinds_where(lambda row: row.launched_together)
ENDS = ("begin", "update")


class Pace(NamedTuple):
    """Launches and slowdown of one actor without a meeting; 0 launches: with those before it.

    `alone` is the share of its time in which it computes and no meeting inside it moves data: as
    much of it as other meetings slow down.
    """

    launches: int = 1
    lag_ns: int = 0
    alone: float = 1.0


ONE_LAUNCH = Pace()


class Pacing(NamedTuple):
    """Nanoseconds of a launch, the speed kept beside moving data, a pace per program and actor."""

    host_ns: int
    overlap: float
    rows: tuple[tuple[Pace, ...], ...]


def pacing_of(graph: ActorGraph, cluster: Cluster) -> Pacing | None:
    """Pacing of a graph of ops; None where nothing is held back.

    Ranks that share cores (`Cluster.cores_per_node`) compute on the host, which
    `millrace.simulator.shared_cores` describes.

    Parameters
    ----------
    graph : ActorGraph
        Its programs have queues with orders, by which launches follow one another.
    cluster : Cluster
        Its software gives the time of a launch (`host_ns`) and the speed kept beside moving data
        (`overlap`).
    """
    if not paced(cluster):
        return None
    software = cluster.software
    rows = tuple(_paces(program, software) for program in graph.programs)
    return Pacing(software.host_ns, software.overlap, rows)


def _paces(program: Program, software: Software) -> tuple[Pace, ...]:
    """A pace per actor: its own launch, and those of the meetings that nobody read before it."""
    met = {
        port.register
        for actor in program.actors
        if (meeting := actor.meeting) and not (meeting.bucketed or meeting.world)
        for port in actor.outputs
    }
    paces = [ONE_LAUNCH] * len(program.actors)
    begun: set[tuple[str, str]] = set()
    for index in dict.fromkeys(
        actor_index for queue in program.queues for actor_index in queue.order
    ):
        actor = program.actors[index]
        if actor.meeting is not None:
            continue
        read = met.intersection(port.register for port in actor.inputs)
        met -= read
        phase_kind = (actor.phase, actor.kind)
        together = actor.phase in ENDS and actor.kind in TOGETHER and phase_kind in begun
        own_launches = 0 if together else launches_of(actor, program, software)
        begun.add(phase_kind)
        before = len(read) * software.host_ns if own_launches else 0
        paces[index] = Pace(own_launches + len(read), before)
    return tuple(paces)


def launches_of(actor: Actor, program: Program, software: Software) -> int:
    """Launches of an actor: one, or several of each expert.

    Parameters
    ----------
    actor, program : Actor, Program
        One without a meeting, and the program that it is of.
    software : Software
        The framework's.
    """
    if actor.parts or not actor.labels or EXPERT not in parse(actor.labels).labels:
        return 1
    return expert_launches(firing_of_actor(actor, program), software)


def paced(cluster: Cluster) -> bool:
    """True if launches or contention hold back what a cluster's devices compute."""
    software = cluster.software
    return cluster.cores_per_node is None and (software.host_ns > 0 or software.overlap < 1)


def hidden_share(cluster: Cluster) -> float:
    """Share of a transfer beside computation that does not slow that down."""
    return cluster.software.overlap if paced(cluster) else 0.0


def launch_offsets(
    program: Program, row: Sequence[Pace], host_ns: int
) -> tuple[tuple[int, ...], ...]:
    """Nanoseconds, per actor and firing of a step, from the first launch until it can begin.

    Empty for meetings: nobody waits for their launch.

    Parameters
    ----------
    program : Program
        Every queue of it counts its launches from 0, in its order.
    row : sequence of Pace
        A pace per actor of the program (`Pacing.rows`).
    host_ns : nanoseconds, int
        Time of one launch (`Pacing.host_ns`).

    Returns
    -------
    tuple (actors,) of tuple (firings,) of int
        A firing that stands for several launches begins with the first of them, plus its lag.
    """
    offsets_by_actor: list[list[int]] = [[] for _ in program.actors]
    for queue in program.queues:
        launched = 0
        for actor in queue.order:
            if program.actors[actor].meeting is None:
                first = min(row[actor].launches, 1)
                offsets_by_actor[actor].append((launched + first) * host_ns + row[actor].lag_ns)
                launched += row[actor].launches
    return tuple(tuple(offsets) for offsets in offsets_by_actor)


def merged(paces: Iterable[tuple[Pace, int]], host_ns: int) -> Pace:
    """Pace of actors that follow one another, each given with its duration.

    Parameters
    ----------
    paces : iterable of (Pace, int)
        Pace and duration in nanoseconds of one firing, in order.
    host_ns : nanoseconds, int
        Time of one launch.

    Returns
    -------
    Pace
        The launches of all, and as lag the most by which one of them pushes back the end; `alone`
        is 1.
    """
    launches = lag = before = 0
    for index, (pace, duration_ns) in enumerate(paces):
        later = launches * host_ns - before + pace.lag_ns
        lag = later if index == 0 else max(lag, later)
        launches += pace.launches
        before += duration_ns
    return Pace(launches, lag)
