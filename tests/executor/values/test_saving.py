"""Saving while steps go on: what is copied, what is noted, and what becomes of the other steps."""

from pathlib import Path

import numpy as np
import pytest

from millrace.executor.drift.step_log import StepLog, log_path
from millrace.executor.errors import ExecutorError
from millrace.executor.rank import RankState
from millrace.executor.values.committer import Committer
from millrace.executor.values.save_request import SaveRequest
from millrace.executor.values.save_timer import SaveTimer
from millrace.executor.values.saver import Saver
from millrace.planner.actors.graph import ActorGraph
from tests.executor.values.saved import W, contents, loaded, optimizer_graph, states_of

GRAPH = optimizer_graph("(S(0), B)", (2, 1))
REFUSED = "w.velocity@0-0.npy"


class SavedRun:
    """A run of two ranks whose steps are made by hand, saved in a folder in the background."""

    def __init__(self, folder: Path, last_step: int, every: int, keep: int = 0) -> None:
        self.folder, self.job_folder = folder / "checkpoints", folder / "job"
        self.job_folder.mkdir()
        self.sentences: list[str] = []
        self.states: list[RankState] = states_of(GRAPH)
        self.savers = [
            Saver(
                self.folder,
                state,
                last_step=last_step,
                every=every,
                job_folder=self.job_folder,
                in_background=True,
            )
            for state in self.states
        ]
        self.committer = Committer(
            self.folder,
            contents(GRAPH),
            self.job_folder,
            last_step=last_step,
            keep=keep,
            tell=self.sentences.append,
        )

    def step(self, step: int, ranks: tuple[int, ...] = (0, 1)) -> None:
        """Make a step (from 1) on some ranks: the variable becomes `step * W`."""
        for rank in ranks:
            self.states[rank].load(0, step * W)
            self.states[rank].load(1, 2 * step * W)
            self.savers[rank].fired(0, step - 1)

    def refuse(self, step: int) -> None:
        """Let the disk be full for a file of a step."""
        partial = self.folder / f"step-{step:08d}.partial"
        partial.mkdir(parents=True)
        (partial / REFUSED).symlink_to("/dev/full")

    def finish(self) -> None:
        for saver in self.savers:
            saver.finish()
        self.committer.finish()

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def saved(self, step: int, graph: ActorGraph = GRAPH) -> None:
        """Require that a checkpoint holds what the step made."""
        arrays = loaded(self.folder / f"step-{step:08d}", optimizer_graph("(B, B)", (1, 1)))
        np.testing.assert_array_equal(arrays, [step * W, 2 * step * W])


def test_what_is_saved_is_the_step_and_not_what_came_after(tmp_path: Path) -> None:
    run = SavedRun(tmp_path, last_step=6, every=2)
    for step in range(1, 7):
        run.step(step)
    run.finish()
    assert run.names() == ["step-00000002", "step-00000004", "step-00000006"]
    for step in (2, 4, 6):
        run.saved(step)
    assert run.committer.unsaved == []


def test_a_disk_that_is_full_for_a_while_ends_no_run(tmp_path: Path) -> None:
    run = SavedRun(tmp_path, last_step=6, every=2)
    run.refuse(4)
    for step in range(1, 7):
        run.step(step)
    for saver in run.savers:
        saver.finish()
    run.committer.look()
    run.committer.look()
    path = run.folder / "step-00000004.partial" / REFUSED
    assert run.sentences == [
        f"step 4 is not saved: no space left on device for `{path}`; training goes on, "
        f"the last checkpoint is step 2"
    ]
    run.committer.finish()
    assert run.names() == ["step-00000002", "step-00000006"]
    assert [unsaved.step for unsaved in run.committer.unsaved] == [4]


def test_a_run_whose_end_is_not_saved_says_what_is(tmp_path: Path) -> None:
    run = SavedRun(tmp_path, last_step=4, every=2)
    run.refuse(4)
    for step in range(1, 5):
        run.step(step)
    with pytest.raises(
        ExecutorError,
        match=f"^the last step 4 is not saved: no space .*{REFUSED}`; the last .* step 2$",
    ):
        run.finish()
    assert run.sentences == []


def test_the_last_checkpoints_stay_and_a_later_run_s_too(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-00000009").mkdir(parents=True)
    run = SavedRun(tmp_path, last_step=8, every=2, keep=2)
    for step in range(1, 9):
        run.step(step)
        run.committer.look()
    run.finish()
    assert run.names() == ["step-00000006", "step-00000008", "step-00000009"]


def test_ranks_save_the_step_that_is_asked_for(tmp_path: Path) -> None:
    """A rank that has passed it by then writes nothing, and the step is no checkpoint."""
    run = SavedRun(tmp_path, last_step=6, every=0)
    run.step(1)
    request = SaveRequest(run.job_folder)
    request.write(2)
    run.step(2)
    run.step(3, ranks=(0,))
    request.write(3)
    assert not run.savers[0].keeps(2)
    run.step(3, ranks=(1,))
    for step in range(4, 7):
        run.step(step)
    run.finish()
    assert run.names() == ["step-00000002", "step-00000006"]
    assert [unsaved.step for unsaved in run.committer.unsaved] == [3]
    run.saved(2)


def test_a_request_that_is_not_there_or_cut_off_asks_for_nothing(tmp_path: Path) -> None:
    request = SaveRequest(tmp_path)
    assert request.step == 0
    (tmp_path / "save_request").write_bytes(b"\1\0\0")
    assert request.step == 0
    request.write(2**40)
    assert request.step == 2**40
    SaveRequest(tmp_path / "nowhere").write(1)


def test_a_step_is_asked_for_that_every_rank_sees_in_time(tmp_path: Path) -> None:
    """Five seconds ahead of the furthest rank, three steps at the least; one at a time."""
    now_s = 0.0
    timer = SaveTimer(
        GRAPH, tmp_path, minutes=1.0, first_step=100, last_step=180, clock=lambda: now_s
    )
    logs = [StepLog(log_path(tmp_path, rank), 1) for rank in (0, 1)]
    request = SaveRequest(tmp_path)

    def end_steps(rank: int, first: int, end: int, step_s: float) -> None:
        for step in range(first, end):
            logs[rank].end_step(step, round(step * step_s * 1e9))

    end_steps(0, 0, 10, 0.5)
    timer.look()
    assert request.step == 0
    now_s = 61.0
    timer.look()
    assert request.step == 0  # where a rank is not known
    end_steps(1, 0, 12, 0.5)
    timer.look()
    assert request.step == 122
    now_s = 130.0
    end_steps(0, 10, 20, 20.0)
    timer.look()
    assert request.step == 122  # a rank has not come to it
    for rank in (0, 1):
        end_steps(rank, 20 - 8 * rank, 30, 20.0)
    timer.saved()
    timer.look()
    assert request.step == 122  # a checkpoint is there
    now_s = 200.0
    timer.look()
    assert request.step == 133
    for rank in (0, 1):
        end_steps(rank, 30, 78, 20.0)
    now_s = 300.0
    timer.look()
    assert request.step == 133  # the last step is saved anyway
