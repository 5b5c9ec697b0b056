"""The factories of rows, by op kind."""

from executor.cuda.kernels.context import CallsFactory
from executor.cuda.kernels.rows import layer_norm

ROWS: dict[str, CallsFactory] = {
    "layer_norm": layer_norm.layer_norm,
}
