"""Blocks found by structure: the same mathematics, the borders where least crosses them."""

from string import ascii_lowercase

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.models.blocks import cut, with_blocks
from millrace.models.builder import dropout
from millrace.models.errors import ModelError
from millrace.models.graph import Graph
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.training import training_graph
from millrace.models.zoo.catalogue import build, model_spec
from tests.models.blocks.cases import (
    assert_promise_kept,
    crossing,
    encoder_decoder,
    ended,
    layer,
    partition,
    shared_weights,
    stack,
    started,
    stripped,
    towers,
)
from tests.models.oracle import random_values, run


def tiny_gpt() -> Graph:
    config = {"layers": 3, "hidden": 8, "heads": 2, "ffn_hidden": 12, "vocab": 7, "positions": 5}
    spec = ModelSpec(name="tiny", family="gpt", config=config, seq_len=4, precision="fp64")
    return build(spec, 2)


def letters(graph: Graph) -> str:
    """The templates of the blocks in order, a letter each."""
    names = dict.fromkeys(graph.templates.values())
    letter_by_template = dict(zip(names, ascii_lowercase, strict=False))
    return "".join(letter_by_template[graph.templates[block]] for block in graph.blocks)


@pytest.mark.parametrize("name", ["bert-demo", "vit-demo", "t5-demo", "resnet-34", "deepseek-v3"])
def test_a_model_of_the_zoo_is_cut_where_its_builder_did(name: str) -> None:
    graph = build(model_spec(name), 2)
    recut = with_blocks(stripped(graph, seed=1))
    assert partition(recut) == partition(graph)
    assert letters(recut) == letters(graph)
    assert_promise_kept(recut)


@pytest.mark.parametrize("name", ["gpt-demo", "gpt2-xl", "mlp"])
def test_a_single_row_of_layers_lies_between_stem_and_head(name: str) -> None:
    graph = build(model_spec(name), 2)
    recut = with_blocks(stripped(graph, seed=1))
    assert partition(recut) == partition(graph)
    assert [block.partition(".")[0] for block in recut.blocks] == [
        "stem",
        *["layer"] * (len(graph.blocks) - 2),
        "head",
    ]
    assert letters(recut) == letters(graph)


def test_only_the_residual_stream_crosses_the_borders_of_a_transformer() -> None:
    graph = build(model_spec("gpt2-small"), 2)
    read = crossing(with_blocks(stripped(graph)))
    layers = [names for block, names in read.items() if block.startswith("layer")]
    assert [len(names) for names in layers] == [1] * 12
    assert {name.partition(".")[2].split(".", 1)[1] for names in layers for name in names} == {
        "mlp.residual"
    }


@pytest.mark.parametrize(
    "graph",
    [tiny_gpt(), stack("ABAB"), encoder_decoder(3), shared_weights(3)],
    ids=["gpt", "alternating", "encoder and decoder", "shared weights"],
)
def test_cutting_changes_neither_order_nor_mathematics(graph: Graph) -> None:
    given_names = stripped(graph, seed=2)
    cutting = cut(given_names)
    assert_promise_kept(cutting.graph)
    assert [op.kind for op in cutting.graph.ops] == [op.kind for op in given_names.ops]
    assert set(cutting.names) == set(given_names.tensors_by_name)
    before = run(given_names, random_values(given_names, 3))
    values = {cutting.names[name]: value for name, value in random_values(given_names, 3).items()}
    after = run(cutting.graph, values)
    for name, value in before.items():
        np.testing.assert_array_equal(after[cutting.names[name]], value)


@pytest.mark.parametrize(
    "graph", [tiny_gpt(), stack("ABABAB"), encoder_decoder(2)], ids=["gpt", "alternating", "both"]
)
def test_names_and_blocks_given_do_not_change_the_cut(graph: Graph) -> None:
    cuts = [
        partition(with_blocks(variant)) for variant in (graph, stripped(graph), stripped(graph, 4))
    ]
    assert cuts[0] == cuts[1] == cuts[2]
    again = with_blocks(with_blocks(graph))
    assert partition(again) == cuts[0]


@pytest.mark.parametrize(
    "graph", [tiny_gpt(), encoder_decoder(3), shared_weights(3)], ids=["gpt", "both", "shared"]
)
def test_weights_and_inputs_may_come_before_everything_else(graph: Graph) -> None:
    late = stripped(graph, seed=6)
    sources = ("variable", "narrow", "repeat", "input")
    early = sorted(late.ops, key=lambda op: op.kind not in sources)
    moved = msgspec.structs.replace(late, ops=tuple(early))
    homes = []
    for variant in (late, moved):
        cutting = cut(variant)
        makers = {name: op for op in cutting.graph.ops for name in op.outputs}
        homes.append({old: makers[new].block for old, new in cutting.names.items()})
    assert homes[0] == homes[1]


