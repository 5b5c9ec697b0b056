"""Listings: command buffers as text, one line per command in the host's order."""

from collections.abc import Iterable, Sequence

from millrace.executor.streams.commands import Command, CommandBuffer
from millrace.planner.actors.graph import ActorGraph, Port, Program


def listing(graph: ActorGraph, buffer: CommandBuffer) -> str:
    """Write out every step of a buffer's period.

    A line holds the command's number, rank, stream, actor and firing; the registers it reads and
    writes with their slots; the commands it waits for; `records` where an event follows; and the
    other members of its meeting.
    """
    count = len(buffer.ranks)
    lines = [
        f"{graph.name}: {count} {'rank' if count == 1 else 'ranks'}, "
        f"{len(buffer.steps[0])} commands a step, slots repeat after "
        f"{'every step' if buffer.period == 1 else f'{buffer.period} steps'}"
    ]
    for step, commands in enumerate(buffer.steps):
        lines += ["", f"step {step}"]
        lines += (
            command_line(graph, buffer, commands, number).rstrip()
            for number in range(len(commands))
        )
    return "\n".join(lines) + "\n"


def command_line(
    graph: ActorGraph,
    buffer: CommandBuffer,
    commands: Sequence[Command],
    number: int,
    *,
    slots: bool = True,
) -> str:
    """Line of one command of a step, with the slots of its registers or without."""
    command = commands[number]
    program = graph.programs[graph.program_of(command.rank)]
    actor = program.actors[command.actor]
    parts = [
        f"{number:5} rank {command.rank} {buffer.stream_name(command)}: {_called(graph, command)}"
    ]
    if slots:
        parts += _slots("reads", program, actor.inputs, command.reads)
        parts += _slots("writes", program, actor.outputs, command.writes)
    if command.waits:
        waits = (f"{other} {_called(graph, commands[other])}" for other in command.waits)
        parts.append(f"after {', '.join(waits)}")
    if command.records:
        parts.append("records")
    others = [f"{other}" for other in command.meets if other != number]
    if others:
        parts.append(f"meets {', '.join(others)}")
    return "; ".join(parts)


def _called(graph: ActorGraph, command: Command) -> str:
    actor = graph.programs[graph.program_of(command.rank)].actors[command.actor]
    return f"{actor.name} #{command.firing}" if actor.firings > 1 else actor.name


def _slots(word: str, program: Program, ports: Sequence[Port], slots: Iterable[int]) -> list[str]:
    named = (
        f"{program.registers[port.register].name}[{slot}]"
        for port, slot in zip(ports, slots, strict=True)
    )
    return [f"{word} {', '.join(named)}"] if ports else []
