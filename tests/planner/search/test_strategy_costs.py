"""Strategy costs: figures of every option, and which are legal, against plain prices one by one."""

from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace

from millrace.models.graph import ITEMSIZE, Graph
from millrace.models.recompute import with_recompute
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import build_training
from millrace.planner.cluster import Cluster, Software
from millrace.planner.clusters import local_cluster, parse_cluster
from millrace.planner.costs.bucket_sizes import state_tensors
from millrace.planner.sbp import local_size
from millrace.planner.search.blocks.block_templates import fold
from millrace.planner.search.blocks.cost_tables import INFLIGHT
from millrace.planner.search.blocks.mixed_devices import TIMES, cheapest, least_times
from millrace.planner.search.blocks.sbp_codes import sbp_of
from millrace.planner.search.blocks.strategies import StrategySpace, build_space
from millrace.planner.search.blocks.strategy_costs import StrategyCosts
from millrace.planner.signatures import variable_values
from tests.planner.op_signatures import op_signatures
from tests.planner.search.plain import PlainPrices, sized
from tests.small_models import gpt_of

GPU = parse_cluster("a100-sxm-80gb:8x2")
CPU = local_cluster(8, cores=2, memory_bytes=2**33)
GPT = gpt_of(2, 32, 4, vocab=64, positions=16)
MLP = ModelSpec(
    name="tiny-mlp",
    family="mlp",
    config={"inputs": 48, "columns": 8, "hidden": 24, "layers": 3, "classes": 8},
)


@cache
def graph_of(name: str, mode: str, optimizer: str) -> Graph:
    graph = build_training(GPT if name == "gpt" else MLP, TrainingSpec(optimizer=optimizer), 16)
    return with_recompute(graph, dict.fromkeys(graph.blocks, mode))


@cache
def space_of(name: str, mode: str, optimizer: str, axes: int) -> StrategySpace:
    return build_space(fold(graph_of(name, mode, optimizer)), axes)


def compared(
    space: StrategySpace,
    cluster: Cluster,
    meshes: list[tuple[int, ...]],
    batches: list[int],
    stretch: float,
    share: float,
) -> set[str]:
    """Compare a share of the options of every choice on every row; return the expansions seen."""
    strategy_costs = StrategyCosts(
        space, cluster, np.array(meshes).reshape(len(meshes), -1).T, np.array(batches),
        stretch=stretch,
    )  # fmt: skip
    rng = np.random.default_rng(1)
    seen = set()
    for row, (mesh, batch) in enumerate(zip(meshes, batches, strict=True)):
        tensors = sized(space.folded.graph, batch)
        plain = PlainPrices(cluster, mesh, stretch)
        for number, choice in enumerate(space.choices):
            legal = np.flatnonzero(strategy_costs.legal[number][:, row])
            some = rng.random(len(legal)) < share
            for option in legal[some].tolist():
                expected = np.zeros(5, np.int64)
                for op_options in choice.ops:
                    signature = op_options.signature(option)
                    seen.add(signature.expansion)
                    expected += plain.figures(op_options.op, signature, tensors)
                figures = strategy_costs.figures[number][:, option, row]
                assert figures.tolist() == expected.tolist(), choice.ops[0].signature(option)
    return seen


@pytest.mark.parametrize(
    ("cluster", "stretch"), [(GPU, 1.0), (CPU, 1.75)], ids=["roofline", "measured"]
)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_every_option_of_an_mlp_costs_what_its_ops_cost(
    cluster: Cluster, stretch: float, optimizer: str
) -> None:
    space = space_of("mlp", "full", optimizer, 2)
    compared(space, cluster, [(2, 2), (4, 2), (2, 3)], [16, 8, 6], stretch, 0.35)


@pytest.mark.parametrize("mode", ["none", "selective"])
def test_options_of_a_gpt_cost_what_their_ops_cost(mode: str) -> None:
    seen = compared(space_of("gpt", mode, "adamw", 1), GPU, [(2,), (4,)], [16, 4], 1.0, 1.0)
    assert seen >= {"vocabulary_parallel", "ring"}
    seen = compared(space_of("gpt", mode, "adamw", 2), GPU, [(2, 4)], [8], 1.0, 0.03)


LEFT_OUT = pytest.mark.xfail(
    strict=True,
    reason="tables know no (S(0), P) of the loss's sums, through which boxing by fewest bytes goes",
)