@pytest.mark.parametrize(
    ("acts", "expected"),
    [
        ("AAAA", "abbbbc"),
        ("ABABAB", "abbbc"),
        ("AAABBB", "abbbcccd"),
        ("AAACBBB", "abbbcddde"),
        ("AACAA", "abbcbbd"),
        ("ABC", "a"),
        ("AABAABAAB", "abbbc"),
    ],
)
def test_rows_of_layers_become_blocks_and_the_rest_stands_alone(acts: str, expected: str) -> None:
    graph = with_blocks(stripped(stack(acts), seed=0))
    assert letters(graph) == expected
    assert_promise_kept(graph)


def test_encoder_and_decoder_are_two_rows() -> None:
    graph = with_blocks(stripped(encoder_decoder(4), seed=0))
    assert letters(graph) == "abbbbcdddde"
    assert len(crossing(graph)["layer1.0"]) == 1
    assert len(crossing(graph)["layer2.0"]) == 2  # the decoder's stream and the encoder's end


def test_a_weight_that_all_layers_share_lies_before_them() -> None:
    graph = with_blocks(stripped(shared_weights(4)))
    assert letters(graph) == "abbbbc"
    assert next(op.block for op in graph.ops if op.name.endswith(".weight")) == "stem"


def test_a_tied_table_stays_where_it_is_read_first() -> None:
    graph = with_blocks(stripped(tiny_gpt()))
    tables = [op.block for op in graph.ops if op.name.endswith("tokens.weight")]
    uses = [op.block for op in graph.ops if op.name.endswith("tokens.weight.repeat")]
    assert (tables, uses) == (["stem"], ["stem", "head"])


def test_branches_side_by_side_are_not_a_row() -> None:
    graph = with_blocks(stripped(tiny_gpt()))
    per_layer = [op for op in graph.ops if op.block == "layer.0" and op.kind == "attention"]
    assert len(per_layer) == 1
    assert len(graph.blocks) == 5


def test_equal_rows_in_two_places_share_a_template() -> None:
    graph = with_blocks(stripped(towers(3), seed=0))
    assert letters(graph) == "abbbabbbc"
    assert_promise_kept(graph)


def test_old_names_live_on_where_they_tell_the_ops_apart() -> None:
    graph = with_blocks(stripped(stack("AAA")))
    names = {op.name for op in graph.ops if op.block == "layer.1"}
    assert "layer.1.fc.weight" in names
    nameless = with_blocks(stripped(stack("AAA"), seed=5))
    assert {op.name for op in nameless.ops if op.block == "layer.1" and op.kind == "matmul"} == {
        "layer.1.matmul.2"
    }


def test_dropout_goes_on_naming_the_op_that_draws_its_bits() -> None:
    builder, x = started()
    for index in range(4):
        x = dropout(builder, f"drop{index}", layer(builder, f"part{index}", x, "relu"), "b n", 0.5)
    graph = with_blocks(stripped(ended(builder, x)))
    drops = [op for op in graph.ops if op.kind == "dropout"]
    assert [op.attributes["op"] for op in drops] == [op.name for op in drops]
    assert letters(graph) == "abbbc"


def test_a_training_graph_is_refused() -> None:
    with pytest.raises(ModelError, match="cut it before its gradients are added"):
        with_blocks(training_graph(tiny_gpt(), TrainingSpec()))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.text("ABC", min_size=1, max_size=3), st.integers(1, 4)),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 99),
)
def test_repeated_segments_are_found_whatever_they_are(
    segments: list[tuple[str, int]], seed: int
) -> None:
    acts = "".join(letters * times for letters, times in segments)
    given_graph = stripped(stack(acts), seed)
    graph = with_blocks(given_graph)
    assert_promise_kept(graph)
    assert [op.kind for op in graph.ops] == [op.kind for op in given_graph.ops]
    repeated = [block for block in graph.blocks if graph.templates[block] != block]
    inside = sum(op.kind in ("relu", "gelu", "tanh") for op in graph.ops if op.block in repeated)
    if any(times > 1 for _, times in segments):
        longest = max(times * len(letters) for letters, times in segments if times > 1)
        assert inside >= longest
