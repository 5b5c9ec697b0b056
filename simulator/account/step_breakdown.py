"""Step breakdown: the window of every simulated rank, each instant of it counted once.

An instant counts for an op that is under way, else for a meeting whose data moves, else (bubble)
for a host that is late with a launch, else for nothing: waiting for others, or for the schedule. Of
several ops or meetings it counts for the one that ends first. Stages are means over their ranks,
rows means over stages.

Where parts of chunks fire, their time is shared out by what they were measured to be made of
(`PartTimes.contents`).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from millrace.planner.actors.graph import Actor
from millrace.planner.actors.interval_ownership import OwnedInterval, covering_ns
from millrace.planner.plan import Plan
from millrace.simulator.account.memory import courses
from millrace.simulator.account.rows import (
    STAGES,
    WORLD,
    Account,
    CommunicationRow,
    ComputeRow,
    StageRow,
)
from millrace.simulator.chunks.phase_times import ContentKey
from millrace.simulator.simulate import Simulated
from millrace.simulator.simulated_rank import Instance

COMPUTE, EXPOSED, HOST, MOVED, BYTES = "compute", "exposed", "host", "moved", "bytes"
ONCE_MOVED, ONCE_COMPUTED, TOTALS = ("gather", "reduce"), ("begin", "norm", "update"), "totals"

Key = tuple[str, str, tuple[str, ...]]  # what, kind, phase or axes
Sums = defaultdict[Key, float]
Composition = Counter[tuple[str, tuple[str, ...]]]


def account_of(plan: Plan, simulated: Simulated) -> Account:
    """Account of a simulated step.

    Parameters
    ----------
    plan
        The plan that was simulated.
    simulated
        The result of `predict` for it, with `detailed=True`.
    """
    chunks = _Chunks(plan, simulated) if simulated.chunks else None
    ranks: Counter[int] = Counter()
    for instance, represents in simulated.runs:
        ranks[instance.program.stage] += represents
    stages: dict[int, Sums] = {stage: defaultdict(float) for stage in ranks}
    mean_sums: Sums = defaultdict(float)
    for instance, represents in simulated.runs:
        stage = instance.program.stage
        for key, amount in _rank(instance, simulated.window_ns, chunks).items():
            stages[stage][key] += amount * represents / ranks[stage]
            mean_sums[key] += amount * represents / ranks.total()
    begin_ns, end_ns = simulated.window_ns
    return Account(
        begin_ns=begin_ns,
        step_time_ns=end_ns - begin_ns,
        stages=tuple(
            _stage(stage, stages[stage], end_ns - begin_ns, simulated.memory_by_kind[stage])
            for stage in sorted(stages)
        ),
        compute=_compute(mean_sums),
        communication=_communication(mean_sums),
        memory=courses(
            (run.instance for run in simulated.runs), plan, simulated.memory_by_kind, chunks is None
        ),
    )


def _rank(instance: Instance, window_ns: tuple[int, int], chunks: "_Chunks | None") -> Sums:
    """Sums of one rank's window: what its time goes to, and what its meetings move meanwhile."""
    begin_ns, end_ns = window_ns
    actors = instance.program.actors
    intervals = [OwnedInterval(start, end, 2, HOST) for start, end in instance.launch_waits]
    sums: Sums = defaultdict(float)
    for index, (actor, starts, ends) in enumerate(
        zip(actors, instance.begins, instance.ends, strict=True)
    ):
        priority = int(actor.meeting is not None)
        firings = [
            OwnedInterval(start, end, priority, index)
            for start, end in zip(starts, ends, strict=True)
            if end > begin_ns and start < end_ns and end > start
        ]
        intervals.extend(firings)
        if actor.meeting is not None and not (chunks and chunks.knows(actor)):
            kind, axes = _meeting(actor)
            inside = (
                min(firing.end_ns, end_ns) - max(firing.start_ns, begin_ns) for firing in firings
            )
            sums[MOVED, kind, axes] += sum(inside)
            sums[BYTES, kind, axes] += actor.meeting.message_bytes * actor.firings
    counted = covering_ns(intervals, begin_ns, end_ns)
    times_ns = {index: ns for index, ns in counted.items() if isinstance(index, int)}
    sums[HOST, "", ()] = counted.get(HOST, 0)
    if chunks is not None:
        for chunk_sums in (chunks.shared(times_ns, actors), chunks.moved(instance.program.stage)):
            for key, amount in chunk_sums.items():
                sums[key] += amount
    else:
        for index, ns in times_ns.items():
            sums[_key(actors[index])] += ns
    return sums


def _key(actor: Actor) -> Key:
    if actor.meeting is None:
        return COMPUTE, actor.kind, (actor.phase,)
    return (EXPOSED, *_meeting(actor))


def _meeting(actor: Actor) -> tuple[str, tuple[str, ...]]:
    meeting = actor.meeting
    assert meeting is not None
    if meeting.world:
        return meeting.kind, (WORLD,)
    return meeting.kind, (STAGES,) if meeting.peer is not None else meeting.axes


