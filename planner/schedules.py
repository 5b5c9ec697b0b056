"""Pipeline schedules: a table of orders in which a stage runs its chunks' microbatches.

F is a chunk's forward, B the gradients of its inputs, W the gradients of its weights; BW is both at
once. Every schedule is a function from (stage, stages, chunks on the stage, microbatches) to the
stage's sequence of slots. A new schedule is one entry in `SCHEDULES`; `stage_of` says where its
chunks lie.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from millrace.planner.errors import InfeasibleError, PlanError

# Microbatches that a schedule repeats at most: twice those of any run in the published tables, and
# what a simulation of every op gets through in some ten seconds.
MICROBATCHES_MAX = 2**12


class Slot(NamedTuple):
    """One piece of a stage's work: `part` is F, B, W or BW; `chunk` counts on the stage."""

    part: str
    chunk: int
    microbatch: int


Order = tuple[Slot, ...]
Rule = Callable[[int, int, int, int], Order]


def gpipe(stage: int, stages: int, chunks: int, microbatches: int) -> Order:
    """All forwards, then all backwards (Huang et al., "GPipe", 2019, section 2.3)."""
    forward = [Slot("F", c, m) for c in range(chunks) for m in range(microbatches)]
    backward = [Slot("BW", c, m) for c in reversed(range(chunks)) for m in range(microbatches)]
    return (*forward, *backward)


def one_forward_one_backward(stage: int, stages: int, chunks: int, microbatches: int) -> Order:
    """Warm up, then one forward and one backward in turn (PipeDream-Flush; Narayanan 2021)."""
    if chunks != 1:
        raise InfeasibleError(
            f"schedule 1f1b runs one chunk a stage, found {chunks}: use interleaved-1f1b"
        )
    warm_up = min(stages - stage - 1, microbatches)
    order = [Slot("F", 0, m) for m in range(warm_up)]
    for m in range(warm_up, microbatches):
        order += [Slot("F", 0, m), Slot("BW", 0, m - warm_up)]
    order += [Slot("BW", 0, m) for m in range(microbatches - warm_up, microbatches)]
    return tuple(order)


def interleaved(stage: int, stages: int, chunks: int, microbatches: int) -> Order:
    """Several chunks a stage, in rounds of `stages` microbatches (Narayanan 2021, section 2.2).

    A last round of fewer microbatches is a full one without those that are missing.
    """
    rounded = -(-microbatches // stages) * stages
    total = rounded * chunks
    forward = [_interleaved_slot("F", k, stages, chunks) for k in range(total)]
    backward = [_interleaved_slot("BW", k, stages, chunks) for k in range(total)]
    if rounded == stages:
        warm_up = total
    else:
        warm_up = min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)
    order = forward[:warm_up]
    for k in range(warm_up, total):
        order += [forward[k], backward[k - warm_up]]
    order += backward[total - warm_up :]
    return _without_missing(order, microbatches)


def _without_missing(order: list[Slot], microbatches: int) -> Order:
    """Leave out microbatches that a step does not have.

    Nothing waits for another microbatch but its turn, so what is left still runs to its end.
    """
    return tuple(slot for slot in order if slot.microbatch < microbatches)


def _interleaved_slot(part: str, k: int, stages: int, chunks: int) -> Slot:
    lap, rest = divmod(k, stages * chunks)
    chunk, within = divmod(rest, stages)
    return Slot(part, chunks - 1 - chunk if part == "BW" else chunk, lap * stages + within)


def zero_bubble_h1(stage: int, stages: int, chunks: int, microbatches: int) -> Order:
    """1F1B's memory, with weight gradients moved into the bubble (Qi et al. 2023, section 2.2).

    A stage defers its weight gradients by its number of stages behind the first; they fill the
    waits of the steady state's end, where 1F1B would idle.
    """
    if chunks != 1:
        raise InfeasibleError(f"schedule zb-h1 runs one chunk a stage, found {chunks}")
    warm_up = min(stages - stage - 1, microbatches)
    order = [Slot("F", 0, m) for m in range(warm_up)]
    deferred = min(stage, microbatches)
    weights = 0
    for m in range(microbatches):
        if m + warm_up < microbatches:
            order.append(Slot("F", 0, m + warm_up))
        order.append(Slot("B", 0, m))
        if m >= deferred:
            order.append(Slot("W", 0, weights))
            weights += 1
    order += [Slot("W", 0, m) for m in range(weights, microbatches)]
    return tuple(order)


