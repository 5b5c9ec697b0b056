"""Saver: hands a rank's shards to its writer as the actors of a step that is saved make them."""

import threading
from pathlib import Path

import numpy as np

from millrace.executor.errors import ExecutorError
from millrace.executor.job import RunJob
from millrace.executor.kernels.context import BITS
from millrace.executor.shards import RankValues
from millrace.executor.values.checkpoint_folder import DRAFT
from millrace.executor.values.manifest import shard_file, written_shard
from millrace.executor.values.save_request import SaveRequest
from millrace.executor.values.shard_writer import Beat, ShardWriter, no_beat
from millrace.executor.values.unsaved import UnsavedNotes

DECISIONS = 64  # steps whose decision is remembered; firings of so many are never under way at once


class Saver:
    """Saver of one rank's shards when its optimizers have made a step that is to be kept.

    What no actor writes, frozen variables, is written with the totals of the step.

    Parameters
    ----------
    folder
        Where checkpoints lie.
    state
        The rank.
    last_step, every
        Keep the state after this run's last step, and after every `every` steps unless 0; both
        counted over all runs.
    job_folder
        Where a further step is asked for (`SaveRequest`), and where it is noted that one could not
        be written.
    in_background
        Copy the shards, and write them while steps go on.
    beat
        Called over and over while the rank waits for the disk, which is no stall.
    """

    def __init__(
        self,
        folder: Path,
        state: RankValues,
        *,
        last_step: int,
        every: int,
        job_folder: Path,
        in_background: bool = False,
        beat: Beat = no_beat,
    ) -> None:
        self._state, self._last_step, self._every = state, last_step, every
        self._request = SaveRequest(job_folder)
        self._decisions: dict[int, bool] = {}
        self._lock = threading.Lock()
        self._writes = _writes(state)
        registers = state.program.registers
        files = {file: register for writes in self._writes.values() for register, file in writes}
        buffers = None
        if in_background:
            buffers = {
                file: np.full(registers[number].shape, 0, _stored(registers[number].dtype))
                for file, number in files.items()
            }
        notes = UnsavedNotes(job_folder)
        self._writer = ShardWriter(folder, state.rank, len(files), notes, buffers, beat)

    def fired(self, actor: int, firing: int) -> None:
        """Take note that `actor` has run (called before anyone may overwrite its outputs)."""
        writes = self._writes.get(actor)
        if writes is None or not self.keeps(firing):
            return
        for register, file in writes:
            register_info = self._state.program.registers[register]
            values = self._state.value(register, (firing + 1) % register_info.slots)
            self._writer.write(self._total(firing), file, values, register_info.dtype)

    def save(self, step: int) -> None:
        """Save all shards after a step of this run, nothing being under way."""
        for actor in self._writes:
            self.fired(actor, step)

    def finish(self) -> None:
        """Wait until all that was copied is written."""
        self._writer.finish()

    def keeps(self, step: int) -> bool:
        """True if the state after a step (counted from this run's first) is to be kept.

        The answer about a step stays the same, whatever is asked for later.
        """
        with self._lock:
            decision = self._decisions.get(step)
            if decision is None:
                decision = self._decisions[step] = self._is_due(self._total(step))
                self._decisions.pop(step - DECISIONS, None)
            return decision

    def _total(self, step: int) -> int:
        """Steps made over all runs, after a step of this run."""
        return self._state.run_state.first_step + step + 1

    def _is_due(self, step: int) -> bool:
        is_planned = step == self._last_step or (self._every > 0 and step % self._every == 0)
        return is_planned or step == self._request.step


def saver_of(
    job: RunJob, state: RankValues, job_folder: Path, beat: Beat = no_beat
) -> Saver | None:
    """Saver of a rank of a job; None where nothing is saved.

    Raises ExecutorError where the folder is another on this rank's host than on the command's.
    """
    if job.checkpoint is None:
        return None
    if not (Path(job.checkpoint) / DRAFT).exists():
        raise ExecutorError(
            f"the folder of checkpoints `{job.checkpoint}` is not the one of that name on the "
            f"command's host: it must lie on a disk that all hosts share"
        )
    return Saver(
        Path(job.checkpoint),
        state,
        last_step=job.first_step + job.steps,
        every=job.checkpoint_every,
        job_folder=job_folder,
        in_background=job.checkpoint_in_background,
        beat=beat,
    )


def _stored(dtype: str) -> str:
    return BITS.get(dtype, dtype)


def _writes(state: RankValues) -> dict[int, list[tuple[int, str]]]:
    """Registers that a rank writes and their files, by the actor that makes them."""
    writes: dict[int, list[tuple[int, str]]] = {}
    program = state.program
    changed = {port.register for actor in program.actors for port in actor.outputs}
    changed.update(register for actor in program.actors for register in actor.state)
    still = [register for register in range(len(program.registers)) if register not in changed]
    for index, actor in enumerate(program.actors):
        registers = [*actor.state, *(port.register for port in actor.outputs)]
        if actor.kind == "step_totals":
            registers += still
        for register in registers:
            register_info = program.registers[register]
            if not register_info.initial:
                continue
            shard = written_shard(state.graph, state.rank, register_info)
            if shard is not None:
                file = shard_file(register_info.tensor, shard.offsets)
                writes.setdefault(index, []).append((register, file))
    return writes
