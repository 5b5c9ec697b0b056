"""The kernel: SimPy's clock drives the actor protocol.

The protocol decides what may fire; here it is only decided when a firing ends. Each command costs
one SimPy event with a plain callback (no process), and an actor's event is used again for its next
firing, since an actor has at most one firing under way.

A meeting begins when its last member has fired and ends for all of them at once. Instances are
ranks, all of them or some that stand for the others.

Where software drives the devices (`millrace.planner.costs.launch_overhead`), a firing begins when
it is launched; it ends when its work is done, at a speed that depends on what moves meanwhile
(`millrace.simulator.pacer`). Its event comes when it would end if nothing more began to move, and
again while that was too early.
"""

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Any

from simpy import Environment
from simpy.events import NORMAL

from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.null_clock import Visit, run_to_completion
from millrace.planner.actors.rendezvous import Rendezvous
from millrace.planner.costs.launch_overhead import Pacing
from millrace.planner.errors import ProtocolError
from millrace.simulator.pacer import Pacer
from millrace.simulator.shared_cores import SharedCores
from millrace.simulator.simulated_rank import Completion, Instance

OFTEN = 100  # events between two looks at whether there were enough

Late = Callable[[Sequence[tuple[int, int]]], int]


class Clock(Environment):
    """SimPy's clock, in whole nanoseconds."""

    _now: int

    def after(self, delay: int, event: Completion) -> None:
        """Schedule an event; `schedule` does the same with one more look at its arguments."""
        heappush(self._queue, (self._now + delay, NORMAL, next(self._eid), event))

    def run_all(self, enough: Callable[[], bool], often: int) -> None:
        """Run until no event is left or, asked once in `often` events, there were enough.

        `run` does the same with a call, and a look at whether it failed, for each event: none of
        these fails.
        """
        queue: Any = self._queue
        while queue:
            for _ in range(often):
                self._now, _, _, event = heappop(queue)
                callbacks, event.callbacks = event.callbacks, None
                for callback in callbacks:
                    callback(event)
                if not queue:
                    return
            if enough():
                return


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
    crowded_speed
        Share of their speed that these have where more threads run than there are.
    pacing
        What holds computation back, where ranks have their own devices; None: nothing.
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
        crowded_speed: float = 1.0,
        pacing: Pacing | None = None,
        visit: Visit | None = None,
        lateness: Late | None = None,
    ) -> None:
        self.graph = graph
        self.instances = instances
        self.env = Clock()
        self._rendezvous = Rendezvous(graph, ranks=[instance.rank for instance in instances])
        self._lateness = lateness
        # What SimPy calls at the end of a firing or a meeting, one list for all events.
        self._on_end: list[Callable[[Any], None]] = [self._ended]
        self._on_met: list[Callable[[Any], None]] = [self._met]
        self._on_due: list[Callable[[Any], None]] = [self._due]
        self._on_begun: list[Callable[[Any], None]] = [self._begun]
        self._visit = visit
        if visit is not None:
            self._on_end.insert(0, self._visit_one)
            self._on_met.insert(0, self._visit_all)
        self._hosts: dict[int, SharedCores] = {}
        self._pacers: list[Pacer] = []
        if pacing is not None:
            self._pacers = [
                Pacer(instance.program, pacing, graph.program_of(instance.rank))
                for instance in instances
            ]
        for index, instance in enumerate(instances):
            instance.prepare(self.env, index)
            if cores_per_node is not None:
                host = SharedCores(self.env, cores_per_node, crowded_speed)
                self._hosts.setdefault(instance.node, host)

    def run(self, steps: int | None = None) -> None:
        """Run to the end, so that the instances hold the times of every firing.

        Parameters
        ----------
        steps : int, optional
            So many steps are wanted: the run may be left once each of them is over on every rank,
            and what is under way then has no end. None: all that the instances can do.

        Raises
        ------
        ProtocolError
            The graph stops before its end; names the waiting cycle.
        """
        for index, instance in enumerate(self.instances):
            self._carry_out(index, instance.protocol.begin())
        wanted = [
            (ends, actor.firings * steps)
            for instance in self.instances
            for ends, actor in zip(instance.ends, instance.program.actors, strict=True)
            if steps is not None
        ]

        def enough() -> bool:
            while wanted and len(wanted[-1][0]) >= wanted[-1][1]:
                wanted.pop()
            return steps is not None and not wanted

        self.env.run_all(enough, often=OFTEN)
        if not (enough() or all(instance.protocol.finished for instance in self.instances)):
            run_to_completion(self.graph)
            raise ProtocolError(f"the simulation of `{self.graph.name}` stops before its end")
        # These hold the kernel, and events left over its clock: both would outlive their readers.
        self.env._queue.clear()
        for callbacks in (self._on_end, self._on_met, self._on_due, self._on_begun):
            callbacks.clear()

    def _carry_out(self, index: int, due: list[int], lagged: int = -1) -> None:
        """Begin what is due; the lag of the actor `lagged` is over."""
        instance = self.instances[index]
        now, after, on_end = self.env._now, self.env.after, self._on_end
        starts, meets, launches = instance.starts, instance.meets, instance.launches
        delays, firing_delays, events = instance.delays, instance.firing_delays, instance.events
        plain, lags = not self._hosts and not self._pacers, instance.lags
        for actor in due:
            times = starts[actor]
            if lags and actor != lagged and lags[actor][len(times)]:
                events[actor].callbacks = self._on_begun
                after(lags[actor][len(times)], events[actor])
                continue
            times.append(now)
            if meets[actor]:
                members = self._rendezvous.arrive(index, actor, len(times) - 1)
                if members is not None:
                    self._move(members, len(times) - 1)
            else:
                delay = firing_delays[actor][len(times) - 1] if firing_delays else delays[actor]
                event = events[actor]
                if plain:
                    event.callbacks = on_end
                    after(delay, event)
                elif self._pacers:
                    event.firing = len(times) - 1
                    self._pace(event, instance, delay)
                else:
                    self._share(event, instance, delay)
            if launches[actor]:
                # The list grows while it is walked, so that these come next.
                due.extend(instance.protocol.leave(actor))

    def _begun(self, event: Completion) -> None:
        """Begin a firing whose lag is over."""
        self._carry_out(event.instance, [event.actor], lagged=event.actor)

    def _ended(self, event: Completion) -> None:
        event.ends.append(self.env._now)
        due = event.finish(event.actor)
        if due:
            self._carry_out(event.instance, due)

    def _move(self, members: Sequence[tuple[int, int]], firing: int) -> None:
        """Let the data of a meeting begin to move, all of whose members are there."""
        now = int(self.env.now)
        for index, actor in members:
            self.instances[index].moves[actor].append(now)
        index, actor = min(members)
        first = self.instances[index]
        event = first.events[actor]
        event.members = members
        rows = first.firing_delays
        delay = rows[actor][firing] if rows else first.delays[actor]
        if self._lateness is not None:
            delay += self._lateness(members)
        if self._pacers:
            for index, _ in members:
                self._pacers[index].move(now, delay)
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
            due = self.instances[index].protocol.finish(actor)
            if due:
                self._carry_out(index, due)

    def _visit_one(self, event: Completion) -> None:
        protocol = self.instances[event.instance].protocol
        assert self._visit is not None, "else it is not called"
        self._visit(event.instance, protocol.command(event.actor))

    def _visit_all(self, event: Completion) -> None:
        assert self._visit is not None, "else it is not called"
        for index, actor in event.members:
            self._visit(index, self.instances[index].protocol.command(actor))

    def _pace(self, event: Completion, instance: Instance, delay: int) -> None:
        """Compute once it is launched, as fast as what moves allows."""
        now = self.env._now
        begin, end = self._pacers[event.instance].start(event, now, delay)
        instance.starts[event.actor][-1] = begin
        if begin > now:
            instance.launch_waits.append((now, begin))
        event.callbacks = self._on_due
        self.env.after(end - now, event)

    def _due(self, event: Completion) -> None:
        """End a paced firing, unless something began to move."""
        now = self.env._now
        pacer = self._pacers[event.instance]
        if pacer.moved_since(event) and (left := pacer.end_ns(event) - now) > 0:
            event.callbacks = self._on_due
            self.env.after(left, event)
            return
        pacer.finish(event, now)
        if self._visit is not None:
            self._visit_one(event)
        self._ended(event)

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