def zero_bubble_v(stage: int, stages: int, chunks: int, microbatches: int) -> Order:
    """No bubble at 1F1B's memory, where F, B and W last equally long (Qi et al. 2023, section 6).

    A stage's second chunk mirrors its first: forwards go down the stages and come back up, so that
    backwards begin on the stage where forwards did. No stage ever keeps more than `2 · stages`
    chunks' activations, half as large as 1F1B's.
    """
    if chunks != 2:
        raise InfeasibleError(f"schedule zb-v runs two chunks a stage, found {chunks}")
    # What follows keeps a full pipeline busy; fewer microbatches than fill it are left out of it.
    full = max(2 * stages - 1, microbatches)
    order: list[Slot] = []
    done = dict.fromkeys([(part, chunk) for part in "FBW" for chunk in (0, 1)], 0)

    def run(part: str, chunk: int) -> None:
        if done[part, chunk] < full:
            order.append(Slot(part, chunk, done[part, chunk]))
            done[part, chunk] += 1

    def repeated(count: int, pieces: str) -> None:
        for _ in range(count):
            for piece in pieces.split():
                run(piece[0], int(piece[1]))

    repeated(2 * (stages - stage) - 1, "F0")
    repeated(stage, "F1 F0")
    repeated(stages - stage, "F1 B1 W1")
    repeated(full - done["F", 1], "F0 B0 W0 F1 B1 W1")
    repeated(stage, "B0 B1")
    repeated(stages - stage, "B0 W0")
    repeated(full - done["W", 1], "W1")
    repeated(full - done["W", 0], "W0")
    return _without_missing(order, microbatches)


SCHEDULES: dict[str, Rule] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved-1f1b": interleaved,
    "zb-h1": zero_bubble_h1,
    "zb-v": zero_bubble_v,
}
FOLDED = ("zb-v",)  # schedules whose every other row of chunks goes back up the stages


def stage_of(schedule: str, position: int, stages: int) -> int:
    """Return the stage of the chunk at a position of the model.

    Examples
    --------
    >>> [stage_of("interleaved-1f1b", k, 3) for k in range(6)]
    [0, 1, 2, 0, 1, 2]
    >>> [stage_of("zb-v", k, 3) for k in range(6)]
    [0, 1, 2, 2, 1, 0]
    """
    row, stage = divmod(position, stages)
    return stages - 1 - stage if schedule in FOLDED and row % 2 else stage


def schedule_order(
    name: str, *, stage: int, stages: int, chunks: int, microbatches: int
) -> tuple[Slot, ...]:
    """Return what a stage runs during one step, in order.

    Raises
    ------
    PlanError
        No schedule has that name.
    InfeasibleError
        The schedule cannot run that many chunks or microbatches.

    Examples
    --------
    >>> [f"{s.part}{s.microbatch}" for s in
    ...  schedule_order("1f1b", stage=0, stages=2, chunks=1, microbatches=2)]
    ['F0', 'F1', 'BW0', 'BW1']
    """
    if name not in SCHEDULES:
        raise PlanError(f"unknown schedule `{name}`: choose one of {', '.join(SCHEDULES)}")
    return SCHEDULES[name](stage, stages, chunks, microbatches)


def in_flight(order: tuple[Slot, ...]) -> int:
    """Most chunk-microbatches whose forward has run and whose last backward part has not."""
    live = most = 0
    for slot in order:
        if slot.part == "F":
            live += 1
            most = max(most, live)
        elif slot.part in ("W", "BW"):
            live -= 1
    return most


@lru_cache(maxsize=4096)
def kept_counts(name: str, stages: int, chunks: int, microbatches: int) -> tuple[int, ...]:
    """Most microbatches whose activations each position keeps at once, in the model's order.

    What `schedule_order` says, without writing it down: it takes no longer for more microbatches.

    Examples
    --------
    >>> kept_counts("1f1b", 4, 1, 512)
    (4, 3, 2, 1)
    """
    # Refuses what the schedule cannot run.
    schedule_order(name, stage=0, stages=stages, chunks=chunks, microbatches=1)
    if name not in _KEPT:
        return counted(name, stages, chunks, microbatches)
    return _KEPT[name](stages, chunks, microbatches)


