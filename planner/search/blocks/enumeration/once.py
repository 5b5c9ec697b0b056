"""Once: costs of nets that are paid once per target, whichever readers take it, choice by choice.

A use is *closed* when its reader, and the producer where the source matters, are given. Shapes: A
sources, B targets, L prefixes, V criteria.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millrace.planner.search.blocks.states import Bools, Ints
from millrace.planner.search.blocks.tables import Net, unlike

Floats = NDArray[np.float64]
Given = frozenset[int]
"""The choices whose options are decided."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Once:
    """The uses of a net that pay for a target together.

    Attributes
    ----------
    producer : int, optional
        Where the source matters.
    makes : array
        The source that each of its options makes.
    readers : tuple of int
    wants : tuple of array
        Per reader, the target that each of its options takes.
    """

    producer: int | None
    makes: Ints
    readers: tuple[int, ...]
    wants: tuple[Ints, ...]

    def closed(self, given: Given) -> list[int]:
        """The uses that are closed."""
        if self.producer is not None and self.producer not in given:
            return []
        return [use for use, reader in enumerate(self.readers) if reader in given]

    def closing(self, given: Given, at: int) -> Iterator[tuple[int, list[int]]]:
        """Each use that closes when choice `at` is given too, and those closed before it."""
        before = self.closed(given)
        for use in self.closed(given | {at}):
            if use not in before:
                yield use, before
                before = [*before, use]

    def source(self, chosen: Ints) -> Ints:
        """The source that each prefix boxes from: [L]."""
        if self.producer is None:
            return np.zeros(chosen.shape[1], np.int64)
        source: Ints = self.makes[chosen[self.producer]]
        return source

    def target(self, use: int, chosen: Ints) -> Ints:
        """The target that each prefix takes there: [L]."""
        target: Ints = self.wants[use][chosen[self.readers[use]]]
        return target

    def open_states(self, given: Given, chosen: Ints) -> list[Ints]:
        """States [L] that open uses still depend on: the source, and targets that are paid."""
        known = [use for use, reader in enumerate(self.readers) if reader in given]
        produced = self.producer is None or self.producer in given
        if produced and len(known) == len(self.readers):
            return []
        states = [self.source(chosen)] if produced and self.producer is not None else []
        targets: list[Ints] = []
        for use in known:
            target = self.target(use, chosen)
            fresh = unlike(target, targets)
            if produced:  # only what an open reader may take as well
                others = [self.wants[u] for u in range(len(self.readers)) if u not in known]
                fresh &= np.isin(target, np.concatenate(others))
            targets.append(np.where(fresh, target, -1))
        if targets:
            states += list(np.sort(np.stack(targets), axis=0))
        return states


def boxing(net: Net) -> Once:
    """The boxing of a net, by what is made and what each reader wants."""
    return Once(
        producer=net.producer,
        makes=net.makes,
        readers=tuple(use.choice for use in net.uses),
        wants=tuple(use.wants for use in net.uses),
    )


def keeping(net: Net) -> Once:
    """What a net keeps for the backward pass, whatever it was boxed from."""
    holders = [use for use in net.uses if use.holds]
    return Once(
        producer=None,
        makes=np.zeros(0, np.int64),
        readers=tuple(use.choice for use in holders),
        wants=tuple(use.wants for use in holders),
    )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Charge:
    """Figures of a net, and whether its boxings exist."""

    once: Once
    cost: Floats  # [V, A, B]
    reachable: Bools  # [A, B]

    def due(self, given: Given, at: int, chosen: Ints) -> tuple[Floats, Bools]:
        """Figures [V, L] of the uses that close with choice `at`, and whether they exist [L]."""
        total = np.zeros((len(self.cost), chosen.shape[1]))
        fine = np.ones(chosen.shape[1], np.bool_)
        for use, before in self.once.closing(given, at):
            source, target = self.once.source(chosen), self.once.target(use, chosen)
            fresh = unlike(target, [self.once.target(other, chosen) for other in before])
            fine &= self.reachable[source, target]
            total += self.cost[:, source, target] * fresh
        return total, fine


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SharedCost:
    """A cost that a bound has split among the readers of a net: paid whole where one takes it."""

    once: Once
    shares: tuple[Floats, ...]  # per reader [A, B]

    def due(self, given: Given, at: int, chosen: Ints) -> Floats:
        """Shares that closed uses leave unpaid, where choice `at` is the last that it takes: [L].

        A use pays its share of the target that it takes. Of each target that is taken, the shares
        of closed uses that take another are due as well.
        """
        total = np.zeros(chosen.shape[1])
        for use, before in self.once.closing(given, at):
            source, target = self.once.source(chosen), self.once.target(use, chosen)
            taken: list[Ints] = []
            for other in before:
                theirs = self.once.target(other, chosen)
                left = unlike(theirs, [*taken, target])
                total += self.shares[use][source, theirs] * left
                taken.append(theirs)
            fresh = unlike(target, taken)
            for other in before:
                total += self.shares[other][source, target] * fresh
        return total
