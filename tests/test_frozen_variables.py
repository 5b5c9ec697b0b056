"""Frozen variables: what is not trained stays as it began, under every plan, and costs no gradient.

Two models of tokens: adapters of rank 4 beside frozen products (Hu et al., "LoRA", arXiv
2106.09685, section 4.1), and one whose first blocks are frozen whole.

Shape legend: b batch, t tokens, d model, f hidden, r rank, v vocabulary.
"""

import dataclasses
from functools import cache

import numpy as np
import pytest

import millrace
from millrace.executor.data import open_dataset
from millrace.executor.reference import ReferenceResult, run_reference
from millrace.executor.streams import command_buffer, find_races
from millrace.models.builder import GraphBuilder, dense
from millrace.models.errors import ModelError
from millrace.models.graph import Graph, Phase
from millrace.models.ops import op_kind
from millrace.models.spec import ModelSpec, TrainingSpec, graph_spec
from millrace.models.training import training_graph
from millrace.models.zoo.catalogue import build_training, model_spec
from millrace.planner.clusters import parse_cluster
from millrace.planner.compile import compile_plan
from millrace.planner.memory import plan_memory
from millrace.planner.parallel_degrees import roles
from millrace.planner.search import search
from millrace.planner.search.request import SearchRequest
from tests.parallel_runs import assert_trains_as_one_device
from tests.plan_requests import plan_of, request_of
from tests.small_models import small

TOKENS, WIDTH, HIDDEN, RANK, VOCAB = 8, 16, 32, 4, 256
BATCH, STEPS = 4, 2
TRAINING = TrainingSpec(learning_rate=1e-2, clip_norm=0.5, weight_decay=0.1)


def adapted(precision: str = "fp64") -> Graph:
    """Two blocks of frozen products, each beside an adapter; embedding and norms are frozen."""
    builder, x = _embedded("adapted", precision)
    for block in range(2):
        builder.begin_block(f"h.{block}", template="h")
        x = _block(builder, x, frozen=True, rank=RANK)
    return _ended(builder, x)


def half_frozen(precision: str = "fp64", blocks: int = 2) -> Graph:
    """The embedding and the first two of four blocks are frozen: they have no backward pass."""
    builder, x = _embedded("half-frozen", precision, frozen=blocks > 0)
    for block in range(4):
        builder.begin_block(f"h.{block}", template="frozen" if block < blocks else "trained")
        x = _block(builder, x, frozen=block < blocks)
    return _ended(builder, x)


def _embedded(name: str, precision: str, frozen: bool = True) -> tuple[GraphBuilder, str]:
    builder = GraphBuilder(name=name, batch=1, tokens_per_sample=TOKENS, precision=precision)
    builder.begin_block("embed")
    ids = builder.input("tokens", "b t", (1, TOKENS), source="tokens", values=VOCAB)
    table = builder.parameter("table", "v d", (VOCAB, WIDTH), frozen=frozen)
    return builder, builder.apply("embedding", "rows", (ids, table), "b t, v! d -> b t d")


def _block(builder: GraphBuilder, x: str, *, frozen: bool, rank: int = 0) -> str:
    gamma = builder.parameter("gamma", "d", (WIDTH,), init="ones", frozen=frozen)
    normed = builder.apply(
        "rms_norm", "norm", (x, gamma), "b t d!, d! -> b t d!, b t", attributes={"epsilon": 1e-5}
    )
    weight = builder.parameter("up.weight", "d f", (WIDTH, HIDDEN), std=0.3, frozen=frozen)
    up = builder.apply("matmul", "up", (normed, weight), "b t d, d f -> b t f")
    if rank:
        low = dense(builder, "a", normed, "b t d, d r -> b t r", {"r": rank}, std=0.3, bias=False)
        high = dense(builder, "b", low, "b t r, r f -> b t f", {"f": HIDDEN}, std=0.3, bias=False)
        up = builder.apply("add", "adapted", (up, high), "b t f, b t f -> b t f")
    active = builder.apply("gelu", "gelu", (up,), "b t f -> b t f")
    weight = builder.parameter("down.weight", "f d", (HIDDEN, WIDTH), std=0.3, frozen=frozen)
    down = builder.apply("matmul", "down", (active, weight), "b t f, f d -> b t d")
    return builder.apply("add", "out", (x, down), "b t d, b t d -> b t d")


