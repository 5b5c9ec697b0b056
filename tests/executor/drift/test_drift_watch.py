"""Drift of steps that are made up: when it is told of, and which actor is named."""

from pathlib import Path

import numpy as np
import pytest

from millrace.executor.drift.drift_watch import (
    FIRST,
    FIRST_STEPS,
    IN_A_ROW,
    PREDICTION,
    WARM_UP,
    Drift,
    DriftReader,
    DriftWatch,
    ExpectedStep,
)
from millrace.executor.drift.step_log import ROWS, StepLog, log_path
from millrace.executor.probes.probe_graphs import group_graph
from millrace.tables.drifts import drift_text

GRAPH = group_graph(2, 2)  # ranks 0 and 1: actor 0 is idle, 1 a collective that follows it, …
ACTORS = len(GRAPH.programs[0].actors)
NAMES = [actor.name for actor in GRAPH.programs[0].actors]
MS = 1_000_000
BAND = WARM_UP + FIRST_STEPS  # the first step that is held against the band


class MadeUpRun:
    """A run whose steps take as long as a test says."""

    def __init__(self, watch: DriftWatch) -> None:
        self.watch, self.step, self.end_ns = watch, 0, 0
        self.spent_ns = [np.zeros(ACTORS, np.int64) for _ in range(2)]

    def make(self, steps: int, more_ms: dict[tuple[int, int], int] | None = None) -> None:
        """Make steps of 10 ms and what some actors, by (rank, actor), take more than 1 ms.

        The other rank waits for it in the collective that follows.
        """
        for _ in range(steps):
            times_ms = np.ones((2, ACTORS), np.int64)
            longest = 0
            for (rank, actor), more in (more_ms or {}).items():
                times_ms[rank, actor] += more
                times_ms[1 - rank, actor + 1] += more + 5  # to wake takes a little, too
                longest = max(longest, more)
            self.end_ns += (10 + longest) * MS
            self.spent_ns = [
                before + MS * now for before, now in zip(self.spent_ns, times_ms, strict=True)
            ]
            self.watch.end_step(self.step, self.end_ns, self.spent_ns)
            self.step += 1


def test_the_actor_that_moved_is_named_and_not_who_waits_for_it() -> None:
    told: list[Drift] = []
    watch = DriftWatch(GRAPH, first_step=100, tell=told.append)
    run = MadeUpRun(watch)
    run.make(BAND + 5)
    run.make(IN_A_ROW - 1, {(1, 2): 20})
    assert told == []
    run.make(1, {(1, 2): 20})
    (drift,) = told
    assert (drift.step, drift.rank, drift.actor) == (100 + BAND + 5 + 1, 1, NAMES[2])
    assert (drift.before_s, drift.now_s) == (0.001, 0.021)
    assert (drift.step_time_before_s, drift.step_time_s) == (0.01, 0.03)
    assert (drift.against, drift.others, drift.ended) == (FIRST, 0, None)
    assert drift_text(drift) == (
        f"step 121: steps take 30.0 ms in place of the 10.0 ms of the first steps; `{NAMES[2]}` on "
        f"rank 1 moved most, from 1.00 ms to 21.0 ms a step"
    )
    run.make(10, {(1, 2): 20})
    run.make(IN_A_ROW)
    assert [each.ended for each in told] == [None, 136]
    assert drift_text(told[1]) == "step 136: steps take 10.0 ms again, as before step 121"
    run.make(IN_A_ROW, {(0, 4): 8})
    assert [each.actor for each in watch.drifts] == [NAMES[2], NAMES[4]]


def test_a_collective_that_all_ranks_are_slower_in_moved_itself() -> None:
    watch = DriftWatch(GRAPH)
    run = MadeUpRun(watch)
    run.make(BAND)
    for _ in range(IN_A_ROW):
        run.spent_ns = [spent.copy() for spent in run.spent_ns]
        run.spent_ns[0][3] += 7 * MS
        run.spent_ns[1][3] += 6 * MS
        run.end_ns += 7 * MS
        run.make(1)
    (drift,) = watch.drifts
    assert (drift.rank, drift.actor) == (1, NAMES[3])
    assert (drift.before_s, drift.now_s, drift.others) == (0.001, 0.007, 0)


def test_steps_that_take_longer_without_any_actor_leave_it_open() -> None:
    watch = DriftWatch(GRAPH)
    for step in range(BAND + IN_A_ROW):
        end_ns = 10 * MS * (step + 4 * max(0, step - BAND + 1))
        watch.end_step(step, end_ns, [np.zeros(ACTORS, np.int64)] * 2)
    (drift,) = watch.drifts
    assert drift.rank is drift.actor is drift.before_s is drift.now_s is None
    assert drift_text(drift).endswith("of the first steps; which actor moved is not known")


@pytest.mark.parametrize("steps", [1, 3, 4])
def test_few_slow_steps_in_a_row_are_no_drift(steps: int) -> None:
    watch = DriftWatch(GRAPH)
    run = MadeUpRun(watch)
    run.make(BAND)
    for _ in range(4):
        run.make(steps, {(1, 2): 20})
        run.make(1)
    run.make(IN_A_ROW, {(1, 2): 2})  # inside the band
    assert watch.drifts == []


