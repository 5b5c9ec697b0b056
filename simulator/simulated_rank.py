"""Simulated rank: its protocol, its durations and the times it saw."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
from simpy import Environment, Event

from millrace.planner.actors.graph import ActorGraph, Leave, Program
from millrace.planner.actors.protocol import ActorProtocol
from millrace.planner.cluster import Cluster
from millrace.planner.compile.queue_orders import ALIKE, FiringsNs
from millrace.simulator.variation.noise import factors_of_actors


class Completion(Event):
    """The end of an actor's firing, or of a meeting (for all its members)."""

    def __init__(
        self, env: Environment, instance: int, actor: int, protocol: ActorProtocol
    ) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        self.instance = instance
        self.actor = actor
        self.finish = protocol.finish
        self.ends: list[int] = []
        self.members: Sequence[tuple[int, int]] = ()
        # The pacer (`millrace.simulator.pacer`) keeps here which firing is under way, the work that
        # is left of it, since when that is so, and until when data moved when its end was counted.
        self.firing = 0
        self.left = 0
        self.since = 0
        self.moving_until = 0


@dataclass(slots=True, kw_only=True)
class Instance:
    """One simulated rank: its protocol, the durations of its actors and the times seen so far.

    `delays` gives one duration per actor, `firing_delays` one per actor and firing (empty: they are
    all alike). `lags` says how long after it could begin each firing does (empty: at once).
    `starts`, `ends` list the times of every firing; `moves` when a meeting's data began to move;
    `launch_waits` from when to when a firing waited for nothing but its launch.
    """

    rank: int
    program: Program
    protocol: ActorProtocol
    delays: Sequence[int]
    firing_delays: Sequence[Sequence[int]] = ()
    lags: Sequence[Sequence[int]] = ()
    threads: int = 1
    node: int = 0
    events: list[Completion] = field(default_factory=list)
    starts: list[list[int]] = field(default_factory=list)
    ends: list[list[int]] = field(default_factory=list)
    moves: list[list[int]] = field(default_factory=list)
    launch_waits: list[tuple[int, int]] = field(default_factory=list)
    meets: list[bool] = field(default_factory=list)
    launches: list[bool] = field(default_factory=list)

    def prepare(self, env: Environment, index: int) -> None:
        """Make the events and the empty lists, one per actor."""
        issued = {q for q, queue in enumerate(self.program.queues) if queue.leave is Leave.ISSUED}
        for number, actor in enumerate(self.program.actors):
            event = Completion(env, index, number, self.protocol)
            self.events.append(event)
            self.meets.append(actor.meeting is not None)
            self.launches.append(not issued.isdisjoint(actor.queues))
            self.starts.append([])
            self.ends.append(event.ends)
            self.moves.append([])

    def work_ns(self, actor: int, firing: int) -> int:
        """Nanoseconds that a firing takes where nothing slows it."""
        if self.firing_delays:
            return self.firing_delays[actor][firing]
        return self.delays[actor]

    @property
    def begins(self) -> list[list[int]]:
        """Begins of every firing, per actor: a meeting's when its data began to move."""
        rows = zip(self.meets, self.moves, self.starts, strict=True)
        return [moves if meets else starts for meets, moves, starts in rows]


class Noise(NamedTuple):
    """Differences between ranks: jitter and its seed, rank → factor of stragglers."""

    jitter: float
    seed: int
    stragglers: Mapping[int, float]


CALM = Noise(0.0, 0, {})


def instances_of(
    graph: ActorGraph,
    cluster: Cluster,
    ranks: Iterable[int],
    steps: int,
    durations_ns: Sequence[Sequence[int]],
    noise: Noise = CALM,
    firings_ns: FiringsNs = ALIKE,
) -> list[Instance]:
    """Instances of these ranks, ready to run `steps` steps.

    Parameters
    ----------
    graph, cluster
        What runs, and where; rank r lies on device r.
    ranks
        Every rank, or one per program.
    steps
        Number of steps.
    durations_ns
        One per program and actor.
    noise
        How ranks differ.
    firings_ns
        Durations of a step's firings by program and actor, where they are not all alike.
    """
    cores = cluster.cores_per_node or 1
    instances = []
    for rank in ranks:
        index = graph.program_of(rank)
        program = graph.programs[index]
        slow = noise.stragglers.get(rank, 1.0)
        delays = [
            ns if actor.meeting is not None else round(ns * slow)
            for ns, actor in zip(durations_ns[index], program.actors, strict=True)
        ]
        firing_delays: Sequence[Sequence[int]] = ()
        if noise.jitter > 0 or firings_ns:
            rows = [
                [round(slow * each) for each in row] * steps
                if (row := firings_ns.get((index, a)))
                else [ns] * (actor.firings * steps)
                for a, (ns, actor) in enumerate(zip(delays, program.actors, strict=True))
            ]
            firing_delays = _noisy(rows, noise, rank)
        instances.append(
            Instance(
                rank=rank,
                program=program,
                protocol=ActorProtocol(program, steps),
                delays=delays,
                firing_delays=firing_delays,
                # A rank computes with its share of the cores, as the launcher sets it.
                threads=max(1, cores // min(graph.ranks, cluster.devices_per_node)),
                node=rank // cluster.devices_per_node,
            )
        )
    return instances


def _noisy(rows: list[list[int]], noise: Noise, rank: int) -> list[list[int]]:
    """Durations of every actor's firings, each as much longer or shorter as the noise says."""
    if noise.jitter == 0:
        return rows
    drawn = factors_of_actors(
        noise.jitter, noise.seed, rank, [(actor, len(row)) for actor, row in enumerate(rows)]
    )
    durations = np.fromiter(chain.from_iterable(rows), np.float64, len(drawn))
    scaled = iter(np.rint(durations * drawn).astype(np.int64).tolist())
    return [list(islice(scaled, len(row))) for row in rows]
