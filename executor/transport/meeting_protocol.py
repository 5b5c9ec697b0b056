"""The transport of one rank as a sans-IO state machine: events in, steps to begin out.

A driver reports that a meeting actor is posted, and that a step is over: a message has arrived or
was sent, a chunk is added up, all neighbours have said a word. Both return the steps that can begin
now, in the order in which they must: of messages between two members, that of the route, since MPI
matches them in that order. Several meetings may be under way at once. There is no clock, thread,
array or MPI here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from millrace.executor.transport.routes import Do, Step
from millrace.planner.errors import ProtocolError


class Begin(NamedTuple):
    """Command: begin step `step` of the route of the meeting actor `actor`."""

    actor: int
    step: int


@dataclass(frozen=True, slots=True)
class _Followers:
    """Steps of a route that wait for each step: for its end, and for its beginning."""

    needed_by: tuple[tuple[int, ...], ...]
    before: tuple[tuple[int, ...], ...]
    short: tuple[int, ...]  # how many steps each waits for


class MeetingProtocol:
    """State of one rank's meetings.

    Parameters
    ----------
    routes
        Route of every meeting actor, by actor index; more may be added before they are posted.
    """

    def __init__(self, routes: Mapping[int, Sequence[Step]]) -> None:
        self.routes = routes
        self._followers: dict[int, _Followers] = {}
        self._short: dict[int, list[int]] = {}  # of the meetings under way
        self._under_way: dict[int, set[int]] = {}

    @property
    def idle(self) -> bool:
        """True if no meeting is under way."""
        return not self._short

    def posted(self, actor: int) -> list[Begin]:
        """Take note that a meeting may begin; returns the steps that can.

        Raises
        ------
        ProtocolError
            It is under way already.
        """
        if actor in self._short:
            raise ProtocolError(f"meeting actor {actor} was posted again before it was over")
        if actor not in self._followers:
            self._followers[actor] = _followers(self.routes[actor])
        short = self._short[actor] = list(self._followers[actor].short)
        self._under_way[actor] = set()
        return self._begun(actor, [step for step, count in enumerate(short) if not count])

    def over(self, actor: int, step: int) -> list[Begin]:
        """Take note that a step is over; returns those that can begin now.

        When the last one, `Do.END`, is over, the meeting is.

        Raises
        ------
        ProtocolError
            The step had not begun, or was over before.
        """
        under_way = self._under_way.get(actor, set())
        if step not in under_way:
            raise ProtocolError(f"meeting actor {actor}: step {step} was over before it began")
        under_way.remove(step)
        if self.routes[actor][step].do is Do.END:
            del self._short[actor], self._under_way[actor]
            return []
        return self._begun(actor, self._relieved(actor, self._followers[actor].needed_by[step]))

    def _begun(self, actor: int, steps: list[int]) -> list[Begin]:
        """Begin steps, and those that wait for no more than their beginning."""
        before = self._followers[actor].before
        for step in steps:  # grows while it is walked
            if before[step]:
                steps += self._relieved(actor, before[step])
        self._under_way[actor].update(steps)
        return [Begin(actor, step) for step in steps]

    def _relieved(self, actor: int, steps: Sequence[int]) -> list[int]:
        """Steps that wait for nothing more, once they wait for one thing less."""
        short = self._short[actor]
        ready = []
        for step in steps:
            left = short[step] = short[step] - 1
            if not left:
                ready.append(step)
        return ready

    def under_way(self) -> list[Begin]:
        """Steps that have begun and are not over."""
        return [Begin(actor, step) for actor in self._short for step in self._under_way[actor]]


def _followers(route: Sequence[Step]) -> _Followers:
    needed_by: list[list[int]] = [[] for _ in route]
    before: list[list[int]] = [[] for _ in route]
    for number, step in enumerate(route):
        for need in step.needs:
            needed_by[need].append(number)
        if step.after >= 0:
            before[step.after].append(number)
    return _Followers(
        tuple(map(tuple, needed_by)),
        tuple(map(tuple, before)),
        tuple(len(step.needs) + (step.after >= 0) for step in route),
    )