class _Chunks:
    """Composition of the parts of a plan's chunks, by the names of their actors."""

    def __init__(self, plan: Plan, simulated: Simulated) -> None:
        self._microbatches = plan.microbatches
        self._exposed: Counter[str] = Counter()  # of a part, or of a stage's, in a step
        self._pool_of: dict[str, str] = {}  # parts that take turns are taken together
        self._contents: dict[tuple[str, str], Composition] = {}
        self._stages: dict[int, Sums] = {}
        rows = zip(plan.chunks, simulated.chunks, strict=True)
        for number, (chunk, chunk_times) in enumerate(rows):
            for part, ns in chunk_times.exposed_ns.items():
                name = f"chunk {number}: {part}"
                self._exposed[name] = ns * plan.microbatches
                if chunk_times.paired_ns:
                    pool = f"parts of stage {chunk.stage}"
                    self._pool_of[name] = pool
                    self._exposed[pool] = simulated.chunk_exposed_ns[chunk.stage]
            for key, count in chunk_times.contents.items():
                self._note(f"chunk {number}", chunk.stage, key, count)

    def _note(self, chunk: str, stage: int, key: ContentKey, count: int) -> None:
        part, what, kind, phase_or_axes = key
        home = f"stage {stage}" if part in (*ONCE_COMPUTED, TOTALS) else chunk
        name = f"{home}: {'norm' if part == TOTALS else part}"
        name = self._pool_of.get(name, name)
        if what in (MOVED, BYTES):
            often = 1 if part in ONCE_MOVED else self._microbatches
            self._stages.setdefault(stage, defaultdict(float))[what, kind, phase_or_axes] += (
                count * often
            )
        if what == MOVED and part in ONCE_MOVED:
            what = EXPOSED
        counts = self._contents.setdefault((name, what), Counter())
        # Totals are added up once a stage, as `millrace.simulator.chunks.chunk_graph` has it.
        counts[kind, phase_or_axes] = (
            max(counts[kind, phase_or_axes], count)
            if part == TOTALS
            else counts[kind, phase_or_axes] + count
        )

    def knows(self, actor: Actor) -> bool:
        """True if a meeting stands for several, which `moved` counts."""
        return bool(self._contents.get((actor.name, EXPOSED)) or self._instead(actor))

    def moved(self, stage: int) -> Sums:
        """Nanoseconds and bytes that the meetings inside a stage's parts move in a step."""
        return self._stages.get(stage, defaultdict(float))

    def shared(self, times_ns: Mapping[int, int], actors: Sequence[Actor]) -> Sums:
        """The times of a rank's actors, shared out by what they are made of.

        The blocks of a part, called `chunk 0: F h.1`, are taken together, as are a stage's parts
        where some of them are pairs.
        """
        parts: Counter[str] = Counter()
        first: dict[str, Actor] = {}
        for index, ns in times_ns.items():
            name = " ".join(actors[index].name.split(" ")[:3])
            name = name if name in self._exposed else actors[index].name
            name = self._pool_of.get(name, name)
            parts[name] += ns
            first.setdefault(name, actors[index])
        sums: Sums = defaultdict(float)
        for name, ns in parts.items():
            actor = first[name]
            waits = ns if actor.meeting is not None else 0
            if name in self._exposed:
                waits = self._exposed[name]
            plain: Composition = Counter({_key(actor)[1:]: 1})
            for what, amount in ((EXPOSED, waits), (COMPUTE, ns - waits)):
                counts = self._contents.get((name, what)) or self._instead(actor) or plain
                for key, share in _shared(counts, amount).items():
                    sums[(what, *key)] += share
        return sums

    def _instead(self, actor: Actor) -> Composition | None:
        """Meetings that a gather or reduce is made of where every microbatch has its own."""
        chunk, _, part = actor.name.partition(": ")
        if part not in ONCE_MOVED:
            return None
        counts: Composition = Counter()
        for (other, what), part_counts in self._contents.items():
            if what == MOVED and other.startswith(f"{chunk}: "):
                counts.update({key: n for key, n in part_counts.items() if key[0] == actor.kind})
        return counts


def _shared(counts: Composition, amount: float) -> dict[tuple[str, tuple[str, ...]], float]:
    total = sum(counts.values())
    return (
        {key: count * amount / total for key, count in counts.items()} if amount and total else {}
    )


def _compute(sums: Sums) -> tuple[ComputeRow, ...]:
    rows = [
        ComputeRow(kind=kind, phase=phase_or_axes[0], busy_ns=amount)
        for (what, kind, phase_or_axes), amount in sums.items()
        if what == COMPUTE and amount
    ]
    return tuple(sorted(rows, key=lambda row: (-row.busy_ns, row.kind, row.phase)))


def _communication(sums: Sums) -> tuple[CommunicationRow, ...]:
    names = {key[1:] for key in sums if key[0] in (EXPOSED, MOVED)}
    rows = [
        CommunicationRow(
            kind=kind,
            axes=axes,
            message_bytes=sums[BYTES, kind, axes],
            # What was measured on pieces can expose more than it moves: it waits for more.
            duration_ns=max(sums[MOVED, kind, axes], sums[EXPOSED, kind, axes]),
            exposed_ns=sums[EXPOSED, kind, axes],
        )
        for kind, axes in names
    ]
    shown = (row for row in rows if row.duration_ns > 0)
    return tuple(sorted(shown, key=lambda row: (-row.exposed_ns, -row.duration_ns, row.kind)))


def _stage(stage: int, sums: Sums, step_ns: int, memory: Mapping[str, int]) -> StageRow:
    busy_ns = sum(amount for key, amount in sums.items() if key[0] == COMPUTE)
    exposed_ns = sum(amount for key, amount in sums.items() if key[0] == EXPOSED)
    return StageRow(
        stage=stage,
        busy_ns=busy_ns,
        exposed_ns=exposed_ns,
        bubble_ns=step_ns - busy_ns - exposed_ns,
        host_ns=sums[HOST, "", ()],
        compute=_compute(sums),
        communication=_communication(sums),
        memory_by_kind=dict(memory),
    )
