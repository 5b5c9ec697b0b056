"""Tables with measurements of a run folded in: what ops and collectives took in their steps.

A table keeps its course: where a run measured, its points are what the run took; between, below and
above them every point moves by the ratio of measured to tabulated time there. Ops of one kind that
no run has shown move by the kind's median ratio. What an op of some shape took is kept beside that
(`Device.shapes`). A collective's table moves by two median ratios, one of its small messages and
one of its large, for its meetings are few and wait for more than their data.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import log
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

from millrace.models.labels import parse
from millrace.planner.cluster import Device
from millrace.planner.collectives import LOCAL_BOXING
from millrace.planner.costs.op_batch import DRAWN, OpFirings
from millrace.planner.costs.ops import ATTENTION
from millrace.planner.costs.tables.op_forms import form_table
from millrace.planner.costs.tables.profile_tables import Points, interpolated_ns
from millrace.planner.costs.tables.shape_tables import shape_of
from millrace.planner.proxies import priced_like

SAME_WORK = 0.05  # A tabulated point within this share of a measured one's work gives way to it.
MESSAGES_REACH = 16.0  # What small messages take says nothing of ones so many times as large.
COLLECTIVE_RATIO_MAX = 2.0
SMALL_MESSAGE = 2.0  # A message that takes less than so many times the smallest's is small.
RATIO_MAX = 20.0  # A table moves by at most this factor beyond what was measured.


Shapes = dict[str, dict[str, Points]]


class MeasuredOp(NamedTuple):
    """One op on one device's shapes, and the nanoseconds that a firing took in a run."""

    firings: OpFirings
    duration_ns: int
    often: int = 1  # firings of a step, on all ranks


def with_measured(
    device: Device, ops: Iterable[MeasuredOp], collectives: Mapping[str, Points]
) -> Device:
    """Device whose tables say what was measured.

    Parameters
    ----------
    device : Device
        As it was profiled; its other tables stay as they are.
    ops : iterable of MeasuredOp
        What firings took in runs, one per actor and run.
    collectives : mapping of str to points
        Of tables `kind/group_size`: (message_bytes, duration_ns) of every meeting, in any order.
        Kinds that the device has no table of stay without one.
    """
    ops = list(ops)
    kernels = dict(device.kernels)
    by_kind: dict[tuple[str, str], dict[str, list[tuple[float, int, int]]]] = {}
    for firings, duration_ns, often in ops:
        tables = by_kind.setdefault((firings.kind, firings.precision), defaultdict(list))
        work = max(float(np.max(firings.work)), 1.0)
        tables[_table_name(firings, device)].append((work, duration_ns, often))
    for (kind, precision), tables in sorted(by_kind.items()):
        name = f"{kind}{_suffix(device, precision)}"
        general = _tabulated(device, kind, precision)
        ratios: list[float] = []
        for table, points in sorted(tables.items()):
            kernels[table], moved_by = corrected(device.kernels.get(table) or general, points)
            ratios += moved_by
        if name in tables or kind in (*ATTENTION, DRAWN):  # sources of data have nothing in common
            continue
        if general:
            by = median(ratios)
            kernels[name] = tuple((work, max(1, round(by * ns))) for work, ns in general)
        else:
            every = [point for points in tables.values() for point in points]
            kernels[name], _ = corrected((), every)
    collective_tables = {
        name: _moved_table(device.collectives[name], points)
        for name, points in collectives.items()
        if name in device.collectives
    }
    return msgspec.structs.replace(
        device,
        kernels=kernels,
        collectives={**device.collectives, **collective_tables},
        shapes=_shapes(device, ops),
    )


def _shapes(device: Device, ops: Iterable[MeasuredOp]) -> Shapes:
    """Points of shapes, those of ops that were measured among them."""
    by_shape: dict[tuple[str, str], list[tuple[float, int, int]]] = defaultdict(list)
    for firings, duration_ns, often in ops:
        if (names := shape_of(firings)) is not None:
            work = max(float(np.max(firings.work)), 1.0)
            by_shape[names].append((work, duration_ns, often))
    shapes = {form: dict(tables) for form, tables in device.shapes.items()}
    for (form, shape), points in sorted(by_shape.items()):
        tables = shapes.setdefault(form, {})
        measured, _ = corrected((), points)
        others = [
            (work, duration_ns)
            for work, duration_ns in tables.get(shape, ())
            if all(abs(work - other) > SAME_WORK * work for other, _ in measured)
        ]
        tables[shape] = tuple(sorted([*measured, *others]))
    return shapes


