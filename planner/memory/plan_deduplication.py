"""Plan deduplication: a plan without its repetitions, and how often each remaining part occurs.

Blocks of one template and variant are equal, and lie between equal neighbours wherever a chunk
repeats them; stages are equal where their chunks and the neighbours of these are. Of a run of equal
blocks three or four are kept (the second stands for those left out, their number stays even or
odd), of equal stages one. Where the chunks of a stage have nothing in common, of equal chunks one
is kept, on a stage of its own.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from msgspec.structs import replace

from millrace.models.graph import GLOBAL_BLOCK, Graph, beyond, restricted
from millrace.planner.plan import ON_DEVICES, BlockChoice, Chunk, Plan, block_runs

BLOCKS_OF_RUN = 3  # blocks of a run: its ends, and one that stands for all between


@dataclass(frozen=True, slots=True, kw_only=True)
class Regular:
    """A smaller plan with its graph, and what it stands for.

    Attributes
    ----------
    times : dict of str to int
        Number of blocks of a chunk that each block stands for, where it is more than one.
    stands_for : tuple
        The stages of `plan` that each stage of the whole plan equals: one, or one for each of its
        chunks where these are taken `apart`.
    """

    plan: Plan
    graph: Graph
    times: dict[str, int]
    stands_for: tuple[tuple[int, ...], ...]
    apart: bool = False

    @property
    def moved(self) -> bool:
        """True if stages are others than those of the whole plan."""
        return self.apart or self.plan.stages < len(self.stands_for)

    @staticmethod
    def unreduced(plan: Plan) -> "Regular":
        """The plan as it is."""
        stages = tuple((stage,) for stage in range(plan.stages))
        return Regular(plan=plan, graph=plan.graph, times={}, stands_for=stages)


class _NotRegularError(Exception):
    """A block reads further than its neighbours."""


def regular(plan: Plan) -> Regular:
    """The plan without repetitions, or as it is where blocks reach beyond neighbours."""
    if by_chunk := _by_chunk(plan):
        return by_chunk
    kept_stages, stands_for = _kept_stages(plan)
    chunks, times = _kept_chunks(
        [
            (chunk, kept_stages.index(chunk.stage))
            for chunk in plan.chunks
            if chunk.stage in kept_stages
        ],
        plan.graph,
    )
    try:
        smaller = _without(plan.graph, chunks)
    except _NotRegularError:
        return Regular.unreduced(plan)
    return Regular(
        plan=replace(plan, chunks=chunks, stages=len(kept_stages)),
        graph=smaller,
        times=times,
        stands_for=tuple((stage,) for stage in stands_for),
    )


def _kept_chunks(
    stages: Sequence[tuple[Chunk, int]], graph: Graph
) -> tuple[tuple[Chunk, ...], dict[str, int]]:
    """Shortened chunks on the stages they are given, and what their blocks stand for."""
    times: dict[str, int] = {}
    chunks = tuple(
        Chunk(stage=stage, blocks=tuple(_shortened(chunk, graph, times))) for chunk, stage in stages
    )
    return chunks, times


def _by_chunk(plan: Plan) -> Regular | None:
    """One chunk of every kind, each on a stage of its own; None where a stage's chunks share."""
    if len(plan.chunks) == plan.stages or plan.offload != ON_DEVICES:
        return None
    if any(chunk.stage == following.stage for chunk, following in pairwise(plan.chunks)):
        return None
    kinds = [
        (tuple(choice.variant for choice in chunk.blocks), *_neighbour_variants(plan.chunks, k))
        for k, chunk in enumerate(plan.chunks)
    ]
    positions = _walk(kinds)
    if len(positions) == len(kinds):
        return None
    chunks, times = _kept_chunks(
        [(plan.chunks[k], stage) for stage, k in enumerate(positions)], plan.graph
    )
    try:
        smaller = _without(plan.graph, chunks)
    except _NotRegularError:
        return None
    if not _nothing_shared(plan, plan.graph, kinds, set(smaller.blocks)):
        return None
    stage_of_kind = {kinds[k]: stage for stage, k in enumerate(positions)}
    stands_for: list[tuple[int, ...]] = [()] * plan.stages
    for chunk, kind in zip(plan.chunks, kinds, strict=True):
        stands_for[chunk.stage] += (stage_of_kind[kind],)
    return Regular(
        plan=replace(plan, chunks=chunks, stages=len(chunks)),
        graph=smaller,
        times=times,
        stands_for=tuple(stands_for),
        apart=True,
    )


