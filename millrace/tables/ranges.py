"""Ranges: blocks and ranks that follow one another in a few words, `h.0-4` and `0-60 by 4`."""

from collections.abc import Mapping, Sequence

from millrace.planner.plan import Chunk, Plan, recompute_modes

LETTERS_MAX = 32  # of the blocks of a stage, so that a row of a table is one line
RANKS_SHOWN = 4  # ranges of ranks before the rest is counted


def stage_blocks(plan: Plan, stage: int) -> str:
    """Blocks of a stage, one line per chunk: `embedding, h.0-1 (recompute full)`.

    Parameters
    ----------
    plan : Plan
        The plan that has the stage.
    stage : int
        Counted from 0.

    Returns
    -------
    str
        Consecutive blocks of one kind and recompute mode as a range.
    """
    modes = recompute_modes(plan)
    return "\n".join(_named(chunk, modes) for chunk in plan.chunks if chunk.stage == stage)


def stage_layers(plan: Plan, stage: int) -> str:
    """Blocks of a stage in one line at any size: `embedding, h.0-4 | h.75-79, head`.

    Many chunks are counted: `10 chunks of 2, embedding … h.73`.

    Parameters
    ----------
    plan : Plan
        The plan that has the stage.
    stage : int
        Counted from 0.
    """
    chunks = [chunk for chunk in plan.chunks if chunk.stage == stage]
    texts = [_named(chunk, {}) for chunk in chunks]
    if len(line := " | ".join(texts)) <= LETTERS_MAX:
        return line
    names = [[choice.block for choice in chunk.blocks] for chunk in chunks]
    ends = f"{names[0][0]} … {names[-1][-1]}"
    if len(chunks) == 1:
        return f"{len(names[0])} blocks, {ends}"
    counts = [sum(map(_is_numbered, row)) or len(row) for row in names]
    least, most = min(counts), max(counts)
    each = f"{least}" if least == most else f"{least}-{most}"
    return f"{len(chunks)} chunks of {each}, {ends}"


def recomputed_layers(plan: Plan, stage: int) -> str:
    """Modes of recomputation of a stage with their layers: `selective 14 of 20`; empty: none."""
    modes = recompute_modes(plan)
    names = [
        choice.block for chunk in plan.chunks if chunk.stage == stage for choice in chunk.blocks
    ]
    names = [name for name in names if name in modes or _is_numbered(name)]
    counts: dict[str, int] = {}
    for name in names:
        if name in modes:
            counts[modes[name]] = counts.get(modes[name], 0) + 1
    text = ", ".join(f"{mode} {count}" for mode, count in sorted(counts.items()))
    return f"{text} of {len(names)}" if len(counts) == 1 else text


def rank_ranges(ranks: Sequence[int]) -> str:
    """Ranks in ranges, with a stride where they are apart.

    Parameters
    ----------
    ranks : sequence of int
        Ascending, each once.

    Examples
    --------
    >>> rank_ranges([0, 1, 2, 3, 16, 17])
    '0-3, 16-17'
    >>> rank_ranges([0, 8, 16, 24])
    '0-24 by 8'
    >>> rank_ranges([5])
    '5'
    """
    ranges: list[str] = []
    position = 0
    while position < len(ranks):
        end = position + 1
        step = ranks[end] - ranks[position] if end < len(ranks) else 1
        while end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
        if step > 1 and end - position == 2:  # two alone are no row
            end -= 1
        first, last = ranks[position], ranks[end - 1]
        stride = f" by {step}" if step > 1 else ""
        ranges.append(str(first) if first == last else f"{first}-{last}{stride}")
        position = end
    more = len(ranges) - RANKS_SHOWN
    shown = ranges if more <= 0 else [*ranges[:RANKS_SHOWN], f"and {more} more"]
    return ", ".join(shown)


def _is_numbered(block: str) -> bool:
    """True of a block that is one of several alike: `h.3`."""
    stem, _, number = block.rpartition(".")
    return bool(stem) and number.isdigit()


def _named(chunk: Chunk, modes: Mapping[str, str]) -> str:
    """Blocks of a chunk, consecutive ones of a kind and mode as a range: `embedding, layer.0-2`."""
    runs: list[tuple[str, str, int, int]] = []
    names: list[str] = []
    for choice in chunk.blocks:
        stem, _, number = choice.block.rpartition(".")
        mode = modes.get(choice.block, "")
        note = f" (recompute {mode})" if mode else ""
        if stem and number.isdigit():
            index = int(number)
            if runs and runs[-1][:2] == (stem, mode) and runs[-1][3] == index - 1:
                runs[-1] = (stem, mode, runs[-1][2], index)
            else:
                runs.append((stem, mode, index, index))
                names.append("")
            first, last = runs[-1][2:]
            names[-1] = f"{stem}.{first}" if first == last else f"{stem}.{first}-{last}"
            names[-1] += note
        else:
            runs.append((choice.block, mode, -1, -1))
            names.append(choice.block + note)
    return ", ".join(names)
