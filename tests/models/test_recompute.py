"""Recomputation: which ops are replayed, and that it changes no number."""

from functools import cache

import numpy as np
import pytest

from millrace.models.errors import ModelError
from millrace.models.graph import Graph, Op, Phase, to_json, with_batch
from millrace.models.ops import model_flops, op_kind
from millrace.models.recompute import SUFFIX, USUAL, Selective, with_recompute
from millrace.models.spec import TrainingSpec
from millrace.models.type_inference import check_graph
from millrace.models.zoo.catalogue import build_training
from tests.models.oracle import random_values, run
from tests.small_models import NAMES, small

BACKWARD = (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)
MODES = ("selective", "full")
CORE = Selective(again=("attention", "scores"))
EVERY_SECOND = Selective(keeps=("attention", "products", "dispatch"), every_second=True)
MODULES = Selective(again=("norms", "expert-activations", "latent-projections"))
RULES = (CORE, EVERY_SECOND, MODULES)


@cache
def plain(name: str) -> Graph:
    return build_training(small(name, "fp64"), TrainingSpec(), 2)


def everywhere(graph: Graph, mode: str) -> Graph:
    return check_graph(with_recompute(graph, dict.fromkeys(graph.blocks, mode)))


def clones_of(graph: Graph, block: str) -> list[str]:
    prefix = f"{block}."
    return [
        op.name.removeprefix(prefix).removesuffix(SUFFIX)
        for op in graph.ops
        if op.phase is Phase.RECOMPUTE and op.block == block
    ]


def forward_of(graph: Graph) -> dict[str, Op]:
    return {name: op for op in graph.ops if op.phase is Phase.FORWARD for name in op.outputs}


@pytest.mark.parametrize(
    ("name", "mode", "rule"),
    [
        *((name, mode, USUAL) for name in NAMES for mode in MODES),
        *((name, "selective", rule) for name in ("gpt", "mixtral", "deepseek") for rule in RULES),
    ],
)
def test_every_gradient_and_the_loss_stay_what_they_were(
    name: str, mode: str, rule: Selective
) -> None:
    graph = plain(name)
    values = random_values(graph, 1)
    again = check_graph(with_recompute(graph, dict.fromkeys(graph.blocks, mode), rule))
    expected, actual = run(graph, values), run(again, values)
    compared = 0
    for op in graph.ops:
        if op.kind in ("squared_sum", "step_totals"):
            for tensor in op.inputs:
                assert np.array_equal(actual[tensor], expected[tensor]), tensor
                compared += 1
    assert compared > 2


@pytest.mark.parametrize("name", NAMES)
def test_in_mode_full_backward_keeps_only_what_comes_from_outside_its_block(name: str) -> None:
    graph = everywhere(plain(name), "full")
    makers = forward_of(graph)
    for op in graph.ops:
        if op.phase in (*BACKWARD, Phase.RECOMPUTE):
            for tensor in op.inputs:
                maker = makers.get(tensor)
                inside = maker is not None and maker.block == op.block
                assert not inside or maker.kind in ("repeat", "input") or op.kind == "accumulate"


@pytest.mark.parametrize("name", NAMES)
def test_in_mode_selective_what_products_made_is_kept_too_and_nothing_else(name: str) -> None:
    graph = everywhere(plain(name), "selective")
    makers = forward_of(graph)
    for op in graph.ops:
        if op.phase is Phase.RECOMPUTE:
            assert not op_kind(op.kind).products
        if op.phase in (*BACKWARD, Phase.RECOMPUTE):
            for tensor in op.inputs:
                maker = makers.get(tensor)
                if maker is None or maker.block != op.block or op.kind == "accumulate":
                    continue
                kept_kinds = ("repeat", "input", "dispatch")
                assert maker.kind in kept_kinds or op_kind(maker.kind).products


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_every_clone_is_needed_and_copies_its_op(name: str, mode: str) -> None:
    graph = everywhere(plain(name), mode)
    ops = {op.name: op for op in graph.ops}
    tensors = graph.tensors_by_name
    read = {tensor for op in graph.ops for tensor in op.inputs}
    for clone in graph.ops:
        if clone.phase is not Phase.RECOMPUTE:
            continue
        op = ops[clone.name.removesuffix(SUFFIX)]
        assert read.intersection(clone.outputs), clone.name
        assert (clone.kind, clone.labels, clone.attributes) == (op.kind, op.labels, op.attributes)
        assert tuple(name.removesuffix(SUFFIX) for name in clone.inputs) == op.inputs
        for again, once in zip(clone.outputs, op.outputs, strict=True):
            assert again == once + SUFFIX
            assert tensors[again].shape == tensors[once].shape
            assert tensors[again].dtype == tensors[once].dtype


