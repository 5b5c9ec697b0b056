"""The block program against brute force, and the plans that it finds with no template."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from models.builder import GraphBuilder, dense
from models.graph import Graph
from models.spec import ModelSpec, TrainingSpec
from models.training import training_graph
from models.zoo.catalogue import build_training
from planner.boxing import boxing_path, step_bytes
from planner.clusters import parse_cluster
from planner.sbp import parse_nd_sbp
from planner.search.block_program import MemoryRow, Prices
from planner.search.block_solver import cheapest, solve
from planner.search.durations import Durations
from planner.search.folding import fold
from planner.search.request import MemoryLimitError
from planner.search.tables import Choice, Net, Rules, TableBuilder, Tables, Use, evaluate
from planner.signatures import Signature

CLUSTER = parse_cluster("a100-sxm-80gb:8x1")


def all_options(tables: Tables) -> Iterator[tuple[int, ...]]:
    return product(*(range(len(choice.options)) for choice in tables.choices))


def by_hand(tables: Tables, options: tuple[int, ...]) -> np.ndarray | None:
    """Figures of a choice of options, None where a boxing does not exist."""
    total = np.zeros(5)
    for choice, option in zip(tables.choices, options, strict=True):
        total += choice.figures[option] * choice.count
    for net in tables.nets:
        source = net.makes[options[net.producer]]
        boxed, kept = set(), set()
        for use in net.uses:
            target = use.wants[options[use.choice]]
            if not net.reachable[source, target]:
                return None
            boxed.add(target)
            if use.holds:
                kept.add(target)
        total += net.count * sum((net.figures[source, t] for t in boxed), np.zeros(5))
        total += net.count * sum((net.held[t] for t in kept), np.zeros(5))
    return total


def brute_force(tables: Tables, prices: Prices, memory: MemoryRow | None) -> float | None:
    best = None
    for options in all_options(tables):
        figures = by_hand(tables, options)
        if figures is None:
            continue
        if memory and figures[2] + memory.inflight * figures[3] > memory.limit_bytes:
            continue
        cost = (
            prices.microbatch * figures[0]
            + prices.step * figures[1]
            + prices.persistent_byte * figures[2]
            + prices.inflight_byte * figures[3]
            + (prices.microbatch if prices.deferrable is None else prices.deferrable) * figures[4]
        )
        best = cost if best is None else min(best, cost)
    return best


def random_tables(seed: int) -> Tables:
    """Choices and nets of no meaning, with shared readers, missing boxings and kept tensors."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(2, 5, size=rng.integers(3, 7))
    empty = Signature(inputs=(), outputs=(), labels=())
    choices = tuple(
        Choice(
            ops=(),
            options=((empty,),) * int(n),
            figures=rng.integers(0, 60, (n, 5)),
            count=int(rng.integers(1, 4)),
        )
        for n in counts
    )
    nets = []
    for producer in range(len(choices) - 1):
        readers = rng.integers(producer + 1, len(choices), rng.integers(1, 4))
        sources, targets = rng.integers(1, 4, 2)
        reachable = rng.random((sources, targets)) < 0.9
        reachable[:, 0] = True
        uses = []
        for reader in sorted({int(r) for r in readers}):
            wants = rng.integers(0, targets, counts[reader])
            wants[0] = 0
            uses.append(Use(choice=reader, wants=wants, holds=bool(rng.random() < 0.4)))
        held = rng.integers(0, 50, (targets, 5))
        held[:, [0, 1, 2, 4]] = 0
        nets.append(
            Net(
                tensor=f"t{producer}",
                side="",
                producer=producer,
                sources=((),) * int(sources),
                makes=rng.integers(0, sources, counts[producer]),
                targets=((),) * int(targets),
                uses=tuple(uses),
                reachable=reachable,
                figures=rng.integers(0, 80, (sources, targets, 5)),
                held=held,
                count=int(rng.integers(1, 4)),
            )
        )
    return Tables(axis_sizes=(2,), choices=choices, nets=tuple(nets))


@pytest.mark.parametrize("seed", range(25))
def test_the_cost_equals_brute_force_on_random_tables(seed: int) -> None:
    tables = random_tables(seed)
    prices = Prices(
        microbatch=3.0,
        step=1.0,
        persistent_byte=0.5 * (seed % 2),
        inflight_byte=seed % 3,
        deferrable=1.0 if seed % 4 == 0 else None,
    )
    solution = solve(tables, prices)
    expected = brute_force(tables, prices, None)
    assert solution.cost == pytest.approx(expected, rel=1e-9)
    assert solution.bound == pytest.approx(expected, rel=1e-6)
    assert solution.figures == tuple(int(x) for x in by_hand(tables, solution.options))
    assert cheapest(tables.choices, prices) <= solution.cost


