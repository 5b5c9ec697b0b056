"""Pipeline schedules: a table of orders in which a stage runs its chunks' microbatches.

F is a chunk's forward, B the gradients of its inputs, W the gradients of its weights; BW is both at
once. Every schedule is a function from (stage, stages, chunks on the stage, microbatches) to the
stage's sequence of slots. A new schedule is one entry in `SCHEDULES`.
"""

from collections.abc import Callable
from typing import NamedTuple

from planner.errors import InfeasibleError, PlanError


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
    """Several chunks a stage, in rounds of `stages` microbatches (Narayanan 2021, section 2.2)."""
    if stages > 1 and microbatches % stages:
        raise InfeasibleError(
            f"schedule interleaved-1f1b runs rounds of {stages} microbatches, one per stage: "
            f"{microbatches} microbatches do not divide; change the micro batch or the global batch"
        )
    total = microbatches * chunks
    forward = [_interleaved_slot("F", k, stages, chunks) for k in range(total)]
    backward = [_interleaved_slot("BW", k, stages, chunks) for k in range(total)]
    if microbatches == stages:
        warm_up = total
    else:
        warm_up = min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)
    order = forward[:warm_up]
    for k in range(warm_up, total):
        order += [forward[k], backward[k - warm_up]]
    order += backward[total - warm_up :]
    return tuple(order)


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


SCHEDULES: dict[str, Rule] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved-1f1b": interleaved,
    "zb-h1": zero_bubble_h1,
}


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
