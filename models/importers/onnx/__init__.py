"""ONNX: a `.onnx` file of opset 17 or newer becomes a forward Graph with a loss.

In comes a file (its weights need not be there), out goes an `OnnxModel`: the graph, the parameters
by name and, where the file holds them, their values. Read first: `import_onnx.py` (the order of
things), then `values.py` (what is known of a tensor) and `lowering.py` (how ops are added);
`rules/node_rules.py` lists the nodes that are understood.
"""

from millrace.models.importers.onnx.import_onnx import OnnxModel, import_file
from millrace.models.importers.onnx.weights import WeightSource

__all__ = ["OnnxModel", "WeightSource", "import_file"]
