"""Short convolution, gated: what mixes the tokens of most layers of LFM2.

Shape legend: b batch, t tokens, k hidden read, m features, o hidden made.

Notes
-----
Liquid AI, "LFM2 technical report", arXiv 2511.23404 (2025), section 2: the convolution of one
projection times another, times a third.
"""

from millrace.models.builder import GraphBuilder, dense
from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.models.zoo.decoder.recurrent.streams import convolved, projected


def short_convolution(builder: GraphBuilder, config: DecoderConfig, x: str, layer: int) -> str:
    """Add the gated convolution of one layer and return what it adds to the stream `x`.

    Parameters and errors as for `state_space`.
    """
    before, behind, value = (
        projected(builder, config, f"conv.{part}", x, "m", {"m": config.hidden})
        for part in ("b", "c", "x")
    )
    labels = "b t m, b t m -> b t m"
    opened = builder.apply("mul", "conv.opened", (before, value), labels)
    mixed = convolved(builder, "conv", opened, "m", config.conv_taps, active=False)
    mixed = builder.apply("mul", "conv.gated", (behind, mixed), labels)
    labels, std = "b t m, m o -> b t o", config.residual_std
    return dense(builder, "conv.out", mixed, labels, {"o": config.hidden}, std=std, bias=False)
