"""Releases: sizes of models published in 2026, one file a family, as rows of data.

As in `sizes.py` of the decoders, whose rows these add to; `names.py` there lists them all.
"""

from millrace.models.zoo.decoder.releases.deepseek4_sizes import DEEPSEEK4
from millrace.models.zoo.decoder.releases.gemma4_sizes import GEMMA4

__all__ = ["DEEPSEEK4", "GEMMA4"]
