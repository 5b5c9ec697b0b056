"""Random tables of no meaning, and every solution of small ones by going through all options."""

from collections.abc import Iterator
from itertools import product

import numpy as np

from millrace.models.arrays import Ints
from millrace.planner.search.blocks.block_milp import MemoryRow
from millrace.planner.search.blocks.cost_tables import CostTables, EdgeCosts, NodeCosts
from millrace.planner.search.blocks.strategies import EdgeUse


def random_tables(
    seed: int, rows: int = 1, *, choices: int = 6, forward: bool = True
) -> CostTables:
    """Tables with shared readers, missing boxings and kept tensors.

    Option 0 of every choice is legal and can be boxed to any other, so that there is a solution.
    Unless `forward`, readers may come before their producer.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 5, size=rng.integers(3, choices + 1)).tolist()
    made_choices = []
    for size in sizes:
        legal = rng.random((size, rows)) < 0.9
        legal[0] = True
        made_choices.append(
            NodeCosts(
                figures=rng.integers(0, 60, (5, size, rows)),
                legal=legal,
                options=np.arange(size),
                count=int(rng.integers(1, 4)),
            )
        )
    edges = [
        random_edge(rng, sizes, producer, rows, forward=forward)
        for producer in range(len(sizes) - forward)
    ]
    return CostTables(choices=tuple(made_choices), edges=tuple(edges))


def random_edge(
    rng: np.random.Generator, sizes: list[int], producer: int, rows: int, *, forward: bool = True
) -> EdgeCosts:
    """An edge from one choice to some others."""
    others = [
        choice
        for choice in range(len(sizes))
        if (choice > producer if forward else choice != producer)
    ]
    readers = sorted({int(r) for r in rng.choice(others, rng.integers(1, 4))})
    _, makes = np.unique(rng.integers(0, 3, sizes[producer]), return_inverse=True)
    wants = [rng.integers(0, 3, sizes[reader]) for reader in readers]
    for wanted in wants:
        wanted[0] = 0
    _, back = np.unique(np.concatenate(wants), return_inverse=True)
    ends = np.cumsum([len(wanted) for wanted in wants])[:-1]
    shape = (int(makes.max()) + 1, int(back.max()) + 1, rows)
    reachable = rng.random(shape) < 0.9
    reachable[:, 0] = True
    return EdgeCosts(
        number=producer,
        producer=producer,
        source_of=makes.astype(np.int64),
        uses=tuple(
            EdgeUse(
                choice=reader, target_of=wanted.astype(np.int64), holds=bool(rng.random() < 0.4)
            )
            for reader, wanted in zip(readers, np.split(back, ends), strict=True)
        ),
        count=int(rng.integers(1, 4)),
        figure=int(rng.random() < 0.3),
        reachable=reachable,
        duration_ns=rng.integers(0, 80, shape),
        buffer_bytes=rng.integers(0, 40, shape),
        made_bytes=np.zeros((shape[0], shape[2]), np.int64),
        held_bytes=rng.integers(0, 50, shape[1:]),
    )


def everything(tables: CostTables) -> Iterator[tuple[int, ...]]:
    """One option per choice, in every way."""
    return product(*(range(len(choice.options)) for choice in tables.choices))


def by_hand(tables: CostTables, options: tuple[int, ...], row: int = 0) -> Ints | None:
    """Figures of a solution; None where it is not legal."""
    total = np.zeros(5, np.int64)
    for choice, option in zip(tables.choices, options, strict=True):
        if not choice.legal[option, row]:
            return None
        total += choice.figures[:, option, row] * choice.count
    for edge in tables.edges:
        source = edge.source_of[options[edge.producer]]
        boxed, held_targets = set(), set()
        for use in edge.uses:
            target = int(use.target_of[options[use.choice]])
            if not edge.reachable[source, target, row]:
                return None
            boxed.add(target)
            if use.holds:
                held_targets.add(target)
        for target in boxed:
            total[edge.figure] += edge.count * edge.duration_ns[source, target, row]
            total[2] += edge.count * edge.buffer_bytes[source, target, row]
        for target in held_targets:
            total[3] += edge.count * edge.held_bytes[target, row]
    return total


def solutions(tables: CostTables, row: int = 0) -> dict[tuple[int, ...], Ints]:
    """Every legal solution with its figures."""
    figures_of = {options: by_hand(tables, options, row) for options in everything(tables)}
    return {options: figures for options, figures in figures_of.items() if figures is not None}


def optimum(
    tables: CostTables, vector: np.ndarray, memory: MemoryRow | None = None, row: int = 0
) -> float:
    """Least cost at these prices; infinite where nothing is legal and fits."""
    return min(
        (
            float(figures @ vector)
            for figures in solutions(tables, row).values()
            if memory is None or figures @ memory.weights <= memory.limit_bytes
        ),
        default=float("inf"),
    )
