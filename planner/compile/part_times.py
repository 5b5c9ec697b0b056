"""Times of a chunk's parts: what stage fidelity knows of the ops inside."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTimes:
    """Nanoseconds of a chunk's parts.

    Attributes
    ----------
    slots_ns
        Per part of the schedule (F, B, W or BW): one microbatch's time.
    exposed_ns
        Per part, how much of that is communication that nothing hides.
    gather_ns
        How much later than it could the first forward of a step ends: gathering parameters.
    reduce_ns
        From the end of the last backward to when every gradient is reduced and squared.
    computing_ns
        How much of those two is computation.
    update_ns
        The step's totals and the optimizer.
    """

    slots_ns: Mapping[str, int]
    exposed_ns: Mapping[str, int]
    gather_ns: int
    reduce_ns: int
    computing_ns: int
    update_ns: int

    def plus(self, other: "PartTimes", times: int) -> "PartTimes":
        """These times and `times` times the others."""
        return PartTimes(
            slots_ns=_plus(self.slots_ns, other.slots_ns, times),
            exposed_ns=_plus(self.exposed_ns, other.exposed_ns, times),
            gather_ns=self.gather_ns + times * other.gather_ns,
            reduce_ns=self.reduce_ns + times * other.reduce_ns,
            computing_ns=self.computing_ns + times * other.computing_ns,
            update_ns=self.update_ns + times * other.update_ns,
        )

    def settled(self) -> "PartTimes":
        """The same without negative times.

        Differences of measured times can be negative. Where lanes run ahead between steps, the
        first forward even takes less than the others: the later times then lend what is missing.
        """
        reduce = self.reduce_ns + min(self.gather_ns, 0)
        return PartTimes(
            slots_ns={part: max(ns, 0) for part, ns in self.slots_ns.items()},
            exposed_ns={part: max(ns, 0) for part, ns in self.exposed_ns.items()},
            gather_ns=max(self.gather_ns, 0),
            reduce_ns=max(reduce, 0),
            computing_ns=max(self.computing_ns, 0),
            update_ns=max(self.update_ns + min(reduce, 0), 0),
        )


def _plus(some: Mapping[str, int], other: Mapping[str, int], times: int) -> dict[str, int]:
    return {part: ns + times * other[part] for part, ns in some.items()}
