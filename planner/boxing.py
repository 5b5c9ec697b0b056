"""Boxing: from one nd-SBP of a tensor to another, on the same devices or on others.

On one placement a boxing is a path of steps, each one collective or local move over mesh axes
(t bytes of tensor lie on the group of p devices):

| from → to     | step           | bytes received per device     |
|---------------|----------------|-------------------------------|
| S(i) → B      | all_gather     | (p − 1)/p · t                 |
| P → B         | all_reduce     | 2 (p − 1)/p · t               |
| P → S(i)      | reduce_scatter | (p − 1)/p · t                 |
| S(i) → S(j)   | all_to_all     | (p − 1)/p · t/p               |
| B → S(i)      | slice          | 0                             |
| B, S(i) → P   | pad            | 0                             |

Between placements a tensor is boxed, sent straight across by each device to its counterpart, and
boxed on from there (`crossing`). Bytes are those of a ring (Patarasuk and Yuan, "Bandwidth optimal
all-reduce algorithms", 2009).

An axis may only take up or drop S(i) while no inner axis splits dim i: the pieces of an outer axis
are then contiguous, and gathering them in group order gives the tensor in order.
"""

import heapq
from functools import cache
from itertools import combinations, compress
from math import gcd, prod
from typing import NamedTuple

from millrace.planner.collectives import COLLECTIVES, LOCAL_BOXING
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.sbp import (
    BROADCAST,
    PARTIAL_SUM,
    NdSbp,
    Sbp,
    format_nd_sbp,
    local_shape,
    local_size,
    split,
)


class BoxingStep(NamedTuple):
    """One collective or local move over the mesh axes with indexes `axes` (outer to inner)."""

    kind: str  # a collective that boxes, or one of LOCAL_BOXING
    axes: tuple[int, ...]
    before: NdSbp
    after: NdSbp


# An element counts so many bytes while paths are compared: shares of it are not rounded away.
EXACT = 1 << 20


def _kind(before: Sbp, after: Sbp) -> str | None:
    """Kind of the step that takes one axis from `before` to `after`; None where there is none."""
    if before.is_split:
        return "all_to_all" if after.is_split else "all_gather" if after == BROADCAST else "pad"
    if before == BROADCAST:
        return "slice" if after.is_split else "pad"
    if after.is_partial:
        return None
    return "reduce_scatter" if after.is_split else "all_reduce"


def step_bytes(
    step: BoxingStep, shape: tuple[int, ...], itemsize: int, sizes: tuple[int, ...]
) -> int:
    """Bytes that each device receives during one step on a ring, rounded down."""
    before = local_size(shape, step.before, sizes) * itemsize
    after = local_size(shape, step.after, sizes) * itemsize
    return _received(step, before, after, sizes)


def _received(step: BoxingStep, before: int, after: int, sizes: tuple[int, ...]) -> int:
    """Bytes received during a step between shards of so many bytes."""
    if step.kind in LOCAL_BOXING:
        return 0
    group, kind = prod([sizes[axis] for axis in step.axes]), COLLECTIVES[step.kind]
    moved = kind.received_before * before + kind.received_after * after
    return moved * (group - 1) // group


def message_bytes(
    step: BoxingStep, shape: tuple[int, ...], itemsize: int, sizes: tuple[int, ...]
) -> int:
    """Message size as collective libraries count it: the larger of the two local tensors, in bytes.

    Parameters
    ----------
    step : BoxingStep
        Its nd-SBPs before and after are what counts, not its kind.
    shape : tuple of int
        Shape of the whole tensor.
    itemsize : int
        Bytes of one element.
    sizes : tuple of int
        Devices along each mesh axis.

    Raises
    ------
    PlanError
        A dim that the step's SBPs split does not exist.
    """
    before = local_size(shape, step.before, sizes)
    return max(before, local_size(shape, step.after, sizes)) * itemsize


def moves(state: NdSbp, ndim: int, sizes: tuple[int, ...]) -> tuple[BoxingStep, ...]:
    """Legal single steps from `state`.

    Parameters
    ----------
    state : NdSbp
        SBP of the tensor on each mesh axis, outer first.
    ndim : int
        Number of dims of the tensor; any of them may be split.
    sizes : tuple of int
        Devices along each mesh axis; it only counts which of them are more than one.

    Returns
    -------
    tuple of BoxingStep
        Steps over one axis, then collectives over several; whether dims divide is not asked.
    """
    return _moves(state, ndim, tuple(size > 1 for size in sizes))


