"""Standstill: which rank the others wait for, and what it was doing.

A rank that waits in a meeting waits for the members who have not come to it. So one goes from the
rank that has been silent longest to one that is missed, and on, until there is a rank that waits
for nobody: it computes, or its process is stopped, or it does nothing. Where every member of a
meeting has come, it is the transport that does not move the data.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from millrace.executor.supervision.rank_board import RankStanding
from millrace.planner.actors.graph import Actor, ActorGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """Rank that holds the others up, and where.

    Attributes
    ----------
    rank
        The rank.
    actor
        The actor that it fires or meets in; None where it does nothing.
    step, microbatch
        Of the firing, from 0; the microbatch is None where the actor fires once a step.
    cause
        What the rank does in place of going on, in a few words.
    """

    rank: int
    actor: str | None = None
    step: int | None = None
    microbatch: int | None = None
    cause: str

    def place(self, first_step: int = 0) -> str:
        """Words for where in the run it is, counted from 1; empty where that is not known.

        Parameters
        ----------
        first_step
            Steps that earlier runs made.
        """
        if self.step is None:
            return ""
        step = f"step {first_step + self.step + 1}"
        return step if self.microbatch is None else f"microbatch {self.microbatch + 1} of {step}"


class StandstillFinder:
    """Search for the rank that holds the others up, in what all ranks say of themselves.

    Parameters
    ----------
    graph
        The actors of every rank.
    """

    def __init__(self, graph: ActorGraph) -> None:
        self._graph = graph

    @cached_property
    def _actors_by_key(self) -> list[dict[str, int]]:
        """Actor of every meeting's key, by program."""
        return [
            {
                actor.meeting.key: index
                for index, actor in enumerate(program.actors)
                if actor.meeting is not None
            }
            for program in self._graph.programs
        ]

    def standstill(
        self,
        standings: Mapping[int, RankStanding],
        silence_s: Sequence[float],
        stopped: Collection[int],
    ) -> Standstill:
        """Standstill of a run in which ranks have come no further.

        Parameters
        ----------
        standings
            What every rank says; those that say nothing are left out.
        silence_s
            Seconds since every rank completed a firing.
        stopped
            Ranks whose process is stopped.
        """
        by_silence = sorted(range(len(silence_s)), key=lambda rank: -silence_s[rank])
        for rank in by_silence:
            if rank in stopped:
                return self._stopped(rank, standings)
        passed: list[int] = []
        rank = by_silence[0]
        while True:
            standing = standings.get(rank)
            if standing is None:
                return Standstill(rank=rank, cause="it has not begun")
            if standing.is_done:
                return Standstill(rank=rank, cause="it is done, and others wait for it")
            if not standing.begun.size:
                begun = "its step does not end" if standing.beats else "it has not begun"
                return Standstill(rank=rank, cause=begun)
            if self._local(rank, standing) is not None:
                return self._standing_at(rank, standing, "it computes")
            waiting = self._meetings(rank, standing)
            if not waiting:
                return self._standing_at(rank, standing, "it has nothing under way")
            passed.append(rank)
            missing = [
                other
                for actor in waiting
                for other in self._missing(rank, actor, standings)
                if other not in passed
            ]
            if not missing:
                return self._met(rank, standing, waiting[0], standings)
            rank = max(missing, key=lambda other: silence_s[other])

    def _stopped(self, rank: int, standings: Mapping[int, RankStanding]) -> Standstill:
        """Standstill of a stopped rank: in what it does, or what others wait in for it."""
        cause = "its process is stopped"
        standing = standings[rank]
        if not standing.begun.size or self._under_way(standing):
            return self._standing_at(rank, standing, cause)
        for other, waiting in standings.items():
            for actor in self._meetings(other, waiting) if waiting.begun.size else ():
                if rank in self._missing(other, actor, standings):
                    return self._in_actor(rank, standing, self._same(other, actor, rank), cause)
        return Standstill(rank=rank, cause=cause)

    def _same(self, rank: int, actor: int, member: int) -> int:
        """Actor by which a member takes part in a rank's meeting."""
        meeting = self._actors(rank)[actor].meeting
        assert meeting is not None
        return self._actors_by_key[self._graph.program_of(member)][meeting.key]

    def _met(
        self, rank: int, standing: RankStanding, actor: int, standings: Mapping[int, RankStanding]
    ) -> Standstill:
        """Standstill of a rank that waits in a meeting, and whom nobody else keeps waiting."""
        members = self._members(rank, actor)
        if self._missing(rank, actor, standings):
            cause = f"ranks {_listed(members)} wait for each other"
        else:
            cause = f"ranks {_listed(members)} have all come, and no data moves"
        return self._in_actor(rank, standing, actor, cause)

    def _standing_at(self, rank: int, standing: RankStanding | None, cause: str) -> Standstill:
        if standing is None:
            return Standstill(rank=rank, cause=cause)
        actor = self._local(rank, standing)
        if actor is None:
            actor = next(iter(self._meetings(rank, standing)), None)
        if actor is None:
            return Standstill(rank=rank, cause=cause)
        return self._in_actor(rank, standing, actor, cause)

    def _in_actor(self, rank: int, standing: RankStanding, index: int, cause: str) -> Standstill:
        actor = self._actors(rank)[index]
        step, within = divmod(int(standing.completed[index]), actor.firings)
        return Standstill(
            rank=rank,
            actor=actor.name,
            step=step,
            microbatch=within if actor.firings > 1 else None,
            cause=cause,
        )

    def _under_way(self, standing: RankStanding) -> list[int]:
        return [int(index) for index in np.flatnonzero(standing.begun > standing.completed)]

    def _local(self, rank: int, standing: RankStanding) -> int | None:
        """Actor that a rank computes; None where it only waits."""
        actors = self._actors(rank)
        local = (index for index in self._under_way(standing) if actors[index].meeting is None)
        return next(local, None)

    def _meetings(self, rank: int, standing: RankStanding) -> list[int]:
        actors = self._actors(rank)
        return [index for index in self._under_way(standing) if actors[index].meeting is not None]

    def _missing(self, rank: int, actor: int, standings: Mapping[int, RankStanding]) -> list[int]:
        """Members of a meeting that have not come to the firing that a rank waits in."""
        firing = int(standings[rank].completed[actor])
        missing = []
        for member in self._members(rank, actor):
            if member == rank:
                continue
            standing = standings.get(member)
            if (
                standing is None
                or not standing.begun.size
                or int(standing.begun[self._same(rank, actor, member)]) <= firing
            ):
                missing.append(member)
        return missing

    def _members(self, rank: int, actor: int) -> tuple[int, ...]:
        meeting = self._actors(rank)[actor].meeting
        assert meeting is not None
        return self._graph.members(rank, meeting)

    def _actors(self, rank: int) -> tuple[Actor, ...]:
        return self._graph.programs[self._graph.program_of(rank)].actors


def _listed(ranks: Sequence[int]) -> str:
    """Ranks in words; the first few of many."""
    if len(ranks) <= 4:
        return " and ".join(", ".join(map(str, ranks)).rsplit(", ", 1))
    return f"{', '.join(map(str, ranks[:3]))} and {len(ranks) - 3} more"
