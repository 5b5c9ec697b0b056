"""Rendezvous: which actors meet, and when all of a meeting have arrived.

Drivers run one protocol per *instance*: one per rank, or, folded, one representative per program
(ranks of a program run alike, so a collective inside the program meets only itself). Between the
two, some ranks may stand for all: then they meet whom of them they would meet among all.
"""

from collections.abc import Sequence

from millrace.planner.actors.graph import ActorGraph, Meeting

Arrival = tuple[int, int]  # instance, actor


class Rendezvous:
    """Arrivals at every meeting of an actor graph, counted.

    Parameters
    ----------
    graph
        The actor graph.
    folded
        True: instance i stands for program i. False: instance r is rank r.
    ranks
        The ranks of the instances, where it is neither.
    """

    def __init__(
        self, graph: ActorGraph, *, folded: bool = False, ranks: Sequence[int] | None = None
    ) -> None:
        self._graph = graph
        self._ranks = _ranks(graph, folded) if ranks is None else ranks
        self._instance_of = {rank: instance for instance, rank in enumerate(self._ranks)}
        self._parties: dict[object, tuple[int, ...]] = {}
        self._groups: list[dict[int, int]] = []  # instance → actor → group
        self._sizes: list[int] = []
        self._members: list[list[Arrival]] = []
        group_numbers: dict[tuple[str, tuple[int, ...]], int] = {}
        for instance, rank in enumerate(self._ranks):
            groups: dict[int, int] = {}
            for index, actor in enumerate(graph.programs[graph.program_of(rank)].actors):
                if actor.meeting is None:
                    continue
                parties = self._present(instance, actor.meeting)
                group = group_numbers.setdefault((actor.meeting.key, parties), len(group_numbers))
                if group == len(self._sizes):
                    self._sizes.append(len(parties))
                    self._members.append([])
                groups[index] = group
                self._members[group].append((instance, index))
            self._groups.append(groups)
        self._arrived: dict[tuple[int, int], list[Arrival]] = {}

    def _present(self, instance: int, meeting: Meeting) -> tuple[int, ...]:
        """Instances that take part in a meeting of this one."""
        if meeting.world:
            return tuple(range(len(self._ranks)))
        key = instance, meeting.axes, meeting.peer
        if key not in self._parties:
            members = self._graph.members(self._ranks[instance], meeting)
            instances = (self._instance_of[rank] for rank in members if rank in self._instance_of)
            self._parties[key] = tuple(sorted(instances))
        return self._parties[key]

    def arrive(self, instance: int, actor: int, firing: int) -> list[Arrival] | None:
        """Register an arrival; return everyone once the last has come, else None."""
        group = self._groups[instance][actor]
        if self._sizes[group] == 1:
            return [(instance, actor)]
        present = self._arrived.setdefault((group, firing), [])
        present.append((instance, actor))
        if len(present) < self._sizes[group]:
            return None
        return self._arrived.pop((group, firing))

    def absent(self, instance: int, actor: int, firing: int) -> list[Arrival]:
        """Members of `actor`'s group that have not arrived yet (to explain a deadlock)."""
        group = self._groups[instance][actor]
        present = {party for party, _ in self._arrived.get((group, firing), [])}
        return [member for member in self._members[group] if member[0] not in present]


def _ranks(graph: ActorGraph, folded: bool) -> Sequence[int]:
    return [program.ranks[0] for program in graph.programs] if folded else range(graph.ranks)
