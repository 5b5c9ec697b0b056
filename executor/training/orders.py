"""Orders of a run: what is saved of it, and who looks after it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millrace.executor.drift.drift_watch import Drifted
from millrace.executor.hosts.host_list import Hosts
from millrace.executor.progress import Progress
from millrace.planner.plan import Plan

Replan = Callable[[Plan, int], Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Checkpoints of a run.

    Attributes
    ----------
    folder
        Where they lie; None: nothing is saved.
    every, minutes
        Steps and minutes from one to the next; 0: only after the last step.
    keep
        How many of the last ones stay; 0: all.
    in_background
        Write while steps go on, where there is memory for a copy of the state.
    resume
        Go on from the last one.
    """

    folder: Path | None = None
    every: int = 0
    minutes: float = 0.0
    keep: int = 0
    in_background: bool = True
    resume: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """Care for a run.

    Attributes
    ----------
    stall_s
        Seconds in which every rank must come further; 0: for ever. None: as the prediction has it.
    restarts
        How often it may go on from its last checkpoint by itself.
    hosts
        Hosts of the ranks; None: this machine.
    replan
        Called with the plan and a number of nodes where hosts are lost and none is to spare; gives
        the plan to go on with. None: the run ends.
    progress, drifted, noted
        Called as `progress(step, loss)` after every step of all runs, with a drift of the step
        time, and with sentences about what else is worth a line.
    """

    stall_s: float | None = None
    restarts: int = 0
    hosts: Hosts | None = None
    replan: Replan | None = None
    progress: Progress | None = None
    drifted: Drifted | None = None
    noted: Callable[[str], None] | None = None

    def note(self, sentence: str) -> None:
        """Pass on a sentence to whoever listens."""
        if self.noted is not None:
            self.noted(sentence)
