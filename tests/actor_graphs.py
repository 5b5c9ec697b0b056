"""Random actor graphs that run to their end: the common ground of every driver of the protocol.

One or more stages of one or two ranks; variables that an update writes at the end of a step;
computations at both rates, accumulations, collectives among a stage's ranks and transfers between
stages in any direction. Orders are read off one legal execution without queues or slot limits, so
the graph is live once registers have enough slots; these start low and grow until a run on the
null clock reaches its end.
"""

from dataclasses import dataclass, field
from math import prod
from random import Random

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
from millrace.planner.errors import ProtocolError
from millrace.planner.mesh import Axis
from millrace.planner.sbp import local_shape, parse_nd_sbp

SHAPE = (8,)
ITEM_BYTES = 8
LINE_BYTES = 64


@dataclass(slots=True)
class DraftRegister:
    sbp: str
    per_step: bool
    slots: int
    initial: int = 0


@dataclass(slots=True)
class RandomActor:
    name: str
    kind: str
    queue: str
    firings: int
    inputs: list[tuple[int, int]] = field(default_factory=list)  # register, hold
    outputs: list[tuple[int, int]] = field(default_factory=list)
    meeting: Meeting | None = None
    in_place: bool = False


@dataclass(slots=True)
class RandomStage:
    registers: list[DraftRegister] = field(default_factory=list)
    actors: list[RandomActor] = field(default_factory=list)
    orders: dict[str, list[int]] = field(default_factory=dict)


