"""Candidates of the outer search: stages, mesh, microbatches and schedule, within the pins."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import gcd, prod

from planner.cluster import Cluster
from planner.errors import InfeasibleError
from planner.search.pins import Pins, RoledAxis
from planner.search.ranks import Placing
from planner.search.stages import DEFERRING, Pipeline

# Axes that stay free inside a stage: two already make every signature a pair (5² states a tensor).
FREE_AXES_MAX = 2
INTERLEAVES = (2, 4)
INTERLEAVE_MAX = 12  # of published runs of tens of stages; beyond, sends outnumber what is gained
# gpipe is never better than 1f1b (as long, more memory), so only a pin brings it in.
SEARCHED = ("1f1b", "interleaved-1f1b", "zb-h1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One shape of a plan: everything but the signatures and the division into stages."""

    axes: tuple[RoledAxis, ...]
    pipeline: Pipeline
    batch: int
    placing: Placing | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the mesh axes."""
        return tuple(axis.size for axis in self.axes)

    @property
    def text(self) -> str:
        """The candidate in one line, for reports."""
        mesh = " × ".join(f"{axis.role or 'free'} {axis.size}" for axis in self.axes)
        p = self.pipeline
        pieces = [
            f"{p.stages} stage{'s' * (p.stages > 1)} of {mesh or 'one device'}",
            f"{p.microbatches} microbatch{'es' * (p.microbatches > 1)} of {self.batch}",
        ]
        if p.stages > 1:
            pieces.append(p.schedule + (f" with {p.interleave} chunks" if p.interleave > 1 else ""))
        if self.placing is not None and self.placing.text:
            pieces.append(self.placing.text)
        return ", ".join(pieces)


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    return tuple(d for d in range(1, number + 1) if number % d == 0)


def candidates(
    pins: Pins,
    cluster: Cluster,
    global_batch: int,
    blocks: int,
    *,
    sequence: bool,
    experts: int = 0,
) -> tuple[Candidate, ...]:
    """Return every candidate that the pins, the devices and the batch allow, in a fixed order.

    Parameters
    ----------
    pins : Pins
    cluster : Cluster
        Every device is used.
    global_batch : int
        Samples of a step.
    blocks : int
        Blocks of the model: no more chunks than that.
    sequence : bool
        Whether the model has a sequence label, so that an axis may split it.
    experts : int
        Size of the model's expert label; 0 where it has none.

    Raises
    ------
    InfeasibleError
        The pins leave nothing; says which of them.
    """
    pins.check()
    if not sequence and ((pins.cp or 1) > 1 or pins.sequence_parallel):
        asked = "--sequence-parallel" if pins.sequence_parallel else f"--cp {pins.cp}"
        raise InfeasibleError(f"{asked}: this model has no sequence to split; leave it out")
    if (pins.ep or 1) > 1 and (not experts or experts % (pins.ep or 1)):
        reason = (
            f"{experts} experts do not divide by it; choose a divisor of {experts}"
            if experts
            else "this model has no experts; leave --ep out"
        )
        raise InfeasibleError(f"--ep {pins.ep}: {reason}")
    devices = cluster.devices
    pinned = prod(getattr(pins, name) or 1 for name in ("dp", "tp", "pp", "cp"))
    if devices % pinned:
        raise InfeasibleError(
            f"the pinned degrees make {pinned} devices, which do not divide the {devices} of "
            f"`{cluster.name}`: choose degrees whose product divides {devices}"
        )
    degrees = (pins.dp, pins.tp, pins.pp, pins.cp)
    if all(degrees) and pinned != devices:
        raise InfeasibleError(
            f"the pinned degrees make {pinned} devices, `{cluster.name}` has {devices}: leave one "
            f"degree out, or plan for a cluster of {pinned}"
        )
    found: list[Candidate] = []
    for stages in (pins.pp,) if pins.pp else divisors(devices):
        if devices % (pinned // (pins.pp or 1) * stages) or stages > blocks:
            continue
        for axes in _meshes(pins, devices // stages, sequence, experts):
            for batch in _batches(pins, axes, global_batch):
                for pipeline in _pipelines(pins, stages, global_batch // batch, blocks):
                    found.append(Candidate(axes=axes, pipeline=pipeline, batch=batch))
    if not found:
        raise InfeasibleError(_nothing(pins, devices, global_batch, blocks))
    return tuple(found)


def _meshes(
    pins: Pins, devices: int, sequence: bool, experts: int
) -> Iterator[tuple[RoledAxis, ...]]:
    """Axes of one stage in the order dp, cp, free, tp: tp joins neighbours.

    A settled degree has an axis of its own (two where experts are split over a part of it); what
    is left of the devices goes to free axes.
    """
    settled = pins.settled | (frozenset() if sequence else {"cp"})

    def sizes(name: str) -> list[int]:
        if name not in settled:
            return [1]
        return [n for n in divisors(devices) if pins.admits(name, n)]

    for dp, cp, tp in product(sizes("dp"), sizes("cp"), sizes("tp")):
        rest, left = divmod(devices, dp * cp * tp)
        if left or (rest > 1 and settled >= {"dp", "cp", "tp"}) or (cp > 1 and not sequence):
            continue
        taken = sum(size > 1 for size in (dp, cp, tp))
        free_experts = None if experts and pins.ep is None else False
        for (dp_ep, tp_ep), free in product(
            _expert_axes(pins, dp, tp, experts), list(_factors(rest, max(1, FREE_AXES_MAX - taken)))
        ):
            axes = [
                ("dp", dp // dp_ep, False),
                ("dp", dp_ep, True),
                ("cp", cp, False),
                *(("", n, free_experts) for n in free),
                ("tp", tp // tp_ep, False),
                ("tp", tp_ep, True),
            ]
            yield tuple(
                RoledAxis(role=role, size=size, experts=split if experts else None)
                for role, size, split in axes
                if size > 1
            )


def _expert_axes(pins: Pins, dp: int, tp: int, experts: int) -> Iterator[tuple[int, int]]:
    """Parts of the data- and tensor-parallel ranks over which experts are split.

    Unpinned, experts lie whole everywhere, over as many replicas as divide them, or over the
    tensor-parallel ranks.
    """
    if not experts or pins.ep == 1:
        yield 1, 1
        return
    if pins.ep is not None:
        for dp_ep in divisors(gcd(dp, pins.ep)):
            if tp % (pins.ep // dp_ep) == 0:
                yield dp_ep, pins.ep // dp_ep
        return
    yield from sorted({(1, 1), (gcd(dp, experts), 1), (1, tp if experts % tp == 0 else 1)})


def _factors(number: int, most: int) -> Iterator[tuple[int, ...]]:
    """Ordered factorisations into at most so many factors above one."""
    if number == 1:
        yield ()
        return
    yield (number,)
    if most > 1:
        for first in divisors(number)[1:-1]:
            yield (first, number // first)


def _batches(pins: Pins, axes: tuple[RoledAxis, ...], global_batch: int) -> tuple[int, ...]:
    """Samples of one microbatch over all replicas."""
    dp = prod(axis.size for axis in axes if axis.role == "dp")
    if pins.micro_batch is not None:
        batch = pins.micro_batch * dp
        return (batch,) if global_batch % batch == 0 else ()
    return tuple(batch for batch in divisors(global_batch) if batch % dp == 0)


def _pipelines(pins: Pins, stages: int, microbatches: int, blocks: int) -> Iterator[Pipeline]:
    schedules = (pins.schedule,) if pins.schedule else SEARCHED
    for schedule in schedules:
        interleaved = schedule == "interleaved-1f1b"
        if pins.interleave is not None:
            choices: tuple[int, ...] = (pins.interleave,)
        elif interleaved and stages > 1:
            choices = _interleaves(stages, blocks)
        else:
            choices = (1,)
        for chunks in choices:
            if chunks > 1 and not interleaved and schedule != "gpipe":
                continue
            if interleaved and stages > 1 and (microbatches % stages or chunks == 1):
                continue
            if stages == 1 and schedule != "1f1b" and not pins.schedule:
                continue
            if schedule in DEFERRING and microbatches < stages:
                continue
            if stages * chunks <= blocks:
                yield Pipeline(
                    schedule=schedule,
                    stages=stages,
                    interleave=chunks,
                    microbatches=microbatches,
                )


def _interleaves(stages: int, blocks: int) -> tuple[int, ...]:
    """Chunks per stage: few, and as many as leave chunks even.

    Even counting all blocks, or all but the first and the last (an embedding and a head).
    """
    even = {
        chunks
        for count in (blocks // stages, (blocks - 2) // stages)
        for chunks in divisors(count)
        if 1 < chunks <= INTERLEAVE_MAX
    }
    return tuple(sorted({*INTERLEAVES, *sorted(even)[-1:]}))


def _nothing(pins: Pins, devices: int, global_batch: int, blocks: int) -> str:
    """The sentence for pins that leave no candidate."""
    set_pins = ", ".join(f"{name} {value}" for name, value in pins.document.items()) or "none"
    return (
        f"no plan: {devices} devices, a global batch of {global_batch} and {blocks} blocks leave "
        f"none under the pins ({set_pins}): the microbatch of all replicas must divide the global "
        f"batch, degrees the devices, ep the replicas times tp, chunks must not outnumber blocks; "
        f"interleaved-1f1b needs "
        f"microbatches in multiples of the stages, zb-h1 at least as many as stages"
    )
