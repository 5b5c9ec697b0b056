"""ONNX files written as text, with random weights in them, beside them, or nowhere."""

from pathlib import Path

import numpy as np

from tests.extras import optional

onnx = optional("onnx", "onnx")
optional("onnx.reference", "onnx")

MLP = """
mlp (float[batch, 6] x) => (float[batch, 4] y)
<float[8, 6] w1, float[8] b1, float[8, 4] w2> {
    a = Gemm <transB = 1> (x, w1, b1)
    h = Relu (a)
    y = MatMul (h, w2)
}
"""

CONVOLUTION = """
images (float[batch, 3, 8, 8] x) => (float[batch, 5] y)
<float[4, 3, 3, 3] w1, float[4] gamma, float[4] beta, float[4] mean, float[4] variance,
 float[4, 4, 1, 1] w2, float[5, 4] w3, float[5] b3> {
    a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (x, w1)
    n = BatchNormalization <epsilon = 0.001> (a, gamma, beta, mean, variance)
    r = Relu (n)
    c = Conv (r, w2)
    s = Add (r, c)
    p = GlobalAveragePool (s)
    f = Flatten (p)
    y = Gemm <transB = 1> (f, w3, b3)
}
"""

EMBEDDED = """
tokens (int64[batch, seq] ids) => (float[batch, seq, 20] y)
<float[20, 8] table, float[8, 24] wq, float[8, 8] wo> {
    e = Gather (table, ids)
    qkv = MatMul (e, wq)
    q0, k0, v0 = Split <axis = 2, num_outputs = 3> (qkv)
    {HEADS}
    o = MatMul (merged, wo)
    x = Add (e, o)
    head = Transpose <perm = [1, 0]> (table)
    y = MatMul (x, head)
}
"""

SPELLED_OUT = """
    shape = Constant <value = int64[4] {0, 0, 2, 4}> ()
    q1 = Reshape (q0, shape)
    k1 = Reshape (k0, shape)
    v1 = Reshape (v0, shape)
    q = Transpose <perm = [0, 2, 1, 3]> (q1)
    k = Transpose <perm = [0, 2, 3, 1]> (k1)
    v = Transpose <perm = [0, 2, 1, 3]> (v1)
    scores = MatMul (q, k)
    scale = Constant <value_float = 2.0> ()
    scaled = Div (scores, scale)
    all = Shape (scores)
    last = Constant <value = int64[1] {2}> ()
    end = Constant <value = int64[1] {4}> ()
    square = Slice (all, last, end)
    ones = ConstantOfShape <value = float[1] {1.0}> (square)
    lower = Trilu <upper = 0> (ones)
    one = Constant <value_float = 1.0> ()
    visible = Equal (lower, one)
    {MASKED}
    weights = Softmax (masked)
    mixed = MatMul (weights, v)
    back = Transpose <perm = [0, 2, 1, 3]> (mixed)
    flat = Constant <value = int64[3] {0, 0, 8}> ()
    merged = Reshape (back, flat)
"""

MASKS = {
    "where": """
    least = Constant <value_float = -1e9> ()
    masked = Where (visible, scaled, least)
    """,
    "add": """
    zero = Constant <value_float = 0.0> ()
    least = Constant <value_float = -1e9> ()
    mask = Where (visible, zero, least)
    masked = Add (scaled, mask)
    """,
}

ONE_NODE = """
    merged = Attention <q_num_heads = 2, kv_num_heads = 2, is_causal = 1> (q0, k0, v0)
"""


def attention_text(mask: str) -> str:
    return EMBEDDED.replace("{HEADS}", SPELLED_OUT.replace("{MASKED}", MASKS[mask]))


def parsed(text: str, opset: int = 20):
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]>\n{text}')


def with_weights(model, seed: int = 0):
    """Add an initializer of random values for every tensor that is declared and no node makes."""
    generator = np.random.default_rng(seed)
    computed = {name for node in model.graph.node for name in node.output}
    for info in model.graph.value_info:
        if info.name not in computed:
            shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
            values = np.asarray(generator.normal(0, 0.5, shape), "float32")
            model.graph.initializer.append(onnx.numpy_helper.from_array(values, info.name))
    return model


def saved(model, path: Path, *, beside: bool = False) -> Path:
    """Write a model; `beside`: its weights into a file of their own."""
    onnx.save_model(
        model,
        path,
        save_as_external_data=beside,
        location=f"{path.name}.data" if beside else None,
        size_threshold=0,
    )
    return path
