"""Representatives: the few ranks whose run shows what all of them do.

Without jitter, ranks differ by their program and by who is near a named straggler. Along every axis
of the mesh, coordinates that no straggler has can be exchanged without a difference, so one of them
stands for all: one straggler on a mesh of two axes leaves four positions a stage (itself, those
that meet it along either axis, the rest), whatever the mesh's size. That is exact.

With jitter no two ranks are alike; a sample is simulated, and meetings make up for the others
(`millrace.simulator.order_statistics`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from math import prod

from millrace.planner.actors.graph import ActorGraph

SAMPLED = 16  # positions of a mesh that jitter is drawn for; a spread is known to 20 % from these


@dataclass(frozen=True, slots=True, kw_only=True)
class Representatives:
    """Simulated ranks, by program and then by position, and how many each stands for.

    `named` lists, per axis of the mesh, the coordinates that stragglers have.
    """

    ranks: tuple[int, ...]
    counts: tuple[int, ...]
    named: tuple[frozenset[int], ...]


def representatives(
    graph: ActorGraph, stragglers: Iterable[int] = (), *, sampled: int = 1
) -> Representatives:
    """Ranks to simulate, and how many each stands for.

    Parameters
    ----------
    graph : ActorGraph
        Its mesh and the ranks of its programs; the same positions are chosen in each.
    stragglers : iterable of int
        Ranks that differ from the others. By default none does.
    sampled : int
        How many positions of the mesh that are otherwise alike are kept at least; all of them
        where there are fewer.

    Raises
    ------
    ValueError
        No program lists a straggler.
    """
    sizes = graph.axis_sizes
    columns = list(zip(*map(graph.coordinate, stragglers), strict=True)) or [()] * len(sizes)
    named = tuple(frozenset(column) for column in columns)
    alike = [size - len(taken) for size, taken in zip(sizes, named, strict=True)]
    simulated_counts = _spread(alike, sampled)
    axes = [_coordinates(*axis) for axis in zip(sizes, named, simulated_counts, strict=True)]
    ranks, counts = [], []
    for program in graph.programs:
        for position in product(*axes):
            index = 0
            for size, (coordinate, _) in zip(sizes, position, strict=True):
                index = index * size + coordinate
            ranks.append(program.ranks[index])
            counts.append(prod(count for _, count in position))
    return Representatives(ranks=tuple(ranks), counts=tuple(counts), named=named)


def _spread(alike: list[int], sampled: int) -> list[int]:
    """Number of each axis's coordinates to simulate: together `sampled` or more, if there are."""
    simulated_counts = [min(size, 1) for size in alike]
    while prod(max(count, 1) for count in simulated_counts) < sampled:
        free = [index for index, size in enumerate(alike) if simulated_counts[index] < size]
        if not free:
            break
        least = min(free, key=simulated_counts.__getitem__)
        simulated_counts[least] = min(2 * simulated_counts[least], alike[least])
    return simulated_counts


def _coordinates(size: int, named: frozenset[int], count: int) -> list[tuple[int, int]]:
    """Coordinates along an axis that are simulated, and how many each stands for."""
    others = [coordinate for coordinate in range(size) if coordinate not in named]
    stand_ins = others[:count]
    each, more = divmod(len(others), max(count, 1))
    counts = {coordinate: each + (index < more) for index, coordinate in enumerate(stand_ins)}
    return [
        (coordinate, counts.get(coordinate, 1)) for coordinate in sorted(named | set(stand_ins))
    ]
