"""Even layers: one variant for all blocks of a kind, in chunks of as many layers each.

The first block (an embedding) lies on the first chunk and the last one (a loss) on the last, with
modules that predict further tokens, whatever their layers; what lies between counts as layers.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from millrace.planner.errors import InfeasibleError
from millrace.planner.frameworks.capabilities import Capabilities, divided_blocks, layer_counts
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
    recomputed: Mapping[int, int],
) -> Division:
    """Fastest division that fits, all blocks in the variants of one number.

    Where that does not fit, the first layers of every chunk, as few as do, are recomputed.

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
    recomputed : mapping
        Numbers of the same variants with recomputation, where some layers may have it.

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

    def tightest(chunks: Chunks) -> tuple[int, int, int]:
        used = stage_bytes(chunks, runs, pipeline)
        return max(
            (size - limit, limit, stage)
            for stage, (size, limit) in enumerate(zip(used, limits, strict=True))
        )

    for chunks, variant in _chunkings(runs, pipeline, allowed.layers):
        over, limit, stage = tightest(chunks)
        if over > 0 and variant in recomputed:
            most = max(map(len, chunks))
            some = [_recomputed(chunks, n, recomputed[variant]) for n in range(most + 1)]
            fewest = bisect_left(some, True, key=lambda each: tightest(each)[0] <= 0)
            chunks = some[min(fewest, most)]
            over, limit, stage = tightest(chunks)
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
        layers = divided_blocks([block for run in runs for block in run.blocks]) - 2
        raise InfeasibleError(
            f"{layers} layers do not make {pipeline.positions} chunks that are equal"
            f"{' but for the first and the last' if allowed.layers == 'ends' else ''}"
        )
    over, limit, stage = nearest
    raise MemoryLimitError(limit + over + transient_bytes, limit + transient_bytes, stage)


def _recomputed(chunks: Chunks, layers: int, variant: int) -> Chunks:
    """Chunks of which the first layers have another variant; first and last block are no layers."""
    ends = chunks[0][0], chunks[-1][-1]
    changed = []
    for chunk in chunks:
        of_chunk = [block for block, pair in enumerate(chunk) if pair not in ends][:layers]
        changed.append(
            tuple(
                (name, variant if place in of_chunk else number)
                for place, (name, number) in enumerate(chunk)
            )
        )
    return tuple(changed)


def _chunkings(
    runs: tuple[BlockRun, ...], pipeline: Pipeline, rule: str
) -> Iterator[tuple[Chunks, int]]:
    """Every way to deal out the blocks, in every variant that all runs have, with its number."""
    blocks = [block for run in runs for block in run.blocks]
    divided = divided_blocks(blocks)
    for counts in layer_counts(divided - 2, pipeline.positions, rule, len(blocks) - divided):
        ends = [1 + sum(counts[: position + 1]) for position in range(len(counts))]
        ends[-1] = len(blocks)
        for variant in range(min(len(run.variants) for run in runs)):
            chunks = tuple(
                tuple((block, variant) for block in blocks[begin:end])
                for begin, end in zip([0, *ends[:-1]], ends, strict=True)
            )
            yield chunks, variant
