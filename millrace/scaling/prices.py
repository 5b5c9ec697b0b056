"""Prices: what an hour of a device costs where the catalogue does not decide."""

from collections.abc import Mapping, Sequence
from math import isfinite

from msgspec.structs import replace

from millrace.planner.cluster import Cluster
from millrace.planner.errors import PlanError

OPTION = "--price-per-gpu-hour"
EVERY = ""  # the key of the price of all clusters that have none by name


def parse_prices(texts: Sequence[str]) -> dict[str, float]:
    """Prices [USD per device and hour] by the cluster as it was asked for; `EVERY` for the others.

    Parameters
    ----------
    texts : sequence of str
        `2.50` for all clusters, `CLUSTER=2.50` for one.

    Raises
    ------
    PlanError
        A text has another form, or two give a price of the same cluster.

    Examples
    --------
    >>> parse_prices(["1.90", "h100:8=2.50"])
    {'': 1.9, 'h100:8': 2.5}
    """
    prices: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        name = name.strip()
        try:
            price = float(number)
        except ValueError:
            raise PlanError(
                f"{OPTION} {text}: `{number}` is not a number of dollars; write 2.50, or "
                f"CLUSTER=2.50 for one cluster"
            ) from None
        if name in prices:
            raise PlanError(f"{OPTION} {text}: a second price of {name or 'all clusters'}")
        prices[name] = price
    return prices


def check_prices(prices: Mapping[str, float], clusters: Sequence[str]) -> None:
    """Refuse prices that are none, and those of clusters that are not asked about.

    Parameters
    ----------
    prices : mapping
        As `parse_prices` gives them.
    clusters : sequence of str
        Clusters as they are asked for.

    Raises
    ------
    PlanError
        A price is not above zero, or its cluster is none of these.
    """
    for name, price in prices.items():
        shown = f"{OPTION} {name}={price:g}" if name else f"{OPTION} {price:g}"
        if not (isfinite(price) and price > 0):
            raise PlanError(f"{shown}: expected dollars above 0")
        if name and name not in clusters:
            raise PlanError(
                f"{shown}: `{name}` is no --cluster of this question, which has "
                f"{', '.join(clusters)}"
            )


def priced(cluster: Cluster, usd_per_hour: float | None) -> Cluster:
    """Cluster all of whose devices cost so much an hour; as it was without a price.

    Parameters
    ----------
    cluster : Cluster
        Devices of the catalogue or of a file.
    usd_per_hour : float or None
        Dollars for an hour of one device.
    """
    if usd_per_hour is None:
        return cluster
    others = tuple(
        replace(group, device=replace(group.device, price_usd_per_hour=usd_per_hour))
        for group in cluster.others
    )
    device = replace(cluster.device, price_usd_per_hour=usd_per_hour)
    return replace(cluster, device=device, others=others)
