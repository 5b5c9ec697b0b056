"""Importing ONNX files: what is a parameter, what the batch and the sequence, what is refused."""

import re
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.models.errors import ModelError
from millrace.models.graph import Graph, with_batch
from millrace.models.importers.onnx import import_file
from millrace.models.importers.onnx.folding import FOLDS
from millrace.models.importers.onnx.rules.node_rules import RULES
from millrace.models.type_inference import check_graph
from tests.models.importers.onnx_files import (
    CONVOLUTION,
    EMBEDDED,
    MASKS,
    MLP,
    ONE_NODE,
    attention_text,
    onnx,
    parsed,
    saved,
    with_weights,
)
from tests.models.torch_parity.machinery import run_ours

TEXTS = {"mlp": MLP, "convolution": CONVOLUTION, "attention": attention_text("where")}


def kinds(graph: Graph) -> list[str]:
    return [op.kind for op in graph.ops]


def random_data(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    by_source = {}
    for op in graph.ops:
        if op.kind == "input":
            shape = graph.tensor(op.outputs[0]).shape
            values = int(op.attributes["values"])
            by_source[str(op.attributes["source"])] = (
                generator.integers(0, values, shape).astype("int32")
                if values
                else generator.normal(0, 1, shape).astype("float32")
            )
    return by_source


def test_weights_are_variables_of_their_own_shape_and_value(tmp_path):
    model = with_weights(parsed(MLP))
    imported = import_file(saved(model, tmp_path / "mlp.onnx"))
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    assert {p.initializer for p in imported.parameters.values()} == {"w1", "b1", "w2"}
    for name, parameter in imported.parameters.items():
        assert imported.graph.tensor(name).shape == arrays[parameter.initializer].shape
        np.testing.assert_array_equal(imported.values[name], arrays[parameter.initializer])
    assert imported.graph.parameter_count == 8 * 6 + 8 + 8 * 4
    assert imported.graph.name == "mlp"


@pytest.mark.parametrize("case", TEXTS)
def test_weights_that_are_not_there_leave_the_same_graph(tmp_path, case):
    path = saved(with_weights(parsed(TEXTS[case])), tmp_path / "model.onnx", beside=True)
    seq_len = 5 if case == "attention" else None
    complete = import_file(path, seq_len=seq_len)
    (tmp_path / "model.onnx.data").unlink()
    bare = import_file(path, seq_len=seq_len)
    assert complete.values is not None
    assert bare.values is None
    assert bare.graph == complete.graph
    assert bare.parameters == complete.parameters


@pytest.mark.parametrize("case", TEXTS)
def test_the_graph_is_that_of_any_batch(tmp_path, case):
    path = saved(with_weights(parsed(TEXTS[case])), tmp_path / "model.onnx")
    imported = import_file(path, seq_len=5 if case == "attention" else None)
    losses = []
    four = random_data(with_batch(imported.graph, 4))
    for size in (1, 4):
        graph = check_graph(with_batch(imported.graph, size))
        data = {name: values[:size] for name, values in four.items()}
        losses.append(run_ours(graph, imported.values, data)[0])
    if case != "convolution":  # whose batch norm looks at all samples
        alone = [
            run_ours(imported.graph, imported.values, {k: v[n : n + 1] for k, v in four.items()})[0]
            for n in range(4)
        ]
        assert losses == pytest.approx([alone[0], sum(alone)], rel=1e-5)


def test_a_fixed_batch_is_the_first_dim(tmp_path):
    model = with_weights(parsed(MLP.replace("batch", "2")))
    open_one = import_file(saved(with_weights(parsed(MLP)), tmp_path / "mlp.onnx"))
    fixed = import_file(saved(model, tmp_path / "fixed.onnx"), name="mlp")
    assert fixed.graph.batch == 2
    assert with_batch(fixed.graph, 1) == open_one.graph


@pytest.mark.parametrize("mask", MASKS)
def test_attention_written_out_is_the_op_of_one_node(tmp_path, mask):
    text = EMBEDDED.replace("{HEADS}", ONE_NODE)
    single = import_file(saved(with_weights(parsed(text, 23)), tmp_path / "one.onnx"), seq_len=5)
    model = with_weights(parsed(attention_text(mask)))
    spelled = import_file(saved(model, tmp_path / "spelled.onnx"), seq_len=5)
    for imported in (single, spelled):
        (op,) = (op for op in imported.graph.ops if op.kind == "attention")
        assert op.attributes == {"causal": True, "scale": 0.5}
        assert "softmax" not in kinds(imported.graph)
        assert imported.graph.tokens_per_sample == 5
    data = random_data(single.graph)
    assert run_ours(single.graph, single.values, data)[0] == pytest.approx(
        run_ours(spelled.graph, spelled.values, data)[0], rel=1e-6
    )


def test_a_tied_table_is_one_variable(tmp_path):
    model = with_weights(parsed(attention_text("add")))
    imported = import_file(saved(model, tmp_path / "tied.onnx"), seq_len=5)
    assert kinds(imported.graph).count("variable") == 1 + 3 + 1
    (tokens,) = (op for op in imported.graph.ops if op.attributes.get("source") == "tokens")
    assert tokens.attributes["values"] == 20


def test_a_fused_projection_is_a_variable_per_piece(tmp_path):
    model = with_weights(parsed(attention_text("add")))
    imported = import_file(saved(model, tmp_path / "fused.onnx"), seq_len=5)
    fused = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}["wq"]
    pieces = {
        parameter.piece.start: imported.values[name]
        for name, parameter in imported.parameters.items()
        if parameter.initializer == "wq"
    }
    np.testing.assert_array_equal(np.concatenate([pieces[0], pieces[8], pieces[16]], 1), fused)
    assert "narrow" not in kinds(imported.graph)


