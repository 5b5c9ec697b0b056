"""The structure of a training graph, shown on a two-layer GPT."""

import msgspec
import pytest

from millrace.models.builder import GraphBuilder
from millrace.models.errors import ModelError
from millrace.models.graph import (
    GLOBAL_BLOCK,
    Graph,
    Op,
    Phase,
    Rate,
    beyond,
    restricted,
    to_json,
    with_batch,
)
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.training import LEARNING_RATE, STEP_TOTALS, check_training, training_graph
from millrace.models.type_inference import check_graph
from millrace.models.zoo.catalogue import NAMES, build, build_training, model_spec

CONFIG = {"layers": 2, "hidden": 8, "heads": 2, "ffn_hidden": 16, "vocab": 11, "positions": 6}


def tiny(precision: str = "fp32", seq_len: int = 4, batch: int = 2, layers: int = 2) -> Graph:
    spec = ModelSpec(
        name="tiny",
        family="gpt",
        config=CONFIG | {"layers": layers},
        seq_len=seq_len,
        precision=precision,
    )
    return build_training(spec, TrainingSpec(), batch)


def by_name(graph: Graph) -> dict[str, Op]:
    return {op.name: op for op in graph.ops}


def of_kind(graph: Graph, kind: str) -> list[Op]:
    return [op for op in graph.ops if op.kind == kind]


def test_every_use_of_a_variable_is_accumulated_once_and_so_are_loss_and_count() -> None:
    graph = tiny()
    uses = [f"{op.name}.accumulate" for op in of_kind(graph, "repeat")]
    sums = ["head.loss_sum.accumulate", "head.token_count.accumulate"]
    assert sorted(op.name for op in of_kind(graph, "accumulate")) == sorted(uses + sums)


def test_the_two_uses_of_the_tied_table_are_added_where_it_lives() -> None:
    graph = tiny()
    added = by_name(graph)["embedding.tokens.weight.grad_sum"]
    assert added.kind == "add"
    assert added.inputs == (
        "embedding.tokens.weight.repeat.accumulate",
        "head.tokens.weight.repeat.accumulate",
    )
    assert (added.block, added.phase) == ("embedding", Phase.UPDATE)
    assert graph.tensor(added.outputs[0]).rate is Rate.STEP
    assert by_name(graph)["embedding.tokens.weight.next"].inputs[1] == added.outputs[0]


def test_positions_that_are_not_used_get_zero_rows_once_a_step() -> None:
    graph = tiny(seq_len=4)
    padded = by_name(graph)["embedding.positions.weight.rows.grad_weight"]
    assert padded.kind == "widen"
    assert padded.phase is Phase.UPDATE
    assert graph.tensor(padded.outputs[0]).shape == (6, 8)
    assert not of_kind(tiny(seq_len=6), "narrow")


def test_clipping_sees_every_gradient_once() -> None:
    graph = tiny()
    totals = by_name(graph)[STEP_TOTALS]
    updates = of_kind(graph, "adamw")
    squared = {op.outputs[0]: op.inputs[0] for op in of_kind(graph, "squared_sum")}
    loss, count, *squares = totals.inputs
    assert (loss, count) == ("head.loss_sum.accumulate", "head.token_count.accumulate")
    assert [squared[name] for name in squares] == [op.inputs[1] for op in updates]
    assert len(set(squares)) == len(of_kind(graph, "variable"))
    assert graph.tensor(totals.outputs[0]).shape == (3,)


def test_every_variable_is_updated_once_by_totals_and_learning_rate() -> None:
    graph = tiny()
    updates = {op.attributes["variable"]: op for op in of_kind(graph, "adamw")}
    assert sorted(updates) == sorted(op.name for op in of_kind(graph, "variable"))
    for name, op in updates.items():
        assert op.inputs[0] == name
        assert op.inputs[2:] == (STEP_TOTALS, LEARNING_RATE)
        assert op.outputs == (f"{name}.next",)
        assert graph.tensor(op.inputs[1]).shape == graph.tensor(str(name)).shape
        decayed = not str(name).endswith("bias") and ".ln" not in str(name)
        assert op.attributes["weight_decay"] == (0.1 if decayed else 0.0), name


def test_phases_follow_each_other() -> None:
    order = {Phase.BACKWARD_INPUT: 2, Phase.BACKWARD_WEIGHT: 2, Phase.UPDATE: 3}
    order |= {Phase.BEGIN: 0, Phase.FORWARD: 1}
    phases = [order[op.phase] for op in tiny().ops]
    assert phases == sorted(phases)
    assert set(phases) == {0, 1, 2, 3}


def test_nothing_waits_for_a_weight_gradient_but_its_accumulation() -> None:
    graph = tiny()
    late = {n for op in graph.ops if op.phase is Phase.BACKWARD_WEIGHT for n in op.outputs}
    readers = [op for op in graph.ops if late & set(op.inputs)]
    assert {op.phase for op in readers} == {Phase.BACKWARD_WEIGHT, Phase.UPDATE}


def test_a_weight_gradient_follows_the_input_gradient_of_its_op() -> None:
    names = [op.name for op in tiny().ops]
    for name in names:
        before, suffix, _ = name.partition(".grad_weight")
        if suffix and f"{before}.grad_input" in names:
            assert names.index(f"{before}.grad_input") == names.index(name) - 1


