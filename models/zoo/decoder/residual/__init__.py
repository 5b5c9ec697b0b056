"""Residual stream: what enters a decoder's stream besides its attention and feed-forward parts.

In comes the stream behind a layer's parts, out goes the stream that the next layer reads. Read
`layer_inputs.py` first.
"""

from millrace.models.zoo.decoder.residual.layer_inputs import add_layer_input, shared_norm

__all__ = ["add_layer_input", "shared_norm"]
