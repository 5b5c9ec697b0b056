"""Orders: the rules by which a stage runs its chunks' microbatches, as arrays.

F is a chunk's forward, B the gradients of its inputs, W the gradients of its weights; BW is both at
once. A rule gives every piece of a stage's work a *turn*, a whole number; the stage runs its pieces
in the order of their turns, and microbatches of one chunk and part in their own. Only the order of
turns counts, so that a rule may start anywhere and leave gaps, and microbatches that a step does
not have leave no trace: nothing waits for another microbatch but its turn, so what is left still
runs to its end.

Where a schedule pairs, pieces of one turn run beside one another: a forward, and the gradients of
another microbatch. The forward comes first in the order of the slots.

Shapes: S stages, C chunks on the stage, M microbatches, N slots of a stage, P positions.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]

PARTS = ("F", "B", "W", "BW")  # by their codes in arrays


class Slot(NamedTuple):
    """One piece of a stage's work: `part` is F, B, W or BW; `chunk` counts on the stage."""

    part: str
    chunk: int
    microbatch: int


Order = tuple[Slot, ...]


class Indices(NamedTuple):
    """A pipeline's numbers, and the indices of every piece of its work, which broadcast.

    Attributes
    ----------
    stages, chunks, microbatches : int
        Chunks are those of one stage.
    stage, chunk, microbatch : array
        [S, 1, 1], [C, 1] and [M].
    """

    stages: int
    chunks: int
    microbatches: int
    stage: Ints
    chunk: Ints
    microbatch: Ints


TurnRule = Callable[[Indices], Mapping[str, Ints]]
"""Turns [S, C, M], or what broadcasts to it, of every part that a schedule has."""


def ordered_pieces(rule: TurnRule, indices: Indices) -> tuple[Codes, Ints]:
    """Pieces of a stage's work, and the order in which every stage runs them.

    Pieces are columns [3, N] of part codes, chunks and microbatches; orders [S, N] index them.
    """
    parts, turns = _turns(rule, indices)
    pieces = np.indices((len(parts), indices.chunks, indices.microbatches), np.int32).reshape(3, -1)
    pieces[0] = np.array([PARTS.index(name) for name in parts], np.int32)[pieces[0]]
    return pieces, np.argsort(turns, axis=1, kind="stable")


def equal_turns(rule: TurnRule, indices: Indices) -> NDArray[np.bool_]:
    """True per slot [S, N], in order, that has the turn of the slot before it."""
    _, turns = _turns(rule, indices)
    equal: NDArray[np.bool_] = np.diff(np.sort(turns), prepend=turns.min() - 1) == 0
    return equal


def pairs_of(forward: Sequence[bool], paired_slots: Set[int]) -> list[range]:
    """Slots of every pair: a forward, and the gradients that run beside it.

    Parameters
    ----------
    forward : sequence of bool
        True for slots of forwards.
    paired_slots : set of int
        Slots that run beside the one before them.

    Examples
    --------
    >>> pairs_of([True, False, False, True, False], {2, 4})
    [range(3, 5)]
    """
    begins = [number for number in range(len(forward)) if number not in paired_slots]
    groups = map(range, begins, [*begins[1:], len(forward)])
    return [group for group in groups if len(group) > 1 and forward[group.start]]


def one_ahead(order: Order) -> tuple[Order, tuple[int, ...]]:
    """Order of a stage that runs one forward more before its steady phase, and its paired slots.

    Each forward of the steady phase then runs beside gradients of a microbatch that does not wait
    for it. What comes before and after has nothing to run beside.

    Parameters
    ----------
    order : tuple of Slot
        Whose steady phase has forwards and gradients in turns; gradients are whole (BW).

    Returns
    -------
    tuple
        The order, and its slots that run beside the one before them.

    Notes
    -----
    Megatron-Core, pipeline_parallel/schedules.py, `get_pp_rank_microbatches`, read 2026-11: one
    more microbatch of warm-up where `overlap_moe_expert_parallel_comm` is set.

    Examples
    --------
    >>> parts = ("F", "F", "BW", "F", "BW", "F", "BW", "BW")
    >>> slots, beside = one_ahead(tuple(Slot(part, 0, 0) for part in parts))
    >>> "".join(slot.part[0] for slot in slots), beside
    ('FFFBFBBB', (3, 5))
    """
    slots = list(order)
    behind = [
        number
        for number in range(1, len(slots) - 1)
        if slots[number - 1].part == "F" and slots[number].part != "F" == slots[number + 1].part
    ]
    for number in behind:
        slots[number : number + 2] = slots[number + 1], slots[number]
    return tuple(slots), tuple(number + 1 for number in behind)