def _walk(kinds: Sequence[object]) -> list[int]:
    """Positions of some chunks, all kinds among them, each with neighbours of the kinds it had."""
    positions: list[int] = []
    for k, kind in enumerate(kinds):
        positions.append(k)
        met: set[object] = set()
        for index, earlier in enumerate(positions[:-1]):
            met.add(kinds[earlier])
            # Chunks met since one of this kind are left out where their kinds were all met before.
            if kinds[earlier] == kind and met.issuperset(kinds[j] for j in positions[index + 1 :]):
                del positions[index + 1 :]
                break
    return positions


def _nothing_shared(
    plan: Plan, graph: Graph, kinds: Sequence[object], kept_blocks: set[str]
) -> bool:
    """True if no two chunks of a stage take the same tensor, or one from another.

    Chunks further apart than neighbours may share where there is no other of either's kind. Only
    readings by kept blocks are looked at.
    """
    home = {choice.block: k for k, chunk in enumerate(plan.chunks) for choice in chunk.blocks}
    takers: dict[tuple[str, int], int] = {}
    reads = {
        (name, graph.makers[name].block, op.block)
        for op in graph.ops
        if op.block in kept_blocks
        for name in op.inputs
    }
    for tensor, maker, reader in reads:
        if maker == GLOBAL_BLOCK or home[maker] == home[reader]:
            continue
        maker_chunk, reader_chunk = home[maker], home[reader]
        stage = plan.chunks[reader_chunk].stage
        if (
            stage == plan.chunks[maker_chunk].stage
            or takers.setdefault((tensor, stage), reader_chunk) != reader_chunk
        ):
            return False
        if abs(maker_chunk - reader_chunk) > 1 and (
            kinds.count(kinds[maker_chunk]) > 1 or kinds.count(kinds[reader_chunk]) > 1
        ):
            return False
    return True


def _kept_stages(plan: Plan) -> tuple[list[int], tuple[int, ...]]:
    """One stage of every kind, and the index among them that each stage equals."""
    # Per chunk: its blocks' variants, and on either side the neighbour's, if it lies elsewhere.
    variants = [tuple(choice.variant for choice in chunk.blocks) for chunk in plan.chunks]
    looks: list[list[object]] = [[] for _ in range(plan.stages)]
    for k, chunk in enumerate(plan.chunks):
        looks[chunk.stage].append((variants[k], *_neighbour_variants(plan.chunks, k)))
    kinds = list(dict.fromkeys(tuple(look) for look in looks))
    first = [next(s for s, look in enumerate(looks) if tuple(look) == kind) for kind in kinds]
    left = [chunk for chunk in plan.chunks if chunk.stage in first]
    alike = all(
        _neighbour_variants(left, k) == _neighbour_variants(plan.chunks, plan.chunks.index(chunk))
        for k, chunk in enumerate(left)
    )
    if not alike or len(first) == 1:
        return list(range(plan.stages)), tuple(range(plan.stages))
    return first, tuple(kinds.index(tuple(look)) for look in looks)


def _neighbour_variants(chunks: Sequence[Chunk], k: int) -> tuple[object, object]:
    """Variant of the nearest block before and after a chunk; True with it if on the same stage."""
    sides: list[object] = []
    for other, block in ((k - 1, -1), (k + 1, 0)):
        if 0 <= other < len(chunks):
            near = chunks[other].stage == chunks[k].stage
            sides.append((chunks[other].blocks[block].variant, near))
        else:
            sides.append(None)
    return sides[0], sides[1]


def _shortened(chunk: Chunk, graph: Graph, times: dict[str, int]) -> Iterator[BlockChoice]:
    """The blocks of a chunk that are kept; counts what they stand for."""
    for run in block_runs(graph, chunk):
        left_out = max(len(run.blocks) - BLOCKS_OF_RUN, 0) // 2 * 2
        if left_out:
            times[run.blocks[1]] = left_out + 1
        for block in (*run.blocks[:2], *run.blocks[2 + left_out :]):
            yield BlockChoice(block=block, variant=run.variant)


def _without(graph: Graph, chunks: Iterable[Chunk]) -> Graph:
    """Graph of the blocks of some chunks: who reads a neighbour left out reads the nearest kept."""
    kept_blocks = {choice.block for chunk in chunks for choice in chunk.blocks}
    if len(kept_blocks) == len(graph.blocks):
        return graph

    def stand_in(reader: str, home: str) -> str | None:
        if reader == GLOBAL_BLOCK:
            return None
        near = next((b for b in beyond(graph.blocks, reader, home) if b in kept_blocks), "")
        adjacent = abs(graph.blocks.index(home) - graph.blocks.index(reader)) == 1
        if not adjacent or graph.templates.get(near) != graph.templates[home]:
            raise _NotRegularError
        return near

    return restricted(graph, [b for b in graph.blocks if b in kept_blocks], stand_in)
