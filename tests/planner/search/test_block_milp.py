"""The block program against brute force, and the plans that it finds with no template."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from millrace.models.builder import GraphBuilder, dense
from millrace.models.graph import Graph
from millrace.models.spec import TrainingSpec
from millrace.models.training import training_graph
from millrace.models.zoo.catalogue import build_training
from millrace.planner.boxing import boxing_path, step_bytes
from millrace.planner.search.blocks.block_milp import FigurePrices, MemoryRow, solve_program
from millrace.planner.search.blocks.block_templates import fold
from millrace.planner.search.blocks.cost_tables import CostTables, compact, single
from millrace.planner.search.blocks.sbp_codes import sbp_of
from millrace.planner.search.blocks.solver import BeyondCutoff, Solution, solve
from millrace.planner.search.blocks.strategies import StrategySpace, build_space
from millrace.planner.search.blocks.strategy_costs import StrategyCosts
from millrace.planner.search.request import MemoryLimitError
from millrace.planner.signatures import Allowed
from tests.plain_links import without_library
from tests.planner.search.plain import sized
from tests.planner.search.random_tables import by_hand, optimum, random_tables, solutions
from tests.small_models import gpt_of

CLUSTER = without_library("a100-sxm-80gb:8x1")


def prices_of(seed: int) -> FigurePrices:
    return FigurePrices(
        microbatch=3.0,
        step=1.0,
        persistent_byte=0.5 * (seed % 2),
        inflight_byte=seed % 3,
        deferrable=1.0 if seed % 4 == 0 else None,
    )


def test_the_cost_equals_brute_force_on_random_tables() -> None:
    for seed in range(25):
        tables = random_tables(seed, forward=seed % 3 > 0)
        single_row = single(tables, 0)
        assert single_row is not None, seed
        prices = prices_of(seed)
        solution = solve(single_row, prices)
        expected = optimum(tables, prices.vector)
        assert solution.cost == pytest.approx(expected, rel=1e-9), seed
        assert solution.bound == pytest.approx(expected, rel=1e-6), seed
        figures = by_hand(single_row, solution.options)
        assert figures is not None, seed
        assert solution.figures == tuple(figures.tolist()), seed


def test_the_integer_program_alone_agrees() -> None:
    for seed in range(12):
        single_row = single(random_tables(seed, choices=5, forward=seed % 2 > 0), 0)
        assert single_row is not None, seed
        prices = prices_of(seed)
        answer = solve_program(single_row, prices)
        assert answer is not None, seed
        figures = by_hand(single_row, answer[0])
        assert figures is not None, seed
        expected = optimum(single_row, prices.vector)
        assert float(figures @ prices.vector) == pytest.approx(expected, rel=1e-9), seed
        assert answer[1] <= expected * (1 + 1e-6), seed


def test_a_binding_memory_row_equals_brute_force() -> None:
    for seed in range(25):
        tables = single(random_tables(seed), 0)
        assert tables is not None, seed
        prices = FigurePrices(microbatch=2.0, step=1.0)
        weights = MemoryRow(inflight=2, limit_bytes=0).weights
        free = solve(tables, prices)
        least = min(float(figures @ weights) for figures in solutions(tables).values())
        limit = int((least + float(np.array(free.figures) @ weights)) // 2)
        memory = MemoryRow(inflight=2, limit_bytes=limit)
        solution = solve(tables, prices, memory)
        assert solution.cost == pytest.approx(optimum(tables, prices.vector, memory), rel=1e-9), (
            seed
        )
        assert solution.bound <= solution.cost, seed
        assert np.array(solution.figures) @ weights <= limit, seed


@pytest.mark.parametrize(("seed", "share"), [(20, 0.2), (20, 0.5), (78, 0.5)])
def test_what_is_proven_without_the_row_drops_no_option_with_it(seed: int, share: float) -> None:
    """No price of memory proves as much as the program without the row does."""
    tables = single(random_tables(seed, choices=7, forward=False), 0)
    assert tables is not None
    prices = FigurePrices(microbatch=2.0, step=1.0)
    weights = MemoryRow(inflight=2, limit_bytes=0).weights
    least = min(float(figures @ weights) for figures in solutions(tables).values())
    free = float(np.array(solve(tables, prices).figures) @ weights)
    memory = MemoryRow(inflight=2, limit_bytes=int(least + share * (free - least)))
    solution = solve(tables, prices, memory)
    best = optimum(tables, prices.vector, memory)
    assert solution.cost == pytest.approx(best, rel=1e-9)
    assert solution.bound <= best * (1 + 1e-9)


def test_a_memory_row_that_cannot_be_met_says_by_how_much() -> None:
    tables = single(random_tables(1), 0)
    assert tables is not None
    with pytest.raises(MemoryLimitError, match="bytes too few") as caught:
        solve(tables, FigurePrices(), MemoryRow(inflight=1, limit_bytes=1))
    least = min(figures[2] + figures[3] for figures in solutions(tables).values())
    assert caught.value.needed_bytes == least


@pytest.mark.parametrize("seed", [45, 152, 211])
def test_a_memory_row_that_can_just_be_met_is_met_whatever_the_gap(seed: int) -> None:
    tables = single(random_tables(seed, choices=6), 0)
    assert tables is not None
    weights = MemoryRow(inflight=3, limit_bytes=0).weights
    least = min(int(figures @ weights) for figures in solutions(tables).values())
    memory = MemoryRow(inflight=3, limit_bytes=least)
    solution = solve(tables, FigurePrices(), memory, max_gap=0.1)
    assert np.array(solution.figures) @ weights == least


def test_what_costs_as_much_as_the_cutoff_is_not_solved() -> None:
    tables = single(random_tables(2), 0)
    assert tables is not None
    best = optimum(tables, FigurePrices().vector)
    with pytest.raises(BeyondCutoff) as caught:
        solve(tables, FigurePrices(), cutoff=best / 4)
    assert best / 4 <= caught.value.bound <= best * (1 + 1e-9)


def small_graphs() -> Iterator[Graph]:
    """Forward pieces with fan-out, a residual and a contraction, as the zoo writes them."""
    for name in ("chain", "fan", "residual"):
        builder = GraphBuilder(name=name, batch=8, tokens_per_sample=1)
        builder.begin_block("a")
        x = builder.input("x", "b k", (8, 16), source="features")
        y = dense(builder, "fc", x, "b k, k n -> b n", {"n": 16}, bias=name == "chain")
        if name == "fan":
            y = builder.apply("add", "sum", (builder.apply("relu", "relu", (y,), "b n -> b n"), y),
                              "b n, b n -> b n")  # fmt: skip
        if name == "residual":
            y = builder.apply("add", "sum", (x, y), "b n, b n -> b n")
            y = builder.apply("gelu", "gelu", (y,), "b n -> b n")
        yield builder.build()


def tables_of(graph: Graph, mesh: tuple[int, ...], blocks: list[str] | None = None,
              same: dict[str, str] | None = None, allowed: Allowed | None = None,
              ) -> tuple[StrategySpace, CostTables]:  # fmt: skip
    space = build_space(fold(graph, blocks, same), len(mesh), allowed)
    strategy_costs = StrategyCosts(
        space, CLUSTER, np.array(mesh, np.int64).reshape(-1, 1), np.array([graph.batch])
    )
    tables = single(strategy_costs.tables(), 0)
    assert tables is not None
    return space, tables


def thinned(tables: CostTables, most: int) -> CostTables:
    """Tables with the options of large choices thinned out."""
    keep = []
    for choice in tables.choices:
        step = -(-len(choice.options) // most)
        keep.append(np.arange(0, len(choice.options), step))
    return compact(tables, keep)


@pytest.mark.parametrize("mesh", [(4,), (2, 2)])
@pytest.mark.parametrize("graph", list(small_graphs()), ids=lambda graph: graph.name)
def test_real_ops_cost_what_brute_force_finds(graph: Graph, mesh: tuple[int, ...]) -> None:
    _, tables = tables_of(graph, mesh)
    tables = thinned(tables, 4 if len(mesh) == 1 else 3)
    single_row = single(tables, 0)
    assert single_row is not None
    prices = FigurePrices(microbatch=4)
    assert solve(single_row, prices).cost == pytest.approx(optimum(single_row, prices.vector))


# The showpieces. B batch, T tokens, D model.
T, D, HEADS, RANKS = 256, 512, 8, 8
GPT = gpt_of(3, D, HEADS, vocab=512, positions=T)


@cache
def gpt(batch: int) -> Graph:
    return build_training(GPT, TrainingSpec(), batch)


def whole_model(batch: int) -> tuple[StrategySpace, CostTables]:
    """All blocks, queries whole."""
    unsplit = {"attention", "attention_grad"}
    return tables_of(
        gpt(batch),
        (RANKS,),
        allowed=lambda op, axis, signature: not (op.kind in unsplit and signature.label == "t"),
    )


def volume_bytes(
    space: StrategySpace, tables: CostTables, solution: Solution, batch: int, step: bool
) -> int:
    """Bytes that a device receives, per microbatch or per step, by the table of boxing."""
    total = 0
    options = [int(c.options[o]) for c, o in zip(tables.choices, solution.options, strict=True)]
    tensors = sized(gpt(batch), batch)
    for edge in space.edges:
        tensor = tensors[edge.tensor]
        if (tensor.rate == "step") != step:
            continue
        source = sbp_of(int(edge.sources[edge.source_of[options[edge.producer]]]), 1)
        wanted = {int(edge.targets[use.target_of[options[use.choice]]]) for use in edge.uses}
        for target in wanted:
            path = boxing_path(source, sbp_of(target, 1), (RANKS,), tensor.shape)
            total += sum(step_bytes(boxing_step, tensor.shape, 4, (RANKS,)) for boxing_step in path)
    return total


def labels_of(
    space: StrategySpace, tables: CostTables, solution: Solution
) -> dict[str, str | None]:
    """Split label of every product."""
    return {
        choice.ops[0].op.name: choice.ops[0].signature(int(table_choice.options[option])).labels[0]
        for choice, table_choice, option in zip(
            space.choices, tables.choices, solution.options, strict=True
        )
        if choice.ops[0].op.kind in ("matmul", "attention")
        and choice.ops[0].op.block.startswith("h.")
    }


def test_without_a_template_a_short_batch_and_tight_memory_give_tensor_parallelism() -> None:
    space, tables = whole_model(batch=1)
    graph = gpt(1)
    parameters = sum(
        np.prod(graph.tensor(op.outputs[0]).shape) for op in graph.ops if op.kind == "variable"
    )
    replicated = int(4 * 4 * parameters)  # weights, gradients and Adam's two moments in fp32
    memory = MemoryRow(inflight=1, limit_bytes=replicated * 9 // 10)
    solution = solve(tables, FigurePrices(), memory)
    assert solution.bound == pytest.approx(solution.cost, rel=1e-6)
    labels = labels_of(space, tables, solution)
    for name in ("q", "k", "v"):
        assert labels[f"h.0.attn.{name}.matmul"] == "h"
    assert labels["h.0.attn.core"] == "h"
    assert labels["h.0.attn.out.matmul"] == "h"
    assert labels["h.0.mlp.fc1.matmul"] == "n"
    assert labels["h.0.mlp.fc2.matmul"] == "k"


def test_a_long_batch_and_memory_to_spare_give_data_parallelism() -> None:
    space, tables = whole_model(batch=64)
    solution = solve(tables, FigurePrices(microbatch=2))
    assert set(labels_of(space, tables, solution).values()) == {"b"}
    assert volume_bytes(space, tables, solution, 64, step=False) == 0
    assert volume_bytes(space, tables, solution, 64, step=True) > 0


def test_equal_questions_have_equal_answers() -> None:
    answers = [solve(whole_model(batch=8)[1], FigurePrices(microbatch=2)) for _ in range(2)]
    assert answers[0] == answers[1]


def test_equal_blocks_are_taken_once_and_cost_as_much_as_all() -> None:
    graph = gpt(8)
    folded_space, folded = tables_of(graph, (4,))
    everything = {block: block for block in graph.blocks}
    space, unfolded = tables_of(graph, (4,), same=everything)
    assert len(folded.choices) < len(unfolded.choices)
    solution = solve(folded, FigurePrices(microbatch=2))

    def key(name: str) -> str:
        return name.partition(".")[0] + name[3 if name.startswith("h.") else 0 :]

    chosen = {
        key(op_options.op.name): int(table_choice.options[o])
        for choice, table_choice, o in zip(
            folded_space.choices, folded.choices, solution.options, strict=True
        )
        for op_options in choice.ops
    }
    options = tuple(
        int(np.searchsorted(table_choice.options, chosen[key(choice.ops[0].op.name)]))
        for choice, table_choice in zip(space.choices, unfolded.choices, strict=True)
    )
    figures = by_hand(unfolded, options)
    assert figures is not None
    assert tuple(figures.tolist()) == solution.figures
    # Layers free to differ can only be better, by what they hand over in ways that differ.
    free = solve(unfolded, FigurePrices(microbatch=2))
    assert 0.99 * solution.cost < free.cost <= solution.cost * (1 + 1e-9)


def test_training_graphs_of_one_block_need_no_neighbours() -> None:
    builder = GraphBuilder(name="one", batch=8, tokens_per_sample=1)
    builder.begin_block("only")
    x = builder.input("x", "b k", (8, 16), source="features")
    logits = dense(builder, "fc", x, "b k, k c -> b c", {"c": 4})
    targets = builder.input("targets", "b", (8,), source="classes", values=4)
    losses = builder.apply("cross_entropy", "loss", (logits, targets), "b c!, b -> b, b")
    builder.apply("sum", "loss_sum", (losses,), "b -> ")
    builder.apply("count_valid", "token_count", (targets,), "b -> ")
    graph = training_graph(builder.build(), TrainingSpec(optimizer="sgd"))
    solution = solve(tables_of(graph, (2,))[1], FigurePrices())
    assert solution.bound == pytest.approx(solution.cost)
