"""The op table's work, and graphs that break it; its splits are tested on the kernels."""

import re
from typing import Any

import pytest
from msgspec.structs import replace

from millrace.models.errors import ModelError
from millrace.models.gradients import RULES
from millrace.models.graph import Graph, Op, Rate, Tensor
from millrace.models.ops import OPS, model_flops, op_flops, op_work, state_of
from millrace.models.spec import TrainingSpec
from millrace.models.type_inference import check_graph
from millrace.models.zoo.catalogue import build, build_training, model_spec
from tests.models.oracle import KINDS


def test_every_kind_that_computes_has_a_definition_in_the_oracle() -> None:
    without = {"input", "variable", "constant", "fill", "learning_rate", "adamw", "sgd"}
    without |= {"momentum", "newton_schulz", "muon"}
    assert set(KINDS) == set(OPS) - without


def test_exactly_the_differentiable_kinds_have_a_rule() -> None:
    assert set(RULES) == {name for name, kind in OPS.items() if kind.differentiable}


def test_work_of_a_product_counts_two_flops_a_point_and_every_byte_once() -> None:
    work = op_work("matmul", "b k, k n -> b n", {}, [(2, 3), (3, 5)], [(2, 5)], [2, 2], [4])
    assert work == (2 * 2 * 3 * 5, 2 * 6 + 2 * 15 + 4 * 10)


def test_work_of_attention_is_full_and_twice_as_much_backward() -> None:
    q, k, row = (2, 4, 3, 5), (2, 7, 3, 5), (2, 4, 3)
    attributes = {"causal": True, "scale": 1.0}
    given, output = "b t h d!, b s! h d!, b s! h d!", "b t h d!"
    labels = f"{given} -> {output}, b t h"
    forward = op_work("attention", labels, attributes, [q, k, k], [q, row], [4] * 3, [4] * 2)
    labels = f"{given}, {output}, b t h, {output} -> {given}"
    inputs = [q, k, k, q, row, q]
    backward = op_work("attention_grad", labels, attributes, inputs, [q, k, k], [4] * 6, [4] * 3)
    assert forward.flops == 4 * 2 * 3 * 4 * 7 * 5
    assert backward.flops == 2 * forward.flops


# batch 2, 4 queries, 7 keys, 3 groups (of 2 heads) or heads, query dim 5, value dim 11
GROUPED = [(2, 4, 3, 2, 5), (2, 7, 3, 5), (2, 7, 3, 11)]
BIASED = [(2, 4, 3, 5), (2, 7, 3, 5), (2, 7, 3, 11), (3, 4, 7)]


@pytest.mark.parametrize(
    ("kind", "labels", "inputs", "outputs", "products"),
    [
        (
            "attention",
            "b t g r d!, b s! g d!, b s! g u! -> b t g r u!, b t g r",
            GROUPED,
            [(2, 4, 3, 2, 11), (2, 4, 3, 2)],
            2 * 4 * 7 * 3 * 2 * (5 + 11),
        ),
        (
            "attention_grad",
            "b t g r d!, b s! g d!, b s! g u!, b t g r u!, b t g r, b t g r u! "
            "-> b t g r d!, b s! g d!, b s! g u!",
            [*GROUPED, (2, 4, 3, 2, 11), (2, 4, 3, 2), (2, 4, 3, 2, 11)],
            GROUPED,
            2 * 4 * 7 * 3 * 2 * (5 + 11) * 2,
        ),
        (
            "biased_attention",
            "b t h d!, b s! h d!, b s! h u!, h t s! -> b t h u!, b t h",
            BIASED,
            [(2, 4, 3, 11), (2, 4, 3)],
            2 * 4 * 7 * 3 * (5 + 11),
        ),
        (
            "biased_attention_grad",
            "b t h d!, b s! h d!, b s! h u!, h t s!, b t h u!, b t h, b t h u! "
            "-> b t h d!, b s! h d!, b s! h u!, h t s!",
            [*BIASED, (2, 4, 3, 11), (2, 4, 3), (2, 4, 3, 11)],
            BIASED,
            2 * 4 * 7 * 3 * (5 + 11) * 2,
        ),
        (  # 2 images, 3 groups of 5 in and 7 out, window 2 by 4, 9 rows and 10 columns made
            "conv",
            "b (g c) y! x!, (g n) c q! p! -> b (g n) j! i!",
            [(2, 15, 10, 13), (21, 5, 2, 4)],
            [(2, 21, 9, 10)],
            2 * 9 * 10 * 21 * 5 * 2 * 4,
        ),
        (
            "conv_grad_input",
            "b (g n) j! i!, (g n) c q! p! -> b (g c) y! x!",
            [(2, 21, 9, 10), (21, 5, 2, 4)],
            [(2, 15, 10, 13)],
            2 * 9 * 10 * 21 * 5 * 2 * 4,
        ),
        (
            "conv_grad_weight",
            "b (g c) y! x!, b (g n) j! i! -> (g n) c q! p!",
            [(2, 15, 10, 13), (2, 21, 9, 10)],
            [(21, 5, 2, 4)],
            2 * 9 * 10 * 21 * 5 * 2 * 4,
        ),
        ("mul", "b n, n -> b n", [(2, 3), (3,)], [(2, 3)], 0),
        ("matmul", "e b c d, e d f -> e b c f", [(2, 3, 4, 5), (2, 5, 6)], [(2, 3, 4, 6)], 720),
    ],
)
def test_flops_are_two_per_product_counted_by_hand(
    kind: str,
    labels: str,
    inputs: list[tuple[int, ...]],
    outputs: list[tuple[int, ...]],
    products: int,
) -> None:
    assert op_flops(kind, labels, inputs, outputs) == 2 * products


