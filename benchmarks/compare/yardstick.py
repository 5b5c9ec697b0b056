"""Yardstick: how fast this machine is right now, by fixed work on all of its cores at once.

Virtual machines change their speed from minute to minute, and nothing inside them says so. A
prediction and a run are of one machine only while the yardstick stays the same.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from math import exp, log
from multiprocessing import get_context
from statistics import fmean, median
from time import perf_counter
from typing import NamedTuple

ROUNDS = 60
UNCHANGED = 0.05  # What differs by less is taken for the same machine.


class Yardstick(NamedTuple):
    """Seconds of a matrix product and of a sum of arrays that no cache holds, over all cores."""

    product_s: float
    sum_s: float

    def over(self, other: "Yardstick") -> float:
        """Time that work takes now over what it took at `other`, both kinds counting alike."""
        return exp(fmean((log(self.product_s / other.product_s), log(self.sum_s / other.sum_s))))


def yardstick() -> Yardstick:
    """Yardstick of this moment."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        cores = len(os.sched_getaffinity(0))
        with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
            measured = list(pool.map(_timed, range(cores)))
    finally:
        del os.environ["OPENBLAS_NUM_THREADS"]
    return Yardstick(*(fmean(column) for column in zip(*measured, strict=True)))


def _timed(_: int) -> tuple[float, float]:
    import numpy as np

    left, right = np.ones((512, 192), np.float32), np.ones((192, 768), np.float32)
    first, second = (np.ones(2_000_000, np.float32) for _ in range(2))
    total = np.empty_like(first)
    products, sums = [], []
    for _ in range(ROUNDS):
        start_s = perf_counter()
        for _ in range(4):
            left @ right
        middle_s = perf_counter()
        for _ in range(4):
            np.add(first, second, out=total)
        products.append(middle_s - start_s)
        sums.append(perf_counter() - middle_s)
    return median(products), median(sums)