def _ended(builder: GraphBuilder, x: str, frozen: bool = False) -> Graph:
    builder.begin_block("head")
    weight = builder.parameter("weight", "d v", (WIDTH, VOCAB), std=0.3, frozen=frozen)
    logits = builder.apply("matmul", "logits", (x, weight), "b t d, d v -> b t v")
    targets = builder.input("targets", "b t", (1, TOKENS), source="targets", values=VOCAB)
    losses = builder.apply("cross_entropy", "loss", (logits, targets), "b t v!, b t -> b t, b t")
    builder.apply("sum", "loss_sum", (losses,), "b t -> ")
    builder.apply("count_valid", "token_count", (targets,), "b t -> ")
    return builder.build()


MODELS = {"adapted": adapted, "half-frozen": half_frozen}


def spec(name: str, precision: str = "fp64") -> ModelSpec:
    return graph_spec(MODELS[name](precision), precision)


@cache
def reference(name: str) -> ReferenceResult:
    return run_reference(
        build_training(spec(name), TRAINING, 2),
        microbatches=BATCH,
        steps=STEPS,
        dataset=open_dataset(None, spec(name), 0),
        keep_parameters=(0, STEPS),
    )


def search_request(model: ModelSpec, **pins: int) -> SearchRequest:
    return request_of(
        model, 2, 2 * BATCH, training=TRAINING, **{"micro_batch": 2 // pins["dp"], **pins}
    )


def frozen(graph: Graph) -> set[str]:
    return {op.outputs[0] for op in graph.ops if op.kind == "variable" and not op.trains}


def test_what_only_frozen_variables_need_has_no_gradient_and_nothing_updates_them():
    graph = build_training(spec("half-frozen"), TRAINING, 1)
    backward = {op.block for op in graph.ops if op.phase.startswith("backward")}
    assert backward == {"h.2", "h.3", "head"}
    updated = {op.inputs[0] for op in graph.ops if op_kind(op.kind).updates}
    assert updated == {op.outputs[0] for op in graph.ops if op.trains}
    assert len(frozen(graph)) == 7
    frozen_values = VOCAB * WIDTH + 2 * (WIDTH + 2 * WIDTH * HIDDEN)
    assert graph.parameter_count - graph.trained_count == frozen_values
    assert not any(op.phase is Phase.UPDATE and frozen(graph) & set(op.inputs) for op in graph.ops)


@pytest.mark.parametrize("name", ["gpt", "mixtral", "deepseek"])
def test_adapters_of_a_training_begin_with_the_loss_of_the_model_and_train_alone(name):
    model, losses = small(name, "fp64"), []
    for rank in (0, 2):
        training = TrainingSpec(lora_rank=rank, lora_alpha=6.0)
        graph = build_training(model, training, 2)
        trained = {op.outputs[0] for op in graph.ops if op.trains}
        ran = run_reference(
            graph, microbatches=1, steps=2, dataset=open_dataset(None, model, 0),
            keep_parameters=(0, 1),
        )  # fmt: skip
        losses.append(ran.losses)
        before, after = ran.parameters[0], ran.parameters[1]
        changed = {key for key in before if not np.array_equal(before[key], after[key])}
        assert changed <= trained
    assert {variable.rsplit(".", 1)[1] for variable in trained} == {"a", "b"}
    assert {variable for variable in trained if variable.endswith(".b")} <= changed
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-12)
    assert losses[0][1] != losses[1][1]


def test_adapters_beside_every_linear_layer_are_as_many_as_published():
    """Llama 3 8B at rank 16: 41,943,040 (Unsloth's notebook of 2024, all linear layers)."""
    graph = build_training(model_spec("llama3-8b", 8), TrainingSpec(lora_rank=16), 1)
    assert graph.trained_count == 41_943_040


