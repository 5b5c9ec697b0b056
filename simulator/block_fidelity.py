"""Block fidelity: the parts of chunks split into their blocks, each fired on its own.

A chunk's part of a microbatch (its forward, say) takes what was measured for it on few blocks
(`millrace.simulator.stage_fidelity`). Here it becomes a row of actors on the same queue, one per
block: the first waits for all that the part reads, the last hands over all that it writes. A
block's time is what it computes, and its share of the part's communication that nothing hides. So a
step takes as long as at stage fidelity; jitter, stragglers and the trace see every block.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise

import msgspec

from millrace.planner.actors.graph import Actor, ActorGraph, Program, Queue
from millrace.planner.compile.queue_orders import ALIKE, FiringsNs
from millrace.planner.costs.launch_overhead import Pace, Pacing

Row = Sequence[tuple[str, int]]  # the blocks of a part as they follow one another, and their ns


def by_block(
    graph: ActorGraph,
    durations_ns: Sequence[Sequence[int]],
    rows: Mapping[str, Row],
    pacing: Pacing | None = None,
    firings_ns: FiringsNs = ALIKE,
) -> tuple[ActorGraph, list[list[int]], Pacing | None, FiringsNs]:
    """Graph of blocks, durations of its actors, what holds them back, and durations of firings.

    Parameters
    ----------
    graph
        A plan's chunks with all their orders.
    durations_ns
        One per program and actor.
    rows
        By the name of a part's actor.
    pacing
        Of the graph; the blocks of a part are launched as often as the part.
    firings_ns
        Of the graph, where firings are not all alike; blocks share each of them.
    """
    programs, table, paces = [], [], []
    block_firings_ns: dict[tuple[int, int], tuple[int, ...]] = {}
    for index, (program, row) in enumerate(zip(graph.programs, durations_ns, strict=True)):
        split, ns, places = _split(program, row, rows)
        programs.append(split)
        table.append(ns)
        for actor, blocks in enumerate(places):
            if part_firings := firings_ns.get((index, actor)):
                weights = [ns[block] for block in blocks]
                shares = zip(*(shared(each, weights) for each in part_firings), strict=True)
                block_firings_ns |= {
                    (index, block): firings for block, firings in zip(blocks, shares, strict=True)
                }
        if pacing is not None:
            actor_paces = zip(program.actors, pacing.rows[index], strict=True)
            block_paces = (
                _paces(pace, rows.get(actor.name, ()), pacing.host_ns)
                for actor, pace in actor_paces
            )
            paces.append(tuple(chain.from_iterable(block_paces)))
    if pacing is not None:
        pacing = pacing._replace(rows=tuple(paces))
    block_graph = msgspec.structs.replace(graph, programs=tuple(programs))
    return block_graph, table, pacing, block_firings_ns


def shared(total_ns: int, weights: Sequence[float]) -> list[int]:
    """Nanoseconds of `total_ns` per weight, in proportion to it, with nothing left over."""
    weight_sum = sum(weights)
    if not weight_sum:
        weights, weight_sum = [1] * len(weights), len(weights)
    ends, before = [0], 0.0
    for weight in weights:
        before += weight
        ends.append(round(total_ns * before / weight_sum))
    return [after - here for here, after in pairwise(ends)]


def _paces(pace: Pace, row: Row, host_ns: int) -> list[Pace]:
    """Paces of a part's blocks, whose launches are spread evenly over each of them."""
    if len(row) < 2:
        return [pace]
    paces = []
    launches = shared(pace.launches, [ns for _, ns in row])
    for (_, ns), count in zip(row, launches, strict=True):
        lag_ns = max((count - 1) * (host_ns - ns // count), 0) if count else -host_ns
        paces.append(Pace(count, lag_ns, pace.alone))
    return paces


def _split(
    program: Program, durations_ns: Sequence[int], rows: Mapping[str, Row]
) -> tuple[Program, list[int], list[range]]:
    actors: list[Actor] = []
    ns: list[int] = []
    places: list[range] = []  # of every actor: those that it becomes
    for actor, duration_ns in zip(program.actors, durations_ns, strict=True):
        row = rows.get(actor.name, ())
        places.append(range(len(actors), len(actors) + max(len(row), 1)))
        if len(row) < 2:
            actors.append(actor)
            ns.append(duration_ns)
        else:
            actors.extend(_blocks(actor, row))
            ns.extend(own_ns for _, own_ns in row)
    queues = tuple(
        Queue(
            name=queue.name,
            leave=queue.leave,
            order=tuple(index for actor in queue.order for index in places[actor]),
        )
        for queue in program.queues
    )
    return msgspec.structs.replace(program, actors=tuple(actors), queues=queues), ns, places


def _blocks(actor: Actor, row: Row) -> list[Actor]:
    """Actors of a part's blocks: inputs are held from the first to the last, which writes."""
    block_actors = []
    for index, (block, _) in enumerate(row):
        last = index == len(row) - 1
        block_actors.append(
            msgspec.structs.replace(
                actor,
                name=f"{actor.name} {block}",
                kind="block",
                inputs=actor.inputs if last or index == 0 else (),
                outputs=actor.outputs if last else (),
                block=block,
            )
        )
    return block_actors
