"""Part sizes: structs that a DecoderConfig holds for parts which few models have.

In comes a row of data, out goes a struct whose numbers are checked against each other by the model
that uses it. Read `layer_input_sizes.py` first.
"""

from millrace.models.zoo.decoder.part_sizes.compression_sizes import Compression
from millrace.models.zoo.decoder.part_sizes.layer_input_sizes import LayerInputs
from millrace.models.zoo.decoder.part_sizes.stream_sizes import HyperConnections

__all__ = ["Compression", "HyperConnections", "LayerInputs"]
