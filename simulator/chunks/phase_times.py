"""Times of a chunk's parts: what stage fidelity knows of the ops inside."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from millrace.planner.costs.launch_overhead import Pace


class PartPace(NamedTuple):
    """Pace of a part: how its ops are launched and slowed.

    `lag_ns`: how much later than the first launch the part has to begin for no later one to hold it
    back; `alone_ns`: how long it computes while no meeting of its own moves data.
    """

    launches: int
    lag_ns: int
    alone_ns: int

    def of(self, duration_ns: int) -> Pace:
        """Pace of a part that takes `duration_ns`."""
        alone = min(max(self.alone_ns / duration_ns, 0.0), 1.0) if duration_ns > 0 else 0.0
        return Pace(self.launches, self.lag_ns, alone)


class ContentKey(NamedTuple):
    """Key of a count inside a part: of some ops, or of some meetings.

    `part` is one of the schedule or `begin`, `norm`, `totals`, `update`, `gather`, `reduce`; `what`
    is `compute`, `exposed` or `moved` (nanoseconds), or `bytes`; `phase_or_axes` is the phase of
    ops, the mesh axes of meetings.
    """

    part: str
    what: str
    kind: str
    phase_or_axes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTimes:
    """Nanoseconds of a chunk's parts.

    Attributes
    ----------
    slots_ns
        Per part of the schedule (F, B, W or BW): one microbatch's time.
    exposed_ns
        Per part, how much of that is communication that nothing hides.
    paired_ns
        Per part, one microbatch's time where the chunk's forward runs beside its gradients: what a
        part adds to those before it in their pair. Empty where the schedule pairs nothing.
    paired_exposed_ns
        How much of such a pair is communication that nothing hides.
    begin_ns
        Computation before the first microbatch of a step.
    gather_ns
        How much later than after that the first forward ends than it could: gathering parameters.
    reduce_ns
        From the end of the last backward until every gradient is reduced, less `norm_ns`.
    norm_ns
        Computation after the last microbatch up to the step's totals.
    totals_ns
        Adding up the totals; once a stage.
    update_ns
        The optimizer.
    paces
        Of every part of the schedule, and of `begin`, `norm`, `totals` and `update`; empty where
        nothing holds computation back.
    inside
        What the parts are made of, where it was asked for.
    """

    slots_ns: Mapping[str, int]
    exposed_ns: Mapping[str, int]
    begin_ns: int
    gather_ns: int
    reduce_ns: int
    norm_ns: int
    totals_ns: int
    update_ns: int
    paired_ns: Mapping[str, int] = field(default_factory=dict)
    paired_exposed_ns: int = 0
    paces: Mapping[str, PartPace] = field(default_factory=dict)
    contents: Mapping[ContentKey, int] = field(default_factory=dict)

    @property
    def saved_ns(self) -> int:
        """Nanoseconds that a forward and gradients take less where they are a pair."""
        return sum(self.slots_ns.values()) - sum(self.paired_ns.values()) if self.paired_ns else 0

    def always_paired(self) -> "PartTimes":
        """Times of a chunk whose parts are pairs in every schedule: each part saves its share."""
        together = sum(self.slots_ns.values())
        exposed = sum(self.exposed_ns.values())
        taken = 1 - max(self.saved_ns, 0) / max(together, 1)
        shown = min(self.paired_exposed_ns / max(exposed, 1), 1.0)
        return replace(
            self,
            slots_ns={part: round(ns * taken) for part, ns in self.slots_ns.items()},
            exposed_ns={part: round(ns * shown) for part, ns in self.exposed_ns.items()},
            paired_ns={},
            paired_exposed_ns=0,
        )

    def plus(self, other: "PartTimes", times: int) -> "PartTimes":
        """These times and `times` times the others."""
        return PartTimes(
            slots_ns=_plus(self.slots_ns, other.slots_ns, times),
            exposed_ns=_plus(self.exposed_ns, other.exposed_ns, times),
            begin_ns=self.begin_ns + times * other.begin_ns,
            gather_ns=self.gather_ns + times * other.gather_ns,
            reduce_ns=self.reduce_ns + times * other.reduce_ns,
            norm_ns=self.norm_ns + times * other.norm_ns,
            totals_ns=self.totals_ns + times * other.totals_ns,
            update_ns=self.update_ns + times * other.update_ns,
            paired_ns=_plus(self.paired_ns, other.paired_ns, times),
            paired_exposed_ns=self.paired_exposed_ns + times * other.paired_exposed_ns,
            paces={
                part: PartPace(
                    *(a + times * b for a, b in zip(pace, other.paces[part], strict=True))
                )
                for part, pace in self.paces.items()
            },
            contents={
                key: self.contents.get(key, 0) + times * other.contents.get(key, 0)
                for key in {**self.contents, **other.contents}
            },
        )

    def non_negative(self) -> "PartTimes":
        """Times with every entry at least zero; gather, reduce and update make up for each other.

        Differences of measured times can be negative, and lanes that run ahead or behind let a
        step begin late and end early, or the other way round: what one lacks the others give.
        """
        gather, reduce, update = self.gather_ns, self.reduce_ns, self.update_ns
        if reduce < 0:
            gather, reduce = gather + reduce, 0
        if gather < 0:
            gather, reduce = 0, reduce + gather
        if reduce < 0:
            reduce, update = 0, update + reduce
        return PartTimes(
            slots_ns={part: max(ns, 0) for part, ns in self.slots_ns.items()},
            exposed_ns={part: max(ns, 0) for part, ns in self.exposed_ns.items()},
            begin_ns=max(self.begin_ns, 0),
            gather_ns=gather,
            reduce_ns=reduce,
            norm_ns=max(self.norm_ns, 0),
            totals_ns=max(self.totals_ns, 0),
            update_ns=max(update, 0),
            paired_ns={part: max(ns, 0) for part, ns in self.paired_ns.items()},
            paired_exposed_ns=max(self.paired_exposed_ns, 0),
            paces=self.paces,
            contents={key: count for key, count in self.contents.items() if count > 0},
        )


def _plus(some: Mapping[str, int], other: Mapping[str, int], times: int) -> dict[str, int]:
    return {part: ns + times * other[part] for part, ns in some.items()}
