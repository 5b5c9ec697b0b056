"""Division of the blocks of a model over the chunks of a pipeline, at the least step time."""

from contextlib import suppress
from dataclasses import replace

from millrace.planner.errors import InfeasibleError
from millrace.planner.search.request import MemoryLimitError
from millrace.planner.search.stages.bounds import lower_bound_ns
from millrace.planner.search.stages.enumeration import divided, least_excess
from millrace.planner.search.stages.relaxation import relaxed_bound_ns
from millrace.planner.search.stages.rows import filled
from millrace.planner.search.stages.run_layout import Model, TooManyError
from millrace.planner.search.stages.shape import (
    BlockRun,
    Division,
    Pipeline,
    lifetime_counts,
    stage_bytes,
    step_time_ns,
)
from millrace.planner.search.stages.splitting import divided_by_positions
from millrace.planner.search.stages.stage_program import StageProgram

# Numbers of variants that are mixed where there are too many mixtures to try all, and the gap at
# which they are good enough.
MIXED = (3, 2)
RESOLUTION = 1e-2
ROUNDING = 1e-12  # relative, of times that are equal
PROGRAM_BLOCKS = 16  # up to so many blocks the integer program is quick, whatever the runs
MANY_NODES = 200  # of its branch and bound where there are more: at 100,000 it took half an hour


def divide(
    runs: tuple[BlockRun, ...],
    pipeline: Pipeline,
    limit_bytes: int | tuple[int, ...],
    transient_bytes: int = 0,
    max_gap: float = 0.0,
    worse_ns: float = float("inf"),
) -> Division:
    """Divide the blocks over the positions at the least predicted step time.

    Exactly, but for three cases, in which `bound_ns` says how far it may be: stages of many blocks
    and variants have more mixtures than can be tried (about one percent), several long runs on
    several chunks a stage are divided chunk by chunk, and where rows of chunks wait for their
    longest, many blocks are exact only as far as memory is not short.

    Parameters
    ----------
    runs : tuple of BlockRun
        In the order of the model.
    pipeline : Pipeline
    limit_bytes : int or tuple of int
        Memory of one device, of every kind.
    transient_bytes : int
        Bytes that every stage needs besides.
    max_gap : float
        Relative gap at which a division is good enough.
    worse_ns : float
        Where no division is below this, none is looked for beyond the first.

    Raises
    ------
    InfeasibleError
        There are fewer blocks than positions, or no handover that every run has.
    MemoryLimitError
        No division fits; holds the bytes of the fullest stage of the one that needs least.
    """
    limits = (limit_bytes,) if isinstance(limit_bytes, int) else limit_bytes
    blocks = sum(len(run.blocks) for run in runs)
    if blocks < pipeline.positions:
        raise InfeasibleError(
            f"{pipeline.positions} chunks ({pipeline.stages} stages, {pipeline.interleave} each) "
            f"need at least as many blocks, the model has {blocks}: use fewer stages"
        )
    left = tuple(limit - transient_bytes for limit in limits)
    divisions: list[Division] = []
    short: list[MemoryLimitError] = []
    for group, numbers in _alike(runs):
        try:
            division = _divide(group, pipeline, left, max_gap, worse_ns)
        except MemoryLimitError as error:
            short.append(error)
            continue
        divisions.append(_renumbered(division, group, numbers))
    if not divisions:
        nearest = min(short, key=lambda error: error.needed_bytes - error.limit_bytes)
        raise MemoryLimitError(
            nearest.needed_bytes + transient_bytes,
            nearest.limit_bytes + transient_bytes,
            nearest.stage,
        )
    best = min(divisions, key=lambda division: division.step_ns)
    return replace(
        best,
        memory_bytes=best.memory_bytes + transient_bytes,
        bound_ns=min(division.bound_ns for division in divisions),
    )


