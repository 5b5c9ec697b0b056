"""Token cost: dollars and joules that a token costs on a plan's devices.

A device is paid for as long as the step lasts, whether it works or waits. It draws its TDP while it
computes, and `IDLE_SHARE` of that while it waits, for others or for data.

Notes
-----
Devices are all that is counted: no hosts, switches, cooling or storage. The TDP is the most a
device draws, so energies are upper estimates for work that is bound by memory.
"""

from millrace.planner.cluster import Cluster
from millrace.planner.errors import ClusterError, PlanError
from millrace.planner.plan import Plan

OBJECTIVES = ("throughput", "cost", "energy")
# A device that waits draws this share of its TDP. H200: 80 W idle against 593 W under load, 14 %
# (serialalice.pt, "GPU Energy Benchmark", 2026-06); A100: 60 of 400 W, H100: 105 of 700 W, 15 %
# (nemulai.com, "GPU electricity cost per training run", 2026-06). Read 2026-11.
IDLE_SHARE = 0.15
FIELDS = {"cost": "price_usd_per_hour", "energy": "power_watts"}
EXAMPLES = {"cost": "2.50", "energy": "700"}


def price_usd_per_s(cluster: Cluster) -> float | None:
    """Price of all devices of a cluster [USD/s]; None where one is not known."""
    prices = [group.device.price_usd_per_hour for group in cluster.groups]
    if None in prices:
        return None
    counted = zip(prices, cluster.groups, strict=True)
    return sum((price or 0.0) * group.devices for price, group in counted) / 3600


def power_watts(cluster: Cluster, busy_fraction: float) -> float | None:
    """Draw of all devices of a cluster that compute so much of the time; None if not known.

    Parameters
    ----------
    cluster : Cluster
        All its devices are counted, whether a plan uses them or not.
    busy_fraction : float
        Share of the time in which devices compute, 0 to 1; in the rest they wait, at `IDLE_SHARE`
        of their TDP.

    Returns
    -------
    float or None
        Watts; None where a kind of device has no `power_watts`.
    """
    powers = [group.device.power_watts for group in cluster.groups]
    if None in powers:
        return None
    full = sum(
        (watts or 0.0) * group.devices for watts, group in zip(powers, cluster.groups, strict=True)
    )
    return full * (IDLE_SHARE + (1 - IDLE_SHARE) * busy_fraction)


def cost_usd_per_mtoken(plan: Plan, step_time_s: float) -> float | None:
    """Dollars per million tokens, or of what else `unit_of` the model says.

    Parameters
    ----------
    plan : Plan
        Gives the tokens of a step, and the cluster, whose devices are all paid for.
    step_time_s : float
        Seconds of one step.

    Returns
    -------
    float or None
        None where a kind of device has no price.
    """
    price = price_usd_per_s(plan.cluster)
    return None if price is None else price * step_time_s / _tokens(plan) * 1e6


def energy_j_per_token(plan: Plan, step_time_s: float, busy_fraction: float) -> float | None:
    """Joules per token, or per what else `unit_of` the model says.

    Parameters
    ----------
    plan : Plan
        Gives the tokens of a step, and the cluster, whose devices all draw power.
    step_time_s : float
        Seconds of one step.
    busy_fraction : float
        Share of the step in which devices compute, 0 to 1.

    Returns
    -------
    float or None
        None where a kind of device has no `power_watts`.
    """
    watts = power_watts(plan.cluster, busy_fraction)
    return None if watts is None else watts * step_time_s / _tokens(plan)


def check_objective(optimize_for: str) -> None:
    """Refuse what a plan cannot be optimised for; raises PlanError with what it can."""
    if optimize_for not in OBJECTIVES:
        raise PlanError(f"--optimize-for {optimize_for}: choose {', '.join(OBJECTIVES)}")


def check_known(cluster: Cluster, optimize_for: str) -> None:
    """Refuse to optimise for what a cluster's file does not say.

    Parameters
    ----------
    cluster : Cluster
        All its kinds of device are asked.
    optimize_for : str
        One of `OBJECTIVES`: cost needs prices, energy powers, throughput nothing. Other words are
        for `check_objective` to refuse.

    Raises
    ------
    ClusterError
        A device has no price or no power; names the field and where to write it.
    """
    field = FIELDS.get(optimize_for)
    if field is None:
        return
    for group in cluster.groups:
        if getattr(group.device, field) is None:
            raise ClusterError(
                f"--optimize-for {optimize_for}: device `{group.device.name}` has no {field}; "
                f"write it in the [device] table of a cluster file, such as `{field} = "
                f"{EXAMPLES[optimize_for]}`, and name that file as --cluster (docs/clusters.md)"
            )


def _tokens(plan: Plan) -> int:
    return plan.global_batch * plan.model.seq_len
