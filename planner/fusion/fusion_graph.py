"""Fusion graph: ops and the values between them, of which some become one without a cycle.

Nodes come in an order in which every value is made before it is read; `section` says in which part
of a step a node runs. A node that is not `free` (a meeting, an update in place) stays alone.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from math import prod


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionNode:
    """One op: what it reads and makes, and how often it runs (`firings` times a step)."""

    name: str
    kind: str
    labels: str
    inputs: tuple[Hashable, ...]
    outputs: tuple[Hashable, ...]
    section: Hashable
    firings: int = 1
    free: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionTensor:
    """A tensor between nodes; one that `begins` is there before any of them runs."""

    shape: tuple[int, ...]
    dtype: str
    begins: bool = False

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)


class FusionGraph:
    """Nodes, and the groups that they have been put into.

    Parameters
    ----------
    nodes
        In an order in which every value is made before it is read.
    values
        Tensors that they read and make.
    """

    def __init__(
        self, nodes: Sequence[FusionNode], values: Mapping[Hashable, FusionTensor]
    ) -> None:
        self.nodes = tuple(nodes)
        self.values = values
        self.groups: dict[int, tuple[int, ...]] = {}  # of every node that is in one

    @cached_property
    def readers(self) -> Mapping[Hashable, tuple[int, ...]]:
        """Nodes that read every value, in order; once each."""
        readers: dict[Hashable, list[int]] = {}
        for index, node in enumerate(self.nodes):
            for name in dict.fromkeys(node.inputs):
                readers.setdefault(name, []).append(index)
        return {name: tuple(row) for name, row in readers.items()}

    @cached_property
    def makers(self) -> Mapping[Hashable, int]:
        """Node that makes every value which is not there before."""
        return {
            name: index
            for index, node in enumerate(self.nodes)
            for name in node.outputs
            if not self.values[name].begins
        }

    def alone(self, index: int) -> bool:
        """True if a node may still be put into a group."""
        return self.nodes[index].free and index not in self.groups

    def only_reader(self, value: Hashable) -> int | None:
        """Node that reads a value, where there is one alone and it may be grouped."""
        readers = self.readers.get(value, ())
        return readers[0] if len(readers) == 1 and self.alone(readers[0]) else None

    def alike(self, first: Hashable, second: Hashable) -> bool:
        """True if two values have one shape and one dtype."""
        a, b = self.values[first], self.values[second]
        return (a.shape, a.dtype) == (b.shape, b.dtype)

    def join(self, members: Sequence[int]) -> bool:
        """Make nodes one group, unless something would then wait for itself.

        Nothing on a way from a member through others may lead back to a member: with all members
        one node, it would wait for what only that node makes.
        """
        group = tuple(sorted(set(members)))
        if len(group) < 2 or not self._convex(group):
            return False
        self.groups |= dict.fromkeys(group, group)
        return True

    def merge(self, groups: Sequence[tuple[int, ...]]) -> bool:
        """Make groups (or single nodes) one, unless something would then wait for itself."""
        members = tuple(sorted(index for group in groups for index in group))
        if not self._convex(members):
            return False
        self.groups |= dict.fromkeys(members, members)
        return True

    def _convex(self, group: tuple[int, ...]) -> bool:
        inside = set(group)
        seen: set[int] = set()
        waiting = list(group)
        while waiting:
            index = waiting.pop()
            for after in self._after(index):
                if after in inside:
                    if index not in inside:
                        return False
                elif after not in seen and min(self.groups.get(after, (after,))) < group[-1]:
                    both = self.groups.get(after, (after,))
                    seen.update(both)
                    waiting.extend(both)
        return True

    def _after(self, index: int) -> list[int]:
        """Nodes that read what a node makes, in this step."""
        node = self.nodes[index]
        outputs = [name for name in node.outputs if self.makers.get(name) == index]
        return [reader for name in outputs for reader in self.readers.get(name, ())]

    def order(self) -> tuple[tuple[int, ...], ...]:
        """Groups and single nodes, each once what it reads is made; else as late as their last."""
        units = {row[-1]: row for row in self.groups.values()}
        units |= {i: (i,) for i in range(len(self.nodes)) if i not in self.groups}
        unit_of = {index: key for key, row in units.items() for index in row}
        ahead: dict[int, set[int]] = {key: set() for key in units}
        behind: dict[int, set[int]] = {key: set() for key in units}
        for index in range(len(self.nodes)):
            for after in self._after(index):
                here, there = unit_of[index], unit_of[after]
                if here != there:
                    ahead[there].add(here)
                    behind[here].add(there)
        ready = [key for key, row in ahead.items() if not row]
        heapify(ready)
        ordered = []
        while ready:
            key = heappop(ready)
            ordered.append(units[key])
            for after in sorted(behind[key]):
                ahead[after].discard(key)
                if not ahead[after]:
                    heappush(ready, after)
        assert len(ordered) == len(units), "groups wait for one another"
        return tuple(ordered)
