"""Choices that an ONNX file leaves open (output, classes, what is trained): said or refused."""

import numpy as np
import pytest

from millrace.executor.data import open_dataset
from millrace.executor.errors import DataError
from millrace.models.errors import ModelError
from millrace.models.spec import graph_spec
from tests.extras import optional

onnx = optional("onnx", "onnx")

from millrace.models.importers.onnx import import_file  # noqa: E402
from millrace.models.importers.opening import open_model  # noqa: E402
from tests.models.importers.onnx_files import MLP, attention_text, parsed, saved, with_weights  # noqa: E402

NOTE = "pkg.torch.export.graph_signature.InputSpec.kind"

TWO_HEADS = """
heads (float[batch, 6] x) => (float[batch, 4] {FIRST}, float[batch, 3] other)
<float[6, 4] w1, float[6, 3] w2> {
    {FIRST} = MatMul (x, w1)
    other = MatMul (x, w2)
}
"""

SHIFTED = """
norm (float[batch, 8] x) => (float[batch, 4] y)
<float[8] gamma, float[8, 4] w> {
    one = Constant <value_float = 1.0> ()
    two = Constant <value_float = 2.0> ()
    epsilon = Constant <value_float = 0.00001> ()
    last = Constant <value = int64[1] {-1}> ()
    square = Pow (x, two)
    mean = ReduceMean <keepdims = 1> (square, last)
    above = Add (mean, epsilon)
    root = Sqrt (above)
    inverse = Reciprocal (root)
    plain = Mul (x, inverse)
    scale = Add (one, gamma)
    normed = Mul (plain, scale)
    y = MatMul (normed, w)
}
"""

TWO_TOWERS = """
towers (float[batch, 6] left, float[batch, 6] right) => (float[batch, 4] y)
<float[6, 4] w> {
    apart = Sub (left, right)
    y = MatMul (apart, w)
}
"""

PIXELS = """
pixels (float[batch, 3, 8, 12] x) => (float[batch, 5, 8, 12] y)
<float[5, 3, 1, 1] w> {
    y = Conv (x, w)
}
"""

ROWS = """
rows (float[batch, 7, 6] x) => (float[batch, 7, 4] y)
<float[6, 4] w> {
    y = MatMul (x, w)
}
"""


def written(tmp_path, text, parameters=()):
    """A file of this text; what is listed is noted as a parameter, as torch.onnx.export does."""
    model = with_weights(parsed(text))
    for info in model.graph.value_info:
        if info.name in parameters:
            info.metadata_props.add(key=NOTE, value="PARAMETER")
    return saved(model, tmp_path / "own.onnx")


def variables(imported):
    graph = imported.graph
    return {
        imported.parameters[op.outputs[0]].initializer: op
        for op in graph.ops
        if op.kind == "variable"
    }


def test_the_loss_is_of_logits_or_of_the_output_that_is_named(tmp_path):
    named = import_file(written(tmp_path, TWO_HEADS.replace("{FIRST}", "logits")))
    assert variables(named).keys() == {"w1"}
    path = written(tmp_path, TWO_HEADS.replace("{FIRST}", "one"))
    for output in ("other", 1):
        assert variables(import_file(path, output=output)).keys() == {"w2"}
    with pytest.raises(
        ModelError, match=r"returns 2 floating tensors .*, and the loss is taken of"
    ):
        import_file(path)
    with pytest.raises(ModelError, match="no floating tensor `third`; choose one of `one`, `othe"):
        import_file(path, output="third")


def test_weights_plus_one_are_trained(tmp_path):
    imported = import_file(written(tmp_path, SHIFTED))
    assert variables(imported).keys() == {"gamma", "w"}
    assert variables(imported)["gamma"].attributes["init"] == "zeros"
    assert "rms_norm" in {op.kind for op in imported.graph.ops}


def test_frozen_weights_are_those_that_patterns_name(tmp_path):
    path = written(tmp_path, MLP)
    variable_ops = variables(import_file(path, frozen=("w1", "b*")))
    assert {name for name, op in variable_ops.items() if not op.trains} == {"w1", "b1"}
    with pytest.raises(ModelError, match="no weight is called `w9`; the first are `w1`, `b1`"):
        import_file(path, frozen=("w9",))


def test_parameters_that_would_become_constants_are_refused_by_name(tmp_path):
    text = SHIFTED.replace("Add (one, gamma)", "Exp (gamma)")
    path = written(tmp_path, text, parameters=("gamma", "w"))
    with pytest.raises(ModelError, match="depends on `gamma` by a computation of constants alone"):
        import_file(path)
    assert variables(import_file(path, frozen=("gamma",))).keys() == {"w"}


def test_inputs_of_one_kind_read_data_of_their_own(tmp_path):
    graph = import_file(written(tmp_path, TWO_TOWERS)).graph
    sources = {op.attributes["source"] for op in graph.ops if op.kind == "input"}
    assert sources == {"input.left", "input.right", "classes"}
    with pytest.raises(DataError, match=r"reads classes, input.left, input.right, which no data"):
        open_dataset(None, graph_spec(graph, "fp32"), 0)


def test_classes_of_images_are_dim_1_and_of_rows_must_be_said(tmp_path):
    imported = import_file(written(tmp_path, PIXELS))
    assert imported.classes_dim == 1
    (targets,) = (op for op in imported.graph.ops if op.name.endswith("targets"))
    assert targets.attributes["values"] == 5
    assert np.prod(imported.graph.tensor(targets.outputs[0]).shape) == 8 * 12
    path = written(tmp_path, ROWS)
    with pytest.raises(
        ModelError, match=r"which dim is classes. Say classes_dim=1 .* classes_dim=2"
    ):
        import_file(path)
    for dim, values in ((1, 7), (2, 4), (-1, 4)):
        imported = import_file(path, classes_dim=dim)
        (targets,) = (op for op in imported.graph.ops if op.name.endswith("targets"))
        assert targets.attributes["values"] == values
    with pytest.raises(ModelError, match="classes_dim=0 is none"):
        import_file(path, classes_dim=0)


def test_one_class_is_refused_with_the_loss_that_is_meant(tmp_path):
    path = written(tmp_path, MLP.replace("8, 4", "8, 1").replace("batch, 4", "batch, 1"))
    with pytest.raises(ModelError, match=r'over one class .* say loss="logistic"'):
        import_file(path)
    graph = import_file(path, loss="logistic").graph
    assert "logistic_loss" in {op.kind for op in graph.ops}


def test_attention_that_looks_both_ways_is_trained_on_masked_text_alone(tmp_path):
    text = attention_text("where").replace("20", "256").replace("batch, seq", "batch, 8")
    causal = import_file(written(tmp_path, text))
    assert causal.notes == ()
    path = written(tmp_path, text.replace("Softmax (masked)", "Softmax (scaled)"))
    imported = import_file(path)
    assert "attention looks both ways" in imported.notes[0]
    told: list[str] = []
    open_model(str(path), told=told.append)
    assert told == [f"`{path}`: {imported.notes[0]}"]
    with pytest.raises(DataError, match="reads masked_targets, tokens, which no data holds"):
        open_dataset(None, graph_spec(imported.graph, "fp32"), 0)
    imported = import_file(path, mask_id=0)
    assert imported.notes == ()
    open_dataset(None, graph_spec(imported.graph, "fp32"), 0)


def test_parameters_of_another_output_are_left_out_and_named(tmp_path):
    text = TWO_HEADS.replace("{FIRST}", "logits")
    imported = import_file(written(tmp_path, text, parameters=("w1", "w2")))
    assert imported.notes == ("the loss does not depend on `w2` (18 values): left out",)
