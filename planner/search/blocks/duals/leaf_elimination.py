"""Elimination: choices with one neighbour are decided beside it, exactly.

Such a choice v of neighbour u goes into what u's options cost::

    own[u, a] += min_o own[v, o] + pair(a, o)

as does a pair whose other side has one state only. Again and again, trees go away, whole; boxing
that readers share stays, as the way it is split may change.

A choice of two neighbours could be replaced by a pair of these in the same way. Bounds rise more
slowly then: the chains that there are, from a gradient through the update to the weight's cast,
would become pairs that lead back to the start of the order.
"""

from dataclasses import dataclass

from millrace.models.arrays import Floats, Ints
from millrace.planner.search.blocks.duals.messages import StatePair


@dataclass(slots=True, eq=False)
class Eliminated:
    """A choice that is decided once its neighbour is."""

    choice: int
    option_costs: Floats  # [O, K]
    pair: StatePair | None  # with the neighbour, where there is one

    def costs(self, chosen: Ints, rows: Ints) -> Floats:
        """Costs of the options beside what the neighbour has: [O, K]."""
        value = self.option_costs
        if self.pair is not None:
            cost, own_states, other, other_states = self.pair.seen_from(self.choice)
            value = value + cost[:, other_states[chosen[other]], rows].take(own_states, axis=0)
        return value

    def keep(self, rows: Ints) -> None:
        """Leave out all other rows."""
        self.option_costs = self.option_costs.take(rows, axis=1)
        if self.pair is not None:
            self.pair.keep(rows)


def eliminate(
    option_costs: list[Floats], pairs: list[StatePair]
) -> tuple[list[Eliminated], list[StatePair]]:
    """Choices taken out, in order, and the pairs left; `option_costs` of the others changes.

    Parameters
    ----------
    option_costs : list of float array (O, K)
        Costs of every choice's options by row, at the rows' prices; changed in place.
    pairs : list of StatePair
        Boxing between choices. Those that other readers share stay, and keep their choices in; any
        other that has one state at an end goes into the costs of options.

    Returns
    -------
    eliminated : list of Eliminated
        Each before the neighbour that decides it, if that is taken out too: decide them in reverse.
    left : list of StatePair
        Pairs between choices that are not taken out.
    """
    beside: list[list[StatePair]] = [[] for _ in option_costs]
    for pair in pairs:
        if not pair.shared and 1 in pair.cost.shape[:2]:
            _absorb(option_costs, pair)
            continue
        for end in pair.ends:
            beside[end].append(pair)
    eliminated: list[Eliminated] = []
    gone: set[int] = set()
    waiting = list(range(len(option_costs)))
    while waiting:
        choice = waiting.pop()
        choice_pairs = beside[choice]
        if choice in gone or len(choice_pairs) > 1 or any(pair.shared for pair in choice_pairs):
            continue
        gone.add(choice)
        eliminated.append(
            Eliminated(choice, option_costs[choice], choice_pairs[0] if choice_pairs else None)
        )
        if choice_pairs:
            cost, own_states, other, other_states = choice_pairs[0].seen_from(choice)
            best = (cost.take(own_states, axis=0) + option_costs[choice][:, None]).min(axis=0)
            option_costs[other] += best.take(other_states, axis=0)
            beside[other].remove(choice_pairs[0])
            beside[choice] = []
            waiting.append(other)
    left = [
        pair
        for index, choice_pairs in enumerate(beside)
        for pair in choice_pairs
        if pair.ends[0] == index
    ]
    return eliminated, left


def _absorb(option_costs: list[Floats], pair: StatePair) -> None:
    """Add a pair with one state at an end to the choice at the other."""
    end = 0 if pair.cost.shape[1] == 1 else 1
    cost = pair.cost[0] if end else pair.turned[0]
    option_costs[pair.ends[end]] += cost.take(pair.states[end], axis=0)
