"""Streams: what a host issues to in-order streams, so that no protocol runs beside the devices.

Comes in: an ActorGraph and the ranks of a process. Goes out: a `CommandBuffer`, the commands of a
step in the order in which the host issues them, each with the commands it waits for.

Read `commands.py` first, then `races.py`, which proves of a buffer that no two commands meet in the
arena. `interpreter.py` runs a buffer without a device, `command_listing.py` prints it.
"""

from millrace.executor.streams.command_listing import listing
from millrace.executor.streams.commands import Command, CommandBuffer, command_buffer
from millrace.executor.streams.interpreter import interpret
from millrace.executor.streams.races import Race, find_races
from millrace.executor.streams.validate import validate

__all__ = [
    "Command",
    "CommandBuffer",
    "Race",
    "command_buffer",
    "find_races",
    "interpret",
    "listing",
    "validate",
]