def _turns(rule: TurnRule, indices: Indices) -> tuple[tuple[str, ...], Ints]:
    """Parts that a rule has, and the turns of all pieces [S, N] by part, chunk and microbatch."""
    turns = rule(indices)
    shape = len(indices.stage), indices.chunks, indices.microbatches
    by_part = np.stack([np.broadcast_to(turn, shape) for turn in turns.values()], axis=1)
    return tuple(turns), by_part.reshape(len(indices.stage), -1)


def indices_of(stages: int, chunks: int, microbatches: int, stage: int | None = None) -> Indices:
    """Indices of all stages, or of one."""
    return Indices(
        stages=stages,
        chunks=chunks,
        microbatches=microbatches,
        stage=np.arange(stages)[slice(stage, None if stage is None else stage + 1), None, None],
        chunk=np.arange(chunks)[:, None],
        microbatch=np.arange(microbatches),
    )


def gpipe(piece: Indices) -> Mapping[str, Ints]:
    """All forwards, then all backwards, of the last chunk first."""
    before = piece.chunk * piece.microbatches
    return {
        "F": before + piece.microbatch,
        "BW": (2 * piece.chunks - 1) * piece.microbatches - before + piece.microbatch,
    }


def one_forward_one_backward(piece: Indices) -> Mapping[str, Ints]:
    """Warm up, then one forward and one backward in turn."""
    warm_up = piece.stages - piece.stage - 1
    return {"F": 2 * (piece.microbatch - warm_up), "BW": 2 * piece.microbatch + 1}


def eager_one_forward_one_backward(piece: Indices) -> Mapping[str, Ints]:
    """1F1B with twice the warm-up: while a microbatch travels, a stage has another to run."""
    warm_up = 2 * (piece.stages - piece.stage - 1)
    return {**one_forward_one_backward(piece), "F": 2 * (piece.microbatch - warm_up)}


def interleaved(piece: Indices) -> Mapping[str, Ints]:
    """Several chunks a stage, in rounds of as many microbatches as there are stages."""
    stages, chunks = piece.stages, piece.chunks
    lap, within = np.divmod(piece.microbatch, stages)
    before = lap * stages * chunks + within
    forward = before + piece.chunk * stages
    backward = before + (chunks - 1 - piece.chunk) * stages
    # Of as few microbatches as stages too (`get_pp_rank_microbatches`, Megatron-LM,
    # core/pipeline_parallel/schedules.py, read 2026-11; releases before did all forwards first).
    warm_up = (stages - piece.stage - 1) * 2 + (chunks - 1) * stages
    return {"F": 2 * (forward - warm_up), "BW": 2 * backward + 1}


def zero_bubble_h1(piece: Indices) -> Mapping[str, Ints]:
    """1F1B's memory, with weight gradients moved into the bubble.

    A stage defers its weight gradients by its number of stages behind the first; they fill the
    waits of the steady state's end, where 1F1B would idle.
    """
    warm_up = piece.stages - piece.stage - 1
    return {
        "F": 3 * (piece.microbatch - warm_up),
        "B": 3 * piece.microbatch + 1,
        "W": 3 * (piece.microbatch + piece.stage) + 2,
    }