def test_a_plan_with_adapters_of_a_training_trains_as_one_device():
    training = TrainingSpec(lora_rank=2, learning_rate=1e-2)
    for name, pins in (("mixtral", {"tp": 2, "dp": 1, "pp": 1}), ("gpt", PINS["ZeRO 3"])):
        model = small(name, "fp64")
        plan = plan_of(model, 2, 8, training=training, **pins, micro_batch=2)
        graph = build_training(plan.model, plan.training, plan.batch)
        alone = run_reference(
            build_training(model, training, plan.batch), microbatches=plan.microbatches,
            steps=STEPS, dataset=open_dataset(None, model, 0), keep_parameters=(STEPS,),
        )  # fmt: skip
        assert_trains_as_one_device(plan, graph, compile_plan(plan), alone, STEPS)


@pytest.mark.parametrize("name", MODELS)
def test_frozen_variables_stay_and_the_others_train(name):
    before, after = (reference(name).parameters[step] for step in (0, STEPS))
    still = {variable for variable in before if np.array_equal(before[variable], after[variable])}
    assert still == frozen(spec(name).graph)


PINS = {
    "dp": {"dp": 2, "tp": 1, "pp": 1, "zero": 0},
    "tp": {"dp": 1, "tp": 2, "pp": 1},
    "pp": {"dp": 1, "tp": 1, "pp": 2},
    "ZeRO 1": {"dp": 2, "tp": 1, "pp": 1, "zero": 1},
    "ZeRO 3": {"dp": 2, "tp": 1, "pp": 1, "zero": 3},
}


@pytest.mark.parametrize("pins", PINS)
@pytest.mark.parametrize("name", MODELS)
def test_a_plan_with_frozen_variables_trains_as_one_device(name, pins):
    plan = search(search_request(spec(name), **PINS[pins]))
    graph = build_training(plan.model, plan.training, plan.batch)
    assert roles(plan, graph)["zero"] == PINS[pins].get("zero", 0)
    assert_trains_as_one_device(plan, graph, compile_plan(plan), reference(name), STEPS)


def test_memory_counts_no_gradient_and_no_state_of_what_is_frozen():
    kinds = {}
    for name, build in {
        "frozen": half_frozen,
        "trained": lambda p: half_frozen(p, blocks=0),
    }.items():
        request = search_request(graph_spec(build("bf16"), "bf16"), dp=1, tp=1, pp=1, micro_batch=1)
        plan = search(dataclasses.replace(request, cluster=parse_cluster("a100-sxm-80gb:1x1")))
        (memory,) = plan_memory(plan)
        kinds[name] = memory.by_kind
    values = 2 * (WIDTH + 2 * WIDTH * HIDDEN) + VOCAB * WIDTH
    less = {kind: kinds["trained"][kind] - kinds["frozen"][kind] for kind in kinds["frozen"]}
    assert less["optimizer"] == 8 * values
    assert less["gradient"] == 4 * values + 7 * 64  # and a sum of squares of each, in a cache line
    assert less["parameter"] == 4 * values  # float32 beside the 16 bits that are read
    assert less["activation"] > 0  # nothing is kept for a backward pass


def test_a_checkpoint_holds_frozen_variables_for_any_plan_to_go_on_with(tmp_path):
    first, then = (
        search(search_request(spec("half-frozen"), **PINS[kind])) for kind in ("pp", "ZeRO 3")
    )
    losses = millrace.run(first, steps=1, checkpoint=tmp_path).loss
    losses += millrace.run(then, steps=1, checkpoint=tmp_path, resume=True).loss
    assert losses == pytest.approx(reference("half-frozen").losses, rel=1e-9)


def test_plans_in_16_bits_on_gpus_keep_frozen_variables_in_their_place():
    for name in MODELS:
        request = search_request(spec(name, "bf16"), dp=2, tp=1, pp=1, zero=0)
        plan = search(dataclasses.replace(request, cluster=parse_cluster("a100-sxm-80gb:2x1")))
        graph = plan.graph
        actors = compile_plan(plan)
        registers = [
            register
            for register in actors.programs[0].registers
            if register.tensor in frozen(graph)
        ]
        assert {register.dtype for register in registers} == {"bfloat16"}
        assert find_races(actors, command_buffer(actors, (0,))) == []


def test_a_model_without_a_trained_variable_is_refused():
    builder, x = _embedded("still", "fp32")
    with pytest.raises(ModelError, match="graph `still` trains no variable"):
        training_graph(_ended(builder, x, frozen=True), TRAINING)
