"""Every kind of node, in a model of its own: the loss is what ONNX's reference gives."""

import numpy as np
import pytest

from millrace.models.graph import with_batch
from millrace.models.importers.onnx import import_file
from tests.extras import optional
from tests.models.importers.onnx_files import onnx, parsed, saved, with_weights
from tests.models.torch_parity.machinery import run_ours

reference = optional("onnx.reference", "onnx")

BATCH = 3

# x is float[batch, 4, 6]; what comes out is y, flattened and brought to 5 classes.
OF_MATRICES = {
    "Abs of constants": "w = Abs (p) z = Mul (x, w) y = Identity (z)",
    "Add broadcast": "y = Add (x, p)",
    "Cast": "z = Cast <to = 11> (x) y = Cast <to = 1> (z)",
    "Clip": "a = Constant <value_float = -0.5> () y = Clip (x, a)",
    "Concat": "y = Concat <axis = 2> (x, x, x)",
    "Cos and Sin": "a = Cos (x) b = Sin (x) y = Mul (a, b)",
    "Div of whole numbers": "a = Constant <value_ints = [-5, 5, -7, 8, 9, 9007199254740993]> () "
    "b = Constant <value_ints = [3, -3, 7, 3, -4, 1]> () c = Div (a, b) "
    "m = Constant <value_ints = [8]> () d = Mod (c, m) f = Cast <to = 1> (d) y = Add (x, f)",
    "Mod": "a = Constant <value_ints = [-5, 5, -7, 8, 9, -10]> () "
    "b = Constant <value_ints = [3, -3, 3, 3, -4, 4]> () c = Mod (a, b) "
    "d = Mod <fmod = 1> (a, b) e = Add (c, d) f = Cast <to = 1> (e) y = Add (x, f)",
    "Div": "one = Constant <value_float = 4.0> () a = Exp (x) b = Div (one, a) c = Div (b, one) "
    "y = Div (c, a)",
    "Flatten": "y = Flatten <axis = -2> (x)",
    "Gather of one entry": "i = Constant <value_int = -1> () y = Gather <axis = 1> (x, i)",
    "Gather of a range": "i = Constant <value_ints = [1, 2]> () y = Gather <axis = 2> (x, i)",
    "Gelu": 'a = Gelu (x) y = Gelu <approximate = "tanh"> (a)',
    "HardSigmoid": "y = HardSigmoid <alpha = 0.3> (x)",
    "HardSwish": "y = HardSwish (x)",
    "LayerNormalization": "y = LayerNormalization <axis = -2> (x, p, p)",
    "LayerNormalization without shift": "y = LayerNormalization (x, v)",
    "LeakyRelu": "y = LeakyRelu <alpha = 0.3> (x)",
    "Log": "a = Exp (x) b = Add (a, a) y = Log (b)",
    "LogSoftmax": "y = LogSoftmax (x)",
    "MatMul of two activations": "t = Transpose <perm = [0, 2, 1]> (x) y = MatMul (x, t)",
    "MatMul with a parameter on the left": "y = MatMul (q, x)",
    "MatMul with a vector": "y = MatMul (x, v)",
    "Max and Min": "a = Constant <value_float = 0.1> () b = Max (x, a) y = Min (a, x)",
    "Neg and Sub": "a = Neg (x) b = Sub (a, p) one = Constant <value_float = 1.0> () "
    "y = Sub (one, b)",
    "PRelu": "y = PRelu (x, v)",
    "Pow": "two = Constant <value_float = 2.0> () a = Pow (x, two) three = "
    "Constant <value_float = 3.0> () y = Pow (a, three)",
    "Reciprocal and Sqrt": "a = Exp (x) b = Sqrt (a) y = Reciprocal (b)",
    "ReduceMean": "y = ReduceMean (x, last)",
    "ReduceSum without its dim": "y = ReduceSum <keepdims = 0> (x, last)",
    "Reshape": "s = Constant <value_ints = [0, 2, -1, 3]> () a = Reshape (x, s) "
    "y = Transpose <perm = [0, 3, 2, 1]> (a)",
    "Reshape across dims": "s = Constant <value_ints = [0, 3, 8]> () a = Reshape (x, s) "
    "y = Softmax (a)",
    "Reshape to rows": "s = Constant <value_ints = [-1, 6]> () a = Reshape (x, s) "
    "b = MatMul (a, m) back = Constant <value_ints = [-1, 4, 6]> () y = Reshape (b, back)",
    "Sigmoid times itself": "a = Sigmoid (x) y = Mul (x, a)",
    "Slice": "a = Constant <value_ints = [1]> () b = Constant <value_ints = [-1]> () "
    "y = Slice (x, a, b, last)",
    "Softmax over another dim": "y = Softmax <axis = 1> (x)",
    "Softplus": "y = Softplus (x)",
    "Split": "a, b = Split <axis = 2, num_outputs = 2> (x) y = Mul (a, b)",
    "Squeeze": "a = Unsqueeze (x, last) b = Add (a, a) y = Squeeze (b, last)",
    "Sub of a mean": "a = ReduceMean (x, last) y = Sub (x, a)",
    "Tanh": "y = Tanh (x)",
    "Tile": "r = Constant <value_ints = [1, 2, 3]> () y = Tile (x, r)",
    "Transpose": "a = Transpose (x) y = Transpose <perm = [2, 0, 1]> (a)",
    "Where": "zero = Constant <value_float = 0.0> () c = Greater (k, zero) least = "
    "Constant <value_float = -2.0> () y = Where (c, x, least)",
}
OF_MATRICES["Concat of a parameter"] = (
    "s = Shape <end = 1> (x) r = Constant <value_ints = [1, 6]> () t = Concat <axis = 0> (s, r) "
    "w = Expand (v, t) y = Concat <axis = 1> (w, x)"
)