def zero_bubble_v(piece: Indices) -> Mapping[str, Ints]:
    """No bubble at 1F1B's memory, where F, B and W last equally long.

    A stage's second chunk mirrors its first: forwards go down the stages and come back up, so that
    backwards begin on the stage where forwards did. No stage ever keeps more than `2 · stages`
    chunks' activations, half as large as 1F1B's. In the steady state F B W of the first chunk and
    F B W of the second take turns, six a round; the second chunk is `stages` rounds ahead. Before
    it the first chunk's forwards fill what is free, after it all weight gradients that are left.
    """
    stages, stage, microbatch = piece.stages, piece.stage, piece.microbatch
    # The order keeps a full pipeline busy, whether or not there are so many microbatches.
    full = max(2 * stages - 1, piece.microbatches)
    second = 6 * (microbatch - stages)
    turns = {
        "F": (
            np.where(
                microbatch < 2 * stages - stage - 1,
                second - 6 * (2 * (stages - stage) - 1) + 4,
                6 * (microbatch - 2 * stages + stage + 1),
            ),
            second + 3,
        ),
        "B": (6 * microbatch + 1, second + 6 * stage + 4),
        "W": (
            6 * microbatch + 2 + np.where(microbatch < full - stages, 0, 6 * stage),
            np.where(microbatch < full - stage, second + 6 * stage + 5, 6 * full),
        ),
    }
    return {part: np.where(piece.chunk == 0, *chunks) for part, chunks in turns.items()}


def dualpipe_v(piece: Indices) -> Mapping[str, Ints]:
    """Forwards beside gradients, in a V: what either communicates hides behind the other.

    Chunks lie as in `zero_bubble_v`. A stage runs forwards of its first chunk; then of both chunks
    in turns; then gradients and forwards of its second; then pairs of a forward of one chunk and
    gradients of the other; then gradients of its second chunk in turns with such pairs; and at last
    gradients alone, of whose weights the last `stages` come when nothing else is left. The last
    stage runs the first of its pairs one after the other.
    """
    stages, stage, microbatch = piece.stages, piece.stage, piece.microbatch
    # The order keeps a full pipeline busy, whether or not there are so many microbatches.
    full = max(2 * stages, piece.microbatches)
    behind, ahead = stages - 1 - stage, stage + 1  # stages after this one, and up to it
    pairs = full - 2 * stages + ahead
    lengths = (2 * behind, 2 * ahead, 3 * behind, 2 * pairs, 2 * behind, 2 * ahead, 2 * behind)
    both, second, paired, drain, end, late, last = np.cumsum(np.stack(lengths), axis=0)

    def turns(*stretches: tuple[Ints, Ints, int]) -> Ints:
        """Turns from how many microbatches a stretch has, its first turn, and its step."""
        numbers, row = microbatch - np.zeros_like(stage), np.zeros(1, np.int64)
        for count, first, step in stretches:
            row = np.where(numbers >= 0, first + step * numbers, row)
            numbers = numbers - count
        return row

    def weights(gradients: Ints) -> Ints:
        """Turns of gradients of weights: those of inputs, or later for the last `stages`."""
        among_late = ahead + (gradients - late) // 2
        number = np.where(gradients < late, gradients - end - ahead, among_late)
        later = np.where(number < behind, late + 2 * number, last + number - behind)
        return np.where(number < 0, gradients, later)

    forward = (
        turns((2 * behind, 0 * stage, 1), (ahead, both, 2), (pairs, paired, 2)),
        turns(
            (ahead, both + 1, 2),
            (behind, second + 2, 3),
            (pairs, paired + 1, 2),
            (behind, drain + 1, 2),
        ),
    )
    gradients = (
        turns(
            (pairs, paired + 1, 2),
            (behind, drain + 1, 2),
            (ahead, end + 1, 2),
            (behind, late + 1, 2),
        ),
        turns((behind, second, 3), (pairs, paired, 2), (behind, drain, 2), (ahead, end, 2)),
    )
    first = piece.chunk == 0
    unpaired = first & (behind == 0) & (microbatch == stages)
    return {
        "F": 2 * np.where(first, *forward) - unpaired,
        "B": 2 * np.where(first, *gradients),
        "W": 2 * np.where(first, *map(weights, gradients)),
    }
