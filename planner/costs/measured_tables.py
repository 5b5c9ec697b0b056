"""Tables with measurements of a run folded in: what ops and collectives took in their steps.

A table keeps its course: where a run measured, its points are what the run took; between, below and
above them every point moves by the ratio of measured to tabulated time there. Ops of one kind that
no run has shown move by the kind's median ratio. What an op of some shape took is kept beside that
(`Device.shapes`); a GPU's shapes are told apart by their bytes. A collective's table moves by two
median ratios, one of its small messages and one of its large, for its meetings are few and wait for
more than their data. Of a fused kernel, what the ops that follow are priced at stays; its heads
take the rest, each as much as it was priced at.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import log
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

from millrace.models.arrays import Floats, Ints
from millrace.models.labels import parse
from millrace.planner.actors.graph import Actor, Program
from millrace.planner.cluster import Device
from millrace.planner.collectives import LOCAL_BOXING
from millrace.planner.costs.actors import firing_of_actor, parts_of
from millrace.planner.costs.memory_bound import bandwidth_bytes_per_s
from millrace.planner.costs.op_batch import DRAWN, OpFirings, firing_of
from millrace.planner.costs.ops import (
    ATTENTION,
    added_ns,
    kind_points,
    least_ns,
    like_of,
    op_durations_ns,
)
from millrace.planner.costs.tables.gpu_tables import traffic_ns
from millrace.planner.costs.tables.op_forms import form_table
from millrace.planner.costs.tables.profile_tables import Points, interpolated_ns
from millrace.planner.costs.tables.shape_tables import shape_of
from millrace.planner.proxies import Like

SAME_WORK = 0.05  # A tabulated point within this share of a measured one's work gives way to it.
MESSAGES_REACH = 16.0  # What small messages take says nothing of ones so many times as large.
COLLECTIVE_RATIO_MAX = 2.0
SMALL_MESSAGE = 2.0  # A message that takes less than so many times the smallest's is small.
RATIO_MAX = 20.0  # A table moves by at most this factor beyond what was measured.
# An actor so short that took so many times as long as its kernel alone waited for its launch: those
# of a GPU are timed while the host launches them one by one, which takes 25 us (H100, 2026-11).
HOST_NS, HOST_RATIO = 100_000, 4.0


Shapes = dict[str, dict[str, Points]]


class MeasuredOp(NamedTuple):
    """One op on one device's shapes, and the nanoseconds that a firing took in a run."""

    firings: OpFirings
    duration_ns: int
    often: int = 1  # firings of a step, on all ranks


