"""Compressed attention: to a window of tokens, and to keys that stand for several tokens each.

In comes the normed residual stream, out goes what is added to it. Read `compressed_attention.py`
first, then `compressor.py`.
"""

from millrace.models.zoo.decoder.compressed.compressed_attention import compressed_attention

__all__ = ["compressed_attention"]
