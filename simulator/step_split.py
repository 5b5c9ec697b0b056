"""Step split: busy time, exposed communication and bubble of a run in its steady state.

The window is the last step but one, from the end of the step before to its own end (of the slowest
rank): the next step follows, as it would in a long run, where steps overlap. Within it every rank's
time is split in three that add up to the window:

* busy: an actor without a meeting is under way (on shared cores also while it waits for one);
* exposed communication: nothing computes, and the data of at least one of the rank's meetings
  moves (all members have come, the meeting has not ended);
* bubble: the rest. The rank waits for others to come, or for its schedule.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise, repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from millrace.planner.actors.graph import Program
from millrace.planner.actors.trace import steady_step

Times = NDArray[np.int64]


class WindowSplit(NamedTuple):
    """One rank's window in nanoseconds."""

    busy_ns: int
    exposed_ns: int
    bubble_ns: int


def step_ends_ns(program: Program, rows: Sequence[Sequence[int]], steps: int) -> list[int]:
    """End of each step's last firing on one rank, in nanoseconds.

    Parameters
    ----------
    program : Program
        The rank's; it says how often each actor fires in a step.
    rows : sequence of sequence of int
        Ends in nanoseconds, by actor and firing; later steps than asked for may follow.
    steps : int
        Number of steps, from the first.
    """
    last = [0] * steps
    for actor, ends in zip(program.actors, rows, strict=True):
        for step in range(steps):
            last[step] = max(last[step], ends[(step + 1) * actor.firings - 1])
    return last


def window_ns(step_ends: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Begin and end of the window, the steady step, from each rank's ends of steps."""
    slowest = [0, *(max(column) for column in zip(*step_ends, strict=True))]
    step = steady_step([end - begin for begin, end in pairwise(slowest)])
    return slowest[step], slowest[step + 1]


def covered_ns(intervals: Iterable[tuple[Times, Times]], begin_ns: int, end_ns: int) -> int:
    """Length of the union of intervals inside a window, in nanoseconds.

    Parameters
    ----------
    intervals : iterable of tuple (int array (n,), int array (n,))
        Starts and ends in nanoseconds; they may overlap and lie in any order.
    begin_ns, end_ns : int
        The window; what reaches beyond it is cut off.
    """
    pairs = list(intervals)
    if not pairs:
        return 0
    starts = np.clip(np.concatenate([start for start, _ in pairs]), begin_ns, end_ns)
    ends = np.clip(np.concatenate([end for _, end in pairs]), begin_ns, end_ns)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    # What lies behind the latest end so far is new.
    before = np.concatenate([[begin_ns], np.maximum.accumulate(ends)[:-1]])
    return int(np.maximum(ends - np.maximum(starts, before), 0).sum())


def split(
    program: Program,
    starts: Sequence[Sequence[int]],
    ends: Sequence[Sequence[int]],
    begin_ns: int,
    end_ns: int,
) -> WindowSplit:
    """Window of one rank, split into busy, exposed communication and bubble.

    Parameters
    ----------
    program : Program
        The rank's; it says which actors have a meeting.
    starts, ends : sequence of sequence of int
        Nanoseconds by actor and firing; a meeting starts when its data begins to move.
    begin_ns, end_ns : int
        The window, such as `window_ns` gives it.

    Returns
    -------
    WindowSplit
        Nanoseconds, which add up to the window.
    """
    parts: tuple[list[int], list[int]] = [], []
    for index, actor in enumerate(program.actors):
        parts[actor.meeting is not None].append(index)
    compute, moving = ((times_of(starts, part), times_of(ends, part)) for part in parts)
    busy = covered_ns([compute], begin_ns, end_ns)
    either = covered_ns([compute, moving], begin_ns, end_ns)
    return WindowSplit(busy, either - busy, end_ns - begin_ns - either)


def stage_means(
    programs: Iterable[Program], values: Iterable[float], weights: Iterable[float] | None = None
) -> tuple[float, ...]:
    """Mean of every stage over the programs that lie on it, each as often as its weight says.

    Parameters
    ----------
    programs : iterable of Program
        One for each value; a stage on several kinds of node has several.
    values : iterable of float
        A number of each program.
    weights : iterable of float, optional
        Ranks that each program stands for; all alike where it is left out.
    """
    sums: dict[int, list[float]] = {}
    for program, value, weight in zip(programs, values, weights or repeat(1.0), strict=False):
        stage_sums = sums.setdefault(program.stage, [0.0, 0.0])
        stage_sums[0] += value * weight
        stage_sums[1] += weight
    return tuple(total / ranks for total, ranks in (sums[stage] for stage in sorted(sums)))


def times_of(rows: Sequence[Sequence[int]], actors: Iterable[int]) -> Times:
    """Times of some actors' firings, in one array.

    Parameters
    ----------
    rows : sequence of sequence of int
        Nanoseconds by actor and firing.
    actors : iterable of int
        Numbers of the actors.
    """
    return np.fromiter(chain.from_iterable(rows[actor] for actor in actors), np.int64)
