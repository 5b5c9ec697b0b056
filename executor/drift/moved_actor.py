"""Moved actor: the one whose time in a step changed most, on the rank whose work changed most.

Whoever waits for a slow rank takes longer too: a collective or transfer counts for as much as the
member that came to it last, which waited for nobody, and for that member alone. Of a rank all that
moved is added up first, since a single actor may take long for having had no core.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from millrace.planner.actors.graph import ActorGraph

Times = Sequence[NDArray[np.float64]]
"""Nanoseconds that each actor of a rank takes in a step, by rank."""

FOLLOWS = 0.2  # an actor that changes by a larger share moved too


class MovedActor(NamedTuple):
    """The actor that moved most, and how many others of its rank moved the same way."""

    rank: int
    actor: str
    before_ns: float
    now_ns: float
    others: int


def moved_actor(
    graph: ActorGraph, before: Times, now: Times, *, slower: bool = True
) -> MovedActor | None:
    """The actor that moved most between two sets of times; None where none moved so.

    Parameters
    ----------
    graph
        The actors of every rank.
    before, now
        Times of both.
    slower
        Look for what takes longer now; else for what takes less time.
    """
    sign = 1 if slower else -1
    changes = [sign * (after - earlier) for earlier, after in zip(before, now, strict=True)]
    moves: list[list[tuple[float, int]]] = [[] for _ in changes]
    meetings: dict[tuple[str, tuple[int, ...]], list[tuple[float, int, int]]] = {}
    for rank, change in enumerate(changes):
        for index, actor in enumerate(graph.programs[graph.program_of(rank)].actors):
            if actor.meeting is not None:
                group = tuple(sorted(graph.members(rank, actor.meeting)))
                place = float(change[index]), rank, index
                meetings.setdefault((actor.meeting.key, group), []).append(place)
            else:
                moves[rank].append((float(change[index]), index))
    for members in meetings.values():
        least_ns, rank, index = min(members)
        moves[rank].append((least_ns, index))
    rank = max(range(len(moves)), key=lambda rank: sum(move_ns for move_ns, _ in moves[rank]))
    most_ns, index = max(moves[rank], default=(0.0, 0))
    if most_ns <= 0:
        return None
    moved = changes[rank] > FOLLOWS * np.maximum(before[rank], 1)
    return MovedActor(
        rank=rank,
        actor=graph.programs[graph.program_of(rank)].actors[index].name,
        before_ns=float(before[rank][index]),
        now_ns=float(now[rank][index]),
        others=int(moved.sum() - moved[index]),
    )
