"""Rendezvous: which actors meet, and when all of a meeting have arrived.

Drivers run one protocol per *instance*: one per rank, or, folded, one representative per program
(ranks of a program run alike, so a collective inside the program meets only itself).
"""

from planner.actors.graph import ActorGraph

Arrival = tuple[int, int]  # instance, actor


class Rendezvous:
    """Counts arrivals at every meeting of an actor graph.

    Parameters
    ----------
    graph
        The actor graph.
    folded
        True: instance i stands for program i. False: instance r is rank r.
    """

    def __init__(self, graph: ActorGraph, *, folded: bool) -> None:
        self.folded = folded
        self._groups: list[dict[int, int]] = []  # instance → actor → group
        self._sizes: list[int] = []
        self._members: list[list[Arrival]] = []
        found: dict[tuple[str, tuple[int, ...]], int] = {}
        instances = range(len(graph.programs)) if folded else range(graph.ranks)
        for instance in instances:
            program = instance if folded else graph.program_of(instance)
            groups: dict[int, int] = {}
            for index, actor in enumerate(graph.programs[program].actors):
                if actor.meeting is None:
                    continue
                if not folded:
                    parties = graph.members(instance, actor.meeting)
                elif actor.meeting.world:
                    parties = tuple(instances)
                elif actor.meeting.peer is not None:
                    parties = (instance, actor.meeting.peer)
                else:
                    parties = (instance,)
                at = found.setdefault((actor.meeting.key, tuple(sorted(parties))), len(found))
                if at == len(self._sizes):
                    self._sizes.append(len(parties))
                    self._members.append([])
                groups[index] = at
                self._members[at].append((instance, index))
            self._groups.append(groups)
        self._arrived: dict[tuple[int, int], list[Arrival]] = {}

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
        """Those who have not arrived where `actor` waits (to explain a deadlock)."""
        group = self._groups[instance][actor]
        present = {at for at, _ in self._arrived.get((group, firing), [])}
        return [member for member in self._members[group] if member[0] not in present]
