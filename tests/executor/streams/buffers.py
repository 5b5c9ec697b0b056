"""Command buffers for the tests: graphs written by hand, plans, and buffers that lack something."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

from millrace.executor.streams import Command, CommandBuffer
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
from millrace.planner.actors.protocol import Fire
from millrace.planner.actors.validate import validate
from millrace.planner.compile import compile_plan
from millrace.planner.mesh import Axis
from millrace.planner.plan import Plan
from tests import test_families as families
from tests import test_recomputed_plans as recomputed_plans
from tests import test_same_mathematics as same_mathematics
from tests.in_process import KernelWork
from tests.test_agreement import CheckedMemory
from tests.test_offload import on_host

LINE_BYTES = 64


def register(name: str, line: int, *, slots: int = 1, initial: int = 0) -> Register:
    """Register of a line per slot that begins at line number `line`."""
    return Register(
        name=name,
        tensor=name,
        global_shape=(8,),
        sbp="B",
        shape=(8,),
        dtype="float64",
        slots=slots,
        initial=initial,
        offset_bytes=line * LINE_BYTES,
        slot_bytes=LINE_BYTES,
    )


def actor(
    name: str,
    queues: tuple[int, ...],
    inputs: tuple[int, ...] = (),
    outputs: tuple[int, ...] = (),
    *,
    firings: int = 1,
    meeting: Meeting | None = None,
) -> Actor:
    return Actor(
        name=name,
        kind="opaque" if meeting is None else meeting.kind,
        queues=queues,
        inputs=tuple(Port(register=r) for r in inputs),
        outputs=tuple(Port(register=r) for r in outputs),
        firings=firings,
        meeting=meeting,
    )


def program(
    stage: int, registers: tuple[Register, ...], actors: tuple[Actor, ...], orders: dict[str, str]
) -> Program:
    """Program whose `orders` name actors by the first letter of their names; `launch` is issued."""
    letters = [actor.name[0] for actor in actors]
    return Program(
        name=f"stage {stage}",
        stage=stage,
        ranks=(stage,),
        registers=registers,
        actors=actors,
        queues=tuple(
            Queue(
                name=name,
                leave=Leave.ISSUED if name == "launch" else Leave.COMPLETED,
                order=tuple(letters.index(letter) for letter in order),
            )
            for name, order in orders.items()
        ),
    )


def graph(*programs: Program) -> ActorGraph:
    actor_graph = ActorGraph(name="by hand", axes=(Axis(name="dp", size=1),), programs=programs)
    run_to_completion(validate(actor_graph), steps=2)
    return actor_graph


def one_producer(*, slots: int, firings: int, initial: int = 0) -> ActorGraph:
    """A maker on one stream and a reader on another; what starts initial goes round and round."""
    registers = (register("x", 0, slots=slots, initial=initial),)
    actors = (
        actor("make", (0,), (), (0,), firings=firings),
        actor("take", (1,), (0,), (), firings=firings),
    )
    return graph(program(0, registers, actors, {"compute": "m" * firings, "copy": "t" * firings}))


def two_sends(launched: str, received: str) -> ActorGraph:
    """Graph whose stage 0 sends a and b to stage 1, which needs much longer before it takes a."""
    sender = program(
        0,
        (register("a", 0), register("b", 1)),
        (
            actor("make", (0,), (), (0, 1)),
            actor("a.send", (1, 3), (0,), meeting=Meeting(key="a", kind="send", peer=1)),
            actor("b.send", (2, 3), (1,), meeting=Meeting(key="b", kind="send", peer=1)),
        ),
        {"compute": "m", "lane a": "a", "lane b": "b", "launch": launched},
    )
    receiver = program(
        1,
        (register("a", 0), register("b", 1), register("c", 2, slots=4)),
        (
            actor("c", (0,), (), (2,), firings=4),
            actor("d", (0,), (2,), firings=4),
            actor("a.recv", (1, 3), (), (0,), meeting=Meeting(key="a", kind="recv", peer=0)),
            actor("b.recv", (2, 3), (), (1,), meeting=Meeting(key="b", kind="recv", peer=0)),
        ),
        {"compute": "ccccdddd", "lane a": "a", "lane b": "b", "launch": received},
    )
    return graph(sender, receiver)


def with_command(
    buffer: CommandBuffer, number: int, change: Callable[[Command], Command], step: int = 0
) -> CommandBuffer:
    """The buffer with one command changed, and the events that are still waited for."""
    commands = list(buffer.steps[step])
    commands[number] = change(commands[number])
    awaited = {other for command in commands for other in command.waits}
    reissued = tuple(
        command._replace(records=index in awaited) for index, command in enumerate(commands)
    )
    steps = (*buffer.steps[:step], reissued, *buffer.steps[step + 1 :])
    return dataclasses.replace(buffer, steps=steps)


def waits_of(buffer: CommandBuffer) -> list[tuple[int, int]]:
    """Every wait of the first step: who waits, and for whom."""
    return [
        (number, wait) for number, command in enumerate(buffer.steps[0]) for wait in command.waits
    ]


def without(buffer: CommandBuffer, number: int, wait: int) -> CommandBuffer:
    """The buffer in which a command no longer waits for another."""
    left = tuple(waited for waited in buffer.steps[0][number].waits if waited != wait)
    return with_command(buffer, number, lambda command: command._replace(waits=left))


class FiredBy:
    """Commands as the work of an actor graph: firings are counted over all steps."""

    def __init__(self, work: CheckedMemory | KernelWork) -> None:
        self.work = work
        self.done: Counter[tuple[int, int]] = Counter()

    def __call__(self, commands: Sequence[Command]) -> None:
        arrivals = [(command.rank, self.fire(command)) for command in commands]
        if commands[0].meets:
            self.work.meet(arrivals)
        else:
            self.work.run(*arrivals[0])

    def fire(self, command: Command) -> Fire:
        firing = self.done[command.rank, command.actor]
        self.done[command.rank, command.actor] += 1
        return Fire(command.actor, firing, command.reads, command.writes)


@cache
def plans() -> dict[str, Callable[[], tuple[Plan, ActorGraph]]]:
    """Plans of every family and kind of parallelism by name, made when they are asked for."""

    def of_family(index: int) -> tuple[Plan, ActorGraph]:
        plan, _, actors = families.planned(index, "fp32")
        return plan, actors

    def of_a_kind(index: int) -> tuple[Plan, ActorGraph]:
        plan, _, actors = same_mathematics.planned(index, "fp32")
        return plan, actors

    def again(name: str) -> tuple[Plan, ActorGraph]:
        plan = recomputed_plans.everywhere(recomputed_plans.planned(name), "full")
        return plan, compile_plan(plan)

    def elsewhere(name: str) -> tuple[Plan, ActorGraph]:
        plan = on_host(recomputed_plans.planned(name))
        return plan, compile_plan(plan)

    plans_by_name: dict[str, Callable[[], tuple[Plan, ActorGraph]]] = {}
    for index, case in enumerate(families.CASES):
        plans_by_name[case.title] = lambda index=index: of_family(index)
    for index, kind in enumerate(same_mathematics.CASES):
        plans_by_name[f"gpt: {kind.name}"] = lambda index=index: of_a_kind(index)
    for name in recomputed_plans.CASES:
        plans_by_name[f"recomputed: {name}"] = lambda name=name: again(name)
        plans_by_name[f"offloaded: {name}"] = lambda name=name: elsewhere(name)
    return plans_by_name