def measured_ops(
    actor: Actor, program: Program, device: Device, duration_ns: int, often: int = 1
) -> list[MeasuredOp]:
    """Ops of an actor with what each of them took of a firing.

    Parameters
    ----------
    actor, program : Actor, Program
        One that takes part in no meeting, and the program that it is of.
    device : Device
        As the plan was priced, which tells the parts of a fused actor apart.
    duration_ns : int
        Nanoseconds of a firing.
    often : int
        How much it weighs.
    """
    if not actor.parts:
        firings = [firing_of_actor(actor, program)]
    else:
        firings = _parts_together(actor, program)
    priced = [int(op_durations_ns(part, device)[0]) for part in firings]
    heads = [(part, ns) for part, ns in zip(firings, priced, strict=True) if not part.follows]
    if device.multiprocessors and HOST_RATIO * sum(priced) < duration_ns < HOST_NS:
        return []
    of_heads = max(1, sum(ns for _, ns in heads))
    left_ns = max(duration_ns - sum(priced) + of_heads, duration_ns * of_heads // sum(priced))
    return [MeasuredOp(part, max(1, round(left_ns * ns / of_heads)), often) for part, ns in heads]


def _parts_together(actor: Actor, program: Program) -> list[OpFirings]:
    """Firings of a fused actor's parts; those of one kind that one launch does count as one op."""
    firings = [
        firing_of(
            part.kind,
            part.labels,
            part.attributes,
            [register.shape for register in inputs],
            [register.shape for register in outputs],
            [register.dtype for register in inputs],
            [register.dtype for register in outputs],
            share,
        )
        for part, inputs, outputs, share in parts_of(actor, program)
    ]
    first, *others = firings
    together = all(part.kind == first.kind and part.follows for part in others)
    if not others or first.sizes or not together:
        return firings
    largest = max(firings, key=lambda part: int(part.bytes[0]))
    moved = np.sum([part.bytes for part in firings], axis=0)
    return [largest._replace(bytes=moved, follows=False)]


def with_measured(device: Device, ops: Iterable[MeasuredOp]) -> Device:
    """Device whose tables of kernels say what was measured.

    Parameters
    ----------
    device : Device
        As it was profiled; its other tables stay as they are.
    ops : iterable of MeasuredOp
        What firings took in runs, one per actor and run.
    """
    ops = list(ops)
    kernels = dict(device.kernels)
    by_kind: dict[tuple[str, str], dict[str, list[tuple[float, int, int]]]] = {}
    like_by_kind: dict[tuple[str, str], Like] = {}
    moving: set[tuple[str, str]] = set()
    for firings, duration_ns, often in ops:
        key = firings.kind, firings.precision
        like_by_kind[key] = like_of(firings, device)
        if not firings.sizes:
            moving.add(key)
        tables = by_kind.setdefault(key, defaultdict(list))
        work = max(float(np.max(firings.work)), 1.0)
        tabulated_ns = duration_ns - float(np.max(added_ns(firings, device)))
        if tabulated_ns > float(np.max(least_ns(firings, device))):
            tables[_table_name(firings, device)].append((work, round(tabulated_ns), often))
    for (kind, precision), tables in sorted(by_kind.items()):
        name = f"{kind}{_suffix(device, precision)}"
        general = _tabulated(device, like_by_kind[kind, precision], precision)
        ratios: list[float] = []
        for table, points in sorted(tables.items()):
            tabulated = device.kernels.get(table) or general
            price = _price(device, tabulated, moves=(kind, precision) in moving)
            kernels[table], moved_by = corrected(tabulated, points, price)
            ratios += moved_by
        if not tables or name in tables:
            continue
        if kind in (*ATTENTION, DRAWN):  # sources of data have nothing in common
            continue
        if general:
            by = median(ratios)
            kernels[name] = tuple((work, max(1, round(by * ns))) for work, ns in general)
        else:
            every = [point for points in tables.values() for point in points]
            kernels[name], _ = corrected((), every)
    shapes = device.shapes if device.multiprocessors else _shapes(device, ops)
    return msgspec.structs.replace(device, kernels=kernels, shapes=shapes)


def with_collectives(device: Device, collectives: Mapping[str, Points]) -> Device:
    """Device whose tables of collectives say what meetings took.

    Parameters
    ----------
    device : Device
        As it was profiled.
    collectives : mapping of str to points
        Of tables `kind/group_size`: (message_bytes, duration_ns) of every meeting, in any order.
        Kinds that the device has no table of stay without one.
    """
    moved = {
        name: _moved_table(device.collectives[name], points)
        for name, points in collectives.items()
        if name in device.collectives
    }
    return msgspec.structs.replace(device, collectives={**device.collectives, **moved})


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


class TablePrice(NamedTuple):
    """Durations that a device reads from a table, and those of a kernel without work."""

    durations_ns: Callable[[Floats], Ints]
    starting_ns: int


def _price(device: Device, points: Points, *, moves: bool) -> TablePrice | None:
    """Price of a GPU's kernels, which move bytes or multiply; None where a table says it all."""
    if not points or not device.multiprocessors:
        return None
    if not moves:
        return TablePrice(partial(interpolated_ns, points), points[0][1])
    return TablePrice(
        partial(traffic_ns, points, bytes_per_s=bandwidth_bytes_per_s(device)), points[0][1]
    )


def corrected(
    points: Points, measured: Iterable[tuple[float, int, int]], price: TablePrice | None = None
) -> tuple[Points, list[float]]:
    """Points moved to what was measured, and by what ratio each measured amount of work moves.

    Of equal work the mean counts. Ops of one table that take longer for less work, as their shapes
    differ, share the mean of their times: what they take together stays.

    Parameters
    ----------
    points : points
        (work, duration_ns) as tabulated, ascending; may be empty.
    measured : iterable of (work, duration_ns, often)
        In any order; `often` weighs.
    price : TablePrice, optional
        How the table is read, where kernels without work take a time that differs in a step by more
        than their rate does: what is mostly that moves itself alone.

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
    read = TablePrice(partial(interpolated_ns, points), 0) if price is None else price
    tabulated = read.durations_ns(np.array(works, float))
    ratios = np.clip(np.array(durations) / np.maximum(tabulated, 1), 1 / RATIO_MAX, RATIO_MAX)
    ratios = ratios ** np.clip(1 - read.starting_ns / np.maximum(tabulated, 1), 0, 1)
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


def _tabulated(device: Device, like: Like, precision: str) -> Points:
    """Points of a kind as they stand, or of the kind that it is priced like at its own work."""
    points = kind_points(like.kind, device, precision)
    return tuple((max(1, round(work / like.factor)), ns) for work, ns in points)