# x is float[batch, 4, 6, 6].
OF_IMAGES = {
    "AveragePool": "y = AveragePool <kernel_shape = [3, 3], strides = [2, 1], pads = [1, 1, 1, 1],"
    " count_include_pad = 1> (x)",
    "Conv": "y = Conv <kernel_shape = [3, 3], dilations = [2, 1], pads = [2, 1, 2, 1]> (x, w, b)",
    "Conv by channel": 'y = Conv <group = 4, auto_pad = "VALID"> (x, d)',
    "Conv in groups": "y = Conv <group = 2, strides = [2, 2]> (x, g, b)",
    "GlobalAveragePool": "y = GlobalAveragePool (x)",
    "MaxPool": "y = MaxPool <kernel_shape = [2, 3], strides = [2, 2], pads = [0, 1, 0, 1]> (x)",
    "PRelu by channel": "y = PRelu (x, c)",
}

MATRIX_WEIGHTS = "float[4, 6] p, float[6] v, float[3, 4] q, float[6, 6] m, float[5, 1] h"
IMAGE_WEIGHTS = (
    "float[8, 4, 3, 3] w, float[8] b, float[4, 1, 3, 3] d, float[8, 2, 3, 3] g, float[4, 1, 1] c"
)


def check(tmp_path, body, shape, weights, opset=20):
    dims = ", ".join(str(size) for size in shape)
    last = f"last = Constant <value_ints = [{len(shape)}]> ()"
    text = (
        f"model (float[batch, {dims}] x) => (float[batch, 5] out) <{weights}> {{ {last} {body} }}"
    )
    model = parsed(text.replace(" }", f" {END} }}"), opset)
    signs = np.sign(np.arange(24).reshape(4, 6) % 5 - 2.5).astype("float32")
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["k"], value=tensor(signs)))
    with_weights(model)
    rows = reference_shape(model, shape)
    model.graph.initializer.append(named(np.random.default_rng(1), "head", (rows, 5)))
    imported = import_file(saved(model, tmp_path / "model.onnx"))
    generator = np.random.default_rng(2)
    data = {
        "images" if len(shape) == 3 else "features": generator.normal(0, 1, (BATCH, *shape)).astype(
            "float32"
        ),
        "classes": generator.integers(0, 5, BATCH).astype("int32"),
    }
    loss, _ = run_ours(with_batch(imported.graph, BATCH), imported.values, data)
    (logits,) = reference.ReferenceEvaluator(model).run(None, {"x": next(iter(data.values()))})
    shifted = np.log(np.exp(logits).sum(-1)) - logits[np.arange(BATCH), data["classes"]]
    assert loss == pytest.approx(float(shifted.sum()), rel=1e-4)
    return imported.graph


END = "flat = Flatten (y) out = MatMul (flat, head)"


def tensor(array):
    return onnx.numpy_helper.from_array(array)


def named(generator, name, shape):
    values = generator.normal(0, 0.3, shape).astype("float32")
    return onnx.numpy_helper.from_array(values, name)


def reference_shape(model, shape):
    """Number of y's features once it is flattened."""
    part = onnx.ModelProto()
    part.CopyFrom(model)
    del part.graph.node[-1]
    part.graph.output[0].name = "flat"
    flat = reference.ReferenceEvaluator(part).run(None, {"x": np.ones((2, *shape), "float32")})
    return flat[0].shape[1]


@pytest.mark.parametrize("case", OF_MATRICES)
def test_a_node_on_matrices_is_what_onnx_says(tmp_path, case):
    check(tmp_path, OF_MATRICES[case], (4, 6), MATRIX_WEIGHTS)


@pytest.mark.parametrize("case", OF_IMAGES)
def test_a_node_on_images_is_what_onnx_says(tmp_path, case):
    check(tmp_path, OF_IMAGES[case], (4, 6, 6), IMAGE_WEIGHTS)


def test_an_rms_norm_is_what_onnx_says(tmp_path):
    body = "y = RMSNormalization <epsilon = 0.01> (x, v)"
    graph = check(tmp_path, body, (4, 6), MATRIX_WEIGHTS, opset=23)
    assert sum(op.kind == "rms_norm" for op in graph.ops) == 1


def test_an_rms_norm_written_out_is_one_op(tmp_path):
    body = (
        "two = Constant <value_float = 2.0> () s = Pow (x, two) a = ReduceMean (s, last) "
        "e = Constant <value_float = 0.01> () b = Add (a, e) c = Sqrt (b) d = Div (x, c) "
        "y = Mul (d, v)"
    )
    graph = check(tmp_path, body, (4, 6), MATRIX_WEIGHTS)
    assert sum(op.kind == "rms_norm" for op in graph.ops) == 1