def counted(name: str, stages: int, chunks: int, microbatches: int) -> tuple[int, ...]:
    """Count what each position keeps by going through the orders: `kept_counts`' definition.

    A microbatch is kept from its forward to its last backward part.
    """
    found = [0] * (stages * chunks)
    for stage in range(stages):
        order = schedule_order(
            name, stage=stage, stages=stages, chunks=chunks, microbatches=microbatches
        )
        for chunk in range(chunks):
            row = slice(chunk * stages, (chunk + 1) * stages)
            position = range(len(found))[row][stage_of(name, chunk * stages + stage, stages)]
            found[position] = in_flight(tuple(slot for slot in order if slot.chunk == chunk))
    return tuple(found)


def _kept_interleaved(stages: int, chunks: int, microbatches: int) -> tuple[int, ...]:
    """Forwards of a chunk less its backwards before each of them; rounds are alike from the third.

    Before its k-th slot of forward a stage has run k of them, and k - warm up of backward.
    """
    if microbatches <= stages:
        return (microbatches,) * (stages * chunks)
    chunk, stage, at = np.ogrid[:chunks, :stages, : min(microbatches, 4 * stages)]
    warm_up = (stages - stage - 1) * 2 + (chunks - 1) * stages
    lap, within = np.divmod(at, stages)
    forward = lap * stages * chunks + chunk * stages + within
    laps, rest = np.divmod(np.maximum(forward - warm_up, 0), stages * chunks)
    done = laps * stages + np.clip(rest - (chunks - 1 - chunk) * stages, 0, stages)
    most = (at + 1 - np.minimum(done, microbatches)).max(axis=2)
    return tuple(int(count) for count in most.ravel())


_KEPT: dict[str, Callable[[int, int, int], tuple[int, ...]]] = {
    "gpipe": lambda p, chunks, m: (m,) * (p * chunks),
    "1f1b": lambda p, chunks, m: tuple(min(p - stage, m) for stage in range(p)),
    "interleaved-1f1b": _kept_interleaved,
    "zb-h1": lambda p, chunks, m: (min(p, m),) * p,
    "zb-v": lambda p, chunks, m: tuple(min(2 * p - k, m) for k in range(2 * p)),
}


@lru_cache(maxsize=4096)
def kept_at_once(name: str, stages: int, chunks: int, microbatches: int) -> tuple[int, ...]:
    """Microbatches that each position keeps when its stage keeps most, in the model's order.

    Chunks keep most at different moments. Where all of a stage are alike this says how much room
    they take together; where they are not it is never too much, for it is what one moment needs.

    Examples
    --------
    >>> kept_counts("interleaved-1f1b", 4, 2, 16), kept_at_once("interleaved-1f1b", 4, 2, 16)
    ((8, 8, 7, 5, 4, 4, 3, 1), (7, 5, 4, 4, 4, 4, 3, 1))
    """
    most = kept_counts(name, stages, chunks, microbatches)
    if name not in _KEPT_AT_ONCE:
        return most
    found = _KEPT_AT_ONCE[name](stages, chunks, microbatches)
    return tuple(min(one, other) for one, other in zip(found, most, strict=True))


def _interleaved_at_once(stages: int, chunks: int, microbatches: int) -> Sequence[int]:
    """When the pipeline is full, before the first backward: so many forwards, in rounds."""
    if microbatches <= stages:
        return (microbatches,) * (stages * chunks)
    stage = np.arange(stages)
    forwards = (stages - stage - 1) * 2 + (chunks - 1) * stages + 1
    before = stages * (np.arange(chunks)[:, None] + chunks * np.arange(2)[:, None, None])
    there = np.clip(microbatches - stages * np.arange(2), 0, stages)[:, None, None]
    found: list[int] = np.clip(forwards - before, 0, there).sum(axis=0).ravel().tolist()
    return found


# Of the schedules whose chunks keep most at different moments.
_KEPT_AT_ONCE: dict[str, Callable[[int, int, int], Sequence[int]]] = {
    "interleaved-1f1b": _interleaved_at_once,
    "zb-v": lambda p, chunks, m: [*range(2 * p - 1, p - 1, -1), *range(p, 0, -1)],
}