@pytest.mark.parametrize("mesh", [(2, 2), (8, 2), pytest.param((2, 4), marks=LEFT_OUT)])
def test_extra_signatures_cost_their_parts_and_what_moves_between_them(
    mesh: tuple[int, int],
) -> None:
    space = space_of("gpt", "none", "adamw", 2)
    strategy_costs = StrategyCosts(space, GPU, np.array(mesh).reshape(-1, 1), np.array([8]))
    tensors, plain = sized(space.folded.graph, 8), PlainPrices(GPU, mesh)
    compared_ones = dict.fromkeys(("vocabulary_parallel", "ring"), 0)
    for choice, figures, legal in zip(
        space.choices, strategy_costs.figures, strategy_costs.legal, strict=True
    ):
        op_options = choice.ops[0]
        for option in np.flatnonzero(op_options.expanded & legal[:, 0]).tolist():
            expected = plain.figures(op_options.op, op_options.signature(option), tensors)
            assert figures[:, option, 0].tolist() == list(expected)
            compared_ones[op_options.signature(option).expansion] += 1
    assert min(compared_ones.values()) > 3


@pytest.mark.parametrize(("mesh", "batch"), [((4,), 8), ((2, 3), 6), ((4, 8), 16), ((), 4)])
def test_what_is_legal_is_what_signatures_on_concrete_sizes_allow(
    mesh: tuple[int, ...], batch: int
) -> None:
    space = space_of("gpt", "none", "adamw", len(mesh))
    strategy_costs = StrategyCosts(
        space, GPU, np.array(mesh, np.int64).reshape(-1, 1), np.array([batch])
    )
    tensors = sized(space.folded.graph, batch)
    values = variable_values(space.folded.graph)
    for choice, legal in zip(space.choices, strategy_costs.legal, strict=True):
        if len(choice.ops) > 1:
            continue  # options of tied ops are those of each that agree
        op = choice.ops[0].op
        expected = {
            (signature.inputs, signature.outputs, signature.expansion)
            for signature in op_signatures(op, tensors, mesh, values=values)
        }
        signatures = [choice.ops[0].signature(o) for o in np.flatnonzero(legal[:, 0]).tolist()]
        assert {
            (signature.inputs, signature.outputs, signature.expansion) for signature in signatures
        } == expected, op.name
        assert len(signatures) == len(expected)


def test_options_of_tied_ops_agree_on_storage() -> None:
    space = space_of("mlp", "full", "adamw", 2)
    strategy_costs = StrategyCosts(space, GPU, np.array([[2], [2]]), np.array([8]))
    tied = [c for c in zip(space.choices, strategy_costs.legal, strict=True) if len(c[0].ops) > 1]
    assert tied
    for choice, legal in tied:
        for option in np.flatnonzero(legal[:, 0]).tolist():
            first, *others = (op_options.signature(option) for op_options in choice.ops)
            for op_options, signature in zip(choice.ops[1:], others, strict=True):
                if op_options.op.kind == "squared_sum":
                    assert signature.inputs[0] == first.outputs[0]
                elif op_options.op.kind == "adamw":
                    assert signature.inputs[:2] == (first.outputs[0],) * 2
                else:  # a clone does what its op does
                    assert (signature.inputs, signature.outputs) == (first.inputs, first.outputs)


def test_rows_together_are_priced_as_each_alone() -> None:
    space = space_of("gpt", "none", "adamw", 2)
    sizes, batch = np.array([(2, 2), (4, 2), (2, 8)]).T, np.array([16, 4, 8])
    strategy_costs = StrategyCosts(space, GPU, sizes, batch)
    together, taken = strategy_costs.tables(), strategy_costs.take(np.array([2, 0])).tables()
    for row in range(3):
        alone = StrategyCosts(space, GPU, sizes[:, [row]], batch[[row]]).tables()
        others = [
            (together, row),
            *((taken, position) for position, taken_row in enumerate((2, 0)) if taken_row == row),
        ]
        for tables, place in others:
            for alone_choice, all_of_them in zip(alone.choices, tables.choices, strict=True):
                assert (alone_choice.figures[..., 0] == all_of_them.figures[..., place]).all()
                assert (alone_choice.legal[:, 0] == all_of_them.legal[:, place]).all()
            for alone_edge, edge in zip(alone.edges, tables.edges, strict=True):
                assert (alone_edge.reachable[..., 0] == edge.reachable[..., place]).all()
                assert (alone_edge.duration_ns[..., 0] == edge.duration_ns[..., place]).all()
                assert (alone_edge.buffer_bytes[..., 0] == edge.buffer_bytes[..., place]).all()
                assert (alone_edge.held_bytes[:, 0] == edge.held_bytes[:, place]).all()


