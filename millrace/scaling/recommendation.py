"""Recommendation: of a sweep's rows the cheapest in time, the fastest for the money, the frontier.

A row makes it where its run of so many tokens ends within the deadline and costs no more than the
budget; a row without a price makes no budget. It lies on the frontier of time and cost where no
other row is as fast and as cheap, and better in one of them. A row of a device that no run was
fitted on is a guess: where one is chosen, the best row of other devices is named too.
"""

from collections.abc import Sequence
from math import ceil, inf, log2
from typing import Any

from millrace.models.ops import model_flops
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import build_training, unit_of
from millrace.planner.cluster import Cluster
from millrace.planner.costs.op_batch import peak_flops_per_s
from millrace.planner.errors import ClusterError, PlanError

Row = dict[str, Any]
# Llama 3 405B began with batches of 4 million tokens ("The Llama 3 Herd of Models", 2024, section
# 3.4.1).
TOKENS_PER_STEP = 2**22
# Sizes are tried up to so many times the fewest nodes that could make the deadline at full peak.
SPARE = 4
SIZES_WITHOUT_DEADLINE = (1, 2, 4, 8, 16)


def recommendation(
    rows: Sequence[Row], within_s: float | None, budget_usd: float | None
) -> dict[str, Any]:
    """Rows with `on_frontier` and `makes_it`, and the `choice` among them.

    Parameters
    ----------
    rows : sequence of dict
        As `millrace.scaling.sweep` returns them, of one number of tokens.
    within_s : float or None
        Deadline [s]; None: there is none.
    budget_usd : float or None
        Dollars that the run may cost; None: any.

    Returns
    -------
    dict
        `rows`; and `choice`: `cheapest` and `fastest` of the rows that make it (the cheapest None
        where none of them has a price); `cheapest_measured` and `fastest_measured` of those without
        a `device_doubt`, where the cheapest or the fastest has one; and `nearest`, where none makes
        it: that which exceeds deadline and budget least, as a factor `over`.

    Examples
    --------
    >>> rows = [
    ...     {"time_s": time_s, "cost_usd": cost_usd, "devices": 8, "device_doubt": ""}
    ...     for time_s, cost_usd in ((9.0, 1.0), (3.0, 2.0), (4.0, 3.0))
    ... ]
    >>> answer = recommendation(rows, 5.0, None)
    >>> answer["choice"]["cheapest"]["cost_usd"], [row["on_frontier"] for row in answer["rows"]]
    (2.0, [True, True, False])
    """
    judged = [
        row
        | {
            "on_frontier": _on_frontier(row, rows),
            "makes_it": row["time_s"] is not None and _over(row, within_s, budget_usd) <= 1,
        }
        for row in rows
    ]
    makers = [row for row in judged if row["makes_it"]]
    ran = [row for row in judged if row["time_s"] is not None]
    nearest = None
    if ran and not makers:
        nearest = min(ran, key=lambda row: (_over(row, within_s, budget_usd), *_by_time(row)))
        over = _over(nearest, within_s, budget_usd)
        nearest = nearest | {"over": over if over < inf else None}
    chosen = _cheapest_and_fastest(makers)
    measured = _cheapest_and_fastest([row for row in makers if not row["device_doubt"]])
    choice: dict[str, Row | None] = {}
    for name, row in chosen.items():
        choice[name] = row
        doubted = row is not None and row["device_doubt"]
        choice[f"{name}_measured"] = measured[name] if doubted else None
    return {"rows": judged, "choice": choice | {"nearest": nearest}}


def _cheapest_and_fastest(makers: Sequence[Row]) -> dict[str, Row | None]:
    return {
        "cheapest": min((row for row in makers if _priced(row)), key=_by_cost, default=None),
        "fastest": min(makers, key=_by_time, default=None),
    }


def _priced(row: Row) -> bool:
    return row["cost_usd"] is not None


def _by_cost(row: Row) -> tuple[float, float, int]:
    return row["cost_usd"], row["time_s"], row["devices"]


def _by_time(row: Row) -> tuple[float, float, int]:
    return row["time_s"], row["cost_usd"] if _priced(row) else inf, row["devices"]


def _over(row: Row, within_s: float | None, budget_usd: float | None) -> float:
    """Largest factor by which a row exceeds what is allowed; at most 1 where it makes it."""
    time = 0.0 if within_s is None else row["time_s"] / within_s
    money = 0.0
    if budget_usd is not None:
        money = row["cost_usd"] / budget_usd if _priced(row) else inf
    return max(time, money)


def _on_frontier(row: Row, rows: Sequence[Row]) -> bool:
    if row["time_s"] is None or not _priced(row):
        return False
    point = row["time_s"], row["cost_usd"]
    return not any(
        _priced(other)
        and (other["time_s"], other["cost_usd"]) != point
        and other["time_s"] <= point[0]
        and other["cost_usd"] <= point[1]
        for other in rows
    )


def usual_batch(model: ModelSpec) -> int:
    """Samples of a step where none are given: a power of two, of `TOKENS_PER_STEP` or just below.

    Raises
    ------
    PlanError
        The model has no tokens, so no batch is usual for it.
    """
    if unit_of(model) != "token":
        raise PlanError(
            f"--global-batch is missing: `{model.name}` has no tokens from which a usual batch "
            f"follows; give the samples of a step"
        )
    return 1 << max(0, int(log2(TOKENS_PER_STEP / model.seq_len)))


def usual_nodes(
    model: ModelSpec, clusters: Sequence[Cluster], tokens: float, within_s: float | None
) -> list[int]:
    """Sizes in nodes that are tried where none are given.

    Powers of two: from the fewest nodes that would make the deadline at the peak of their devices,
    which none exceed, of the fastest cluster, to `SPARE` times those of the slowest.

    Parameters
    ----------
    model : ModelSpec
        Gives the FLOPs of a token.
    clusters : sequence of Cluster
        Clusters that are asked about; their own numbers of nodes do not count.
    tokens : float
        Tokens of the run.
    within_s : float or None
        The deadline [s]; None: `SIZES_WITHOUT_DEADLINE`.

    Raises
    ------
    ClusterError
        No device has a rate for the model's precision.
    """
    if within_s is None:
        return list(SIZES_WITHOUT_DEADLINE)
    flops = model_flops(build_training(model, TrainingSpec(), 1)) * tokens / model.seq_len
    fewest: list[int] = []
    faults: list[ClusterError] = []
    for cluster in clusters:
        try:
            peak = peak_flops_per_s(cluster.device, model.precision)
        except ClusterError as error:  # its rows will say so
            faults.append(error)
            continue
        fewest.append(max(1, ceil(flops / (cluster.devices_per_node * peak) / within_s)))
    if not fewest:
        raise faults[0]
    first, last = (ceil(log2(nodes)) for nodes in (min(fewest), SPARE * max(fewest)))
    return [2**power for power in range(first, last + 1)]
