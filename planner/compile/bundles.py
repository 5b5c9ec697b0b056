"""Bundles: what the chunks of a stage keep from one section to another, and where it lies.

Only registers that are written and read in sections of the compute queue of one chunk count, for of
these the order of the sections says when a version is there. Where input and weight gradients run
apart, a section of input gradients gives back what the forward pass kept for it and makes what
weight gradients will read, block by block: of these two the stretch counts too, in which it is read
last, or made.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Any

from millrace.planner.compile.live_ranges import LiveRanges, stretches
from millrace.planner.compile.packing import UNSTRETCHED, Bundle, Turns, packed, taken_in_turn
from millrace.planner.compile.stage_ir import PART_ORDER, SLOT_PARTS, Section, StageIR


def taking_turns(live_ranges: LiveRanges, elsewhere: Set[int]) -> dict[Bundle, list[int]]:
    """Registers that live from one section of a chunk to a later one, by what is alive together.

    Parameters
    ----------
    live_ranges : LiveRanges
        Of a stage's registers.
    elsewhere : set of int
        Registers that have a place already: in the area that sections share, or in that of another.

    Returns
    -------
    dict of Bundle to list of int
        Indices of registers of activations, those of no bytes left out.
    """
    draft = live_ranges.draft
    bundle_registers: dict[Bundle, list[int]] = {}
    starts: dict[int, list[int]] = {}  # of the stretches of input gradients, by chunk
    for register in live_ranges.candidates:
        kind, size = draft.registers[register].memory_kind, draft.registers[register].slot_bytes
        begin = None if register in elsewhere else live_ranges.begin(register)
        if begin is None or begin[0][0] not in SLOT_PARTS or kind != "activation" or not size:
            continue
        (maker_part, chunk), begun = begin
        readers = live_ranges.readers.get(register, ())
        ends = {live_ranges.section(reader) for reader in readers}
        last = max((PART_ORDER[part] for part, _ in ends), default=0)
        done = [live_ranges.done(reader, live_ranges.section(reader)) for reader in readers]
        if (
            None in done
            or last <= PART_ORDER[maker_part]
            or {reader_chunk for _, reader_chunk in ends} != {chunk}
        ):
            continue
        end = next(part for part, _ in ends if PART_ORDER[part] == last)
        if end not in SLOT_PARTS:
            continue
        stretch = UNSTRETCHED
        if "B" in (maker_part, end):
            if chunk not in starts:
                starts[chunk] = [start for start, _ in chunk_stretches(live_ranges, chunk)]
            moment = begun if maker_part == "B" else max(time for time in done if time is not None)
            stretch = bisect_right(starts[chunk], moment) - 1
        bundle_registers.setdefault(Bundle(chunk, maker_part, end, stretch), []).append(register)
    return bundle_registers


def chunk_stretches(live_ranges: LiveRanges, chunk: int) -> list[tuple[int, str]]:
    """Stretches of a chunk's input gradients; none where a block has several.

    Parameters
    ----------
    live_ranges : LiveRanges
        Of the registers of the stage that has the chunk.
    chunk : int
        Number of the chunk on its stage.

    Returns
    -------
    list of tuple (int, str)
        When each starts (2i for op number i of the draft), and its block. Empty too where both
        gradients are one section.
    """
    rows = stretches(live_ranges.draft, live_ranges.ops(("B", chunk)))
    return rows if len({block for _, block in rows}) == len(rows) else []


def kept_places(
    draft: StageIR,
    bundle_registers: Mapping[Bundle, Iterable[int]],
    turns: Mapping[Section, Turns],
    begin: int,
) -> tuple[dict[int, dict[str, Any]], int]:
    """Fields of the registers that share places, from an offset on, and where these end."""
    sizes = {
        bundle: Counter(draft.registers[index].slot_bytes for index in rows)
        for bundle, rows in bundle_registers.items()
    }
    packing = packed(sizes, turns)
    left: dict[tuple[Bundle, int], list[int]] = {}  # registers of a bundle, by their bytes
    for bundle, rows in bundle_registers.items():
        packed_as = bundle if bundle in packing.pieces else bundle._replace(stretch=UNSTRETCHED)
        for index in rows:
            left.setdefault((packed_as, draft.registers[index].slot_bytes), []).append(index)
    fields: dict[int, dict[str, Any]] = {}
    for place_bytes in packing.shared:
        pieces = packing.of_size(place_bytes)
        taken = taken_in_turn({bundle: len(row) for bundle, row in pieces.items()}, turns)
        for bundle, row in pieces.items():
            for piece, places in zip(row, taken[bundle], strict=True):
                shares = {"offset_bytes": begin, "slots": len(places), "places": places}
                within = 0
                for slot_bytes in piece.sizes:
                    where = {"place_bytes": place_bytes, "within_bytes": within}
                    if place_bytes == slot_bytes:
                        where = {}
                    fields[left[bundle, slot_bytes].pop(0)] = shares | where
                    within += slot_bytes
        begin += packing.places[place_bytes] * place_bytes
    return fields, begin
