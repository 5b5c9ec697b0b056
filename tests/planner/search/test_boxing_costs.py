"""Boxing costs: paths take as few bytes as those of `boxing`, as long as their steps."""

from functools import cache
from itertools import product

import numpy as np
import pytest
from msgspec.structs import replace

from millrace.models.arrays import Ints
from millrace.planner.boxing import BoxingStep, boxing_path, moves, step_bytes
from millrace.planner.cluster import Cluster, Software
from millrace.planner.clusters import local_cluster, parse_cluster
from millrace.planner.collectives import TokenCopies
from millrace.planner.errors import InfeasibleError
from millrace.planner.sbp import BROADCAST, PARTIAL_MAX, PARTIAL_SUM, NdSbp, local_size, split
from millrace.planner.search.blocks.boxing_costs import Boxed, BoxingCosts, edges, shortest
from millrace.planner.search.blocks.sbp_codes import divisible, number_of, sbp_of
from tests.planner.search.plain import PlainPrices

CLUSTERS = {
    "gpu": parse_cluster("a100-sxm-80gb:8x4"),
    "cpu": local_cluster(8, cores=2, memory_bytes=2**33),
}
DIGITS = (0, 1, 2, 3, 4)  # B, P(sum), P(max), S(0), S(1)


def states_of(axes: int) -> list[NdSbp]:
    ones = (BROADCAST, PARTIAL_SUM, PARTIAL_MAX, split(0), split(1))
    sbps = product(ones, repeat=axes)
    return [s for s in sbps if len({axis_sbp for axis_sbp in s if axis_sbp.is_partial}) < 2]


@cache
def paths(mesh: tuple[int, ...], shape: tuple[int, ...]) -> tuple[Ints, Ints]:
    """Numbers of the states, and the next one from each to each [states, states]."""
    graph = edges(len(shape), (DIGITS,) * len(mesh))
    sizes = np.array(mesh).reshape(-1, 1)
    fits = divisible(graph.states, np.array(shape).reshape(-1, 1), sizes)
    return graph.states, shortest(graph, sizes, fits, np.arange(len(graph.states)))[:, :, 0]


def walked(
    source: NdSbp, target: NdSbp, mesh: tuple[int, ...], shape: tuple[int, ...]
) -> list[BoxingStep] | None:
    """Steps of the path that the arrays hold; None where they hold none."""
    states, nexts = paths(mesh, shape)
    state, goal = (int(np.searchsorted(states, number_of(s))) for s in (source, target))
    if nexts[state, goal] < 0:
        return None
    steps = []
    while state != goal:
        then = int(nexts[state, goal])
        before, after = (sbp_of(int(states[number]), len(mesh)) for number in (state, then))
        (step,) = [s for s in moves(before, len(shape), mesh) if s.after == after]
        steps.append(step)
        state = then
    return steps


@pytest.mark.parametrize("mesh", [(2,), (8,), (2, 2), (4, 2), (2, 8)])
def test_paths_take_as_few_bytes_and_steps_as_boxing_paths(mesh: tuple[int, ...]) -> None:
    shape = (16, 32)
    for source, target in product(states_of(len(mesh)), repeat=2):
        path = walked(source, target, mesh, shape)
        try:
            expected = boxing_path(source, target, mesh, shape)
        except InfeasibleError:
            assert path is None
            continue
        assert path is not None
        moved, least = (
            sum(step_bytes(step, shape, 4, mesh) for step in steps) for steps in (path, expected)
        )
        assert moved == least
        assert len(path) == len(expected)


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=list(CLUSTERS))
def test_durations_and_buffers_are_those_of_the_steps_of_every_row(cluster: Cluster) -> None:
    meshes = [(2, 2), (4, 2), (2, 4), (3, 2)]
    dims = np.array([[16, 32], [8, 64], [16, 48], [12, 4096]]).T
    rows = [tuple(int(dim) for dim in column) for column in dims.T]
    stretch = 1.5
    boxing_costs = BoxingCosts(cluster, np.array(meshes).T, {2: (DIGITS,) * 2}, stretch)
    states = states_of(2)[::2]
    numbers = np.array([number_of(sbp) for sbp in states])
    boxed = boxing_costs.boxed(dims, 4, numbers, numbers, keeps_source=True)
    free = boxing_costs.boxed(dims, 4, numbers, numbers, keeps_source=False)
    assert free.made_bytes is None
    assert free.last_bytes is None
    assert boxed.made_bytes is not None
    assert boxed.last_bytes is not None
    assert (free.duration_ns == boxed.duration_ns).all()
    rng = np.random.default_rng(0)
    for row, (mesh, shape) in enumerate(zip(meshes, rows, strict=True)):
        plain = PlainPrices(cluster, mesh, stretch)
        for a, b in rng.integers(0, len(states), (40, 2)).tolist():
            path = walked(states[a], states[b], mesh, shape)
            assert boxed.reachable[a, b, row] == (path is not None)
            if path is None:
                continue
            time = sum(plain.step_ns(step, shape, "float32") for step in path)
            assert boxed.duration_ns[a, b, row] == time
            sizes = [4 * local_size(shape, step.after, mesh) for step in path]
            assert boxed.made_bytes[a, b, row] == sum(sizes)
            assert boxed.last_bytes[a, b, row] == sum(sizes[-1:])


@pytest.mark.parametrize("merges", [False, True])
def test_a_token_goes_once_to_each_place_where_software_merges_its_copies(merges: bool) -> None:
    cluster = replace(CLUSTERS["gpu"], software=Software(merges=merges))
    mesh, shape = (2, 8), (1024, 4096)
    boxing_costs, plain = (
        BoxingCosts(cluster, np.array([mesh]).T, {2: (DIGITS,) * 2}),
        PlainPrices(cluster, mesh),
    )
    states = [sbp for sbp in states_of(2) if all(axis.is_split for axis in sbp)]
    numbers = np.array([number_of(sbp) for sbp in states])
    copies, alone = (
        boxing_costs.boxed(
            np.array([shape]).T, 4, numbers, numbers, keeps_source=False, copies=TokenCopies(count)
        ).duration_ns[..., 0]
        for count in (8, 1)
    )
    for source, target in np.ndindex(copies.shape):
        path = walked(states[source], states[target], mesh, shape)
        assert path is not None
        assert copies[source, target] == sum(
            plain.step_ns(step, shape, "float32", copies=TokenCopies(8)) for step in path
        )
    assert (copies < alone).any() == merges


def test_rows_together_say_what_each_says_alone() -> None:
    cluster = CLUSTERS["gpu"]
    meshes = np.array([(2, 4), (4, 2), (8, 4)]).T
    dims = np.array([[64, 32], [64, 64], [32, 4096]]).T
    states = np.array([number_of(sbp) for sbp in states_of(2)])

    def boxed(rows: list[int]) -> Boxed:
        boxing_costs = BoxingCosts(cluster, meshes[:, rows], {2: (DIGITS,) * 2})
        return boxing_costs.boxed(dims[:, rows], 2, states, states, keeps_source=True)

    together = boxed([0, 1, 2])
    for row in range(3):
        for alone, all_rows in zip(boxed([row]), together, strict=True):
            assert alone is not None
            assert all_rows is not None
            assert (alone[..., 0] == all_rows[..., row]).all()
