"""Lanes: the names behind a rank's spans in a Trace, the same for simulated and measured ones."""

from millrace.planner.actors.graph import Actor, ActorGraph, Leave, Program
from millrace.planner.actors.trace import Lane


def lane_of(graph: ActorGraph, rank: int, represents: int = 1) -> Lane:
    """Lane of `rank`, standing for `represents` ranks that run alike.

    Parameters
    ----------
    graph : ActorGraph
        The graph that ran; names, kinds and queues are those of the rank's program.
    rank : int
        The rank that was traced.
    represents : int
        Number of ranks, this one included; 1: it stands for itself alone.

    Raises
    ------
    ValueError
        No program lists the rank.
    """
    program = graph.programs[graph.program_of(rank)]
    return Lane(
        rank=rank,
        stage=program.stage,
        actors=tuple(actor.name for actor in program.actors),
        kinds=tuple(actor.kind for actor in program.actors),
        phases=tuple(actor.phase for actor in program.actors),
        blocks=tuple(actor.block for actor in program.actors),
        queues=tuple(drawn_in(program, actor) for actor in program.actors),
        firings=tuple(actor.firings for actor in program.actors),
        represents=represents,
    )


def drawn_in(program: Program, actor: Actor) -> str:
    """Name of the queue that an actor occupies until it completes (`launch` is left at once).

    Parameters
    ----------
    program : Program
        The program whose queues the actor's numbers mean.
    actor : Actor
        Of its queues, the first that is left on completion is named; where none is, the first.
    """
    queues = [program.queues[queue] for queue in actor.queues]
    return next((q.name for q in queues if q.leave is Leave.COMPLETED), queues[0].name)