def _moved_table(points: Points, measured: Iterable[tuple[int, int]]) -> Points:
    """Table of a collective moved by median ratios of what its meetings took.

    Messages that are priced at less than twice the smallest one have a ratio of their own: latency
    is what they measure, the others measure bandwidth.
    """
    messages = np.array(list(measured), float)
    tabulated = interpolated_ns(points, messages[:, 0])
    is_small = tabulated < SMALL_MESSAGE * points[0][1]
    sizes: list[float] = []
    log_ratios: list[float] = []
    for chosen in (is_small, ~is_small):
        if chosen.any():
            ratio = float(np.median(messages[chosen, 1] / tabulated[chosen]))
            ratio = min(max(ratio, 1 / COLLECTIVE_RATIO_MAX), COLLECTIVE_RATIO_MAX)
            sizes += [log(messages[chosen, 0].min()), log(messages[chosen, 0].max())]
            log_ratios += [log(ratio)] * 2
    reach = log(MESSAGES_REACH)
    every = np.array(sorted({size for size, _ in points} | {round(np.exp(size)) for size in sizes}))
    moved_by = np.interp(
        np.log(every),
        [sizes[0] - reach, *sizes, sizes[-1] + reach],
        [0.0, *log_ratios, 0.0],
    )
    durations = interpolated_ns(points, every.astype(float)) * np.exp(moved_by)
    rising = np.maximum(np.round(np.maximum.accumulate(durations)), 1).astype(int)
    return tuple(zip(every.tolist(), rising.tolist(), strict=True))


def corrected(
    points: Points, measured: Iterable[tuple[float, int, int]]
) -> tuple[Points, list[float]]:
    """Points moved to what was measured, and by what ratio at each measured amount of work.

    Of equal work the mean counts. Ops of one table that take longer for less work, as their shapes
    differ, share the mean of their times: what they take together stays.

    Parameters
    ----------
    points : points
        (work, duration_ns) as tabulated, ascending; may be empty.
    measured : iterable of (work, duration_ns, often)
        In any order; `often` weighs.

    Examples
    --------
    >>> corrected(((100, 10), (1000, 100), (10000, 1000)), [(1000.0, 150, 1)])
    (((100, 15), (1000, 150), (10000, 1500)), [1.5])
    """
    spent: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for work, duration_ns, often in measured:
        spent[round(work)][0] += duration_ns * often
        spent[round(work)][1] += often
    works = sorted(spent)
    durations = _rising([(spent[work][0], spent[work][1]) for work in works])
    if not points:
        return tuple(zip(works, durations, strict=True)), []
    tabulated = interpolated_ns(points, np.array(works, float))
    ratios = np.clip(np.array(durations) / np.maximum(tabulated, 1), 1 / RATIO_MAX, RATIO_MAX)
    moved: dict[int, int] = {}
    for work, duration_ns in points:
        near = min(works, key=lambda each: abs(each - work))
        if abs(near - work) > SAME_WORK * work:
            ratio = np.exp(np.interp(np.log(work), np.log(works), np.log(ratios)))
            moved[work] = max(1, round(duration_ns * float(ratio)))
    moved.update(zip(works, durations, strict=True))
    return tuple(sorted(moved.items())), ratios.tolist()


def _rising(spent: list[tuple[int, int]]) -> list[int]:
    """Mean durations of pairs (total, count) that never fall, neighbours that do pooled.

    Notes
    -----
    Pool adjacent violators: Ayer et al., "An empirical distribution function for sampling with
    incomplete information", 1955.
    """
    pools: list[tuple[int, int, int]] = []  # total, count, pairs
    for total, count in spent:
        pool = (total, count, 1)
        while pools and pools[-1][0] * pool[1] > pool[0] * pools[-1][1]:
            last = pools.pop()
            pool = (last[0] + pool[0], last[1] + pool[1], last[2] + pool[2])
        pools.append(pool)
    return [max(1, round(total / count)) for total, count, pairs in pools for _ in range(pairs)]


def _table_name(firings: OpFirings, device: Device) -> str:
    """Name of the table that an op is priced by."""
    kind = firings.kind
    if kind in LOCAL_BOXING:
        return kind
    name = form_table(kind, firings.labels, firings.attributes)
    if kind in ATTENTION and firings.sizes:
        head_size = int(np.max(firings.size(parse(firings.labels).inputs[0][-1])))
        name = f"{kind}/{head_size}"
    return name + _suffix(device, firings.precision)


def _suffix(device: Device, precision: str) -> str:
    """Suffix of the names of tables of this precision, of a device that has some."""
    suffix = f"@{precision}"
    return suffix if any(name.endswith(suffix) for name in device.kernels) else ""


def _tabulated(device: Device, kind: str, precision: str) -> Points:
    """Points of a kind as they stand, or of the kind that it is priced like at its own work."""
    tables = device.kernels
    like = priced_like(kind, tables, precision)
    points = tables.get(f"{like.kind}@{precision}") or tables.get(like.kind) or ()
    return tuple((max(1, round(work / like.factor)), ns) for work, ns in points)
