"""The table of nodes that are understood: one rule per kind."""

from collections.abc import Callable

from models.importers.onnx.lowering import Lowering
from models.importers.onnx.reading import Node
from models.importers.onnx.rules import attention, images, layout, norms, pointwise, products
from models.importers.onnx.values import Traced

Rule = Callable[[Lowering, Node], Traced | tuple[Traced, ...]]

RULES: dict[str, Rule] = {
    "Add": pointwise.add,
    "Attention": attention.attention_node,
    "AveragePool": images.pool,
    "BatchNormalization": norms.batch_norm,
    "Cast": pointwise.cast,
    "CastLike": pointwise.cast,
    "Clip": pointwise.clip,
    "Concat": layout.concat,
    "Conv": images.conv,
    "Cos": pointwise.function("cos"),
    "Div": pointwise.div,
    "Dropout": pointwise.dropout,
    "Exp": pointwise.function("exp"),
    "Expand": layout.expand,
    "Flatten": layout.flatten,
    "Gather": layout.gather,
    "Gelu": pointwise.gelu,
    "Gemm": products.gemm,
    "GlobalAveragePool": images.global_average,
    "HardSigmoid": pointwise.hard_sigmoid,
    "HardSwish": pointwise.hard_swish,
    "Identity": layout.identity,
    "LayerNormalization": norms.layer_norm,
    "LeakyRelu": pointwise.leaky_relu,
    "Log": pointwise.function("log"),
    "LogSoftmax": norms.softmax,
    "MatMul": products.matmul,
    "Max": pointwise.extreme,
    "MaxPool": images.pool,
    "Min": pointwise.extreme,
    "Mul": pointwise.mul,
    "Neg": pointwise.neg,
    "PRelu": pointwise.prelu,
    "Pow": pointwise.power,
    "RMSNormalization": norms.rms_normalization,
    "Reciprocal": pointwise.function("reciprocal"),
    "ReduceMean": layout.reduced,
    "ReduceSum": layout.reduced,
    "Relu": pointwise.function("relu"),
    "Reshape": layout.reshape,
    "Sigmoid": pointwise.function("sigmoid"),
    "SimplifiedLayerNormalization": norms.rms_normalization,
    "Sin": pointwise.function("sin"),
    "Slice": layout.slice_,
    "Softmax": norms.softmax,
    "Softplus": pointwise.function("softplus"),
    "Split": layout.split,
    "Sqrt": pointwise.function("sqrt"),
    "Squeeze": layout.squeeze,
    "Sub": pointwise.sub,
    "Swish": pointwise.swish,
    "Tanh": pointwise.function("tanh"),
    "Transpose": layout.transpose,
    "Unsqueeze": layout.unsqueeze,
    "Where": pointwise.where,
}
