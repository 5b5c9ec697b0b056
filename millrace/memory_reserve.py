"""`--reserve`: what of a device's memory a plan leaves, as it is asked for, or by default."""

from re import fullmatch

from millrace.planner.cluster import Cluster
from millrace.planner.errors import PlanError
from millrace.planner.memory import DEFAULT_RESERVE, NO_RESERVE, Reserve
from millrace.published.step_time_range import error_table
from millrace.requested_cluster import is_local, read_option
from millrace.units import parse_bytes


def read_reserve(text: str) -> Reserve:
    """Reserve that a text names: `5%` of a device's memory, `2GiB` of it, or `0`.

    Parameters
    ----------
    text : str
        A percentage below 100, a size, or 0.

    Returns
    -------
    Reserve
        The fraction or the bytes.

    Raises
    ------
    PlanError
        The text is none of these.

    Examples
    --------
    >>> read_reserve("5%").fraction, read_reserve("2GiB").size_bytes, read_reserve("0").size_bytes
    (0.05, 2147483648, 0)
    """
    if fullmatch(r"\s*0+(\.0*)?\s*", text):
        return NO_RESERVE
    share = fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*%\s*", text)
    if share and float(share.group(1)) < 100:
        return Reserve(fraction=float(share.group(1)) / 100)
    try:
        return Reserve(size_bytes=parse_bytes(text))
    except PlanError:
        raise PlanError(
            f"--reserve {text}: expected a share of a device's memory below 100 % (5%), a size "
            f"(2GiB) or 0"
        ) from None


def does_not_fit_probability(cluster: Cluster, needed_bytes: int | None) -> float | None:
    """Probability that a plan does not fit its devices, from how published peaks were predicted.

    It is the share of published runs whose measured peak lay further above its prediction than what
    the plan leaves of a device, both as shares of the device's memory.

    Parameters
    ----------
    cluster : Cluster
        The cluster; of several kinds of device the first counts.
    needed_bytes : int or None
        What the fullest device holds as predicted; None where nothing is.

    Returns
    -------
    float or None
        None on the ranks of a CPU, which allocate what was laid out.
    """
    peaks = error_table().peaks
    if needed_bytes is None or peaks is None or cluster.cores_per_node is not None:
        return None
    return peaks.share_above(1 - needed_bytes / cluster.device.memory_bytes)


def asked_limit_bytes(memory_limit: str | None, reserve: str | None) -> int | None:
    """Bytes of a device that may be filled, once both options are known to make sense.

    Parameters
    ----------
    memory_limit, reserve : str or None
        `--memory-limit` and `--reserve`, where they are given.

    Raises
    ------
    PlanError
        One is no size or no reserve, or both are given.
    """
    limit_bytes = None
    if memory_limit is not None:
        limit_bytes = read_option("--memory-limit", parse_bytes, memory_limit)
    if reserve is not None:
        _checked(reserve, limit_bytes)
    return limit_bytes


def _checked(text: str, memory_limit_bytes: int | None) -> Reserve:
    reserve = read_reserve(text)
    if memory_limit_bytes is not None:
        raise PlanError(
            f"--reserve {text}: --memory-limit says what may be filled; leave one of them out"
        )
    return reserve


def reserve_on(cluster: Cluster, text: str | None, memory_limit_bytes: int | None) -> Reserve:
    """Reserve of a plan for a cluster: what was asked for, or by default `DEFAULT_RESERVE`.

    There is none by default where a limit says what may be filled, and on this machine, whose ranks
    run what was laid out.

    Parameters
    ----------
    cluster : Cluster
        The cluster that is planned for.
    text : str or None
        As `read_reserve` reads it; None: by default.
    memory_limit_bytes : int or None
        Memory that may be filled, where that was said.

    Raises
    ------
    PlanError
        The text is no reserve, or there is a limit too.
    """
    if text is not None:
        return _checked(text, memory_limit_bytes)
    here = is_local(cluster.name) or cluster.cores_per_node is not None
    return NO_RESERVE if here or memory_limit_bytes is not None else DEFAULT_RESERVE
