"""Node rules: one per kind of node that is understood."""

from collections.abc import Callable

from millrace.models.importers.onnx.lowering import OnnxLowering
from millrace.models.importers.onnx.onnx_file import OnnxNode
from millrace.models.importers.onnx.rules import (
    attention_nodes,
    image_nodes,
    layout_nodes,
    norm_nodes,
    pointwise_nodes,
    product_nodes,
)
from millrace.models.importers.onnx.values import Constant, Traced

Rule = Callable[[OnnxLowering, OnnxNode], Traced | Constant | tuple[Traced, ...]]

_FUNCTIONS = (
    "Cos", "Exp", "Log", "Reciprocal", "Relu", "Sigmoid", "Sin", "Softplus", "Sqrt", "Tanh",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **{kind: pointwise_nodes.function(kind.lower()) for kind in _FUNCTIONS},
    "Add": pointwise_nodes.add,
    "Attention": attention_nodes.attention_node,
    "AveragePool": image_nodes.pool,
    "BatchNormalization": norm_nodes.batch_norm,
    "Cast": pointwise_nodes.cast,
    "CastLike": pointwise_nodes.cast,
    "Clip": pointwise_nodes.clip,
    "Concat": layout_nodes.concat,
    "Conv": image_nodes.conv,
    "Div": pointwise_nodes.div,
    "Dropout": pointwise_nodes.dropout,
    "Expand": layout_nodes.expand,
    "Flatten": layout_nodes.flatten,
    "Gather": layout_nodes.gather,
    "Gelu": pointwise_nodes.gelu,
    "Gemm": product_nodes.gemm,
    "GlobalAveragePool": image_nodes.global_average,
    "HardSigmoid": pointwise_nodes.hard_sigmoid,
    "HardSwish": pointwise_nodes.hard_swish,
    "Identity": layout_nodes.identity,
    "LayerNormalization": norm_nodes.norm,
    "LeakyRelu": pointwise_nodes.function(
        "leaky_relu", lambda node: {"slope": node.number("alpha", 0.01)}
    ),
    "LogSoftmax": norm_nodes.softmax,
    "MatMul": product_nodes.matmul,
    "Max": pointwise_nodes.extreme,
    "MaxPool": image_nodes.pool,
    "Min": pointwise_nodes.extreme,
    "Mul": pointwise_nodes.mul,
    "Neg": lambda low, node: pointwise_nodes.scaled(
        low, low.name(node), low.floating(node, 0), -1.0
    ),
    "PRelu": pointwise_nodes.prelu,
    "Pow": pointwise_nodes.power,
    "RMSNormalization": norm_nodes.norm,
    "ReduceMean": layout_nodes.reduced,
    "ReduceSum": layout_nodes.reduced,
    "Reshape": layout_nodes.reshape,
    "SequenceAt": layout_nodes.sequence_at,
    "SimplifiedLayerNormalization": norm_nodes.norm,
    "Slice": layout_nodes.slice_,
    "Softmax": norm_nodes.softmax,
    "Split": layout_nodes.split,
    "SplitToSequence": layout_nodes.split_to_sequence,
    "Squeeze": layout_nodes.squeeze,
    "Sub": pointwise_nodes.sub,
    "Swish": pointwise_nodes.swish,
    "Tile": layout_nodes.tile,
    "Transpose": layout_nodes.transpose,
    "Unsqueeze": layout_nodes.unsqueeze,
    "Where": pointwise_nodes.where,
}
