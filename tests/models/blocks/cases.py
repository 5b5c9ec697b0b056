"""Graphs to cut: written by hand, and stripped of everything that would give the cut away."""

import random

import msgspec

from millrace.models.builder import GraphBuilder, dense
from millrace.models.graph import GLOBAL_BLOCK, Graph, Rate

WIDTH = 4


def stripped(graph: Graph, seed: int | None = None) -> Graph:
    """The graph in one block `model`; with a seed, under names without meaning."""
    names = {name: name for op in graph.ops for name in (op.name, *op.outputs)}
    if seed is not None:
        numbers = list(range(len(names)))
        random.Random(seed).shuffle(numbers)
        names = {name: f"x{number}" for name, number in zip(names, numbers, strict=True)}
    ops = tuple(
        msgspec.structs.replace(
            op,
            name=names[op.name],
            inputs=tuple(names[name] for name in op.inputs),
            outputs=tuple(names[name] for name in op.outputs),
            block="model",
        )
        for op in graph.ops
    )
    tensors = tuple(msgspec.structs.replace(t, name=names[t.name]) for t in graph.tensors)
    return msgspec.structs.replace(
        graph, ops=ops, tensors=tensors, blocks=("model",), templates={"model": "model"}
    )


def started() -> tuple[GraphBuilder, str]:
    """A builder in its only block, and features `b k`."""
    builder = GraphBuilder(name="case", batch=2, tokens_per_sample=1, precision="fp64")
    builder.begin_block("model")
    return builder, builder.input("features", "b k", (2, WIDTH), source="features")


def ended(builder: GraphBuilder, x: str) -> Graph:
    """The graph with a loss over what `x` holds."""
    logits = dense(builder, "logits", x, "b k, k c -> b c", {"c": 3})
    targets = builder.input("targets", "b", (2,), source="classes", values=3)
    losses = builder.apply("cross_entropy", "loss", (logits, targets), "b c!, b -> b, b")
    builder.apply("sum", "loss_sum", (losses,), "b -> ")
    builder.apply("count_valid", "token_count", (targets,), "b -> ")
    return builder.build()


def layer(builder: GraphBuilder, name: str, x: str, act: str, bias: bool = True) -> str:
    """A residual layer: x + act(dense(x))."""
    product = dense(builder, f"{name}.fc", x, "b k, k n -> b n", {"n": WIDTH}, bias=bias)
    active = builder.apply(act, f"{name}.act", (product,), "b n -> b n")
    return builder.apply("add", f"{name}.sum", (x, active), "b n, b n -> b n")


def stack(acts: str) -> Graph:
    """A layer per letter: its activation and whether it has a bias follow from the letter."""
    builder, x = started()
    x = dense(builder, "into", x, "b k, k n -> b n", {"n": WIDTH})
    kinds = {"A": "relu", "B": "gelu", "C": "tanh"}
    for index, letter in enumerate(acts):
        x = layer(builder, f"part{index}", x, kinds[letter], bias=letter != "B")
    return ended(builder, x)


def encoder_decoder(layers: int) -> Graph:
    """Decoder layers that all read the end of the encoder."""
    builder, x = started()
    x = dense(builder, "source", x, "b k, k n -> b n", {"n": WIDTH})
    for index in range(layers):
        x = layer(builder, f"encoder{index}", x, "relu")
    memory = builder.apply("scale", "memory", (x,), "b n -> b n", attributes={"factor": 2.0})
    y = builder.input("given", "b k", (2, WIDTH), source="features")
    y = dense(builder, "target", y, "b k, k n -> b n", {"n": WIDTH})
    for index in range(layers):
        across = dense(builder, f"across{index}", memory, "b k, k n -> b n", {"n": WIDTH})
        y = builder.apply("add", f"mix{index}", (y, across), "b n, b n -> b n")
        y = layer(builder, f"decoder{index}", y, "gelu")
    return ended(builder, y)


def shared_weights(layers: int) -> Graph:
    """Layers that all use one weight, each through a `repeat` of its own."""
    builder, x = started()
    x = dense(builder, "into", x, "b k, k n -> b n", {"n": WIDTH})
    weight = builder.variable("weight", "k n", (WIDTH, WIDTH))
    for index in range(layers):
        used = builder.repeat(weight, f"use{index}", "k n")
        product = builder.apply("matmul", f"fc{index}", (x, used), "b k, k n -> b n")
        x = builder.apply("add", f"sum{index}", (x, product), "b n, b n -> b n")
    return ended(builder, x)


def towers(layers: int) -> Graph:
    """Two equal rows of layers over data of their own, which meet at the end."""
    builder, x = started()
    other = builder.input("other", "b k", (2, WIDTH), source="features")
    ends = []
    for side, y in enumerate((x, other)):
        y = dense(builder, f"into{side}", y, "b k, k n -> b n", {"n": WIDTH})
        for index in range(layers):
            y = layer(builder, f"side{side}.{index}", y, "relu")
        ends.append(y)
    return ended(builder, builder.apply("mul", "meet", ends, "b n, b n -> b n"))


def partition(graph: Graph) -> list[list[int]]:
    """The numbers of the ops of every block, in the order of the blocks."""
    return [
        [number for number, op in enumerate(graph.ops) if op.block == block]
        for block in graph.blocks
    ]


def crossing(graph: Graph) -> dict[str, set[str]]:
    """Names of the activations, per block, that later blocks read, directly or through others."""
    makers = {name: op for op in graph.ops for name in op.outputs}
    places = {block: place for place, block in enumerate(graph.blocks)}
    names_by_block: dict[str, set[str]] = {block: set() for block in graph.blocks}
    for op in graph.ops:
        for name in op.inputs:
            maker = makers[name]
            if maker.kind in ("variable", "cast") or graph.tensor(name).rate is Rate.STEP:
                continue
            for block in graph.blocks[places[maker.block] : places[op.block]]:
                names_by_block[block].add(name)
    return names_by_block


def assert_promise_kept(graph: Graph) -> None:
    """Assert that names begin with their block's, and blocks of one template differ in it only."""
    graph.validate()
    makers = {name: op for op in graph.ops for name in op.outputs}
    standing: dict[str, list[object]] = {}
    for block in graph.blocks:
        inside: list[object] = []
        for op in graph.ops:
            if op.block != block:
                continue
            assert op.name.startswith(f"{block}."), op.name
            assert all(name.startswith(f"{block}.") for name in op.outputs), op.outputs
            read_names = [
                name.removeprefix(block) if makers[name].block == block else ""
                for name in op.inputs
            ]
            names = [name.removeprefix(block) for name in (op.name, *op.outputs)]
            inside.append((*names, op.kind, op.labels, op.phase, read_names))
        assert inside, f"{block} is empty"
        assert standing.setdefault(graph.templates[block], inside) == inside
    assert GLOBAL_BLOCK not in graph.blocks
