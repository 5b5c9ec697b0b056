"""Candidates of the outer search: stages, mesh, microbatches and schedule, within the pins."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import ceil, prod

from millrace.planner.cluster import Cluster
from millrace.planner.errors import InfeasibleError
from millrace.planner.frameworks.capabilities import EVERYTHING, Capabilities, layer_counts
from millrace.planner.schedules import MICROBATCHES_MAX, PLAIN, SCHEDULES, Schedule
from millrace.planner.search.meshes import divisors, meshes, wide_meshes
from millrace.planner.search.pins import Pins, RoledAxis
from millrace.planner.search.rank_groups import Placing
from millrace.planner.search.stages import Pipeline

INTERLEAVES = (2, 3, 4)
INTERLEAVE_MAX = 12  # the most in published runs of tens of stages; with more, sends cost more
# Blocks of the largest chunk over their mean: above the first no chunks are searched, up to the
# second they are as good as even (58 equal blocks of DeepSeek-V3 in 20 chunks: 3 at most). By eye.
UNEVEN, EVEN = 1.15, 1.05


PipelineShape = tuple[int, str, int, int]
"""Stages, schedule, chunks per stage and microbatches of a pipeline."""


def shape_of(pipeline: Pipeline) -> PipelineShape:
    """Stages, schedule, chunks and microbatches of a pipeline."""
    return pipeline.stages, pipeline.schedule, pipeline.interleave, pipeline.microbatches


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


def candidates(
    pins: Pins,
    cluster: Cluster,
    global_batch: int,
    blocks: int,
    *,
    sequence: int,
    experts: int = 0,
    repeated: int = 0,
    runs: Capabilities = EVERYTHING,
) -> tuple[Candidate, ...]:
    """Candidates that the pins, the devices and the batch allow, in a fixed order.

    Parameters
    ----------
    pins : Pins
        Choices of the user; what is None is enumerated.
    cluster : Cluster
        Every device is used.
    global_batch : int
        Samples of a step.
    blocks : int
        Blocks of the model that are divided over chunks (`divided_blocks`): no more chunks than
        that.
    sequence : int
        Tokens of a sample, which an axis may split; 0 where the model has no sequence label.
    experts : int
        Size of the model's expert label; 0 where it has none.
    repeated : int
        Equal blocks in a row, at most; 0: all of them.
    runs : Capabilities
        What the framework can run.

    Returns
    -------
    tuple of Candidate
        At least one, without places on a cluster of several kinds of device (`placed` gives them).

    Raises
    ------
    PlanError
        A pin is malformed.
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
    if pins.etp is not None and not experts:
        raise InfeasibleError(f"--etp {pins.etp}: this model has no experts; leave --etp out")
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
    allowed_candidates: list[Candidate] = []
    for stages in (pins.pp,) if pins.pp else divisors(devices):
        if devices % (pinned // (pins.pp or 1) * stages) or stages > blocks:
            continue
        if stages > 1 and "pp" not in runs.degrees:
            continue
        for axes in meshes(
            pins,
            cluster,
            devices // stages,
            sequence=sequence,
            experts=experts,
            runs=runs,
            stages=stages,
        ):
            for batch in _batches(pins, axes, global_batch):
                for pipeline in _pipelines(
                    pins, stages, global_batch // batch, blocks, repeated or blocks, runs
                ):
                    allowed_candidates.append(Candidate(axes=axes, pipeline=pipeline, batch=batch))
    if not allowed_candidates:
        raise InfeasibleError(_nothing(pins, devices, global_batch, blocks))
    return tuple(allowed_candidates)


def wider(
    pins: Pins,
    cluster: Cluster,
    global_batch: int,
    blocks: int,
    pipelines: Collection[PipelineShape],
    *,
    sequence: int,
    experts: int = 0,
    repeated: int = 0,
    runs: Capabilities = EVERYTHING,
) -> tuple[Candidate, ...]:
    """Candidates with meshes of three axes, in a fixed order.

    Only for some `pipelines` (those that did best with fewer axes). Where there are none, for all,
    but with microbatches of one or two samples where the inner axes split anything but the batch,
    or where the middle one splits it.
    """
    wide_candidates: list[Candidate] = []
    for stages in divisors(cluster.devices):
        if (pins.pp or stages) != stages or stages > blocks:
            continue
        if stages > 1 and "pp" not in runs.degrees:
            continue
        if pipelines and all(stages != shape[0] for shape in pipelines):
            continue
        for axes in wide_meshes(
            pins,
            cluster,
            cluster.devices // stages,
            sequence=sequence,
            experts=experts,
            runs=runs,
            stages=stages,
        ):
            dp = prod(axis.size for axis in axes if axis.role == "dp")
            middle = prod(axis.size for axis in axes[1:-1] if axis.role == "")
            few = {dp * share * times for share in (1, middle) for times in (1, 2)}
            for batch in _batches(pins, axes, global_batch):
                if not (pipelines or batch in few or pins.micro_batch):
                    continue
                wide_candidates.extend(
                    Candidate(axes=axes, pipeline=pipeline, batch=batch)
                    for pipeline in _pipelines(
                        pins, stages, global_batch // batch, blocks, repeated or blocks, runs
                    )
                    if not pipelines or shape_of(pipeline) in pipelines
                )
    return tuple(wide_candidates)


def _batches(pins: Pins, axes: tuple[RoledAxis, ...], global_batch: int) -> tuple[int, ...]:
    """Samples of one microbatch over all replicas."""
    dp = prod(axis.size for axis in axes if axis.role == "dp")
    least = -(-global_batch // MICROBATCHES_MAX)
    if pins.micro_batch is not None:
        batch = pins.micro_batch * dp
        return (batch,) if global_batch % batch == 0 and batch >= least else ()
    return tuple(batch for batch in divisors(global_batch) if batch % dp == 0 and batch >= least)


def _pipelines(
    pins: Pins, stages: int, microbatches: int, blocks: int, repeated: int, runs: Capabilities
) -> Iterator[Pipeline]:
    for schedule in _schedules(pins, runs):
        if stages == 1 and schedule.name != PLAIN and not pins.schedule:
            continue
        if stages > 1 and not runs.has_schedule(schedule.name):
            continue
        if microbatches < schedule.least_microbatches(stages):
            continue
        for chunks in _chunks(pins, schedule, stages, repeated):
            if stages * chunks > blocks:
                continue
            if runs.layers != "any" and not layer_counts(blocks - 2, stages * chunks, runs.layers):
                continue
            if chunks > 1 and stages > 1 and pins.interleave is None:
                # Chunks wait for each other, so that the largest sets the pace of all.
                share = repeated / (stages * chunks)
                if pins.schedule is None and ceil(share) > UNEVEN * share:
                    continue
                if schedule.in_rounds and microbatches % stages:
                    continue
            yield Pipeline(
                schedule=schedule.name, stages=stages, interleave=chunks, microbatches=microbatches
            )


def _schedules(pins: Pins, runs: Capabilities = EVERYTHING) -> list[Schedule]:
    """Schedules in question; without a pipeline there is the plain one, whoever runs the plan."""
    if pins.schedule:
        return [SCHEDULES[pins.schedule]]
    return [
        schedule
        for name, schedule in SCHEDULES.items()
        if schedule.searched and (name == PLAIN or runs.has_schedule(name))
    ]


def _chunks(pins: Pins, schedule: Schedule, stages: int, repeated: int) -> tuple[int, ...]:
    """Chunks a stage that a schedule may have."""
    allowed: tuple[int, ...] = (schedule.chunks or 1,)
    if schedule.interleaves and stages > 1:
        allowed = _interleaves(stages, repeated)
    if pins.interleave is None:
        return allowed
    free = schedule.chunks is None and (pins.interleave > 1 or stages == 1)
    return (pins.interleave,) if free or pins.interleave in allowed else ()


def _interleaves(stages: int, repeated: int) -> tuple[int, ...]:
    """Chunks per stage: few, and the most that leave chunks as good as even."""
    even = [
        chunks
        for chunks in range(2, INTERLEAVE_MAX + 1)
        if stages * chunks <= repeated
        and ceil(repeated / (stages * chunks)) <= EVEN * repeated / (stages * chunks)
    ]
    return tuple(sorted({*INTERLEAVES, *even[-1:]}))


def _nothing(pins: Pins, devices: int, global_batch: int, blocks: int) -> str:
    """The sentence for pins that leave no candidate."""
    samples = (pins.dp or 1) * (pins.micro_batch or 1)
    if global_batch % samples:
        named = [f"--dp {pins.dp}"] if pins.dp else []
        named += [f"--micro-batch {pins.micro_batch}"] if pins.micro_batch else []
        return (
            f"no plan: {' and '.join(named)} make microbatches of {samples} samples, which do not "
            f"divide the global batch of {global_batch}"
        )
    set_pins = ", ".join(f"{name} {value}" for name, value in pins.document.items()) or "none"
    return (
        f"no plan: {devices} devices, a global batch of {global_batch} and {blocks} blocks leave "
        f"none under the pins ({set_pins}): the microbatch of all replicas must divide the global "
        f"batch, into at most {MICROBATCHES_MAX:,}, degrees the devices, ep the replicas times tp, "
        f"chunks must not outnumber blocks"
        f"{''.join('; ' + rule for rule in _rules(pins))}"
    )


def _rules(pins: Pins) -> list[str]:
    """Rules of the schedules in question on chunks and microbatches, but for those a pin lifts."""
    rules = []
    for schedule in _schedules(pins):
        requirement = schedule.requirement
        if schedule.interleaves and pins.interleave is not None:
            # Chunks that were asked for may wait for each other.
            requirement = "needs more than one chunk a stage" if pins.interleave == 1 else ""
        if requirement:
            rules.append(f"{schedule.name} {requirement}")
    return rules
