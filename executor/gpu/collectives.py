"""Collectives of one rank with ranks on other GPUs: the communicator that serves each actor."""

from collections.abc import Callable
from typing import Any

from millrace.executor.cuda.calls import Bucket, Collective
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.cupy_device import CupyDevice
from millrace.executor.gpu.nccl import (
    LaneGroup,
    NcclCommunicator,
    exchange_ids,
    set_environment,
    warm_up_bytes,
)
from millrace.executor.transport.mpi import World
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.trace_lanes import drawn_in

TRANSFERS = "transfers"  # the lane of both ends, which have queues of their own names


def groups_of(graph: ActorGraph, rank: int) -> dict[int, LaneGroup]:
    """Group of every meeting actor of a rank that meets others, by actor index.

    All members of a meeting name its group alike. A transfer's is its pair of ranks, one per
    direction.
    """
    program = graph.programs[graph.program_of(rank)]
    groups = {}
    for index, actor in enumerate(program.actors):
        if actor.meeting is None:
            continue
        members = graph.members(rank, actor.meeting)
        if len(members) > 1:
            lane = TRANSFERS if actor.meeting.peer is not None else drawn_in(program, actor)
            groups[index] = LaneGroup(members, lane)
    return groups


class NcclCollectives:
    """Makes a communicator for every group and lane of a rank, and puts its collectives on streams.

    Parameters
    ----------
    graph
        The actor graph; the rank is the world's.
    world
        All ranks, which all make theirs at once.
    device
        The rank's GPU.
    failed
        Called once, from a thread, if a collective fails later on.

    Raises
    ------
    ExecutorError
        NCCL is missing, or other members of a group have not come.
    """

    def __init__(
        self,
        graph: ActorGraph,
        world: World,
        device: CupyDevice,
        failed: Callable[[ExecutorError], None],
    ) -> None:
        actors = graph.programs[graph.program_of(world.rank)].actors
        self._groups = groups_of(graph, world.rank)
        self._names = tuple(actor.name for actor in actors)
        kinds: dict[LaneGroup, set[str]] = {}
        for index, group in self._groups.items():
            if (meeting := actors[index].meeting) is not None:
                kinds.setdefault(group, set()).add(meeting.kind)
        streams = {queue for index in self._groups for queue in actors[index].queues[:1]}
        set_environment(world, len(streams), device.multiprocessors)
        ids = exchange_ids(world, kinds)
        self._communicator = NcclCommunicator(world.rank, ids, use_device=device.use, failed=failed)
        self._warm_up(device, kinds)

    def _warm_up(self, device: CupyDevice, kinds: dict[LaneGroup, set[str]]) -> None:
        """Carry out every kind once and wait: what is made at first use is made before capture."""
        stream, event = device.stream(), device.event()
        scratch = device.allocate(warm_up_bytes(kinds))
        self._communicator.warm_up(kinds, scratch, stream)
        device.record(event, stream)
        device.synchronize(event)

    def issue(self, rank: int, actor: int, call: Collective | Bucket, stream: Any) -> None:
        """Put one call of a meeting actor on a stream."""
        self._communicator.issue(call, self._groups[actor], stream, self._names[actor])

    def check(self) -> None:
        """Raise the error of a collective that has failed."""
        self._communicator.check()

    def last_issued(self) -> list[str]:
        """The collective that was issued last for every group, in words."""
        return self._communicator.last_issued()

    def abandon(self, error: ExecutorError) -> None:
        """End collectives that may never end by themselves; `check` raises the error then."""
        self._communicator.abandon(error)

    def close(self) -> None:
        """Give back the communicators; all work must be done."""
        self._communicator.close()