def test_a_projection_that_is_read_whole_as_well_is_not_cut(tmp_path):
    text = attention_text("add").replace("x = Add (e, o)", "x1 = Add (e, o) x = Add (x1, rest)")
    text = text.replace("o = MatMul", "rest = ReduceMean (qkv, axis) o = MatMul")
    text = text.replace("e = Gather", "axis = Constant <value_ints = [2]> () e = Gather")
    model = with_weights(parsed(text))
    imported = import_file(saved(model, tmp_path / "whole.onnx"), seq_len=5)
    assert {p.piece for p in imported.parameters.values()} == {None}
    assert kinds(imported.graph).count("narrow") == 3


def test_repeated_layers_become_blocks_of_one_template(tmp_path):
    layers, weights = "", []
    for n in range(4):
        weights += [f"float[6, 6] w{n}", f"float[6] b{n}"]
        layers += f"m{n} = MatMul (x{n}, w{n}) a{n} = Add (m{n}, b{n}) x{n + 1} = Relu (a{n})\n"
    text = (
        f"deep (float[batch, 6] x0) => (float[batch, 5] y) <{', '.join(weights)}, float[6, 5] w>"
        f"{{ {layers} y = MatMul (x4, w) }}"
    )
    imported = import_file(saved(with_weights(parsed(text)), tmp_path / "deep.onnx"))
    templates = list(imported.graph.templates.values())
    assert templates.count("layer") >= 3
    assert set(imported.values) == set(imported.parameters)
    assert run_ours(imported.graph, imported.values, random_data(imported.graph))[0] > 0


def test_a_logistic_loss_reads_one_number_a_sample(tmp_path):
    text = "clicks (float[batch, 6] x) => (float[batch, 1] y) <float[6, 1] w> { y = MatMul (x, w) }"
    path = saved(with_weights(parsed(text)), tmp_path / "clicks.onnx")
    imported = import_file(path, loss="logistic")
    assert "logistic_loss" in kinds(imported.graph)
    with pytest.raises(ModelError, match="there is no loss `square`"):
        import_file(path, loss="square")


def test_all_nodes_that_are_not_supported_are_named_at_once(tmp_path):
    text = """
    odd (float[batch, 6] x) => (float[batch, 6] y) <float[6, 6] w> {
        a = Celu (x)
        b = MatMul (a, w)
        c = Selu (b)
        y = Add (a, c)
    }
    """
    model = with_weights(parsed(text))
    for node in model.graph.node:
        node.name = f"/encoder/part/{node.op_type}"
    path = saved(model, tmp_path / "odd.onnx")
    with pytest.raises(ModelError) as caught:
        import_file(path)
    message = str(caught.value)
    assert "2 nodes are not supported" in message
    assert "Celu `/encoder/part/Celu` (in `encoder.part`)" in message
    assert "Selu `/encoder/part/Selu` (in `encoder.part`)" in message


