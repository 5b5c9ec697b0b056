"""Block times: what each block of a plan adds to its chunk, as an engine measured it.

A chunk's time is the sum over its blocks, and what every chunk takes besides them. So times that
were measured on one plan say what other divisions of the same variants take.

Shapes: T times of one block (`TIMES`), K positions (chunks in model order), P = 3 passes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Kind = tuple[str, int]  # template and variant

# Per microbatch: forward, input gradient (with that of weights where both are one pass) and weight
# gradient: nanoseconds, those while no meeting of the pass moves data, launches by the host, and
# nanoseconds where a forward and gradients are a pair.
PASSES, ALONE, LAUNCHES, PAIRED = slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 12)
# Per step, in nanoseconds.
BEGIN, GATHER, REDUCE, NORM, UPDATE = range(12, 17)
TIMES = 17


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BlockTimes:
    """Times that were measured on a plan.

    Attributes
    ----------
    blocks : mapping
        By template and variant of the plan: what one block adds to a chunk, array [T].
    chunk : array [T]
        What a chunk takes besides its blocks.
    totals_ns : int
        Adding up the step's totals.
    hops_ns : array [2, K]
        Sending from each position to the next, and gradients from each to the one before; 0 where
        both lie on one stage.
    host_ns, overlap
        Of one launch; the speed of what is computed beside moving data.
    """

    blocks: Mapping[Kind, Floats]
    chunk: Floats
    totals_ns: int
    hops_ns: Floats
    host_ns: int
    overlap: float