def _alike(runs: tuple[BlockRun, ...]) -> list[tuple[tuple[BlockRun, ...], list[list[int]]]]:
    """Runs with the variants that have each handover, and the numbers of these, by handover."""
    handovers = list(dict.fromkeys(variant.handover for run in runs for variant in run.variants))
    groups = []
    for handover in handovers:
        numbers = [
            [v for v, variant in enumerate(run.variants) if variant.handover == handover]
            for run in runs
        ]
        if all(numbers):
            groups.append((_with_variants(runs, numbers), numbers))
    if not groups:
        raise InfeasibleError("no handover between blocks is common to variants of every template")
    return groups


def _with_variants(runs: tuple[BlockRun, ...], numbers: list[list[int]]) -> tuple[BlockRun, ...]:
    """Runs with some of their variants only."""
    return tuple(
        replace(
            run,
            variants=tuple(run.variants[v] for v in kept_numbers),
            elsewhere=tuple(tuple(variants[v] for v in kept_numbers) for variants in run.elsewhere),
        )
        for run, kept_numbers in zip(runs, numbers, strict=True)
    )


def _renumbered(
    division: Division, runs: tuple[BlockRun, ...], numbers: list[list[int]]
) -> Division:
    number_of = {
        block: kept_numbers
        for run, kept_numbers in zip(runs, numbers, strict=True)
        for block in run.blocks
    }
    chunks = tuple(
        tuple((block, number_of[block][variant]) for block, variant in chunk)
        for chunk in division.chunks
    )
    return replace(division, chunks=chunks)


def _divide(
    runs: tuple[BlockRun, ...],
    pipeline: Pipeline,
    limits: tuple[int, ...],
    max_gap: float,
    worse_ns: float,
) -> Division:
    """Divide where all variants may be neighbours."""
    stage_limits = tuple(limits[kind] for kind in pipeline.kinds)
    everything = max(len(run.variants) for run in runs)
    model = Model(runs, pipeline, everything)
    try:
        over, stage = least_excess(model, stage_limits)
    except TooManyError:
        division = _apart(runs, pipeline, limits, max_gap)
        return _measured(division, runs, pipeline, limits)
    if over > 0:
        raise MemoryLimitError(stage_limits[stage] + over, stage_limits[stage], stage)
    try:
        division = divided(model, stage_limits, max_gap)
    except TooManyError:
        division = _nearly(runs, pipeline, limits, max_gap)
    if pipeline.rows > 1:
        if division.bound_ns < worse_ns:
            division = _in_rows(division, runs, pipeline, limits, max_gap)
        else:
            division = replace(division, step_ns=step_time_ns(division.chunks, runs, pipeline))
    return _measured(division, runs, pipeline, limits)


def _in_rows(
    division: Division,
    runs: tuple[BlockRun, ...],
    pipeline: Pipeline,
    limits: tuple[int, ...],
    max_gap: float,
) -> Division:
    """Divide where rows of chunks wait for their longest, from the best where stages do.

    Few blocks are divided exactly.
    """
    stage_limits = tuple(limits[kind] for kind in pipeline.kinds)
    initial = step_time_ns(division.chunks, runs, pipeline), division.chunks
    better = filled(runs, pipeline, stage_limits, initial[0])
    step_ns, chunks = min((initial, *better), key=lambda pair: pair[0])
    bound_ns = min(max(division.bound_ns, lower_bound_ns(runs, pipeline)), step_ns)
    in_rows = replace(division, chunks=chunks, step_ns=step_ns, bound_ns=bound_ns)
    few = sum(len(run.blocks) for run in runs) <= PROGRAM_BLOCKS
    if not few or step_ns <= bound_ns * (1 + max(max_gap, ROUNDING)):
        return in_rows
    other = by_program(runs, pipeline, limits, max_gap)
    best = min(in_rows, other, key=lambda option: option.step_ns)
    return replace(best, bound_ns=min(max(bound_ns, other.bound_ns), best.step_ns))