REFUSED = {
    "asymmetric pads": (
        CONVOLUTION.replace("pads = [1, 1, 1, 1]", "pads = [0, 0, 1, 1]"),
        "Conv `a` has asymmetric pads",
    ),
    "padding by name": (
        CONVOLUTION.replace("pads = [1, 1, 1, 1]", 'auto_pad = "SAME_UPPER"'),
        "Conv `a` has auto_pad SAME_UPPER",
    ),
    "open sequence": (attention_text("add"), "give a sequence length"),
    "open image": (
        CONVOLUTION.replace("3, 8, 8] x", "3, rows, 8] x"),
        "dim 2 (`rows`) has no size",
    ),
    "lost batch": (
        MLP.replace("y = MatMul (h, w2)", "s = ReduceMean (h) y = MatMul (s, w2)"),
        "reduces over the batch",
    ),
    "no weight fits": (MLP.replace("float[8, 4] w2", "float[7, 4] w2"), "(13, 8) times (7, 4)"),
    "lacking attribute": (
        MLP.replace("h = Relu (a)", "h = Concat (a, a)"),
        "lacks attribute `axis`",
    ),
    "unknown tensor": (MLP.replace("Relu (a)", "Relu (c)"), "before any node makes it"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_imported_is_refused_with_its_reason(tmp_path, case):
    text, reason = REFUSED[case]
    path = saved(with_weights(parsed(text)), tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=re.escape(reason)):
        import_file(path)


def test_old_opsets_are_refused(tmp_path):
    path = saved(with_weights(parsed(MLP, 13)), tmp_path / "old.onnx")
    with pytest.raises(ModelError, match="is of opset 13; 17 or newer is read"):
        import_file(path)


def test_a_file_that_is_not_there_or_no_onnx_is_refused(tmp_path):
    with pytest.raises(ModelError, match="cannot be read"):
        import_file(tmp_path / "none.onnx")
    path = tmp_path / "text.onnx"
    path.write_text("no model")
    with pytest.raises(ModelError, match="not an ONNX file"):
        import_file(path)


def test_data_outside_of_the_folder_are_not_read(tmp_path):
    path = saved(with_weights(parsed(MLP)), tmp_path / "mlp.onnx", beside=True)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../secret"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="lie outside its folder"):
        import_file(path)


def test_a_name_that_is_no_text_is_refused(tmp_path):
    path = saved(with_weights(parsed(MLP)), tmp_path / "mlp.onnx")
    path.write_bytes(path.read_bytes().replace(b"\x01x", b"\x01\xff"))
    with pytest.raises(ModelError, match="a name in it is not UTF-8 text"):
        import_file(path)


def imports_or_refuses(path, case: str) -> None:
    """Assert that a file, whatever is in it, is imported or refused with a ModelError."""
    with suppress(ModelError):
        check_graph(import_file(path, seq_len=5 if case == "attention" else None).graph)


SLOW = settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@SLOW
@given(data=st.data())
def test_bytes_changed_at_random_never_give_a_traceback(tmp_path, data):
    case = data.draw(st.sampled_from(sorted(TEXTS)))
    content = bytearray(with_weights(parsed(TEXTS[case])).SerializeToString())
    for _ in range(data.draw(st.integers(1, 8))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] = data.draw(st.integers(0, 255))
    path = tmp_path / "model.onnx"
    path.write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    imports_or_refuses(path, case)
    path.write_bytes(bytes(content))
    imports_or_refuses(path, case)


@SLOW
@given(data=st.data())
def test_models_with_parts_missing_or_exchanged_never_give_a_traceback(tmp_path, data):
    case = data.draw(st.sampled_from(sorted(TEXTS)))
    model = with_weights(parsed(TEXTS[case]))
    graph = model.graph
    for _ in range(data.draw(st.integers(1, 4))):
        node = data.draw(st.sampled_from(list(graph.node)))
        change = data.draw(
            st.sampled_from(["attribute", "input", "kind", "node", "number", "swap"])
        )
        if change == "attribute" and node.attribute:
            del node.attribute[data.draw(st.integers(0, len(node.attribute) - 1))]
        elif change == "input" and node.input:
            del node.input[data.draw(st.integers(0, len(node.input) - 1))]
        elif change == "kind":
            node.op_type = data.draw(st.sampled_from(sorted({*RULES, *FOLDS})))
        elif change == "node" and len(graph.node) > 1:
            graph.node.remove(node)
        elif change == "number":
            for attribute in node.attribute:
                attribute.i = data.draw(st.integers(-(2**40), 2**40))
                attribute.ints[:] = data.draw(st.lists(st.integers(-9, 9), max_size=5))
        elif change == "swap" and node.input:
            names = [name for other in graph.node for name in (*other.input, *other.output)]
            node.input[0] = data.draw(st.sampled_from(sorted(set(names))))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    imports_or_refuses(path, case)


DESCRIBED = """
tokens (int64[batch, seq] ids, int64[batch, seq] attention_mask, int64[batch, seq] position_ids,
        int64[batch, seq] token_type_ids) => (float[batch, seq, 20] y)
<float[20, 8] table, float[9, 8] positions, float[2, 8] types, float[8, 20] head> {
    e = Gather (table, ids)
    p = Gather (positions, position_ids)
    s = Gather (types, token_type_ids)
    ep = Add (e, p)
    x = Add (ep, s)
    k = Transpose <perm = [0, 2, 1]> (x)
    scores = MatMul (x, k)
    axes = Constant <value_ints = [1]> ()
    row = Unsqueeze (attention_mask, axes)
    visible = Cast <to = 1> (row)
    one = Constant <value_float = 1.0> ()
    hidden = Sub (one, visible)
    least = Constant <value_float = -1e9> ()
    mask = Mul (hidden, least)
    masked = Add (scores, mask)
    weights = Softmax (masked)
    mixed = MatMul (weights, x)
    y = MatMul (mixed, head)
}
"""


def test_masks_positions_and_types_are_those_of_one_whole_sequence(tmp_path):
    path = saved(with_weights(parsed(DESCRIBED)), tmp_path / "described.onnx")
    imported = import_file(path, seq_len=5)
    sources = {op.attributes["source"] for op in imported.graph.ops if op.kind == "input"}
    assert sources == {"tokens", "masked_targets"}
    (attention,) = (op for op in imported.graph.ops if op.kind == "attention")
    assert attention.attributes["causal"] is False
    starts = {op.name: op.attributes["start"] for op in imported.graph.ops if op.kind == "narrow"}
    assert set(starts.values()) == {0}
    data = random_data(imported.graph)
    session = onnx.reference.ReferenceEvaluator(onnx.load(path))
    ids = data["tokens"].astype("int64")
    given = {"attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    given |= {"ids": ids, "position_ids": np.arange(5)[None]}
    (logits,) = session.run(None, given)
    target_logits = np.take_along_axis(logits, data["masked_targets"][..., None].astype(int), -1)[
        ..., 0
    ]
    loss = float((np.log(np.exp(logits).sum(-1)) - target_logits).sum())
    assert run_ours(imported.graph, imported.values, data)[0] == pytest.approx(loss, rel=1e-5)


def test_an_encoder_and_a_decoder_read_source_and_target(tmp_path):
    text = """
    pair (int64[batch, 6] input_ids, int64[batch, 4] decoder_input_ids) => (float[batch, 4, 20] y)
    <float[20, 8] table, float[8, 20] head> {
        e = Gather (table, input_ids)
        d = Gather (table, decoder_input_ids)
        t = Transpose <perm = [0, 2, 1]> (e)
        scores = MatMul (d, t)
        weights = Softmax (scores)
        mixed = MatMul (weights, e)
        y = MatMul (mixed, head)
    }
    """
    imported = import_file(saved(with_weights(parsed(text)), tmp_path / "pair.onnx"))
    inputs = {op.attributes["source"] for op in imported.graph.ops if op.kind == "input"}
    assert inputs == {"source_tokens", "decoder_tokens", "decoder_targets"}
    assert "attention" in kinds(imported.graph)


def test_a_mask_and_a_number_kept_in_the_file_are_not_trained(tmp_path):
    model = with_weights(parsed(EMBEDDED.replace("{HEADS}", KEPT_MASK)))
    mask = np.triu(np.full((5, 5), -1e9, "float32"), 1)
    for name, array in (("mask", mask), ("scale", np.array([0.5], "float32"))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    imported = import_file(saved(model, tmp_path / "kept.onnx"), seq_len=5)
    assert {p.initializer for p in imported.parameters.values()} == {"table", "wq", "wo"}
    (attention,) = (op for op in imported.graph.ops if op.kind == "attention")
    assert attention.attributes == {"causal": True, "scale": 0.5}


KEPT_MASK = """
    t = Transpose <perm = [0, 2, 1]> (k0)
    scores = MatMul (q0, t)
    scaled = Mul (scores, scale)
    masked = Add (scaled, mask)
    weights = Softmax (masked)
    merged = MatMul (weights, v0)
"""
