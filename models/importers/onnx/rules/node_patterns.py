"""Patterns among nodes: activations and norms that exporters spell out in several of them.

The ops added for the earlier nodes of a pattern stay unread and are removed at the end of the
import.
"""

from typing import NamedTuple

from millrace.models.importers.onnx.lowering import OnnxLowering
from millrace.models.importers.onnx.onnx_file import OnnxNode
from millrace.models.importers.patterns import ACTIVATIONS, DEPTH_MAX, RMS_NORM, matched

_KINDS = {"ReduceMean": "mean"} | {
    kind: kind.lower()
    for kind in ("Add", "Mul", "Div", "Neg", "Pow", "Sqrt", "Reciprocal", "Sigmoid", "Erf", "Tanh")
}


class OnnxCalls(NamedTuple):
    """Nodes by the names of what they make, for patterns."""

    low: OnnxLowering
    tolerance: float = 1e-3  # exporters round

    def uncast(self, value: str) -> str:
        """Tensor behind casts."""
        for _ in range(DEPTH_MAX):
            node = self.low.producer(value, "Cast", "Identity")
            value = value if node is None else node.inputs[0]
        return value

    def number(self, value: str) -> float | None:
        """Return the one value of a known tensor."""
        return self.low.scalar(value)

    def call(self, value: str) -> tuple[str, tuple[str, ...]] | None:
        """Kind and inputs of the node that makes a tensor."""
        node = self.low.producer(self.uncast(value), *_KINDS)
        if node is None or node.kind != "ReduceMean":
            return None if node is None else (_KINDS[node.kind], node.inputs)
        return ("mean", node.inputs[:1]) if _over_last(self.low, node) else None


def activation(low: OnnxLowering, node: OnnxNode) -> tuple[str, str] | None:
    """Return (kind, input) where the product that `node` ends is a GELU or a SiLU."""
    for kind, pattern in ACTIVATIONS.items():
        bound = matched(OnnxCalls(low), pattern, node.outputs[0])
        if bound is not None:
            return kind, bound["x"]
    return None


def root_mean_square(low: OnnxLowering, node: OnnxNode) -> tuple[str, str, float] | None:
    """Return (x, weight, epsilon) where `node` makes weight * x / sqrt(mean(x^2) + epsilon).

    The mean is over the last dim; the weight may be missing ("").
    """
    bound = matched(OnnxCalls(low), RMS_NORM, node.outputs[0])
    return None if bound is None else (bound["x"], bound.get("weight", ""), bound["epsilon"])


def _over_last(low: OnnxLowering, mean: OnnxNode) -> bool:
    axes = mean.integers("axes")
    if axes is None and len(mean.inputs) > 1:
        number = low.scalar(mean.inputs[1])
        axes = None if number is None else (int(number),)
    value = low.values.get(mean.inputs[0])
    rank = len(getattr(value, "dims", ()))
    return axes is not None and len(axes) == 1 and axes[0] in (-1, rank - 1)
