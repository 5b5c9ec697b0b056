"""Actor graphs of one meeting, to time transports with."""

from math import prod

from millrace.planner.actors.graph import ActorGraph, Meeting
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
