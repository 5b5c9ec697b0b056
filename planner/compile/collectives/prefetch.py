"""Prefetch: how early a collective may begin whose input is there long before it is wanted.

Weights that every microbatch gathers (ZeRO-3) and activations that the backward pass gathers again
could be gathered at any time: each result would need a place of its own all step long, which is
what such plans are there to avoid. So these collectives wait for an op of the block before: the
results of two neighbouring blocks at most are held at once, and one block's ops hide them. The
first block of a section has none before it and its results keep their places.

What is waited for is a second input port of the collective: a register that it does not send.
"""

from millrace.planner.actors.graph import Port
from millrace.planner.compile.live_ranges import LiveRanges, stretches
from millrace.planner.compile.stage_ir import BEGIN, UPDATE, Section, StageIR


def hold_back(draft: StageIR, joint_backward: bool) -> None:
    """Let early collectives of a stage wait for the block before the one that wants them.

    Parameters
    ----------
    draft : StageIR
        The stage, changed in place.
    joint_backward : bool
        True if gradients of inputs and of weights run in one slot.
    """
    live_ranges = LiveRanges(draft, joint_backward)
    triggers: dict[Section, list[tuple[int, int | None]]] = {}
    for index, actor in enumerate(draft.actors):
        section = live_ranges.section(index)
        if section in (BEGIN, UPDATE) or not live_ranges.local(index):
            continue
        (output,) = (port.register for port in actor.outputs)
        wanted = live_ranges.end(output, section)
        if wanted is None or live_ranges.begin(output) is not None:
            continue
        if section not in triggers:
            triggers[section] = _triggers(draft, live_ranges, section)
        first = min(
            live_ranges.done(reader, section) or 0 for reader in live_ranges.readers[output]
        )
        before = [trigger for trigger in triggers[section] if trigger[0] <= first]
        if len(before) > 1 and (register := before[-2][1]) is not None:
            actor.inputs = (*actor.inputs, Port(register=register))
            live_ranges.readers[register].append(index)


def _triggers(
    draft: StageIR, live_ranges: LiveRanges, section: Section
) -> list[tuple[int, int | None]]:
    """Start of every stretch of a section, and the smallest register that its ops fill."""
    ops = live_ranges.ops(section)
    starts = [start for start, _ in stretches(draft, ops)]
    triggers: list[tuple[int, int | None]] = []
    for start, end in zip(starts, [*starts[1:], 2 * len(draft.actors)], strict=True):
        filled = [
            port.register
            for index in ops
            if start <= 2 * index < end
            for port in draft.actors[index].outputs
            if port.hold == 1 and port.register in live_ranges.readers
        ]
        smallest = min(filled, key=lambda r: (draft.registers[r].slot_bytes, r), default=None)
        triggers.append((start, smallest))
    return triggers
