"""The kernel: SimPy's clock drives the actor protocol.

The protocol decides what may fire; here it is only decided when a firing ends. Each command costs
one SimPy event with a plain callback (no process), and an actor's event is used again for its next
firing, since an actor has at most one firing under way.

A meeting begins when its last member has fired and ends for all of them at once. Instances are
ranks, or one representative per program where all ranks of a program run alike (*folded*).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from simpy import Environment, Event
from simpy.events import NORMAL

from planner.actors.graph import ActorGraph, Leave, Program
from planner.actors.null_clock import run_to_completion
from planner.actors.protocol import Fire, Protocol
from planner.actors.rendezvous import Rendezvous
from planner.errors import ProtocolError
from simulator.sharing import Host


class Completion(Event):
    """The end of an actor's firing, or of a meeting (for all its members)."""

    def __init__(self, env: Environment, instance: int, actor: int) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        self.instance = instance
        self.actor = actor
        self.members: Sequence[tuple[int, int]] = ()


@dataclass(slots=True, kw_only=True)
class Instance:
    """One simulated rank: its protocol, the durations of its actors and the times seen so far.

    `delays` gives one duration per actor, `noisy` one per actor and firing (empty: no noise).
    `starts`, `ends` list the times of every firing; `moves` when a meeting's data began to move.
    """

    rank: int
    program: Program
    protocol: Protocol
    delays: Sequence[int]
    noisy: Sequence[Sequence[int]] = ()
    threads: int = 1
    node: int = 0
    events: list[Completion] = field(default_factory=list)
    starts: list[list[int]] = field(default_factory=list)
    ends: list[list[int]] = field(default_factory=list)
    moves: list[list[int]] = field(default_factory=list)
    meets: list[bool] = field(default_factory=list)
    launches: list[bool] = field(default_factory=list)

    def prepare(self, env: Environment, index: int) -> None:
        """Make the events and the empty lists, one per actor."""
        queues = self.program.queues
        for number, actor in enumerate(self.program.actors):
            self.events.append(Completion(env, index, number))
            self.meets.append(actor.meeting is not None)
            self.launches.append(any(queues[q].leave is Leave.ISSUED for q in actor.queues))
            self.starts.append([])
            self.ends.append([])
            self.moves.append([])


class Kernel:
    """A simulated run of an actor graph.

    Parameters
    ----------
    graph
        The actor graph.
    instances
        One per rank in order of rank or, folded, one per program.
    folded
        Which of the two.
    cores_per_node
        Set where the ranks of a node share that many cores; None: every rank has its own device.
    """

    def __init__(
        self,
        graph: ActorGraph,
        instances: Sequence[Instance],
        *,
        folded: bool,
        cores_per_node: int | None = None,
    ) -> None:
        self.graph = graph
        self.folded = folded
        self.instances = instances
        self.env = Environment()
        self._rendezvous = Rendezvous(graph, folded=folded)
        self._on_end: list[Callable[[Any], None]] = [self._ended]
        self._on_met: list[Callable[[Any], None]] = [self._met]
        self._hosts: dict[int, Host] = {}
        for index, instance in enumerate(instances):
            instance.prepare(self.env, index)
            if cores_per_node is not None:
                self._hosts.setdefault(instance.node, Host(self.env, cores_per_node))

    def run(self) -> None:
        """Run to the end, so that the instances hold the times of every firing.

        Raises
        ------
        ProtocolError
            The graph stops before its end; names the waiting cycle.
        """
        for index, instance in enumerate(self.instances):
            self._carry_out(index, instance.protocol.start())
        self.env.run()
        if not all(instance.protocol.finished for instance in self.instances):
            run_to_completion(self.graph, folded=self.folded)
            raise ProtocolError(f"the simulation of `{self.graph.name}` stops before its end")

    def _carry_out(self, index: int, commands: list[Fire]) -> None:
        instance = self.instances[index]
        env = self.env
        now = int(env.now)
        starts, meets, launches = instance.starts, instance.meets, instance.launches
        delays, noisy = instance.delays, instance.noisy
        for actor, firing, _, _ in commands:
            starts[actor].append(now)
            if meets[actor]:
                members = self._rendezvous.arrive(index, actor, firing)
                if members is not None:
                    self._move(members, firing)
            else:
                delay = noisy[actor][firing] if noisy else delays[actor]
                event = instance.events[actor]
                if self._hosts:
                    self._share(event, instance, delay)
                else:
                    event.callbacks = self._on_end
                    env.schedule(event, NORMAL, delay)
            if launches[actor]:
                # The list grows while it is walked, so that these come next.
                commands.extend(instance.protocol.issued(actor))

    def _ended(self, event: Completion) -> None:
        instance = self.instances[event.instance]
        actor = event.actor
        instance.ends[actor].append(int(self.env.now))
        commands = instance.protocol.completed(actor)
        if commands:
            self._carry_out(event.instance, commands)

    def _move(self, members: Sequence[tuple[int, int]], firing: int) -> None:
        """All members are there: their data begins to move."""
        now = int(self.env.now)
        for index, actor in members:
            self.instances[index].moves[actor].append(now)
        index, actor = min(members)
        first = self.instances[index]
        event = first.events[actor]
        event.members = members
        delay = first.noisy[actor][firing] if first.noisy else first.delays[actor]
        if self._hosts:
            self._share_move(event, delay)
        else:
            event.callbacks = self._on_met
            self.env.schedule(event, NORMAL, delay)

    def _met(self, event: Completion) -> None:
        now = int(self.env.now)
        members = event.members
        for index, actor in members:
            self.instances[index].ends[actor].append(now)
        for index, actor in members:
            commands = self.instances[index].protocol.completed(actor)
            if commands:
                self._carry_out(index, commands)

    def _share(self, event: Completion, instance: Instance, delay: int) -> None:
        """Compute on a host whose cores other ranks want too."""
        self._hosts[instance.node].add(delay, instance.threads, partial(self._ended, event))

    def _share_move(self, event: Completion, delay: int) -> None:
        """Move data on shared cores: every member copies with one thread on its own host.

        The measured duration has the members' own contention in it; beside others it takes longer.
        """
        nodes = [self.instances[index].node for index, _ in event.members]
        waiting = set(nodes)

        def part_done(node: int) -> None:
            waiting.discard(node)
            if not waiting:
                self._met(event)

        for node in sorted(waiting):
            self._hosts[node].add(delay, nodes.count(node), partial(part_done, node))
