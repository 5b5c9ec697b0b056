"""The interpreter: command buffers without a device, in any order that streams and waits leave.

The heads of all streams whose waits are over could begin at any time; which one does is drawn from
a seed. Whatever depends on an order that the buffer does not state shows sooner or later.
"""

from collections.abc import Callable, Sequence
from random import Random

from millrace.executor.errors import ExecutorError
from millrace.executor.streams.commands import Command, CommandBuffer

Work = Callable[[Sequence[Command]], None]


def interpret(buffer: CommandBuffer, work: Work, *, seed: int, steps: int) -> None:
    """Carry out the commands of some steps in a random order, the same for the same seed.

    Parameters
    ----------
    buffer
        What the host issues.
    work
        Called with one local command, or with all members of a meeting in the order of the group.
        Firings are counted within the step, and steps follow one another with nothing in flight.
    seed
        Draws which of the commands that could begin does.
    steps
        How many steps to run.

    Raises
    ------
    ExecutorError
        No command can begin; says what the head of every stream waits for.
    """
    random = Random(seed)
    for step in range(steps):
        _run(buffer, buffer.steps[step % buffer.period], work, random)


def _run(buffer: CommandBuffer, commands: Sequence[Command], work: Work, random: Random) -> None:
    streams: dict[tuple[int, int], list[int]] = {}
    for number, command in enumerate(commands):
        streams.setdefault((command.rank, command.stream), []).append(number)
    for queue in streams.values():
        queue.reverse()
    heads = {queue[-1] for queue in streams.values()}
    events: set[int] = set()
    while heads:
        ready = sorted(
            number
            for number in heads
            if all(
                member in heads and events.issuperset(commands[member].waits)
                for member in commands[number].meets or (number,)
            )
        )
        if not ready:
            raise ExecutorError(_deadlock_report(buffer, commands, sorted(heads), events))
        number = random.choice(ready)
        together = commands[number].meets or (number,)
        work([commands[member] for member in together])
        for member in together:
            command = commands[member]
            if command.records:
                events.add(member)
            queue = streams[command.rank, command.stream]
            queue.pop()
            heads.remove(member)
            heads.update(queue[-1:])


def _deadlock_report(
    buffer: CommandBuffer, commands: Sequence[Command], heads: Sequence[int], events: set[int]
) -> str:
    """Report of what the head of every stream waits for."""
    lines = ["no command can begin"]
    for number in heads:
        command = commands[number]
        name = f"{number} (actor {command.actor} firing {command.firing})"
        reasons = [
            f"an event behind {other} of stream `{buffer.stream_name(commands[other])}`"
            + ("" if commands[other].records else ", which records none")
            for other in command.waits
            if other not in events
        ]
        reasons += [
            f"{other} of rank {commands[other].rank}, whom it meets"
            for other in command.meets
            if other not in heads
        ]
        where = f"rank {command.rank} stream `{buffer.stream_name(command)}`"
        waited = " and ".join(reasons) or "those whom it meets, who wait themselves"
        lines.append(f"{where}: {name} waits for {waited}")
    return "\n".join(lines)
