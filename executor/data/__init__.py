"""Data: samples by number, the same ones whichever rank asks.

In comes a model and perhaps a path, out goes a Dataset that reads regions of samples. A run numbers
its samples 0, 1, 2, …; every value follows from the run's seed and that number, so a rank that
reads only its part finds what the whole batch holds. `opening.py` says which model gets which data
and is the file to read first.
"""

from executor.data.classes import Blobs
from executor.data.clicks import SyntheticClicks
from executor.data.images import Digits, Patterns
from executor.data.masked import MaskedText
from executor.data.opening import open_dataset
from executor.data.pairs import TextPairs
from executor.data.text import TokenWindows

__all__ = [
    "Blobs",
    "Digits",
    "MaskedText",
    "Patterns",
    "SyntheticClicks",
    "TextPairs",
    "TokenWindows",
    "open_dataset",
]
