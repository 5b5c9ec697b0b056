"""Actor graphs to time transports and drivers with: one meeting, and a pipeline."""

from collections import deque
from math import prod

from msgspec.structs import replace

from millrace.planner.actors.graph import ActorGraph, Leave, Meeting, Program, Queue
from millrace.planner.actors.validate import validate
from millrace.planner.mesh import Axis
from tests.executor.actor_graphs import ProgramWriter, checked

ITEM_BYTES = 4  # float32
SBP = {  # before and after
    "all_reduce": ("P(sum)", "B"),
    "all_gather": ("S(0)", "B"),
    "reduce_scatter": ("P(sum)", "S(0)"),
}


def meeting_graph(ranks: int, size_bytes: int, kind: str = "all_reduce") -> ActorGraph:
    """Graph of one collective of all ranks, of a tensor of so many bytes in float32.

    Its first actor writes what is sent, its second is the meeting.
    """
    axes = (Axis(name="dp", size=ranks),)
    writer = ProgramWriter(axes)
    before, after = SBP[kind]
    shape = (size_bytes // ITEM_BYTES,)
    source = writer.register("x", shape, before, dtype="float32", slots=1)
    target = writer.register("y", shape, after, dtype="float32", slots=1)
    writer.actor("read", "input", (), (source,))
    meeting = Meeting(key="x", kind=kind, axes=("dp",), reduction="sum", message_bytes=size_bytes)
    writer.actor("meet", kind, (source,), (target,), meeting=meeting)
    return checked(axes, writer.program(0, tuple(range(prod(axis.size for axis in axes)))))


def pipeline_graph(stages: int, microbatches: int, message_bytes: int) -> ActorGraph:
    """Graph of a pipeline, 1F1B, of one rank and two ops a microbatch on every stage.

    A stage's forward op hands a message to the next stage, its backward op one to the stage before.
    Meetings are launched in the order in which they come when every op takes equally long and
    messages nothing, as the compiler has them.
    """
    orders = [one_f_one_b(stage, stages, microbatches) for stage in range(stages)]
    ends = op_ends(orders)
    programs = tuple(_stage(stage, orders[stage], ends, message_bytes) for stage in range(stages))
    return validate(ActorGraph(name="pipeline", axes=(), programs=programs))


Op = tuple[str, int]  # F or B, and the microbatch


def one_f_one_b(stage: int, stages: int, microbatches: int) -> list[Op]:
    """Order of a stage's ops: forwards until the first gradients come, then in turns."""
    ahead = min(microbatches, stages - stage)
    order = [("F", microbatch) for microbatch in range(ahead)]
    for microbatch in range(microbatches):
        order.append(("B", microbatch))
        if microbatch + ahead < microbatches:
            order.append(("F", microbatch + ahead))
    return order


def op_ends(orders: list[list[Op]]) -> dict[tuple[int, Op], int]:
    """Ends of all ops by stage, where each takes a unit of time and messages take none."""
    ends: dict[tuple[int, Op], int] = {}
    left = [deque(order) for order in orders]
    free = [0] * len(orders)
    while any(left):
        for stage, queue in enumerate(left):
            while queue:
                part, microbatch = op = queue[0]
                before = (stage - 1, op) if part == "F" else (stage + 1, op)
                if part == "B" and stage == len(orders) - 1:
                    before = stage, ("F", microbatch)
                if before[0] >= 0 and before not in ends:
                    break
                ends[stage, op] = free[stage] = max(free[stage], ends.get(before, 0)) + 1
                queue.popleft()
    return ends


def _stage(
    stage: int, order: list[Op], ends: dict[tuple[int, Op], int], message_bytes: int
) -> Program:
    """Program of one stage of a pipeline."""
    stages = 1 + max(number for number, _ in ends)
    count = len(order) // 2
    writer = ProgramWriter(())
    shape = (message_bytes // ITEM_BYTES,)

    def register(name: str) -> int:
        return writer.register(name, shape, "()", dtype="float32")

    def end(name: str, kind: str, key: str, peer: int, **ports: tuple[int, ...]) -> int:
        meeting = Meeting(key=key, kind=kind, peer=peer, message_bytes=message_bytes)
        ins, outs = ports.get("reads", ()), ports.get("writes", ())
        return writer.actor(name, kind, ins, outs, firings=count, meeting=meeting)

    lanes: dict[int, list[tuple[int, int]]] = {}  # (when, microbatch) of every meeting actor
    is_first, is_last = stage == 0, stage == stages - 1
    result, wanted = register("out"), register("gradient")
    came: tuple[int, ...] = ()
    if not is_first:
        came = (register("in"),)
        actor = end("recv in", "recv", f"F{stage}", stage - 1, writes=came)
        lanes[actor] = [(ends[stage - 1, ("F", m)], m) for m in range(count)]
    forward = writer.actor("forward", "idle", came, (result,), firings=count)
    if is_last:
        gradients: tuple[int, ...] = (result,)
    else:
        actor = end("send out", "send", f"F{stage + 1}", stage + 1, reads=(result,))
        lanes[actor] = [(ends[stage, ("F", m)], m) for m in range(count)]
        gradients = (register("gradient in"),)
        actor = end("recv gradient", "recv", f"B{stage}", stage + 1, writes=gradients)
        lanes[actor] = [(ends[stage + 1, ("B", m)], m) for m in range(count)]
    backward = writer.actor("backward", "idle", gradients, (wanted,), firings=count)
    if not is_first:
        actor = end("send gradient", "send", f"B{stage - 1}", stage - 1, reads=(wanted,))
        lanes[actor] = [(ends[stage, ("B", m)], m) for m in range(count)]

    launch = sorted((when, actor, m) for actor, times in lanes.items() for when, m in times)
    queues = [
        Queue(
            name="compute",
            leave=Leave.COMPLETED,
            order=tuple(forward if part == "F" else backward for part, _ in order),
        ),
        *(
            Queue(name=writer.actors[actor].name, leave=Leave.COMPLETED, order=(actor,) * count)
            for actor in lanes
        ),
        Queue(name="launch", leave=Leave.ISSUED, order=tuple(actor for _, actor, _ in launch)),
    ]
    place = {actor: (1 + number, len(queues) - 1) for number, actor in enumerate(lanes)}
    return Program(
        name=f"stage {stage}",
        stage=stage,
        ranks=(stage,),
        registers=tuple(writer.registers),
        actors=tuple(
            replace(actor, queues=place.get(number, (0,)))
            for number, actor in enumerate(writer.actors)
        ),
        queues=tuple(queues),
    )