@cache
def _moves(state: NdSbp, ndim: int, wide: tuple[bool, ...]) -> tuple[BoxingStep, ...]:
    """Legal single steps from `state`, where `wide` tells which axes have several devices."""
    steps: list[BoxingStep] = []
    for axis, sbp in enumerate(state):
        if not wide[axis]:
            continue
        inner = {
            s.dim
            for s, several in zip(state[axis + 1 :], wide[axis + 1 :], strict=True)
            if s.is_split and several
        }
        if sbp.is_split and sbp.dim in inner:
            continue
        # Zeros are neutral for sums only, so nothing becomes P(max).
        choices = [BROADCAST, *(split(dim) for dim in range(ndim)), PARTIAL_SUM]
        for after in choices:
            if after == sbp or (after.is_split and after.dim in inner):
                continue
            if after.is_partial and not sbp.is_partial and _clashes(state, after):
                continue
            if kind := _kind(sbp, after):
                steps.append(BoxingStep(kind, (axis,), state, _replaced(state, (axis,), after)))
    steps.extend(_joint_moves(state, ndim, wide))
    return tuple(steps)


def _clashes(state: NdSbp, after: Sbp) -> bool:
    return any(sbp.is_partial and sbp != after for sbp in state)


def _joint_moves(state: NdSbp, ndim: int, wide: tuple[bool, ...]) -> list[BoxingStep]:
    """Collectives over several axes at once, which are partial alike or split one dim."""
    steps = []
    partial = tuple(a for a, sbp in enumerate(state) if sbp.is_partial and wide[a])
    if len(partial) > 1 and len({state[a] for a in partial}) == 1:
        steps.append(BoxingStep("all_reduce", partial, state, _replaced(state, partial, BROADCAST)))
        for count in range(2, len(partial) + 1):
            for axes in combinations(partial, count):
                inner = {s.dim for s in compress(state[axes[0] :], wide[axes[0] :]) if s.is_split}
                steps += (
                    BoxingStep("reduce_scatter", axes, state, _replaced(state, axes, split(dim)))
                    for dim in range(ndim)
                    if dim not in inner
                )
    for dim in {sbp.dim for sbp in state if sbp.is_split}:
        axes = tuple(a for a, sbp in enumerate(state) if sbp == split(dim) and wide[a])
        if len(axes) > 1:
            steps.append(BoxingStep("all_gather", axes, state, _replaced(state, axes, BROADCAST)))
    return steps


def _replaced(state: NdSbp, axes: tuple[int, ...], after: Sbp) -> NdSbp:
    return tuple(after if axis in axes else sbp for axis, sbp in enumerate(state))