class Drawing:
    """Random graph drawn from a seed."""

    shape = SHAPE
    ranks = 4  # at most
    sizes = (1, 2, 2)  # of a stage
    stages_max = 4
    actors = (8, 24)

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.name = f"random {seed}"
        self.size = self.random.choice(self.sizes)
        self.microbatches = self.random.randint(1, 4)
        stages = self.random.randint(1, min(self.ranks // self.size, self.stages_max))
        self.stages = [RandomStage() for _ in range(stages)]
        self.links: dict[tuple[int, int], tuple[int, int]] = {}  # send → recv

    def draw(self) -> ActorGraph:
        for stage in self.stages:
            for _ in range(self.random.randint(0, 2)):
                stage.registers.append(DraftRegister("B", True, 1, initial=1))
        actions = (self.compute, self.compute, self.accumulate, self.collective, self.transfer)
        for stage_index in range(len(self.stages)):
            self.compute(stage_index, stage_index)
        for number in range(len(self.stages), self.random.randint(*self.actors)):
            self.random.choice(actions)(self.random.randrange(len(self.stages)), number)
        for stage_index, stage in enumerate(self.stages):
            variables = [r for r, register in enumerate(stage.registers) if register.initial]
            for variable in variables:
                self.update(stage_index, variable)
        self.execute()
        while True:
            graph = validate(self.graph())
            try:
                run_to_completion(graph, steps=3, folded=False)
            except ProtocolError:
                for stage in self.stages:
                    for register in stage.registers:
                        register.slots += not register.initial
            else:
                return graph

    def pick(self, stage_index: int, most: int, *, per_step: bool | None = None) -> list[int]:
        candidates = [
            index
            for index, register in enumerate(self.stages[stage_index].registers)
            if per_step in (None, register.per_step)
        ]
        return self.random.sample(candidates, min(len(candidates), self.random.randint(0, most)))

    def register(self, stage_index: int, sbp: str, per_step: bool) -> int:
        slots = self.random.choice((1, 1, 2, 3))
        self.stages[stage_index].registers.append(DraftRegister(sbp, per_step, slots))
        return len(self.stages[stage_index].registers) - 1

    def compute(self, stage_index: int, number: int) -> None:
        stage = self.stages[stage_index]
        once = self.random.random() < 0.25
        firings = 1 if once else self.microbatches
        inputs = self.pick(stage_index, 3, per_step=True if once else None)
        holds = [firings if stage.registers[i].per_step else 1 for i in inputs]
        outputs = [
            (self.register(stage_index, self.random.choice(("B", "S(0)", "P(sum)")), once), 1)
            for _ in range(self.random.randint(0, 2))
        ]
        queue = self.random.choice(("compute", "compute", "compute", "copy"))
        stage.actors.append(
            RandomActor(
                f"compute {number}",
                "opaque",
                queue,
                firings,
                list(zip(inputs, holds, strict=True)),
                outputs,
            )
        )

    def accumulate(self, stage_index: int, number: int) -> None:
        if inputs := self.pick(stage_index, 1, per_step=False):
            output = self.register(stage_index, "P(sum)", True)
            self.stages[stage_index].actors.append(
                RandomActor(
                    f"accumulate {number}",
                    "opaque",
                    "compute",
                    self.microbatches,
                    [(inputs[0], 1)],
                    [(output, self.microbatches)],
                )
            )

    def collective(self, stage_index: int, number: int) -> None:
        kinds = {"S(0)": ["all_gather"], "P(sum)": ["all_reduce", "reduce_scatter"]}
        for source in self.pick(stage_index, 1):
            register = self.stages[stage_index].registers[source]
            if register.sbp in kinds and not register.initial:
                kind = self.random.choice(kinds[register.sbp])
                target = "S(0)" if kind == "reduce_scatter" else "B"
                meeting = Meeting(
                    key=f"m{number}",
                    kind=kind,
                    axes=("dp",),
                    reduction="sum",
                    message_bytes=prod(self.shape) * ITEM_BYTES,
                )
                output = self.register(stage_index, target, register.per_step)
                self.meet(stage_index, f"{kind} {number}", "dp", register.per_step, meeting)
                self.stages[stage_index].actors[-1].inputs.append((source, 1))
                self.stages[stage_index].actors[-1].outputs.append((output, 1))

    def transfer(self, stage_index: int, number: int) -> None:
        others = [other for other in range(len(self.stages)) if other != stage_index]
        picked = self.pick(stage_index, 1)
        if not others or not picked:
            return
        there, source = self.random.choice(others), picked[0]
        register = self.stages[stage_index].registers[source]
        size = prod(self.shape) * ITEM_BYTES
        sending, receiving = (
            Meeting(key=f"m{number}", kind=kind, peer=peer, message_bytes=size)
            for kind, peer in (("send", there), ("recv", stage_index))
        )
        self.meet(stage_index, f"send {number}", f"to {there}", register.per_step, sending)
        self.stages[stage_index].actors[-1].inputs.append((source, 1))
        output = self.register(there, register.sbp, register.per_step)
        self.meet(there, f"recv {number}", f"from {stage_index}", register.per_step, receiving)
        self.stages[there].actors[-1].outputs.append((output, 1))
        here = (stage_index, len(self.stages[stage_index].actors) - 1)
        self.links[here] = (there, len(self.stages[there].actors) - 1)

    def meet(
        self, stage_index: int, name: str, queue: str, per_step: bool, meeting: Meeting
    ) -> None:
        firings = 1 if per_step else self.microbatches
        self.stages[stage_index].actors.append(
            RandomActor(name, meeting.kind, queue, firings, meeting=meeting)
        )

    def update(self, stage_index: int, variable: int) -> None:
        registers = self.stages[stage_index].registers
        inputs = [i for i in self.pick(stage_index, 3, per_step=True) if not registers[i].initial]
        self.stages[stage_index].actors.append(
            RandomActor(
                f"update {variable}",
                "opaque",
                "compute",
                1,
                [(i, 1) for i in inputs],
                [(variable, 1)],
                in_place=True,
            )
        )

    def execute(self) -> None:
        """Fire one step in a random legal order and write down the order of every queue."""
        fired: dict[tuple[int, int], int] = {}
        receivers = set(self.links.values())
        senders = [
            (stage_index, index)
            for stage_index, stage in enumerate(self.stages)
            for index in range(len(stage.actors))
            if (stage_index, index) not in receivers
        ]
        while ready := [event for event in senders if self.ready(event, fired)]:
            event = self.random.choice(ready)
            for stage_index, index in (
                (event, self.links.get(event)) if event in self.links else (event,)
            ):
                fired[stage_index, index] = fired.get((stage_index, index), 0) + 1
                actor, orders = (
                    self.stages[stage_index].actors[index],
                    self.stages[stage_index].orders,
                )
                orders.setdefault(actor.queue, []).append(index)
                if actor.meeting is not None:
                    orders.setdefault("launch", []).append(index)

    def ready(self, event: tuple[int, int], fired: dict[tuple[int, int], int]) -> bool:
        stage_index, index = event
        stage = self.stages[stage_index]
        actor, firing = stage.actors[index], fired.get(event, 0)
        if firing == actor.firings:
            return False
        for register, hold in actor.inputs:
            producers = [
                (other, out_hold)
                for other, producer in enumerate(stage.actors)
                for out, out_hold in producer.outputs
                if out == register
            ]
            versions = stage.registers[register].initial + sum(
                fired.get((stage_index, other), 0) // out_hold for other, out_hold in producers
            )
            if firing // hold >= versions:
                return False
        # A variable is written in place: only when all that read it this step have done so.
        return all(
            fired.get((stage_index, other), 0) == reader.firings
            for register, _ in actor.outputs
            if stage.registers[register].initial
            for other, reader in enumerate(stage.actors)
            if register in (i for i, _ in reader.inputs)
        )

    def graph(self) -> ActorGraph:
        axes = (Axis(name="dp", size=self.size),)
        return ActorGraph(
            name=self.name,
            axes=axes,
            programs=tuple(self.program(stage_index) for stage_index in range(len(self.stages))),
        )

    def program(self, stage_index: int) -> Program:
        stage = self.stages[stage_index]
        names = sorted(stage.orders)
        registers, end = [], 0
        for index, draft in enumerate(stage.registers):
            shape = local_shape(self.shape, parse_nd_sbp(draft.sbp), (self.size,))
            slot_bytes = -(-prod(shape) * ITEM_BYTES // LINE_BYTES) * LINE_BYTES
            registers.append(
                Register(
                    name=f"r{index}",
                    tensor=f"r{index}",
                    global_shape=self.shape,
                    sbp=draft.sbp,
                    shape=shape,
                    dtype="float64",
                    slots=draft.slots,
                    initial=draft.initial,
                    offset_bytes=end,
                    slot_bytes=slot_bytes,
                )
            )
            end += draft.slots * slot_bytes
        actors = []
        for actor in stage.actors:
            lanes = (actor.queue,) if actor.meeting is None else (actor.queue, "launch")
            actors.append(
                Actor(
                    name=actor.name,
                    kind=actor.kind,
                    queues=tuple(names.index(lane) for lane in lanes),
                    inputs=tuple(Port(register=r, hold=hold) for r, hold in actor.inputs),
                    outputs=tuple(Port(register=r, hold=hold) for r, hold in actor.outputs),
                    firings=actor.firings,
                    meeting=actor.meeting,
                    in_place=actor.in_place,
                )
            )
        return Program(
            name=f"stage {stage_index}",
            stage=stage_index,
            ranks=tuple(range(stage_index * self.size, (stage_index + 1) * self.size)),
            registers=tuple(registers),
            actors=tuple(actors),
            queues=tuple(
                Queue(
                    name=name,
                    leave=Leave.ISSUED if name == "launch" else Leave.COMPLETED,
                    order=tuple(stage.orders[name]),
                )
                for name in names
            ),
        )


def random_actor_graph(seed: int) -> ActorGraph:
    """Live actor graph over one to four ranks, the same for the same seed."""
    return Drawing(seed).draw()
