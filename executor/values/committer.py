"""Committer: makes checkpoints of what ranks write while they run, and tells what is not saved."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from millrace.executor.errors import ExecutorError, reason_of
from millrace.executor.job import RunJob
from millrace.executor.values.checkpoint import checkpoints_in
from millrace.executor.values.checkpoint_folder import commit, partials_in
from millrace.executor.values.manifest import MANIFEST, PARTIAL, Manifest, partial_folder, step_of
from millrace.executor.values.save_timer import SaveTimer
from millrace.executor.values.unsaved import Unsaved, UnsavedNotes

INCOMPLETE = "not every rank has written it"
Tell = Callable[[str], None]


class Committer:
    """Committer of the checkpoints of one run.

    Parameters
    ----------
    folder, contents
        Where checkpoints lie, and what the ranks write together.
    job_folder
        Where ranks note what they could not write.
    last_step
        The step after which the state must be saved.
    keep
        How many of the last checkpoints stay; 0: all.
    timer
        Asks for checkpoints by minutes.
    tell
        Called with a sentence about every step that is not saved.
    steps_told
        Gives the number of steps, over all runs, whose losses are known here: a checkpoint of a
        later one is not complete yet, for its run could not be told whole. None: all are.

    Attributes
    ----------
    unsaved
        Steps that are not saved, and why.
    saved
        Steps of the checkpoints that are complete and still there.
    """

    def __init__(
        self,
        folder: Path,
        contents: Manifest,
        job_folder: Path,
        *,
        last_step: int,
        keep: int = 0,
        timer: SaveTimer | None = None,
        tell: Tell | None = None,
        steps_told: Callable[[], int] | None = None,
    ) -> None:
        self._folder, self._contents = folder, contents
        self._notes = UnsavedNotes(job_folder)
        self._last_step, self._keep, self._timer = last_step, keep, timer
        self._tell, self._steps_told = tell, steps_told
        self._is_saved = False
        self._steps: set[int] = set()
        self._dropped: set[int] = set()
        self.unsaved: list[Unsaved] = []
        self.saved: set[int] = set()

    def look(self) -> None:
        """Commit what is whole, and drop what cannot be (called over and over)."""
        notes = self._notes.read()
        refused = {unsaved.step for unsaved in notes}
        newest = 0
        for partial in partials_in(self._folder):
            step = _step(partial)
            if step in self._dropped:
                shutil.rmtree(partial, ignore_errors=True)  # A rank may write into it again.
            elif step not in refused and self._commit(partial):
                newest = step
        for unsaved in notes:
            self._lose(unsaved)
        if newest:
            self._drop_before(newest)
        if self._timer is not None:
            if newest:
                self._timer.saved()
            self._timer.look()

    def finish(self) -> None:
        """Commit what is left when all ranks have ended; ExecutorError unless the end is saved."""
        self._steps_told = None
        self.look()
        if self._is_saved:
            return
        step = self._last_step
        incomplete = Unsaved(
            step=step, path=str(partial_folder(self._folder, step)), reason=INCOMPLETE
        )
        last = next((unsaved for unsaved in self.unsaved if unsaved.step == step), incomplete)
        raise ExecutorError(f"the last {last.sentence}; {self._last_saved(step)}")

    def _commit(self, partial: Path) -> bool:
        """Commit a partial checkpoint where every rank has written it."""
        step = _step(partial)
        if self._steps_told is not None and self._steps_told() < step:
            return False
        try:
            is_whole = commit(partial, self._contents) is not None
        except OSError as error:
            path = str(partial / MANIFEST)
            self._lose(Unsaved(step=step, path=path, reason=reason_of(error)))
            return False
        if is_whole:
            self.saved.add(step)
        self._is_saved = self._is_saved or (is_whole and step == self._last_step)
        return is_whole

    def _drop_before(self, newest: int) -> None:
        """Remove what a new checkpoint makes useless.

        Ranks write in the order of steps, so nothing is added to what is older and not whole.
        """
        for partial in partials_in(self._folder):
            if _step(partial) < newest and not self._commit(partial):
                self._lose(Unsaved(step=_step(partial), path=str(partial), reason=INCOMPLETE))
                shutil.rmtree(partial, ignore_errors=True)
        if self._keep:
            checkpoints = [path for path in checkpoints_in(self._folder) if _step(path) <= newest]
            for checkpoint in checkpoints[: -self._keep]:
                self._dropped.add(_step(checkpoint))
                self.saved.discard(_step(checkpoint))
                with suppress(OSError):
                    # Under this name it is no checkpoint from now on, and removed by the next run.
                    removed = checkpoint.rename(checkpoint.with_suffix(PARTIAL))
                    shutil.rmtree(removed)

    def _lose(self, unsaved: Unsaved) -> None:
        """Take note of a step that is not saved, and tell of it once."""
        if unsaved.step in self._dropped or unsaved.step in self._steps:
            return
        self._steps.add(unsaved.step)
        self.unsaved.append(unsaved)
        if unsaved.step == self._last_step:
            return  # Told at the end; another run may yet commit what lacks a manifest alone.
        self._dropped.add(unsaved.step)
        if self._tell is None:
            return
        try:
            self._tell(f"{unsaved.sentence}; training goes on, {self._last_saved(unsaved.step)}")
        except OSError:  # Who listened has gone, or its disk is full: training goes on.
            self._tell = None

    def _last_saved(self, step: int) -> str:
        """Words on the last checkpoint before a step."""
        steps = [_step(path) for path in checkpoints_in(self._folder) if _step(path) < step]
        return f"the last checkpoint is step {steps[-1]}" if steps else "there is no checkpoint yet"


def committer_of(
    job: RunJob,
    folder: Path,
    contents: Manifest,
    *,
    minutes: float,
    keep: int,
    tell: Tell | None,
    steps_told: Callable[[], int] | None = None,
) -> Committer | None:
    """Committer of a job's checkpoints; None where it saves none.

    Parameters
    ----------
    job, folder, contents
        The job and its folder, and what its ranks write together.
    minutes
        Minutes from a checkpoint to the next one that the ranks are asked for; 0: none is.
    keep, tell, steps_told
        As of the `Committer`.
    """
    if job.checkpoint is None:
        return None
    first_step, last_step = job.first_step, job.first_step + job.steps
    timer = None
    if minutes:
        timer = SaveTimer(
            job.graph, folder, minutes=minutes, first_step=first_step, last_step=last_step
        )
    return Committer(
        Path(job.checkpoint),
        contents,
        folder,
        last_step=last_step,
        keep=keep,
        timer=timer,
        tell=tell,
        steps_told=steps_told,
    )


def _step(checkpoint: Path) -> int:
    """Step of a checkpoint's folder, partial or not."""
    return step_of(checkpoint.name.removesuffix(PARTIAL)) or 0
