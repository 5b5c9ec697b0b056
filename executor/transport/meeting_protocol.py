"""Meeting protocol: one rank's transport as a sans-IO state machine, events in, steps to begin out.

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
    first: tuple[int, ...]  # the steps that wait for none
    last: int  # the step that is the end


class _UnderWay(NamedTuple):
    """A meeting under way: how many steps each step still waits for, and which have begun."""

    followers: _Followers
    short: list[int]
    begun: set[int]


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
        self._meetings: dict[int, _UnderWay] = {}

    @property
    def idle(self) -> bool:
        """True if no meeting is under way."""
        return not self._meetings

    def posted(self, actor: int) -> list[Begin]:
        """Take note that a meeting may begin; returns the steps that can.

        Raises
        ------
        ProtocolError
            It is under way already.
        """
        if actor in self._meetings:
            raise ProtocolError(f"meeting actor {actor} was posted again before it was over")
        followers = self._followers.get(actor)
        if followers is None:
            followers = self._followers[actor] = _followers(self.routes[actor])
        meeting = self._meetings[actor] = _UnderWay(followers, list(followers.short), set())
        return _begun(actor, meeting, list(followers.first))

    def over(self, actor: int, step: int) -> list[Begin]:
        """Take note that a step is over; returns those that can begin now.

        When the last one, `Do.END`, is over, the meeting is.

        Raises
        ------
        ProtocolError
            The step had not begun, or was over before.
        """
        meeting = self._meetings.get(actor)
        if meeting is None or step not in meeting.begun:
            raise ProtocolError(f"meeting actor {actor}: step {step} was over before it began")
        followers, short, begun = meeting
        begun.remove(step)
        if step == followers.last:
            del self._meetings[actor]
            return []
        ready = []
        for follower in followers.needed_by[step]:
            short[follower] -= 1
            if not short[follower]:
                ready.append(follower)
        return _begun(actor, meeting, ready) if ready else []

    def under_way(self) -> list[Begin]:
        """Steps that have begun and are not over."""
        return [Begin(actor, step) for actor, m in self._meetings.items() for step in m.begun]


def _begun(actor: int, meeting: _UnderWay, steps: list[int]) -> list[Begin]:
    """Begin steps, and those that wait for no more than their beginning."""
    (followers, short, begun), commands = meeting, []
    for step in steps:  # grows while it is walked
        begun.add(step)
        commands.append(Begin(actor, step))
        for later in followers.before[step]:
            short[later] -= 1
            if not short[later]:
                steps.append(later)
    return commands


def _followers(route: Sequence[Step]) -> _Followers:
    needed_by: list[list[int]] = [[] for _ in route]
    before: list[list[int]] = [[] for _ in route]
    for number, step in enumerate(route):
        for need in step.needs:
            needed_by[need].append(number)
        if step.after >= 0:
            before[step.after].append(number)
    short = tuple(len(step.needs) + (step.after >= 0) for step in route)
    return _Followers(
        tuple(map(tuple, needed_by)),
        tuple(map(tuple, before)),
        short,
        tuple(number for number, count in enumerate(short) if not count),
        next(number for number, step in enumerate(route) if step.do is Do.END),
    )