def test_an_embedding_reads_only_the_rows_it_gives() -> None:
    work = op_work(
        "embedding", "b t, v d -> b t d", {}, [(2, 3), (100, 5)], [(2, 3, 5)], [4, 4], [4]
    )
    assert work == (0, 4 * 6 + 4 * 30 + 4 * 30)


def test_an_accumulate_reads_what_it_adds_to() -> None:
    assert op_work("accumulate", "k -> k", {}, [(10,)], [(10,)], [2], [4]).bytes == 20 + 80


@pytest.mark.parametrize(
    ("kind", "attributes", "states"),
    [("adamw", {}, 2), ("sgd", {"momentum": 0.9}, 1), ("sgd", {"momentum": 0.0}, 0)],
)
def test_an_optimizer_reads_and_writes_the_state_it_keeps(
    kind: str, attributes: dict[str, Any], states: int
) -> None:
    assert len(state_of(kind, attributes)) == states
    shapes = [(10,), (10,), (3,), ()]
    work = op_work(kind, "k, k, z!, -> k", attributes, shapes, [(10,)], [4] * 4, [4])
    assert work == (0, 4 * (10 + 10 + 3 + 1) + 40 + 2 * 40 * states)


def test_model_flops_of_gpt2_match_the_formula() -> None:
    spec = model_spec("gpt2-small", seq_len=512)
    layers, hidden, vocab, t, batch = 12, 768, 50257, 512, 3
    products = 2 * batch * t * (layers * 12 * hidden**2 + hidden * vocab)
    attention = 4 * batch * layers * t * t * hidden
    forward = build(spec, batch)
    assert model_flops(forward) == products + attention
    assert model_flops(build_training(spec, TrainingSpec(), batch)) == 3 * (products + attention)


def graph_of(op: Op, *tensors: Tensor) -> Graph:
    sources = [
        Op(
            name=f"make.{tensor.name}",
            kind="variable" if tensor.rate is Rate.STEP else "input",
            inputs=(),
            outputs=(tensor.name,),
            labels="-> k n",
            block="only",
            attributes={
                "source": "features",
                "values": 0,
                "init": "zeros",
                "std": 0,
                "decay": True,
            },
        )
        for tensor in tensors
        if tensor.name not in op.outputs
    ]
    return Graph(
        name="small",
        batch=2,
        tokens_per_sample=1,
        ops=(*sources, op),
        tensors=tensors,
        blocks=("only",),
        templates={"only": "only"},
    )


@pytest.mark.parametrize(
    ("kind", "labels", "rates", "complaint"),
    [
        ("copy", "k n -> k n", "mm", "there is no op kind `copy`"),
        ("row_max", "k n -> k n", "mm", "occurs in expansions only"),
        ("attention", "k n -> k n", "mm", "lacks attribute `causal`"),
        ("relu", "k n -> n k", "mm", "op `only.y`, tensor `y`: label `n` is 4 elsewhere but 2"),
        ("repeat", "k n -> k n", "mm", "made once a microbatch already"),
        ("accumulate", "k n -> k n", "ss", "made once a step already"),
        ("relu", "k n -> k n", "ms", "declared once a step"),
    ],
)
def test_a_graph_that_breaks_its_table_is_refused_with_the_op(
    kind: str, labels: str, rates: str, complaint: str
) -> None:
    rate = {"m": Rate.MICROBATCH, "s": Rate.STEP}
    x = Tensor(name="x", shape=(2, 4), rate=rate[rates[0]])
    y = Tensor(name="y", shape=(2, 4), rate=rate[rates[1]])
    op = Op(name="only.y", kind=kind, inputs=("x",), outputs=("y",), labels=labels, block="only")
    with pytest.raises(ModelError) as refused:
        check_graph(graph_of(op, x, y))
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("batch", "changes", "complaint"),
    [
        (2, {"dtype": "loat32"}, "tensor `y` has dtype `loat32`; choose one of float64, "),
        (2, {"batch_dim": 2}, "tensor `y` has 2 dims, and batch_dim 2 is none of them"),
        (2, {"batch_dim": -1}, "batch_dim -1"),
        (0, {}, "graph `small` is for 0 samples: expected 1 or more"),
    ],
)
def test_a_dtype_a_batch_dim_and_a_batch_that_there_is_not_are_refused(
    batch: int, changes: dict[str, object], complaint: str
) -> None:
    x = Tensor(name="x", shape=(2, 4))
    y = replace(Tensor(name="y", shape=(2, 4)), **changes)
    op = Op(
        name="only.y", kind="relu", inputs=("x",), outputs=("y",), labels="k n -> k n", block="only"
    )
    with pytest.raises(ModelError, match=re.escape(complaint)):
        check_graph(replace(graph_of(op, x, y), batch=batch))


def test_ops_of_mixed_rates_are_told_to_repeat() -> None:
    x, w = Tensor(name="x", shape=(2, 4)), Tensor(name="w", shape=(2, 4), rate=Rate.STEP)
    y = Tensor(name="y", shape=(2, 4))
    op = Op(
        name="only.y",
        kind="add",
        inputs=("x", "w"),
        outputs=("y",),
        labels="k n, k n -> k n",
        block="only",
    )
    with pytest.raises(ModelError, match="with `repeat`"):
        check_graph(graph_of(op, x, w, y))
