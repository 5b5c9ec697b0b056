"""Actor graphs written by hand whose times are known in closed form."""

from millrace.planner.actors.graph import (
    Actor,
    ActorGraph,
    Leave,
    Meeting,
    Port,
    Program,
    Queue,
    Register,
)
from millrace.planner.actors.validate import validate
from millrace.planner.cluster import Cluster
from millrace.planner.clusters import parse_cluster
from millrace.planner.mesh import Axis
from tests.plain_links import without_library

GPU = without_library("a100-sxm-80gb:8x2")

Ports = list[tuple[str, int]]  # register, hold


class SimulatedWriter:
    """Writer of one program: registers and queues come into being when they are named."""

    def __init__(self, slots: int = 2) -> None:
        self.slots = slots
        self.registers: list[Register] = []
        self.actors: list[Actor] = []
        self.orders: dict[str, list[int]] = {}
        self.issued: set[str] = set()

    def register(self, name: str, slots: int | None = None, initial: int = 0) -> int:
        for index, register in enumerate(self.registers):
            if register.name == name:
                return index
        self.registers.append(
            Register(
                name=name,
                tensor=name,
                global_shape=(4,),
                sbp="B",
                shape=(4,),
                dtype="float32",
                slots=self.slots if slots is None else slots,
                initial=initial,
                offset_bytes=64 * len(self.registers),
                slot_bytes=16,
            )
        )
        return len(self.registers) - 1

    def actor(
        self,
        name: str,
        queue: str,
        inputs: Ports,
        outputs: Ports,
        *,
        firings: int = 1,
        meeting: Meeting | None = None,
    ) -> int:
        self.orders.setdefault(queue, [])
        self.actors.append(
            Actor(
                name=name,
                kind="relu" if meeting is None else meeting.kind,
                labels="n -> n",
                queues=(list(self.orders).index(queue),),
                inputs=tuple(Port(register=self.register(n), hold=h) for n, h in inputs),
                outputs=tuple(Port(register=self.register(n), hold=h) for n, h in outputs),
                firings=firings,
                meeting=meeting,
            )
        )
        index = len(self.actors) - 1
        self.orders[queue].extend([index] * firings)
        return index

    def program(self, stage: int = 0, ranks: tuple[int, ...] = (0,)) -> Program:
        return Program(
            name=f"stage {stage}",
            stage=stage,
            ranks=ranks,
            registers=tuple(self.registers),
            actors=tuple(self.actors),
            queues=tuple(
                Queue(name=name, leave=Leave.COMPLETED, order=tuple(order))
                for name, order in self.orders.items()
            ),
        )


def joined(*programs: Program) -> ActorGraph:
    axes = (Axis(name="dp", size=len(programs[0].ranks)),)
    return validate(ActorGraph(name="by hand", axes=axes, programs=programs))


def chain(length: int, firings: int, slots: int) -> ActorGraph:
    """Actors in a row, each in a queue of its own."""
    writer = SimulatedWriter(slots)
    for index in range(length):
        inputs: Ports = [(f"r{index - 1}", 1)] if index else []
        outputs: Ports = [(f"r{index}", 1)] if index < length - 1 else []
        writer.actor(f"a{index}", f"q{index}", inputs, outputs, firings=firings)
    return joined(writer.program())


def overlapped(firings: int, ranks: int, message_bytes: int, slots: int = 2) -> ActorGraph:
    """Actor graph of microbatches that each compute, then reduce over the ranks in a lane aside."""
    writer = SimulatedWriter(slots)
    writer.actor("compute", "compute", [], [("part", 1)], firings=firings)
    meeting = Meeting(
        key="g", kind="all_reduce", axes=("dp",), reduction="sum", message_bytes=message_bytes
    )
    writer.actor("reduce", "lane", [("part", 1)], [("sum", 1)], firings=firings, meeting=meeting)
    return joined(writer.program(ranks=tuple(range(ranks))))


def pipeline(schedule: str, stages: int, microbatches: int) -> ActorGraph:
    """Forward and backward of every microbatch on every stage, then an update (the flush).

    Actors are called F, B, U and by their transfers; `schedule` is gpipe or 1f1b.
    """
    programs = []
    for stage in range(stages):
        writer = SimulatedWriter(slots=microbatches)
        writer.register("variable", slots=1, initial=1)
        _stage(writer, stage, stages, microbatches)
        forward, backward, update = (
            next(i for i, a in enumerate(writer.actors) if a.name == name) for name in "FBU"
        )
        ahead = microbatches if schedule == "gpipe" else min(stages - 1 - stage, microbatches)
        order = [forward] * ahead
        for _ in range(microbatches - ahead):
            order += [forward, backward]
        writer.orders["compute"] = [*order, *[backward] * ahead, update]
        programs.append(writer.program(stage, (stage,)))
    return joined(*programs)


def _stage(writer: SimulatedWriter, stage: int, stages: int, microbatches: int) -> None:
    first, last = stage == 0, stage == stages - 1

    def transfer(name: str, kind: str, key: str, peer: int, register: str) -> None:
        meeting = Meeting(key=key, kind=kind, peer=peer)
        ports: Ports = [(register, 1)]
        inputs, outputs = (ports, []) if kind == "send" else ([], ports)
        writer.actor(name, name, inputs, outputs, firings=microbatches, meeting=meeting)

    if not first:
        transfer("x.recv", "recv", f"x{stage}", stage - 1, "x")
    if not last:
        transfer("dy.recv", "recv", f"dy{stage}", stage + 1, "dy")
    variable: Ports = [("variable", microbatches)]
    writer.actor(
        "F",
        "compute",
        variable + ([] if first else [("x", 1)]),
        [("kept", 1)] + ([] if last else [("y", 1)]),
        firings=microbatches,
    )
    writer.actor(
        "B",
        "compute",
        [*variable, ("kept", 1)] + ([] if last else [("dy", 1)]),
        [("gradient", microbatches)] + ([] if first else [("dx", 1)]),
        firings=microbatches,
    )
    writer.actor("U", "compute", [("gradient", 1)], [("variable", 1)])
    if not last:
        transfer("y.send", "send", f"x{stage + 1}", stage + 1, "y")
    if not first:
        transfer("dx.send", "send", f"dy{stage - 1}", stage - 1, "dx")


def times(graph: ActorGraph, by_name: dict[str, int]) -> tuple[tuple[int, ...], ...]:
    """Durations by the actor's name; 0 where none is given."""
    return tuple(
        tuple(by_name.get(actor.name, 0) for actor in program.actors) for program in graph.programs
    )


def shared(ranks: int, cores: int) -> Cluster:
    return parse_cluster(f"local:{ranks}", cores=cores, memory_bytes=8 * 1024**3)
