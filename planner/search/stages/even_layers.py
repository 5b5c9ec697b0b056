"""Even division: one variant for all blocks of a kind, in chunks of as many layers each.

The first block (an embedding) lies on the first chunk and the last one (a loss) on the last,
whatever their layers; what lies between counts as layers.
"""

from collections.abc import Iterator

from millrace.planner.errors import InfeasibleError
from millrace.planner.frameworks.capabilities import Capabilities, layer_counts
from millrace.planner.search.request import MemoryLimitError
from millrace.planner.search.stages.bounds import lower_bound_ns
from millrace.planner.search.stages.shape import (
    BlockRun,
    Division,
    Pipeline,
    stage_bytes,
    step_time_ns,
)

Chunks = tuple[tuple[tuple[str, int], ...], ...]


def divide_evenly(
    runs: tuple[BlockRun, ...],
    pipeline: Pipeline,
    limit_bytes: tuple[int, ...],
    transient_bytes: int,
    allowed: Capabilities,
) -> Division:
    """Fastest division that fits, all blocks in the variants of one number.

    Parameters
    ----------
    runs : tuple of BlockRun
        In the order of the model; variants of one number are those of one solution.
    pipeline : Pipeline
    limit_bytes : tuple of int
        Memory of one device, of every kind.
    transient_bytes : int
        Bytes that every stage needs besides.
    allowed : Capabilities
        How a framework deals out layers.

    Raises
    ------
    InfeasibleError
        The layers cannot be dealt out so.
    MemoryLimitError
        No division fits; holds the bytes of the fullest stage of the one that needs least.
    """
    limits = [limit_bytes[kind] - transient_bytes for kind in pipeline.kinds]
    bound_ns = lower_bound_ns(runs, pipeline)
    best: Division | None = None
    nearest: tuple[int, int, int] | None = None  # bytes above the limit, the limit and the stage
    for chunks in _chunkings(runs, pipeline, allowed.layers):
        used = stage_bytes(chunks, runs, pipeline)
        over, limit, stage = max(
            (size - limit, limit, stage)
            for stage, (size, limit) in enumerate(zip(used, limits, strict=True))
        )
        if over > 0:
            nearest = min(nearest or (over, limit, stage), (over, limit, stage))
            continue
        step_ns = step_time_ns(chunks, runs, pipeline)
        if best is None or step_ns < best.step_ns:
            size = limit + over + transient_bytes
            least_ns = min(bound_ns, step_ns)
            best = Division(chunks=chunks, step_ns=step_ns, memory_bytes=size, bound_ns=least_ns)
    if best is not None:
        return best
    if nearest is None:
        layers = sum(len(run.blocks) for run in runs) - 2
        raise InfeasibleError(
            f"{layers} layers do not make {pipeline.positions} chunks that are equal"
            f"{' but for the first and the last' if allowed.layers == 'ends' else ''}"
        )
    over, limit, stage = nearest
    raise MemoryLimitError(limit + over + transient_bytes, limit + transient_bytes, stage)


def _chunkings(runs: tuple[BlockRun, ...], pipeline: Pipeline, rule: str) -> Iterator[Chunks]:
    """Every way to deal out the blocks, in every variant that all runs have."""
    blocks = [block for run in runs for block in run.blocks]
    for counts in layer_counts(len(blocks) - 2, pipeline.positions, rule):
        ends = [1 + sum(counts[: position + 1]) for position in range(len(counts))]
        ends[-1] = len(blocks)
        for variant in range(min(len(run.variants) for run in runs)):
            yield tuple(
                tuple((block, variant) for block in blocks[begin:end])
                for begin, end in zip([0, *ends[:-1]], ends, strict=True)
            )
