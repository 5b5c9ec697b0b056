"""Series of sizes on one line (a cluster, a network, a batch), and the efficiencies along it.

Speed is what is left of it after failures, where these are asked about. With the sizes in
ascending order, the smallest that has a plan is the base:

* scaling efficiency: a device's speed over that of a device at the base;
* marginal efficiency: what the devices beyond the size before brought, over what they would have
  brought at that size's speed a device; for twice the devices, the speed gained over the speed
  before;
* scaling stops paying at the first size whose marginal efficiency is below `worth`.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

# Half of what is paid for more is lost then: devices that bring less are better put to another use.
WORTH = 0.5


def fill_efficiencies(rows: Sequence[dict[str, Any]], worth: float) -> None:
    """Fill in `scaling_efficiency`, `marginal_efficiency` and `stops_paying` of one line's rows.

    Parameters
    ----------
    rows : sequence of dict
        With `devices` and `goodput_tokens_per_s`, None where there is no plan.
    worth : float
        The least marginal efficiency that pays.

    Examples
    --------
    >>> rows = [{"devices": n, "goodput_tokens_per_s": n**0.5} for n in (1, 4, 16)]
    >>> fill_efficiencies(rows, 0.5)
    >>> [row["scaling_efficiency"] for row in rows], rows[1]["stops_paying"]
    ([1.0, 0.5, 0.25], True)
    """
    for row in rows:
        row |= {"scaling_efficiency": None, "marginal_efficiency": None, "stops_paying": False}
    by_size: dict[int, float] = {}
    for row in rows:
        if row["goodput_tokens_per_s"] is not None:
            by_size.setdefault(row["devices"], row["goodput_tokens_per_s"])
    if not by_size:
        return
    sizes = sorted(by_size)
    base = by_size[sizes[0]] / sizes[0]
    marginal: dict[int, float] = {}
    for before, size in pairwise(sizes):
        brought = by_size[size] / by_size[before] - 1
        marginal[size] = brought / (size / before - 1)
    stops = next((size for size in sizes[1:] if marginal[size] < worth), None)
    for row in rows:
        if row["goodput_tokens_per_s"] is not None:
            size = row["devices"]
            row["scaling_efficiency"] = by_size[size] / size / base
            row["marginal_efficiency"] = marginal.get(size)
            row["stops_paying"] = size == stops
