"""Small actor graphs written by hand, for the tests of the drivers."""

from collections.abc import Sequence
from math import prod

import msgspec
from msgspec.structs import replace

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
from millrace.planner.actors.null_clock import run_to_completion
from millrace.planner.actors.validate import validate
from millrace.planner.mesh import Axis
from millrace.planner.sbp import local_shape, parse_nd_sbp


class ProgramWriter:
    """Registers and actors of a program; queue 0 is compute, 1 a communication lane, 2 launch."""

    def __init__(self, axes: tuple[Axis, ...]) -> None:
        self.axes = axes
        self.registers: list[Register] = []
        self.actors: list[Actor] = []
        self.end_bytes = 0

    def register(
        self, name: str, shape: tuple[int, ...], sbp: str, *, dtype: str = "float64", slots: int = 2
    ) -> int:
        sizes = tuple(axis.size for axis in self.axes)
        local = local_shape(shape, parse_nd_sbp(sbp), sizes)
        slot_bytes = -(-prod(local) * 8 // 64) * 64
        self.registers.append(
            Register(
                name=name,
                tensor=name,
                global_shape=shape,
                sbp=sbp,
                shape=local,
                dtype=dtype,
                slots=slots,
                offset_bytes=self.end_bytes,
                slot_bytes=slot_bytes,
            )
        )
        self.end_bytes += slots * slot_bytes
        return len(self.registers) - 1

    def actor(
        self,
        name: str,
        kind: str,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        *,
        firings: int = 1,
        labels: str = "",
        meeting: Meeting | None = None,
        **attributes: int | float | str | bool,
    ) -> int:
        self.actors.append(
            Actor(
                name=name,
                kind=kind,
                queues=(0,) if meeting is None else (1, 2),
                inputs=tuple(Port(register=r) for r in inputs),
                outputs=tuple(Port(register=r) for r in outputs),
                firings=firings,
                labels=labels,
                attributes=attributes,
                meeting=meeting,
            )
        )
        return len(self.actors) - 1

    def source(self, name: str, shape: tuple[int, ...], sbp: str, *, firings: int = 1) -> int:
        register = self.register(name, shape, sbp)
        self.actor(f"{name}.read", "input", (), (register,), firings=firings, source=name)
        return register

    def program(self, stage: int, ranks: tuple[int, ...], *, microbatches: int = 1) -> Program:
        def order(queue: int) -> tuple[int, ...]:
            members = [i for i, actor in enumerate(self.actors) if queue in actor.queues]
            fired = [i for i in members if self.actors[i].firings > 1] * microbatches
            once = [i for i in members if self.actors[i].firings == 1]
            return (*fired, *once) if microbatches > 1 else tuple(members)

        return Program(
            name=f"stage {stage}",
            stage=stage,
            ranks=ranks,
            registers=tuple(self.registers),
            actors=tuple(self.actors),
            queues=(
                Queue(name="compute", leave=Leave.COMPLETED, order=order(0)),
                Queue(name="lane", leave=Leave.COMPLETED, order=order(1)),
                Queue(name="launch", leave=Leave.ISSUED, order=order(2)),
            ),
        )


def checked(axes: tuple[Axis, ...], *programs: Program) -> ActorGraph:
    graph = validate(ActorGraph(name="test", axes=axes, programs=programs))
    run_to_completion(graph, steps=2)
    return graph


def split_matmul(ranks: int = 2, microbatches: int = 2, size: int = 8) -> ActorGraph:
    """Graph of x S(1) times w S(0): partial sums, then all_reduce; every microbatch."""
    axes = (Axis(name="tp", size=ranks),)
    writer = ProgramWriter(axes)
    x = writer.source("x", (4, size), "S(1)", firings=microbatches)
    w = writer.source("w", (size, 6), "S(0)", firings=microbatches)
    part = writer.register("y.partial", (4, 6), "P(sum)")
    total = writer.register("y", (4, 6), "B")
    writer.actor("mm", "matmul", (x, w), (part,), firings=microbatches, labels="b k, k n -> b n")
    reduce = Meeting(key="y", kind="all_reduce", axes=("tp",), reduction="sum")
    writer.actor(
        "y.all_reduce", "all_reduce", (part,), (total,), firings=microbatches, meeting=reduce
    )
    return checked(axes, writer.program(0, tuple(range(ranks)), microbatches=microbatches))


def boxed(
    shape: tuple[int, ...],
    axes: tuple[Axis, ...],
    kind: str,
    over: tuple[str, ...],
    sbps: list[str],
    in_place: bool = False,
) -> ActorGraph:
    """One boxing step: an input with sbps[0], a meeting over axes `over`, a result with sbps[1]."""
    writer = ProgramWriter(axes)
    source = writer.source("x", shape, sbps[0])
    target = writer.register("y", shape, sbps[1])
    if in_place:
        there = writer.registers[source].offset_bytes
        writer.registers[target] = replace(writer.registers[target], offset_bytes=there)
    meeting = Meeting(key="x", kind=kind, axes=over, reduction="sum")
    writer.actor("box", kind, (source,), (target,), meeting=meeting)
    ranks = prod(axis.size for axis in axes)
    return checked(axes, writer.program(0, tuple(range(ranks))))


def in_a_bucket(
    shapes: Sequence[tuple[int, ...]],
    axes: tuple[Axis, ...],
    kind: str,
    over: tuple[str, ...],
    sbps: Sequence[tuple[str, str]],
) -> ActorGraph:
    """Boxing of several inputs in one meeting, which waits for one more; results y0, y1, …."""
    writer = ProgramWriter(axes)
    parts = len(shapes)
    sources = [
        writer.source(f"x{number}", shape, before)
        for number, (shape, (before, _)) in enumerate(zip(shapes, sbps, strict=True))
    ]
    sources.append(writer.source("z", (4,), "B" if len(axes) == 1 else "(B, B)"))
    targets = [
        writer.register(f"y{number}", shape, after)
        for number, (shape, (_, after)) in enumerate(zip(shapes, sbps, strict=True))
    ]
    meeting = Meeting(key="x", kind=kind, axes=over, reduction="sum", parts=parts)
    writer.actor("box", kind, tuple(sources), tuple(targets), meeting=meeting)
    ranks = prod(axis.size for axis in axes)
    return checked(axes, writer.program(0, tuple(range(ranks))))


def handed_on(shape: tuple[int, ...], ranks: int = 2) -> ActorGraph:
    """A stage that reads x and a stage that receives it."""
    axes = (Axis(name="dp", size=ranks),)
    first, second = ProgramWriter(axes), ProgramWriter(axes)
    x = first.source("x", shape, "S(0)", firings=2)
    first.actor(
        "x.send", "send", (x,), (), firings=2, meeting=Meeting(key="x", kind="send", peer=1)
    )
    y = second.register("y", shape, "S(0)")
    second.actor(
        "x.recv", "recv", (), (y,), firings=2, meeting=Meeting(key="x", kind="recv", peer=0)
    )
    total = second.register("total", (shape[0],), "S(0)")
    labels = "b i -> b"
    second.actor("sum", "sum", (y,), (total,), firings=2, labels=labels)
    return checked(
        axes,
        first.program(0, tuple(range(ranks)), microbatches=2),
        second.program(1, tuple(range(ranks, 2 * ranks)), microbatches=2),
    )


def to_json(graph: ActorGraph) -> bytes:
    return msgspec.json.encode(graph)
