"""Residual stream: what a decoder's stream is besides a sum of attention and feed-forward parts.

In comes a stream, or several, out goes what the next part reads. Read `layer_inputs.py` first, then
`hyper_connections.py`.
"""

from millrace.models.zoo.decoder.residual.hyper_connections import (
    collapse,
    connect,
    joined,
    spread,
)
from millrace.models.zoo.decoder.residual.layer_inputs import add_layer_input, shared_norm

__all__ = ["add_layer_input", "collapse", "connect", "joined", "shared_norm", "spread"]
