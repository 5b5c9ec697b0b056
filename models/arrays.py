"""Arrays by dtype, each type under one name."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]
Reals = NDArray[np.floating[Any]]  # of float64, or of float32 where that is enough
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