@pytest.mark.parametrize(("chunked", "bucket_bytes"), [(False, 0), (True, 0), (True, 2**20)])
def test_edges_cost_boxing_and_partial_values_do_not_cross_stages(
    chunked: bool, bucket_bytes: int
) -> None:
    space = space_of("mlp", "none", "adamw", 1)
    mesh = (4,)
    on = replace(GPU, software=Software(bucket_bytes=bucket_bytes))
    strategy_costs = StrategyCosts(
        space, on, np.array([[4]]), np.array([8]), crossing_partial=not chunked
    )
    tensors, plain = sized(space.folded.graph, 8), PlainPrices(on, mesh)
    state = state_tensors(space.folded.graph)
    crossing = 0
    for edge, space_edge in zip(strategy_costs.tables().edges, space.edges, strict=True):
        tensor = tensors[space_edge.tensor]
        crossing += space_edge.crossing
        for b, target in enumerate(space_edge.targets.tolist()):
            wanted = sbp_of(target, 1)
            if plain_divides(tensor.shape, wanted, mesh):
                size = local_size(tensor.shape, wanted, mesh) * ITEMSIZE[tensor.dtype]
                assert edge.held_bytes[b, 0] == size
            for a, source in enumerate(space_edge.sources.tolist()):
                source_sbp = sbp_of(source, 1)
                both = source_sbp[0].is_partial and wanted[0].is_partial
                if chunked and space_edge.crossing and both:
                    assert not edge.reachable[a, b, 0]
                elif edge.reachable[a, b, 0]:
                    time = plain.boxing_ns(
                        source_sbp, wanted, tensor.shape, tensor.dtype, space_edge.tensor in state
                    )
                    assert edge.duration_ns[a, b, 0] == time
    assert crossing


def plain_divides(shape: tuple[int, ...], sbp: object, mesh: tuple[int, ...]) -> bool:
    return all(
        not axis_sbp.is_split or shape[axis_sbp.dim] % mesh[0] == 0
        for axis_sbp in sbp  # type: ignore[attr-defined]
    )


def test_only_activations_are_held_for_the_backward_pass() -> None:
    space = space_of("gpt", "full", "adamw", 1)
    held_tensors = {edge.tensor for edge in space.edges if any(use.holds for use in edge.uses)}
    graph = space.folded.graph
    values = variable_values(graph)
    makers = {name: op for op in graph.ops for name in op.outputs}
    assert held_tensors
    assert all(makers[name].phase == "forward" and name not in values for name in held_tensors)
    assert INFLIGHT == 3


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_what_is_no_clone_costs_the_same_in_every_mode(mode: str) -> None:
    sizes, batches = np.array([[2, 4, 1], [4, 2, 8]]), np.array([4, 8, 2])
    plain = StrategyCosts(space_of("gpt", "none", "adamw", 2), GPU, sizes, batches)
    space = space_of("gpt", mode, "adamw", 2)
    anew, alike = (
        StrategyCosts(space, GPU, sizes, batches, alike=priced)
        for priced in (None, plain.take(np.arange(3)))
    )
    for ours, theirs in zip(alike.figures + alike.legal, anew.figures + anew.legal, strict=True):
        assert np.array_equal(ours, theirs)


def test_the_cheapest_options_are_those_of_least_cost() -> None:
    sizes, batches = np.array([[2, 4, 1], [4, 2, 8]]), np.array([4, 8, 2])
    strategy_costs = StrategyCosts(space_of("gpt", "full", "adamw", 2), GPU, sizes, batches)
    rows, prices = np.array([2, 0]), np.array([[7.0, 3.0], [1.0, 1.0], [0, 0], [0, 0], [2.0, 0.0]])
    expected = np.zeros(2)
    for choice, figures, legal in zip(
        strategy_costs.space.choices, strategy_costs.figures, strategy_costs.legal, strict=True
    ):
        cost = sum(figures[time_figure][:, rows] * prices[time_figure] for time_figure in TIMES)
        expected += choice.count * np.where(legal[:, rows], cost, np.inf).min(axis=0)
    least_costs = cheapest(strategy_costs, least_times(strategy_costs), rows, prices)
    assert np.allclose(least_costs, expected, rtol=1e-12)
