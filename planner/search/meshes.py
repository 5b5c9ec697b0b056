"""Meshes: the axes that the devices of one stage may make, within the pins.

A settled degree has an axis of its own (two where experts or storage are split over a part of it);
what is left of the devices goes to free axes, at most two of them: these already make every
signature a pair. Meshes of three axes (`wide_meshes`) are few: data parallelism outside, and inside
it two axes that split what a replica has, the inner one within a node. Where a framework has no
mixed axes every degree is settled, and so are the level of ZeRO and sequence parallelism.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import gcd, isqrt, prod

from millrace.planner.cluster import Cluster
from millrace.planner.frameworks.capabilities import EVERYTHING, Capabilities
from millrace.planner.search.pins import Pins, RoledAxis

Axes = tuple[RoledAxis, ...]

# Axes that stay free inside a stage: two already make every signature a pair (5² states a tensor).
FREE_AXES_MAX = 2
# Axes of a mesh on which a pinned ep is looked for, if it can be had on so few.
EXPERT_AXES_MAX = 3
# Meshes may have three axes from so many devices per stage, with inner axes of the largest sizes
# that a node holds (so many of them), and a middle axis of at most so many.
WIDE_FROM, INNER_CHOICES, MIDDLE_MAX = 16, 2, 16
# Where a framework settles all degrees: tokens that context parallelism leaves a rank at least
# (published runs have 4,096 and more), and the fewest ranks between one and the most that divide
# them over which experts are looked for split (a node).
TOKENS_MIN, EXPERT_PARTS_MIN = 2048, 8


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def meshes(
    pins: Pins,
    cluster: Cluster,
    devices: int,
    *,
    sequence: int,
    experts: int,
    runs: Capabilities = EVERYTHING,
    stages: int = 1,
) -> Iterator[Axes]:
    """Axes of one stage in the order dp, cp, free, tp: tp joins neighbours.

    Parameters
    ----------
    pins : Pins
    cluster : Cluster
    devices : int
        Devices of one stage.
    sequence : int
        Tokens of a sample, which an axis may split; 0 where the model has no sequence label.
    experts : int
        Size of the model's expert label; 0 where it has none.
    runs : Capabilities
        What the framework can run.
    stages : int
        Stages of the pipeline, by which a framework may allow levels of ZeRO.
    """
    if not runs.mixed:
        every = _roled_meshes(pins, cluster, devices, sequence, experts, runs, stages)
        yield from (axes for axes in every if not _is_wide(pins, axes))
        return
    for dp, cp, tp in _settled_sizes(pins, devices, sequence):
        rest = devices // (dp * cp * tp)
        taken = sum(size > 1 for size in (dp, cp, tp))
        for free in _factors(rest, max(1, FREE_AXES_MAX - taken)):
            yield from _arranged(pins, cluster, (dp, cp, tp), free, experts)


def wide_meshes(
    pins: Pins,
    cluster: Cluster,
    devices: int,
    *,
    sequence: int,
    experts: int,
    runs: Capabilities = EVERYTHING,
    stages: int = 1,
) -> Iterator[Axes]:
    """Meshes of three axes where `meshes` has two: dp × free × free, or one of these pinned.

    Hybrid ZeRO, context and tensor parallelism at once, and tensor parallelism in two dims are
    such meshes. Parameters are those of `meshes`.
    """
    if not runs.mixed:
        every = _roled_meshes(pins, cluster, devices, sequence, experts, runs, stages)
        yield from (axes for axes in every if _is_wide(pins, axes))
        return
    if devices < WIDE_FROM:
        return
    for dp, cp, tp in _settled_sizes(pins, devices, sequence):
        rest = devices // (dp * cp * tp)
        spare = FREE_AXES_MAX - sum(size > 1 for size in (cp, tp))
        if rest == 1 or spare < 1:
            continue
        inside = [] if tp > 1 else _inner_sizes(rest, cluster.devices_per_node)
        for inner, middle in product(inside or [1], divisors(rest)):
            free = tuple(size for size in (middle, inner) if size > 1)
            outer, left = divmod(rest, inner * middle)
            if left or len(free) != spare or middle > MIDDLE_MAX:
                continue
            # Either dp is left open and takes what is outside, or it is settled beside free axes.
            if (outer == 1 or "dp" in pins.settled_degrees) and (outer > 1 or dp == 1 or spare < 2):
                continue
            for axes in _arranged(pins, cluster, (dp * outer, cp, tp), free, experts):
                if len(axes) == FREE_AXES_MAX + 1:
                    yield axes


def _is_wide(pins: Pins, axes: Axes) -> bool:
    """True if a mesh is tried for the best pipelines alone: of three axes, or with hybrid ZeRO."""
    pinned = {pins.dp, pins.cp, pins.tp, pins.ep} != {None}
    hybrid = any(axis.copies for axis in axes) and pins.zero is None
    return hybrid or (len(axes) > FREE_AXES_MAX and not pinned)


def _roled_meshes(
    pins: Pins,
    cluster: Cluster,
    devices: int,
    sequence: int,
    experts: int,
    runs: Capabilities,
    stages: int,
) -> Iterator[Axes]:
    """Meshes of a framework without mixed axes, of three axes at most unless pins want more.

    Unless they are pinned, tensor parallelism stays within a node, and context parallelism leaves
    every rank `TOKENS_MIN`. State that is split costs no more than whole copies, which then are for
    pins alone.
    """

    def sizes(name: str, most: int = devices) -> list[int]:
        most = most if name in runs.degrees else 1
        return [
            n
            for n in divisors(devices)
            if pins.admits(name, n) and (n <= max(most, 1) or getattr(pins, name))
        ]

    levels = runs.levels(stages)
    searched = [level for level in levels if level != "0" or "1" not in levels]
    replicas = sizes("dp")
    for cp, tp in product(
        sizes("cp", sequence // TOKENS_MIN), sizes("tp", cluster.devices_per_node)
    ):
        dp, left = divmod(devices, cp * tp)
        if left or dp not in replicas:
            continue
        free_zero = pins.zero is None and dp * cp > 1
        along: tuple[bool | None, ...] = (None,)
        if tp > 1 and sequence and pins.sequence_parallel is None:
            along = {"always": (True,), "never": (False,)}.get(
                runs.sequence_parallel, (True, False)
            )
        parts = [1]
        if experts and "ep" in runs.degrees:
            parts = [n for n in divisors(gcd(experts, dp * tp)) if pins.ep in (None, n)]
            if pins.etp is None:  # else few of them may have it
                parts = [n for n in parts if n in (1, parts[-1], pins.ep) or n >= EXPERT_PARTS_MIN]
        for level, norms, ep in product(searched if free_zero else [pins.zero], along, parts):
            asked = replace(pins, dp=dp, cp=cp, tp=tp, ep=ep, zero=level)
            for axes in _arranged(asked, cluster, (dp, cp, tp), (), experts):
                inner = prod(axis.size for axis in axes if axis.role == "tp" and axis.experts)
                usual = (1, tp) if pins.etp is None else (tp // pins.etp,)
                most = EXPERT_AXES_MAX + (pins.etp is not None)
                if pins.ep is None and (inner not in usual or len(axes) > most):
                    continue
                yield _with_choices(axes, asked.zero_level if free_zero else None, norms)


def _with_choices(axes: Axes, zero: int | None, sequence: bool | None) -> Axes:
    """Axes with a level of ZeRO over replicas, and with or without sequence parallelism."""
    return tuple(
        replace(
            axis,
            zero=zero if axis.role in ("dp", "cp") else None,
            sequence=sequence if axis.role == "tp" else None,
        )
        for axis in axes
    )


def _settled_sizes(pins: Pins, devices: int, sequence: int) -> Iterator[tuple[int, int, int]]:
    """Every dp, cp and tp that the pins settle, 1 where a degree is left open."""
    settled = pins.settled_degrees | (frozenset() if sequence else {"cp"})

    def sizes(name: str) -> list[int]:
        if name not in settled:
            return [1]
        return [n for n in divisors(devices) if pins.admits(name, n)]

    for dp, cp, tp in product(sizes("dp"), sizes("cp"), sizes("tp")):
        rest, left = divmod(devices, dp * cp * tp)
        if left or (rest > 1 and settled >= {"dp", "cp", "tp"}) or (cp > 1 and not sequence):
            continue
        yield dp, cp, tp


def _arranged(
    pins: Pins,
    cluster: Cluster,
    degrees: tuple[int, int, int],
    free: tuple[int, ...],
    experts: int,
) -> Iterator[Axes]:
    """The axes of these degrees: dp and tp in two where experts or storage want a part of them."""
    dp, cp, tp = degrees
    inside = cp * tp
    for size in free:
        inside *= size
    free_experts = None if experts and pins.ep is None else False
    found_dp = (
        "dp" not in pins.settled_degrees
    )  # not asked for: experts may be split over it or not
    for dp_ep, tp_ep in _expert_axes(
        pins, 1 if found_dp else dp, tp, experts, EXPERT_AXES_MAX - (cp > 1)
    ):
        if experts and pins.etp not in (None, tp // tp_ep):
            continue
        for replicas in _replicas(pins, dp, dp_ep, inside, cluster.devices_per_node):
            axes = [
                RoledAxis(role="dp", size=replicas, experts=False, copies=True),
                RoledAxis(
                    role="dp",
                    size=dp // dp_ep // replicas,
                    experts=free_experts if found_dp else False,
                ),
                RoledAxis(role="dp", size=dp_ep, experts=True),
                RoledAxis(role="cp", size=cp, experts=False),
                *(RoledAxis(role="", size=size, experts=free_experts) for size in free),
                RoledAxis(role="tp", size=tp // tp_ep, experts=False),
                RoledAxis(role="tp", size=tp_ep, experts=True),
            ]
            yield tuple(
                axis if experts else RoledAxis(role=axis.role, size=axis.size, copies=axis.copies)
                for axis in axes
                if axis.size > 1
            )


def _expert_axes(
    pins: Pins, dp: int, tp: int, experts: int, axes_max: int
) -> Iterator[tuple[int, int]]:
    """Parts of the data- and tensor-parallel ranks over which experts are split.

    Unpinned, experts lie whole everywhere, over as many replicas as divide them, or over the
    tensor-parallel ranks; pinned, wherever that makes few axes.
    """
    if not experts or pins.ep == 1:
        yield 1, 1
        return
    if pins.ep is not None:
        ep = pins.ep
        parts = [(part, ep // part) for part in divisors(gcd(dp, ep)) if tp % (ep // part) == 0]
        parts = [pair for pair in parts if pins.etp in (None, tp // pair[1])]
        axes = [
            sum(size > 1 for size in (dp // part, part, tp // inner, inner))
            for part, inner in parts
        ]
        most = max(axes_max, min(axes, default=0))
        yield from (pair for pair, count in zip(parts, axes, strict=True) if count <= most)
        return
    inner = tp // (pins.etp or 1)
    inner = inner if experts % inner == 0 else 1
    over_both = (gcd(dp, experts // inner), inner) if pins.etp else (1, inner)
    yield from sorted({(1, 1), (gcd(dp, experts), 1), (1, inner), over_both})


def _replicas(pins: Pins, dp: int, dp_ep: int, inside: int, node: int) -> list[int]:
    """Outer parts of the data-parallel ranks that hold copies; 1 unless hybrid ZeRO is pinned.

    Storage is split over as many replicas as one node holds, or over any where that says nothing.
    """
    if pins.zero != "3-hybrid":
        return [1]
    every = [size for size in divisors(dp // dp_ep) if 1 < size < dp]
    within = [size for size in every if dp // size * inside <= node]
    return within[:1] if within and dp * inside > node else every


def _inner_sizes(rest: int, node: int) -> list[int]:
    """The largest sizes that divide a node, largest first."""
    return [size for size in reversed(divisors(gcd(rest, node))) if size > 1][:INNER_CHOICES]


def _factors(number: int, most: int) -> Iterator[tuple[int, ...]]:
    """Ordered factorisations into at most so many factors above one."""
    if number == 1:
        yield ()
        return
    yield (number,)
    if most > 1:
        for first in divisors(number)[1:-1]:
            yield (first, number // first)