def test_of_a_layer_of_a_gpt_selective_replays_all_but_products() -> None:
    graph = with_recompute(plain("gpt"), {"h.1": "selective"})
    assert clones_of(graph, "h.1") == [
        "ln1",
        "attn.q",
        "attn.k",
        "attn.v",
        "attn.out",
        "attn.residual",
        "ln2",
        "mlp.fc1",
        "mlp.gelu",
    ]
    assert {op.block for op in graph.ops if op.phase is Phase.RECOMPUTE} == {"h.1"}


@pytest.mark.parametrize(
    ("name", "rule", "clones"),
    [
        ("gpt", CORE, ["attn.core"]),
        ("mixtral", MODULES, ["ln1", "ln2", "experts.active"]),
        ("mixtral", Selective(again=("experts",)), None),
    ],
)
def test_what_selective_replays_can_be_said(
    name: str, rule: Selective, clones: list[str] | None
) -> None:
    graph = with_recompute(plain(name), {"h.1": "selective"}, rule)
    again = clones_of(graph, "h.1")
    if clones is None:
        assert all(op.startswith("experts.") for op in again)
        assert {"experts.dispatch", "experts.gate"} <= set(again)
    else:
        assert again == clones


def test_every_second_product_is_made_again_and_none_of_experts_is_kept() -> None:
    dense = set(clones_of(with_recompute(plain("gpt"), {"h.1": "selective"}, EVERY_SECOND), "h.1"))
    assert {"attn.k.matmul", "attn.out.matmul"} <= dense
    assert not {"attn.q.matmul", "attn.v.matmul", "attn.core", "mlp.fc1.matmul"} & dense
    mixed = clones_of(with_recompute(plain("mixtral"), {"h.1": "selective"}, EVERY_SECOND), "h.1")
    assert {"experts.gate", "experts.up", "experts.down"} <= set(mixed)


def test_a_core_of_attention_that_is_made_again_leaves_its_result_to_the_next_product() -> None:
    graph = with_recompute(plain("gpt"), {"h.1": "selective"}, CORE)
    readers = [op for op in graph.ops if "h.1.attn.core" in op.inputs]
    assert Phase.BACKWARD_WEIGHT in {op.phase for op in readers}
    assert "h.1.attn.core" + SUFFIX not in {name for op in graph.ops for name in op.inputs}


def test_a_part_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="`mlps`, expected some of attention"):
        Selective(again=("mlps",))


def test_the_last_product_of_a_layer_is_not_replayed_for_no_gradient_reads_it() -> None:
    graph = with_recompute(plain("gpt"), {"h.1": "full"})
    clones = clones_of(graph, "h.1")
    assert {"attn.core", "mlp.fc1.matmul"} <= set(clones)
    assert not {"mlp.fc2.matmul", "mlp.residual"} & set(clones)


def test_clones_lie_right_before_the_backward_ops_of_their_block() -> None:
    graph = everywhere(plain("gpt"), "full")
    for block in graph.blocks:
        phases = [op.phase for op in graph.ops if op.block == block and op.kind != "accumulate"]
        again = [position for position, phase in enumerate(phases) if phase is Phase.RECOMPUTE]
        first = next(position for position, phase in enumerate(phases) if phase in BACKWARD)
        assert not again or again == list(range(first - len(again), first))


def test_the_loss_is_never_replaced() -> None:
    graph = everywhere(plain("gpt"), "full")
    (total,) = (op for op in graph.ops if op.kind == "step_totals")
    makers = {name: op for op in graph.ops for name in op.outputs}
    loss, count = (makers[name].inputs[0] for name in total.inputs[:2])
    assert makers[loss].phase is Phase.FORWARD
    assert makers[count].phase is Phase.FORWARD


def test_model_flops_leave_recomputation_out() -> None:
    assert model_flops(everywhere(plain("gpt"), "full")) == model_flops(plain("gpt"))


def test_the_batch_can_be_changed_before_or_after() -> None:
    graph = plain("bert")
    after = with_batch(everywhere(graph, "full"), 6)
    assert to_json(after) == to_json(everywhere(with_batch(graph, 6), "full"))


def test_mode_none_leaves_the_graph_as_it_is() -> None:
    graph = plain("gpt")
    assert to_json(everywhere(graph, "none")) == to_json(graph)


@pytest.mark.parametrize(
    ("modes", "words"),
    [
        ({"h.9": "full"}, "no block `h.9`"),
        ({"h.0": "some"}, "mode `some`; choose one of none, selective, full"),
    ],
)
def test_what_is_not_known_is_refused_by_name(modes: dict[str, str], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        with_recompute(plain("gpt"), modes)


def test_a_graph_that_recomputes_cannot_be_made_to_do_so_again() -> None:
    graph = everywhere(plain("gpt"), "full")
    with pytest.raises(ModelError, match="start from its training graph"):
        with_recompute(graph, {"h.0": "full"})


def test_selective_replay_does_not_send_tokens_to_experts_again() -> None:
    graph = plain("mixtral")
    for mode, sends in (("selective", False), ("full", True)):
        clones = clones_of(with_recompute(graph, {"h.0": mode}), "h.0")
        assert ("experts.dispatch" in clones) == sends
        assert "experts.active" in clones