@pytest.mark.parametrize("seed", range(25))
def test_a_binding_memory_row_equals_brute_force(seed: int) -> None:
    tables = random_tables(seed)
    prices = Prices(microbatch=2.0, step=1.0)
    free = solve(tables, prices)
    least = solve(tables, Prices(microbatch=0, step=0, persistent_byte=1, inflight_byte=2))
    most_bytes = free.figures[2] + 2 * free.figures[3]
    limit = (round(least.cost) + most_bytes) // 2
    memory = MemoryRow(inflight=2, limit_bytes=limit)
    solution = solve(tables, prices, memory)
    assert solution.cost == pytest.approx(brute_force(tables, prices, memory), rel=1e-9)
    assert solution.figures[2] + 2 * solution.figures[3] <= limit


def test_a_memory_row_that_cannot_be_met_says_by_how_much() -> None:
    tables = random_tables(1)
    with pytest.raises(MemoryLimitError, match="bytes too few") as caught:
        solve(tables, Prices(), MemoryRow(inflight=1, limit_bytes=1))
    least = min(f[2] + f[3] for o in all_options(tables) if (f := by_hand(tables, o)) is not None)
    assert caught.value.needed_bytes == least


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


@pytest.mark.parametrize("sizes", [(4,), (2, 2)])
@pytest.mark.parametrize("graph", list(small_graphs()), ids=lambda graph: graph.name)
def test_real_ops_cost_what_brute_force_finds(graph: Graph, sizes: tuple[int, ...]) -> None:
    durations = Durations(CLUSTER, sizes)
    tables = TableBuilder(fold(graph), durations).tables()
    if len(sizes) == 2:  # two axes square the options: thin the largest choices out
        tables = thinned(tables, 4)
    prices = Prices(microbatch=4)
    assert np.prod([len(c.options) for c in tables.choices]) < 300_000
    assert solve(tables, prices).cost == pytest.approx(brute_force(tables, prices, None))


