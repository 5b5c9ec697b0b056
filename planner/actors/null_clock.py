"""The null clock: run an actor graph to its end with no time at all.

One complete run proves that no timing can deadlock the net: it is a marked graph, and whether a
marked graph can go on does not depend on the order of firings. A run that stops short has a cycle
of actors that wait for each other, and the error prints it.
"""

from collections import deque
from collections.abc import Callable

from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.protocol import ActorProtocol, Fire
from millrace.planner.actors.rendezvous import Rendezvous
from millrace.planner.errors import ProtocolError

Visit = Callable[[int, Fire], None]


def run_to_completion(
    graph: ActorGraph, *, steps: int = 1, folded: bool = True, visit: Visit | None = None
) -> int:
    """Number of firings of a run of every actor through `steps` steps, to its end and without time.

    Parameters
    ----------
    graph : ActorGraph
        Complete, with all its orders and slots.
    steps : int
        Number of training steps to run through.
    folded : bool
        True: one representative per program instead of every rank, and its firings alone count.
    visit : callable, optional
        Called as `visit(instance, fire)` before a local actor completes, and for each member of a
        meeting before any of them completes. An instance is a program's index if folded, else a
        rank. None: nothing is called.

    Raises
    ------
    ProtocolError
        The graph cannot run to its end; the message names the waiting cycle.
    """
    programs = (
        list(graph.programs)
        if folded
        else [graph.programs[graph.program_of(rank)] for rank in range(graph.ranks)]
    )
    protocols = [ActorProtocol(program, steps) for program in programs]
    rendezvous = Rendezvous(graph, folded=folded)
    meets = [[actor.meeting is not None for actor in program.actors] for program in programs]
    pending: deque[tuple[int, int]] = deque()
    for instance, protocol in enumerate(protocols):
        pending.extend((instance, actor) for actor in protocol.begin())
    firings = 0
    while pending:
        instance, actor = pending.popleft()
        protocol = protocols[instance]
        arrived: list[tuple[int, int]] | None = [(instance, actor)]
        if meets[instance][actor]:
            arrived = rendezvous.arrive(instance, actor, protocol.firing(actor))
        pending.extend((instance, other) for other in protocol.leave(actor))
        if arrived is None:
            continue
        if visit is not None:
            for other, ready in arrived:
                visit(other, protocols[other].command(ready))
        for other, ready in arrived:
            firings += 1
            pending.extend((other, due) for due in protocols[other].finish(ready))
    if not all(protocol.finished for protocol in protocols):
        raise ProtocolError(_explain(protocols, rendezvous))
    return firings


_REASONS = {
    "input": "needs `{}` from",
    "slot": "needs a free slot of `{}`, held by",
    "queue": "comes in queue `{}` after",
}


def _explain(protocols: list[ActorProtocol], rendezvous: Rendezvous) -> str:
    """Name one cycle of actors that wait for each other."""
    # Only a deadlock needs it, and every rank of a run would wait for its import.
    import networkx as nx

    waits: nx.DiGraph = nx.DiGraph()
    pending: list[tuple[int, int]] = []
    for instance, protocol in enumerate(protocols):
        for actor, firing in protocol.under_way():
            for other in rendezvous.absent(instance, actor, firing):
                waits.add_edge((instance, actor), other, reason="meets")
                pending.append(other)
        pending.extend((instance, wait.actor) for wait in protocol.waits())
    seen: set[tuple[int, int]] = set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        for wait in protocols[node[0]].reasons(node[1]):
            waits.add_edge(node, (node[0], wait.on), reason=_REASONS[wait.reason].format(wait.what))
            pending.append((node[0], wait.on))

    def named(node: tuple[int, int]) -> str:
        program = protocols[node[0]].program
        return f"`{program.actors[node[1]].name}` ({program.name})"

    try:
        cycle = [edge[:2] for edge in nx.find_cycle(waits)]
    except nx.NetworkXNoCycle:
        stuck = ", ".join(
            f"{named(a)} {d['reason']} {named(b)}" for a, b, d in waits.edges(data=True)
        )
        return f"the actor graph stops before its end: {stuck or 'nothing can fire'}"
    steps = "; ".join(f"{named(a)} {waits.edges[a, b]['reason']} {named(b)}" for a, b in cycle)
    return f"the actor graph deadlocks: {steps}"
