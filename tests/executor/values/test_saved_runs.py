"""Runs of processes that save while they train: a disk that refuses, and what a resume gives."""

import filecmp
from pathlib import Path
from typing import Any

import pytest

from millrace.executor.errors import ExecutorError
from millrace.executor.launch import execute
from millrace.executor.training.orders import Saving, Supervision
from millrace.executor.values.committer import Committer, committer_of
from tests.millrace.plans import data_parallel_pipeline

PLAN = data_parallel_pipeline()


def put_in_the_way(patch: pytest.MonkeyPatch, path: Path) -> None:
    """Let a file lie where ranks would make a folder, when the folder of checkpoints is ready."""

    def begin(*job: Any, **how: Any) -> Committer | None:
        path.touch()
        return committer_of(*job, **how)

    patch.setattr("millrace.executor.training.training_run.committer_of", begin)


def test_a_checkpoint_that_is_refused_ends_no_run_and_others_resume_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, sentences = tmp_path / "checkpoints", list[str]()
    refused = folder / "step-00000004.partial"
    put_in_the_way(monkeypatch, refused)
    run = execute(
        PLAN,
        steps=6,
        saving=Saving(folder=folder, every=2),
        supervision=Supervision(noted=sentences.append),
    )
    assert [unsaved.step for unsaved in run.unsaved] == [4]
    told = f"step 4 is not saved: file exists for `{refused}`; training goes on, the last check"
    assert sentences == [f"{told}point is step 2"]
    refused.unlink()
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000002", "step-00000006"]
    (folder / "step-00000006").rename(tmp_path / "undisturbed")
    put_in_the_way(monkeypatch, folder / "step-00000003.partial")
    with pytest.raises(ExecutorError, match=r"last step 3 is not saved: .*; the last .* is step 2"):
        execute(
            PLAN,
            steps=1,
            seed=1,
            saving=Saving(folder=folder, resume=True),
            supervision=Supervision(noted=sentences.append),
        )
    assert "was trained with seed 0, and this run has seed 1" in sentences[1]
    (folder / "step-00000003.partial").unlink()
    monkeypatch.undo()
    again = execute(PLAN, steps=4, saving=Saving(folder=folder, resume=True))
    assert (again.losses, again.resumed_with) == (run.losses[2:], ())
    for path in (tmp_path / "undisturbed").glob("*.npy"):
        assert filecmp.cmp(path, folder / "step-00000006" / path.name, shallow=False)
