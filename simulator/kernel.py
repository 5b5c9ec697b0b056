"""The kernel: SimPy's clock drives the actor protocol.

The protocol decides what may fire; here it is only decided when a firing ends. Each command costs
one SimPy event with a plain callback (no process), and an actor's event is used again for its next
firing, since an actor has at most one firing under way.

A meeting begins when its last member has fired and ends for all of them at once. Instances are
ranks, all of them or some that stand for the others.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from simpy import Environment
from simpy.events import NORMAL

from planner.actors.graph import ActorGraph
from planner.actors.null_clock import Visit, run_to_completion
from planner.actors.protocol import Fire
from planner.actors.rendezvous import Rendezvous
from planner.errors import ProtocolError
from simulator.instances import Completion, Instance
from simulator.sharing import Host

Late = Callable[[Sequence[tuple[int, int]]], int]


class Kernel:
    """A simulated run of an actor graph.

    Parameters
    ----------
    graph
        The actor graph.
    instances
        The ranks that are simulated, in any order.
    cores_per_node
        Set where the ranks of a node share that many cores; None: every rank has its own device.
    visit
        Called as `visit(instance, fire)` before a firing completes, and for every member of a
        meeting before any of them completes (to follow what is read and written).
    lateness
        How much later than its simulated members a meeting's others arrive.
    """

    def __init__(
        self,
        graph: ActorGraph,
        instances: Sequence[Instance],
        *,
        cores_per_node: int | None = None,
        visit: Visit | None = None,
        lateness: Late | None = None,
    ) -> None:
        self.graph = graph
        self.instances = instances
        self.env = Environment()
        self._rendezvous = Rendezvous(graph, ranks=[one.rank for one in instances])
        self._lateness = lateness
        # What SimPy calls at the end of a firing or a meeting, one list for all events.
        self._on_end: list[Callable[[Any], None]] = [self._ended]
        self._on_met: list[Callable[[Any], None]] = [self._met]
        if visit is not None:
            self._visit = visit
            self._on_end.insert(0, self._visit_one)
            self._on_met.insert(0, self._visit_all)
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
            run_to_completion(self.graph)
            raise ProtocolError(f"the simulation of `{self.graph.name}` stops before its end")

    def _carry_out(self, index: int, commands: list[Fire]) -> None:
        instance = self.instances[index]
        env = self.env
        now = int(env.now)
        starts, meets, launches = instance.starts, instance.meets, instance.launches
        delays, noisy, events, hosts = instance.delays, instance.noisy, instance.events, self._hosts
        for command in commands:
            actor, firing, _, _ = command
            event = events[actor]
            event.fire = command
            starts[actor].append(now)
            if meets[actor]:
                members = self._rendezvous.arrive(index, actor, firing)
                if members is not None:
                    self._move(members, firing)
            else:
                delay = noisy[actor][firing] if noisy else delays[actor]
                if hosts:
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
        if self._lateness is not None:
            delay += self._lateness(members)
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

    def _visit_one(self, event: Completion) -> None:
        self._visit(event.instance, event.fire)

    def _visit_all(self, event: Completion) -> None:
        for index, actor in event.members:
            self._visit(index, self.instances[index].events[actor].fire)

    def _share(self, event: Completion, instance: Instance, delay: int) -> None:
        """Compute on a host whose cores other ranks want too."""
        self._hosts[instance.node].add(delay, instance.threads, partial(_call, self._on_end, event))

    def _share_move(self, event: Completion, delay: int) -> None:
        """Move data on shared cores: every member copies with one thread on its own host.

        A collective is measured with its members alone on their hosts, so what they cost each
        other is in its time; beside others it takes longer.
        """
        nodes = [self.instances[index].node for index, _ in event.members]
        waiting = set(nodes)

        def part_done(node: int) -> None:
            waiting.discard(node)
            if not waiting:
                _call(self._on_met, event)

        for node in sorted(waiting):
            host, threads = self._hosts[node], nodes.count(node)
            work_ns = delay * host.cores // max(host.cores, threads)
            host.add(work_ns, threads, partial(part_done, node))


def _call(callbacks: Sequence[Callable[[Any], None]], event: Completion) -> None:
    """Do at an event that SimPy did not schedule what SimPy would do."""
    for callback in callbacks:
        callback(event)
