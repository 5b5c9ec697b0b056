"""Recurrent layers: mixers of a decoder that take the tokens of a sequence in turn.

Each takes the normed residual stream and returns what is added to it. Read `state_space.py` first.
"""

from millrace.models.zoo.decoder.recurrent.delta_net import delta_net, kimi_delta
from millrace.models.zoo.decoder.recurrent.gated_unit import gated_unit
from millrace.models.zoo.decoder.recurrent.short_convolution import short_convolution
from millrace.models.zoo.decoder.recurrent.state_space import state_space

__all__ = ["delta_net", "gated_unit", "kimi_delta", "short_convolution", "state_space"]
