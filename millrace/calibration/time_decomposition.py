"""Time decomposition of a step, so that slopes need no simulation of their own.

The step of the average device is busy, exposed communication and bubble. Priced on another cluster
the ops of all chunks take longer by some factor, and so does the busy part; the exposed part stays,
and bubbles follow both. That is exact where nothing else binds, and near enough for the direction
of a fit.
"""

from collections import Counter
from dataclasses import dataclass

from msgspec.structs import replace

from millrace.planner.actors.graph import ActorGraph
from millrace.planner.cluster import Cluster
from millrace.planner.costs import durations
from millrace.planner.costs.launch_overhead import launches_of
from millrace.planner.plan import Plan
from millrace.simulator.chunks.chunk_sample import PieceCompiler, alone
from millrace.simulator.chunks.plan_blocks import PlanBlocks

BLOCKS = 2  # so many of a run of equal ones are compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkWork:
    """Ops (or meetings) of one chunk, and how often each is fired in a step by all of its like."""

    graph: ActorGraph
    counts: tuple[float, ...]

    def total_ns(self, cluster: Cluster) -> float:
        """Duration of all firings, in ns."""
        (row,) = durations(self.graph, cluster)
        return sum(ns * count for ns, count in zip(row, self.counts, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """All ops and all meetings of a plan's chunks, and how many ops one device launches."""

    ops: tuple[ChunkWork, ...]
    meetings: tuple[ChunkWork, ...]
    launches: float

    def busy_ns(self, cluster: Cluster) -> float:
        """Duration of the ops of all chunks together, in ns."""
        return sum(work.total_ns(cluster) for work in self.ops)

    def moving_ns(self, cluster: Cluster) -> float:
        """Duration of the meetings of all chunks together, hidden or not, in ns."""
        return sum(work.total_ns(cluster) for work in self.meetings)


def step_of(plan: Plan) -> StepWork:
    """Compile a few blocks of every kind of chunk and count the others."""
    wiring = PlanBlocks(plan)
    pieces = PieceCompiler(wiring)
    alike: Counter[object] = Counter()
    first: dict[object, int] = {}
    for number in range(len(plan.chunks)):
        runs = wiring.runs(number)
        key: object = tuple((run.template, run.variant, len(run.blocks)) for run in runs)
        alike[key] += 1
        first.setdefault(key, number)
    ops: list[ChunkWork] = []
    meetings: list[ChunkWork] = []
    launches = 0.0
    for key, number in first.items():
        block_names: list[str] = []
        many: dict[str, float] = {}
        for run in wiring.runs(number):
            count = min(len(run.blocks), BLOCKS)
            block_names += run.sampled_blocks(count)
            many |= dict.fromkeys(run.sampled_blocks(count), len(run.blocks) / count)
        piece = pieces.compile(number, block_names, alone(), plan.chunks[number].stage)
        (program,) = piece.graph.programs
        for wanted, works in ((False, ops), (True, meetings)):
            chosen = [
                actor
                for actor in program.actors
                if (actor.meeting is not None) is wanted
                and not (actor.meeting and (actor.meeting.world or not actor.meeting.axes))
            ]
            counts = tuple(
                alike[key]
                * many.get(actor.block, 1.0)
                * (1 if actor.firings == 1 else plan.microbatches)
                for actor in chosen
            )
            bare = replace(program, actors=tuple(chosen))
            graph = ActorGraph(name=plan.model.name, axes=plan.mesh.axes, programs=(bare,))
            works.append(ChunkWork(graph=graph, counts=counts))
            if not wanted:
                launches += sum(
                    launches_of(actor, program, plan.cluster.software) * count
                    for actor, count in zip(chosen, counts, strict=True)
                )
    return StepWork(ops=tuple(ops), meetings=tuple(meetings), launches=launches / plan.stages)
