"""The stream driver: issues a command buffer to a device's streams, or replays it as a graph.

A step begins when the origin stream lets all streams go, and ends when it has waited for all of
them; so a step can be captured as one graph, and none is in flight between two. Eager firing
issues the same calls in the same order, one by one, with events around every command.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from millrace.executor.cuda.calls import Bucket, Call, Collective
from millrace.executor.cuda.cuda_rank import RankCalls
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.device import DeviceDriver
from millrace.executor.gpu.memory import DeviceRegions
from millrace.executor.streams.commands import Command, CommandBuffer


class Collectives(Protocol):
    """Carries out the flat collectives of the ranks of this process."""

    def issue(self, rank: int, actor: int, call: Collective | Bucket, stream: Any) -> None:
        """Put one call of a meeting actor on a stream; `call` holds addresses."""
        ...

    def check(self) -> None:
        """Raise the error of a collective that has failed."""
        ...

    def last_issued(self) -> list[str]:
        """The collective that was issued last for every group, in words."""
        ...

    def abandon(self, error: ExecutorError) -> None:
        """End collectives that may never end by themselves; `check` raises the error then."""
        ...


class Mark(NamedTuple):
    """Events around one command of a step that was fired eagerly."""

    rank: int
    stream: int
    actor: int
    firing: int
    start: Any
    end: Any


@dataclass(frozen=True, slots=True)
class _Issue:
    """One command, ready to be issued: its stream, what it waits for, its calls, its event."""

    command: Command
    stream: Any
    waits: tuple[Any, ...]
    calls: tuple[Call, ...]
    event: Any  # None where nobody waits for it


class StreamDriver:
    """Issues the steps of a command buffer.

    Parameters
    ----------
    device
        The device of all ranks of the buffer.
    buffer
        The command buffer.
    ranks
        The calls of every rank in it.
    regions
        Memory in which their operands lie.
    collectives
        Carries out meetings with ranks elsewhere; None where there are none.
    """

    def __init__(
        self,
        device: DeviceDriver,
        buffer: CommandBuffer,
        ranks: Mapping[int, RankCalls],
        regions: DeviceRegions,
        collectives: Collectives | None,
    ) -> None:
        self._device, self._buffer, self._collectives = device, buffer, collectives
        self._names = {
            rank: tuple(actor.name for actor in calls.program.actors)
            for rank, calls in ranks.items()
        }
        self.origin = device.stream(0)
        self._streams = {
            (rank, index): device.stream(0 if name == "compute" else -1)
            for rank, names in zip(buffer.ranks, buffer.streams, strict=True)
            for index, name in enumerate(names)
        }
        self._fork = device.event(timed=False)
        self._joins = {key: device.event(timed=False) for key in self._streams}
        self._arrivals: dict[int, Any] = {}
        self._departures: dict[int, Any] = {}
        self._steps = [self._prepared(step, ranks, regions) for step in buffer.steps]
        self._finish = [(rank, regions.placed(calls.finish())) for rank, calls in ranks.items()]
        self._graphs: list[Any] = []
        self._timed: list[Any] = []
        self._timed_used = 0
        self._prepare()

    @property
    def captured(self) -> bool:
        """True if steps are replayed as graphs."""
        return bool(self._graphs)

    def fire(self, step: int, *, timed: bool = False) -> list[Mark]:
        """Issue all calls of a step one by one; return events around each where `timed`.

        The events are those of every timed step: read them before the next one is fired.

        Raises
        ------
        ExecutorError
            The device refuses a call; names the rank and the actor.
        """
        marks: list[Mark] = []
        self._timed_used = 0
        device, origin = self._device, self.origin
        device.record(self._fork, origin)
        for stream in self._streams.values():
            device.wait(stream, self._fork)
        for _, group in self._groups(step):
            self._issue(group, marks if timed else None)
        for key, stream in self._streams.items():
            device.record(self._joins[key], stream)
            device.wait(origin, self._joins[key])
        for rank, call in self._finish:
            self._call(rank, "the end of the step", call, origin)
        return marks

    def capture(self) -> None:
        """Capture every step of the period as a graph, to be replayed from now on."""
        graphs = []
        for step in range(self._buffer.period):
            self._device.begin_capture(self.origin)
            try:
                self.fire(step)
            except ExecutorError:
                # What was refused says more than that the capture cannot be ended.
                with suppress(ExecutorError):
                    self._device.end_capture(self.origin)
                raise
            graphs.append(self._device.end_capture(self.origin))
        self._graphs = graphs

    def replay(self, step: int) -> None:
        """Launch the graph of a step."""
        self._device.replay(self._graphs[step % self._buffer.period], self.origin)

    def hung(self, marks: Sequence[Mark]) -> list[tuple[int, str, str]]:
        """Rank, actor and stream of the commands that have begun and not ended."""
        done = self._device.done
        streams = dict(zip(self._buffer.ranks, self._buffer.streams, strict=True))
        return [
            (mark.rank, self._names[mark.rank][mark.actor], streams[mark.rank][mark.stream])
            for mark in marks
            if done(mark.start) and not done(mark.end)
        ]

    def _groups(self, step: int) -> Iterator[tuple[object, list[_Issue]]]:
        """Yield local commands one by one, and the members of a meeting together."""
        issues = self._steps[step % self._buffer.period]
        numbered = enumerate(issues)
        for key, group in groupby(numbered, lambda pair: pair[1].command.meets or pair[0]):
            yield key, [issue for _, issue in group]

    def _issue(self, group: list[_Issue], marks: list[Mark] | None) -> None:
        """Issue one command, or the members of one meeting, which begin and end together."""
        device = self._device
        for issue in group:
            for event in issue.waits:
                device.wait(issue.stream, event)
        if len(group) > 1:
            self._synchronize_streams(group, self._arrivals)
        for issue in group:
            rank, actor = issue.command.rank, issue.command.actor
            name = self._names[rank][actor]
            start = self._mark(issue, marks)
            with device.range(name):
                for call in issue.calls:
                    if isinstance(call, Collective | Bucket) and self._collectives is not None:
                        self._collectives.issue(rank, actor, call, issue.stream)
                    else:
                        self._call(rank, name, call, issue.stream)
            if marks is not None:
                end = self._mark(issue, marks)
                command = issue.command
                marks.append(Mark(rank, command.stream, actor, command.firing, start, end))
        if len(group) > 1:
            self._synchronize_streams(group, self._departures)
        for issue in group:
            if issue.event is not None:
                device.record(issue.event, issue.stream)

    def _mark(self, issue: _Issue, marks: list[Mark] | None) -> Any:
        if marks is None:
            return None
        if self._timed_used == len(self._timed):
            self._timed.append(self._device.event(timed=True))
        event = self._timed[self._timed_used]
        self._timed_used += 1
        self._device.record(event, issue.stream)
        return event

    def _synchronize_streams(self, group: list[_Issue], events: dict[int, Any]) -> None:
        """Let the streams of a group wait for each other."""
        for position, issue in enumerate(group):
            if position not in events:
                events[position] = self._device.event(timed=False)
            self._device.record(events[position], issue.stream)
        for position, issue in enumerate(group):
            for other in range(len(group)):
                if other != position:
                    self._device.wait(issue.stream, events[other])

    def _call(self, rank: int, name: str, call: Call, stream: Any) -> None:
        try:
            self._device.issue(call, stream)
        except ExecutorError as error:
            raise ExecutorError(error.cause, rank=rank, actor=name) from error

    def _prepared(
        self, step: Sequence[Command], ranks: Mapping[int, RankCalls], regions: DeviceRegions
    ) -> list[_Issue]:
        """Commands of a step, bound to streams, events and addresses."""
        events = {
            number: self._device.event(timed=False)
            for number, command in enumerate(step)
            if command.records
        }
        issues = []
        for number, command in enumerate(step):
            peers = [(ranks[step[peer].rank], step[peer]) for peer in command.meets]
            calls = ranks[command.rank].located(command, peers)
            issues.append(
                _Issue(
                    command,
                    self._streams[command.rank, command.stream],
                    tuple(events[number] for number in command.waits),
                    tuple(regions.placed(call) for call in calls),
                    events.get(number),
                )
            )
        return issues

    def _prepare(self) -> None:
        """Let the device make ready whatever it needs for a call, before the first one."""
        for issues in self._steps:
            for issue in issues:
                for call in issue.calls:
                    if not isinstance(call, Collective | Bucket):
                        self._device.prepare(call, issue.stream)
