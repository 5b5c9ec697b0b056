"""Data: samples by number, the same ones whichever rank asks.

In comes a model and perhaps a path, out goes a Dataset that reads regions of samples. A run numbers
its samples 0, 1, 2, …; every value follows from the run's seed and that number, so a rank that
reads only its part finds what the whole batch holds. `datasets.py` says which model gets which data
and is the file to read first.
"""

from millrace.executor.data.classes import Blobs
from millrace.executor.data.clicks import SyntheticClicks
from millrace.executor.data.datasets import data_digest, open_dataset
from millrace.executor.data.images import Digits, Patterns
from millrace.executor.data.masked import MaskedText
from millrace.executor.data.pairs import TextPairs
from millrace.executor.data.text import TokenWindows

__all__ = [
    "Blobs",
    "Digits",
    "MaskedText",
    "Patterns",
    "SyntheticClicks",
    "TextPairs",
    "TokenWindows",
    "data_digest",
    "open_dataset",
]