def test_gradients_of_one_tensor_are_added_in_the_block_that_reads_it_first() -> None:
    ops = by_name(tiny())
    assert ops["h.0.ln1.grad_sum"].block == "h.0"
    assert ops["h.0.ln1.grad_sum"].inputs == ("h.0.ln1.grad_input", "h.0.ln2.grad_sum")
    assert len(ops["h.0.attn.q.matmul.grad_sum"].inputs) == 3


@pytest.mark.parametrize("name", ["mlp", *(name for name in NAMES if name.endswith("-demo"))])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_another_batch_gives_the_graph_built_for_it(name: str, precision: str) -> None:
    spec = model_spec(name, precision=precision)
    three = training_graph(build(spec, 3), TrainingSpec())
    assert with_batch(three, 8) == training_graph(build(spec, 8), TrainingSpec())
    assert with_batch(with_batch(three, 1), 3) == three
    assert build_training(spec, TrainingSpec(), 3) == three


@pytest.mark.parametrize("precision", ["fp64", "fp32", "tf32", "bf16", "fp16"])
def test_gradients_are_wide_once_they_are_added_up(precision: str) -> None:
    graph = tiny(precision)
    wide = "float64" if precision == "fp64" else "float32"
    for op in (*of_kind(graph, "accumulate"), *of_kind(graph, "squared_sum")):
        assert graph.tensor(op.outputs[0]).dtype == wide, op.name
    for op in of_kind(graph, "adamw"):
        assert {graph.tensor(n).dtype for n in (*op.inputs, *op.outputs)} == {wide}, op.name
    narrow = {"bf16": "bfloat16", "fp16": "float16"}.get(precision, wide)
    assert graph.tensor("h.0.mlp.fc1.matmul.grad_weight").dtype == narrow
    assert graph.tensor("h.0.ln1.grad_input").dtype == narrow
    assert graph.tensor("h.0.ln1.mean").dtype == wide


# The smallest of every family, and the deepest.
@pytest.mark.parametrize("name", [n for n in NAMES if "demo" in n or n in ("mlp", "gpt3-175b")])
def test_every_training_graph_of_the_zoo_fits_the_op_table(name: str) -> None:
    graph = check_graph(build_training(model_spec(name, precision="bf16"), TrainingSpec(), 1))
    assert msgspec.json.decode(to_json(graph), type=Graph) == graph


def test_the_same_specification_gives_the_same_bytes() -> None:
    assert to_json(tiny()) == to_json(tiny())


def test_sgd_carries_its_momentum() -> None:
    training = TrainingSpec(optimizer="sgd", momentum=0.9, weight_decay=0.0, clip_norm=0.0)
    graph = build_training(model_spec("mlp"), training, 2)
    updates = of_kind(graph, "sgd")
    assert len(updates) == len(of_kind(graph, "variable"))
    assert {op.attributes["momentum"] for op in updates} == {0.9}
    assert {op.attributes["clip_norm"] for op in updates} == {0.0}


def test_the_schedule_is_in_the_graph() -> None:
    training = TrainingSpec(learning_rate=0.5, warmup_steps=3, decay_steps=9, final_fraction=0.2)
    graph = build_training(model_spec("mlp"), training, 2)
    assert by_name(graph)[LEARNING_RATE].attributes == {
        "learning_rate": 0.5,
        "warmup_steps": 3,
        "decay_steps": 9,
        "final_fraction": 0.2,
    }


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"optimizer": "adam"}, "no optimizer `adam`; choose one of adamw, sgd, muon"),
        ({"beta1": 1.0}, "`beta1` is 1.0; expected 0 <= beta1 < 1"),
        ({"clip_norm": -1.0}, "`clip_norm` is -1.0; expected 0 or more"),
        ({"warmup_steps": 9, "decay_steps": 5}, "`decay_steps` (5) is below `warmup_steps` (9)"),
    ],
)
def test_training_out_of_range_is_refused_by_field(
    change: dict[str, str | float], complaint: str
) -> None:
    with pytest.raises(ModelError) as refused:
        check_training(msgspec.structs.replace(TrainingSpec(), **change))
    assert complaint in str(refused.value)


def test_a_graph_without_a_loss_cannot_be_trained() -> None:
    builder = GraphBuilder(name="bare", batch=1, tokens_per_sample=1)
    builder.begin_block("only")
    builder.input("x", "b k", (1, 2), source="features")
    with pytest.raises(ModelError, match="graph `bare` has 0 ops that are the scalar `sum`"):
        training_graph(builder.build(), TrainingSpec())


def test_a_graph_is_built_for_other_batches_without_a_training_part_too() -> None:
    spec = model_spec("gpt-demo", seq_len=16)
    assert with_batch(build(spec, 2), 6) == build(spec, 6)


def test_blocks_left_out_of_a_graph_are_stood_in_for_by_the_nearest_beyond() -> None:
    graph = tiny(layers=6)
    names = graph.blocks
    assert list(beyond(names, names[2], names[3])) == list(names[3:])
    assert list(beyond(names, names[4], names[3])) == list(names[3::-1])
    staying = (*names[:3], *names[-3:])

    def nearest(reader: str, home: str) -> str | None:
        if reader == GLOBAL_BLOCK:
            return None
        return next(block for block in beyond(names, reader, home) if block in staying)

    assert restricted(graph, names, nearest).ops == graph.ops
    smaller, small = restricted(graph, staying, nearest).validate(), tiny(layers=4)
    assert [(op.kind, len(op.inputs)) for op in smaller.ops] == [
        (op.kind, len(op.inputs)) for op in small.ops
    ]