def test_a_band_is_as_wide_as_first_steps_differ() -> None:
    watch = DriftWatch(GRAPH)
    run = MadeUpRun(watch)
    run.make(WARM_UP)
    for step in range(FIRST_STEPS):
        run.make(1, {(0, 2): 2 * (step % 2)})
    run.make(IN_A_ROW, {(0, 2): 6})
    assert watch.drifts == []
    run.make(IN_A_ROW, {(0, 2): 9})
    assert len(watch.drifts) == 1


@pytest.mark.parametrize(
    ("predicted_ms", "actor_ms", "told"),
    [(10, 1, False), (8, 1, False), (13, 1, False), (4, 0, True), (40, 31, True)],
)
def test_first_steps_are_held_against_the_prediction(predicted_ms, actor_ms, told) -> None:
    times = [np.full(ACTORS, float(MS)) for _ in range(2)]
    times[1][6] = actor_ms * MS
    watch = DriftWatch(GRAPH, expected=ExpectedStep(predicted_ms * MS, times))
    MadeUpRun(watch).make(BAND)
    assert bool(watch.drifts) == told
    if told:
        (drift,) = watch.drifts
        assert (drift.step, drift.against) == (WARM_UP + 1, PREDICTION)
        assert (drift.rank, drift.actor) == (1, NAMES[6])
        assert (drift.before_s, drift.now_s) == (actor_ms / 1000, 0.001)
        assert "that are predicted; " in drift_text(drift)


def test_a_prediction_that_is_near_widens_the_band() -> None:
    times = [np.full(ACTORS, float(MS)) for _ in range(2)]
    watch = DriftWatch(GRAPH, expected=ExpectedStep(13 * MS, times))
    run = MadeUpRun(watch)
    run.make(BAND)
    run.make(IN_A_ROW, {(1, 2): 3})
    assert watch.drifts == []
    run.make(IN_A_ROW, {(1, 2): 4})
    assert len(watch.drifts) == 1


def test_a_reader_follows_logs_and_goes_on_where_it_missed_rows(tmp_path: Path) -> None:
    class Steps(DriftWatch):
        def end_step(self, step, end_ns, spent_ns) -> None:
            seen.append((step, end_ns, [int(spent[1]) for spent in spent_ns]))

    seen: list[tuple[int, int, list[int]]] = []
    reader = DriftReader(GRAPH, tmp_path, Steps(GRAPH))
    reader.read()
    logs = [StepLog(log_path(tmp_path, rank), ACTORS) for rank in range(2)]

    def write(rank: int, step: int) -> None:
        logs[rank].spent_ns[1] += 10 + rank
        logs[rank].end_step(step, 100 * step + rank)

    write(0, 0)
    reader.read()
    assert seen == []
    write(1, 0)
    reader.read()
    reader.read()
    assert seen == [(0, 1, [10, 11])]
    for rank, step in ((rank, step) for step in range(1, 3) for rank in range(2)):
        write(rank, step)
    reader.read()
    assert [step for step, *_ in seen] == [0, 1, 2]
    for step in range(3, ROWS + 5):
        write(0, step)
    reader.read()
    assert len(seen) == 3
    for step in range(3, ROWS + 5):
        write(1, step)
    reader.read()
    assert [step for step, *_ in seen[3:]] == [ROWS + 3, ROWS + 4]
    for log in logs:
        log.close()
    reader.close()


def test_a_log_that_cannot_be_written_is_left_out(tmp_path: Path) -> None:
    log = StepLog(tmp_path / "nowhere" / "steps", 3)
    log.end_step(0, 1)
    log.close()


def test_a_step_ten_times_as_long_is_told_of_by_itself() -> None:
    told: list[Drift] = []
    run = MadeUpRun(DriftWatch(GRAPH, tell=told.append))
    run.make(BAND + 3)
    run.make(1, {(1, 0): 95})
    assert [(drift.rank, drift.step) for drift in told] == [(1, BAND + 4)]
    run.make(1, {(1, 0): 95})
    run.make(IN_A_ROW)
    assert len(told) == 2
    assert told[1].ended is not None


def test_two_steps_three_times_as_long_are_told_of() -> None:
    told: list[Drift] = []
    run = MadeUpRun(DriftWatch(GRAPH, tell=told.append))
    run.make(BAND + 3)
    for _ in range(3):
        run.make(1, {(1, 0): 25})
        run.make(1)
    assert told == []
    run.make(2, {(1, 0): 25})
    assert [(drift.rank, drift.step) for drift in told] == [(1, BAND + 10)]


def test_a_first_step_far_beyond_the_prediction_is_told_of_before_there_is_a_band() -> None:
    told: list[Drift] = []
    times = [np.full(ACTORS, 1.0 * MS) for _ in range(2)]
    watch = DriftWatch(GRAPH, expected=ExpectedStep(10.0 * MS, times), tell=told.append)
    run = MadeUpRun(watch)
    run.make(WARM_UP)
    run.make(1, {(0, 2): 200})
    assert [(drift.rank, drift.against) for drift in told] == [(0, PREDICTION)]
    run.make(FIRST_STEPS)
    assert len(told) == 1


def test_the_rank_whose_work_grew_is_named_though_an_actor_of_another_had_no_core() -> None:
    told: list[Drift] = []
    run = MadeUpRun(DriftWatch(GRAPH, tell=told.append))
    run.make(BAND + 3)
    slow = {(1, actor): 30 for actor in range(0, ACTORS, 2)}
    run.make(2, {(0, 0): 40, **slow})
    assert [drift.rank for drift in told] == [1]