@cache
def boxing_path(
    source: NdSbp, target: NdSbp, sizes: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[BoxingStep, ...]:
    """Steps of least bytes from `source` to `target` on one placement.

    Parameters
    ----------
    source, target : NdSbp
        One SBP per mesh axis, outer first; axes of one device need no step.
    sizes : tuple of int
        Devices along each mesh axis.
    shape : tuple of int
        Shape of the whole tensor; of each dim only its gcd with the number of devices matters.

    Returns
    -------
    tuple of BoxingStep
        In order; empty where nothing changes on axes of several devices.

    Raises
    ------
    InfeasibleError
        No path exists: a dim is not there, or P(sum) would have to become P(max).

    Examples
    --------
    >>> from millrace.planner.sbp import parse_nd_sbp
    >>> [s.kind for s in boxing_path(parse_nd_sbp("P(sum)"), parse_nd_sbp("S(0)"), (4,), (8, 3))]
    ['reduce_scatter']

    Notes
    -----
    Dijkstra's algorithm over the nd-SBPs that divide, by bytes and then by number of steps; over
    all where they lead nowhere, for shards may be padded (`millrace.planner.sbp.padded_shape`).
    """
    target = tuple(
        wanted if size > 1 else have
        for have, wanted, size in zip(source, target, sizes, strict=True)
    )
    devices = prod(sizes)
    # Which dims divide decides, and nothing else: shapes of one pattern share their paths.
    path = _paths(source, sizes, tuple(gcd(size, devices) for size in shape)).to(target)
    if path is None:  # padded shards travel as if all divided
        path = _paths(source, sizes, (devices,) * len(shape)).to(target)
    if path is None:
        raise InfeasibleError(
            f"no boxing from {format_nd_sbp(source)} to {format_nd_sbp(target)} for a tensor of "
            f"shape {shape} on a mesh of {sizes}"
        )
    return path


class _Paths:
    """Paths of least bytes from one nd-SBP to others, found as far as they are asked for."""

    def __init__(self, source: NdSbp, sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
        self._sizes, self._shape = sizes, shape
        self._wide = tuple(size > 1 for size in sizes)
        self._shard_bytes = _shared_shard_bytes(sizes, shape)
        self._count = 0
        self._queue: list[tuple[int, int, int, NdSbp, tuple[BoxingStep, ...]]] = [
            (0, 0, 0, source, ())
        ]
        self._queued: dict[NdSbp, tuple[int, int]] = {source: (0, 0)}  # the best of each so far
        self._best_paths: dict[NdSbp, tuple[BoxingStep, ...]] = {}

    def to(self, target: NdSbp) -> tuple[BoxingStep, ...] | None:
        """The path to an nd-SBP; None where it cannot be reached."""
        while target not in self._best_paths and self._queue:
            self._settle()
        return self._best_paths.get(target)

    def _settle(self) -> None:
        """Find the path to the nearest nd-SBP of those in the queue."""
        moved, length, _, state, path = heapq.heappop(self._queue)
        if state in self._best_paths:
            return
        self._best_paths[state] = path
        before = _held_bytes(self._shard_bytes, state, self._shape, self._sizes)
        if before is None:
            return
        for step in _moves(state, len(self._shape), self._wide):
            if step.after in self._best_paths:
                continue
            after = _held_bytes(self._shard_bytes, step.after, self._shape, self._sizes)
            if after is None:
                continue
            cost = moved + _received(step, before, after, self._sizes), length + 1
            best = self._queued.get(step.after)
            if best is None or cost < best:  # the first of equals is taken
                self._queued[step.after] = cost
                self._count += 1
                heapq.heappush(self._queue, (*cost, self._count, step.after, (*path, step)))


_paths = cache(_Paths)


@cache
def _shared_shard_bytes(sizes: tuple[int, ...], shape: tuple[int, ...]) -> dict[NdSbp, int | None]:
    """Bytes of every shard that was asked for, by its nd-SBP; `_held_bytes` fills it."""
    return {}


def _held_bytes(
    shard_bytes: dict[NdSbp, int | None], sbp: NdSbp, shape: tuple[int, ...], sizes: tuple[int, ...]
) -> int | None:
    """Bytes of a shard; None where a dim does not divide."""
    if sbp not in shard_bytes:
        try:
            shard_bytes[sbp] = prod(local_shape(shape, sbp, sizes)) * EXACT
        except PlanError:
            shard_bytes[sbp] = None
    return shard_bytes[sbp]


class StageTransfer(NamedTuple):
    """Way of a tensor from one placement to an equal mesh elsewhere: box, send across, box."""

    before: tuple[BoxingStep, ...]
    carried: NdSbp
    after: tuple[BoxingStep, ...]


@cache
def crossing(
    source: NdSbp, target: NdSbp, sizes: tuple[int, ...], shape: tuple[int, ...]
) -> StageTransfer:
    """Cheapest way from `source` here to `target` on another placement of equal mesh.

    The tensor is sent straight across, each device to its counterpart, as the source's SBP or as
    the target's, whichever makes every device receive fewer bytes in all.

    Parameters
    ----------
    source, target : NdSbp
        One SBP per mesh axis, outer first, here and there.
    sizes : tuple of int
        Devices along each mesh axis, equal on both placements.
    shape : tuple of int
        Shape of the whole tensor.

    Raises
    ------
    InfeasibleError
        Source and target are both partial, or no boxing joins them.
    PlanError
        A dim that the carried SBP splits does not exist.
    """
    best: tuple[int, StageTransfer] | None = None
    for carried in dict.fromkeys((target, source)):
        if any(sbp.is_partial for sbp, size in zip(carried, sizes, strict=True) if size > 1):
            continue
        before = boxing_path(source, carried, sizes, shape)
        after = boxing_path(carried, target, sizes, shape)
        moved = local_size(shape, carried, sizes) + sum(
            step_bytes(step, shape, 1, sizes) for step in (*before, *after)
        )
        if best is None or moved < best[0]:
            best = (moved, StageTransfer(before, carried, after))
    if best is None:
        raise InfeasibleError(
            f"partial values do not cross stages: {format_nd_sbp(source)} to "
            f"{format_nd_sbp(target)}; one side must be S or B"
        )
    return best[1]