def thinned(tables: Tables, most: int) -> Tables:
    """The same tables with the options of large choices thinned out."""
    keep = []
    for choice in tables.choices:
        step = -(-len(choice.options) // most)
        keep.append(np.arange(0, len(choice.options), step))
    choices = tuple(
        Choice(
            ops=choice.ops,
            options=tuple(choice.options[i] for i in kept),
            figures=choice.figures[kept],
            count=choice.count,
        )
        for choice, kept in zip(tables.choices, keep, strict=True)
    )
    nets = tuple(
        Net(
            tensor=net.tensor,
            side=net.side,
            producer=net.producer,
            sources=net.sources,
            makes=net.makes[keep[net.producer]],
            targets=net.targets,
            uses=tuple(
                Use(choice=u.choice, wants=u.wants[keep[u.choice]], holds=u.holds) for u in net.uses
            ),
            reachable=net.reachable,
            figures=net.figures,
            held=net.held,
            count=net.count,
        )
        for net in tables.nets
    )
    return Tables(axis_sizes=tables.axis_sizes, choices=choices, nets=nets)


# The showpieces. B batch, T tokens, D model.
T, D, HEADS, RANKS = 256, 512, 8, 8
GPT = ModelSpec(
    name="two-layers",
    family="gpt",
    config={
        "layers": 3,
        "hidden": D,
        "heads": HEADS,
        "ffn_hidden": 4 * D,
        "vocab": 512,
        "positions": T,
    },
    seq_len=T,
)
WHOLE_QUERY = {"attention": frozenset("t"), "attention_grad": frozenset("t")}


def one_block(batch: int) -> tuple[Graph, Tables]:
    """The middle layer alone: what comes in and goes out lies as the search likes."""
    graph = build_training(GPT, TrainingSpec(), batch)
    durations = Durations(CLUSTER, (RANKS,))
    folded = fold(graph, ["h.1"])
    return graph, TableBuilder(folded, durations, Rules(whole=WHOLE_QUERY)).tables()


def volume_bytes(graph: Graph, tables: Tables, options: tuple[int, ...], step: bool) -> int:
    """Bytes that a device receives, per microbatch or per step, by the table of boxing."""
    total = 0
    for net in tables.nets:
        tensor = graph.tensor(net.tensor)
        if (tensor.rate == "step") != step:
            continue
        source = net.sources[net.makes[options[net.producer]]]
        for target in {net.targets[use.wants[options[use.choice]]] for use in net.uses}:
            path = boxing_path(source, target, tables.axis_sizes, tensor.shape)
            total += sum(step_bytes(one, tensor.shape, 4, tables.axis_sizes) for one in path)
    return total


def labels_of(tables: Tables, options: tuple[int, ...]) -> dict[str, str | None]:
    """Split label of every product."""
    return {
        choice.ops[0].name: choice.options[option][0].labels[0]
        for choice, option in zip(tables.choices, options, strict=True)
        if choice.ops and choice.ops[0].kind in ("matmul", "attention")
    }


def test_without_a_template_a_short_batch_and_tight_memory_give_tensor_parallelism() -> None:
    graph, tables = one_block(batch=1)
    parameters = sum(
        np.prod(graph.tensor(op.outputs[0]).shape)
        for op in graph.ops
        if op.kind == "variable" and op.block == "h.1"
    )
    replicated = int(4 * 4 * parameters)  # weights, gradients and Adam's two moments in fp32
    memory = MemoryRow(inflight=1, limit_bytes=replicated * 9 // 10)
    solution = solve(tables, Prices(), memory)
    assert solution.bound == pytest.approx(solution.cost, rel=1e-6)
    labels = labels_of(tables, solution.options)
    for name in ("q", "k", "v"):
        assert labels[f"h.1.attn.{name}.matmul"] == "h"
    assert labels["h.1.attn.core"] == "h"
    assert labels["h.1.attn.out.matmul"] == "h"
    assert labels["h.1.mlp.fc1.matmul"] == "n"
    assert labels["h.1.mlp.fc2.matmul"] == "k"
    all_reduce = 2 * (RANKS - 1) * (1 * T * D * 4) // RANKS
    megatron = 4 * all_reduce  # two forward, two backward
    assert 0 < volume_bytes(graph, tables, solution.options, step=False) <= megatron


def test_a_long_batch_and_memory_to_spare_give_data_parallelism() -> None:
    graph, tables = one_block(batch=64)
    solution = solve(tables, Prices(microbatch=2))
    assert set(labels_of(tables, solution.options).values()) == {"b"}
    assert volume_bytes(graph, tables, solution.options, step=False) == 0
    assert volume_bytes(graph, tables, solution.options, step=True) > 0


def test_equal_questions_have_equal_answers() -> None:
    answers = []
    for _ in range(2):
        _, tables = one_block(batch=8)
        answers.append(solve(tables, Prices(microbatch=2)))
    assert answers[0] == answers[1]


def test_equal_blocks_are_taken_once_and_cost_as_much_as_all() -> None:
    graph = build_training(GPT, TrainingSpec(), 8)
    durations = Durations(CLUSTER, (4,))
    folded = TableBuilder(fold(graph), durations).tables()
    everything = {block: block for block in graph.blocks}
    unfolded = TableBuilder(fold(graph, same=everything), durations).tables()
    assert len(folded.choices) < len(unfolded.choices)
    solution = solve(folded, Prices(microbatch=2))
    chosen = {
        op.name.partition(".")[0] + op.name[3 if op.block.startswith("h.") else 0 :]: (choice, o)
        for choice, o in zip(folded.choices, solution.options, strict=True)
        for op in choice.ops
    }
    options = []
    for choice in unfolded.choices:
        name = choice.ops[0].name
        key = name.partition(".")[0] + name[3 if name.startswith("h.") else 0 :]
        options.append(chosen[key][1])
    assert tuple(evaluate(unfolded, tuple(options))) == solution.figures
    # Layers free to differ can only be better; here they do not.
    assert solve(unfolded, Prices(microbatch=2)).cost == pytest.approx(solution.cost)


def test_what_comes_in_may_be_known() -> None:
    graph = build_training(GPT, TrainingSpec(), 8)
    durations = Durations(CLUSTER, (4,))
    split = parse_nd_sbp("S(0)")
    tensor = "h.0.mlp.residual"
    rules = Rules(made={tensor: split}, wanted={"h.1.mlp.residual": (parse_nd_sbp("B"),)})
    tables = TableBuilder(fold(graph, ["h.1"]), durations, rules).tables()
    known = next(net for net in tables.nets if net.tensor == tensor)
    assert known.sources == (split,)
    assert solve(tables, Prices()).cost > 0


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
    tables = TableBuilder(fold(graph), Durations(CLUSTER, (2,))).tables()
    solution = solve(tables, Prices())
    assert solution.bound == pytest.approx(solution.cost)