def _apart(
    runs: tuple[BlockRun, ...], pipeline: Pipeline, limits: tuple[int, ...], max_gap: float
) -> Division:
    """Divide where several runs lie on several chunks a stage: few blocks exactly."""
    if sum(len(run.blocks) for run in runs) > PROGRAM_BLOCKS:
        stage_limits = tuple(limits[kind] for kind in pipeline.kinds)
        with suppress(TooManyError):
            return divided_by_positions(runs, pipeline, stage_limits, max_gap)
        return _smallest(runs, pipeline, limits)
    return by_program(runs, pipeline, limits, max_gap)


def _smallest(runs: tuple[BlockRun, ...], pipeline: Pipeline, limits: tuple[int, ...]) -> Division:
    """Divide at about the least bytes, every block in the variant that usually needs least."""
    counts = lifetime_counts(pipeline)
    first, second, third = (sum(column) // len(counts) for column in zip(*counts, strict=True))
    numbers = []
    for run in runs:
        sizes = [
            variant.bytes_with((first, second, third)) + variant.transient_bytes
            for variant in run.variants
        ]
        numbers.append([sizes.index(min(sizes))])
    group = _with_variants(runs, numbers)
    smallest = StageProgram(group, pipeline, limits, True).solve(RESOLUTION)
    assert smallest is not None, "there are enough blocks"
    used, limit = _tightest(smallest, group, pipeline, limits)
    if used > limit:
        raise MemoryLimitError(used, limit)
    bound_ns = min(lower_bound_ns(runs, pipeline), smallest.step_ns)
    return replace(_renumbered(smallest, group, numbers), bound_ns=bound_ns)


def _nearly(
    runs: tuple[BlockRun, ...], pipeline: Pipeline, limits: tuple[int, ...], max_gap: float
) -> Division:
    """Divide where there are too many rows: fewer variants are mixed on a stage.

    What more of them could gain is bounded by mixing parts of blocks.
    """
    stage_limits = tuple(limits[kind] for kind in pipeline.kinds)
    gap = max(max_gap, RESOLUTION)
    for mixed in MIXED:
        model = Model(runs, pipeline, mixed)
        try:
            division = divided(model, stage_limits, max_gap)
        except TooManyError:
            continue
        bound_ns = min(relaxed_bound_ns(model, stage_limits), division.step_ns)
        many = sum(len(run.blocks) for run in runs) > PROGRAM_BLOCKS
        if many or bound_ns * (1 + gap) >= division.step_ns:
            return replace(division, bound_ns=bound_ns)
        break
    if max_gap and sum(len(run.blocks) for run in runs) > PROGRAM_BLOCKS:
        approximate = StageProgram(runs, pipeline, limits, False).solve(gap, MANY_NODES)
        return approximate or _smallest(runs, pipeline, limits)
    return by_program(runs, pipeline, limits, gap)


def _measured(
    division: Division, runs: tuple[BlockRun, ...], pipeline: Pipeline, limits: tuple[int, ...]
) -> Division:
    used, _ = _tightest(division, runs, pipeline, limits)
    return replace(division, memory_bytes=used)


def by_program(
    runs: tuple[BlockRun, ...], pipeline: Pipeline, limits: tuple[int, ...], max_gap: float
) -> Division:
    """Divide with the integer program, where there is too much to enumerate."""
    if min(limits) > 0:
        division = StageProgram(runs, pipeline, limits, False).solve(max_gap)
        if division is not None:
            return division
    smallest = StageProgram(runs, pipeline, limits, True).solve(max_gap)
    assert smallest is not None, "there are enough blocks"
    raise MemoryLimitError(*_tightest(smallest, runs, pipeline, limits))


def _tightest(
    division: Division, runs: tuple[BlockRun, ...], pipeline: Pipeline, limits: tuple[int, ...]
) -> tuple[int, int]:
    """Bytes and limit of the stage with the least room left."""
    used = stage_bytes(division.chunks, runs, pipeline)
    pairs = [(size, limits[kind]) for size, kind in zip(used, pipeline.kinds, strict=True)]
    return max(pairs, key=lambda pair: pair[0] - pair[1])
