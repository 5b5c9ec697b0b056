"""The decoder family: today's language models, each a row of data.

In comes a DecoderConfig, out goes a forward graph. Read first: `config.py` (what a configuration
says), then `decoder.py` (how the blocks are put together); `attention.py`, `latent_attention.py`,
`feed_forward.py` and `experts.py` write the parts, `approximations.py` says what they leave out;
`sizes.py`, `mixture_sizes.py` and `releases` hold the published models, `names.py` lists them.
"""

from millrace.models.zoo.decoder.decoder import FAMILY

__all__ = ["FAMILY"]
