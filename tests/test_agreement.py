"""The simulator and the threaded executor are two clocks of one thing: the same firings.

On random actor graphs with random delays both show, firing by firing, the same slots read and
written with the same version of the same content, and the same contents at the end. Contents stand
for arrays: each is a digest of everything that led to it.
"""

import threading
from collections.abc import Sequence
from random import Random
from time import sleep
from typing import NamedTuple
from zlib import crc32

from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.protocol import Fire
from millrace.planner.clusters import parse_cluster
from millrace.simulator.kernel import Kernel
from millrace.simulator.simulated_rank import instances_of
from tests.actor_graphs import random_actor_graph
from tests.in_process import execute_in_process

GRAPHS = 120
STEPS = 2
DELAY_S = 300e-6
CLUSTER = parse_cluster("a100-sxm-80gb:4x1")


class Content(NamedTuple):
    version: int
    digest: int


class FiringRecord(NamedTuple):
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    seen: tuple[Content, ...]


def digest(*parts: object) -> int:
    return crc32(repr(parts).encode())


class CheckedMemory:
    """Registers of every rank, and a record of every firing; refuses what the protocol must not do.

    Serves as the work and the meetings of the threaded driver, and as the simulator's visitor.
    """

    def __init__(self, graph: ActorGraph, delays: Random | None = None) -> None:
        self.graph = graph
        self.delays = delays
        self.lock = threading.Lock()
        self.programs = [graph.programs[graph.program_of(rank)] for rank in range(graph.ranks)]
        self.slots = [
            [
                [Content(v, digest(rank, index)) if v < r.initial else None for v in range(r.slots)]
                for index, r in enumerate(program.registers)
            ]
            for rank, program in enumerate(self.programs)
        ]
        self.done = [[0] * len(program.actors) for program in self.programs]
        self.records: dict[tuple[int, int, int], FiringRecord] = {}
        self.arrived: dict[tuple[str, tuple[int, ...]], dict[int, Fire]] = {}

    def run(self, rank: int, fire: Fire) -> None:
        """Carry out a local actor, with a delay between reading and writing."""
        seen = self.read(rank, fire)
        self.wait()
        assert self.read(rank, fire) == seen, "a slot was written while it was being read"
        self.write(rank, fire, seen, digest(self.actor(rank, fire).name, rank, fire.firing, seen))

    def meet(self, arrivals: Sequence[tuple[int, Fire]]) -> None:
        """Carry out a meeting: every member gets a digest of what all have brought."""
        self.wait()
        seen = [self.read(rank, fire) for rank, fire in arrivals]
        rank, fire = arrivals[0]
        meeting = self.actor(rank, fire).meeting
        result = digest(meeting.key, fire.firing, seen)
        for (member, ready), brought in zip(arrivals, seen, strict=True):
            assert ready.firing == fire.firing
            self.write(member, ready, brought, result)

    def visit(self, rank: int, fire: Fire) -> None:
        """Carry out a firing at its simulated end; a meeting when its last member arrives."""
        meeting = self.actor(rank, fire).meeting
        if meeting is None:
            self.run(rank, fire)
            return
        members = self.graph.members(rank, meeting)
        present = self.arrived.setdefault((meeting.key, members), {})
        present[rank] = fire
        if len(present) == len(members):
            del self.arrived[meeting.key, members]
            self.meet([(member, present[member]) for member in members])

    def actor(self, rank: int, fire: Fire):
        return self.programs[rank].actors[fire.actor]

    def wait(self) -> None:
        if self.delays is not None:
            with self.lock:
                delay = self.delays.random() * DELAY_S
            sleep(delay)

    def read(self, rank: int, fire: Fire) -> tuple[Content, ...]:
        """Contents of the input ports, each of the version that this firing must see."""
        contents = []
        for port, slot in zip(self.actor(rank, fire).inputs, fire.reads, strict=True):
            content = self.slots[rank][port.register][slot]
            assert content is not None
            assert content.version == fire.firing // port.hold
            contents.append(content)
        return tuple(contents)

    def write(self, rank: int, fire: Fire, seen: tuple[Content, ...], result: int) -> None:
        """Fill the output ports; a version that somebody may still read is never overwritten."""
        program, actor = self.programs[rank], self.actor(rank, fire)
        with self.lock:
            for port, slot in zip(actor.outputs, fire.writes, strict=True):
                register = program.registers[port.register]
                version = fire.firing // port.hold + register.initial
                assert slot == version % register.slots
                for index, reader in enumerate(program.actors):
                    for read in reader.inputs:
                        if read.register == port.register:
                            given_back = self.done[rank][index] // read.hold
                            assert given_back > version - register.slots, "more slots than computed"
                before = self.slots[rank][port.register][slot]
                base = before if actor.in_place or fire.firing % port.hold else None
                content = Content(version, digest(result, base))
                self.slots[rank][port.register][slot] = content
            self.done[rank][fire.actor] += 1
            self.records[rank, fire.actor, fire.firing] = FiringRecord(
                fire.reads, fire.writes, seen
            )


def simulated(graph: ActorGraph, seed: int) -> CheckedMemory:
    random = Random(seed)
    memory = CheckedMemory(graph)
    times = [[random.randrange(0, 1000) for _ in program.actors] for program in graph.programs]
    ranks = range(graph.ranks)
    Kernel(
        graph,
        instances_of(graph, CLUSTER, ranks, STEPS, times),
        cores_per_node=random.choice((None, 1, 2)),
        visit=memory.visit,
    ).run()
    return memory


def executed(graph: ActorGraph, seed: int) -> CheckedMemory:
    memory = CheckedMemory(graph, Random(seed))
    execute_in_process(graph, STEPS, memory, memory.meet)
    return memory


def test_both_clocks_show_the_same_firings_slots_versions_and_contents() -> None:
    for seed in range(GRAPHS):
        graph = random_actor_graph(seed)
        on_paper, in_life = simulated(graph, seed), executed(graph, seed)
        expected = {
            (rank, index, firing)
            for rank, program in enumerate(on_paper.programs)
            for index, actor in enumerate(program.actors)
            for firing in range(STEPS * actor.firings)
        }
        assert on_paper.records.keys() == expected, seed
        assert on_paper.records == in_life.records, seed
        assert on_paper.slots == in_life.slots, seed


def test_contents_tell_a_changed_order_from_the_right_one() -> None:
    """The digest is not blind: another delay changes nothing, another graph does."""
    graph = random_actor_graph(1)
    assert simulated(graph, 1).slots == simulated(graph, 2).slots
    assert simulated(graph, 1).slots != simulated(random_actor_graph(2), 1).slots
