"""Job: what the parent tells the ranks, in a file of the job's folder."""

from pathlib import Path

import msgspec

from millrace.executor.errors import saving
from millrace.models.graph import to_json
from millrace.models.spec import ModelSpec
from millrace.planner.actors.graph import ActorGraph

FILE = "job.json"


class RunJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run of an actor graph.

    `variables` holds, per variable, the attributes that say how it is initialised. `resume` is
    a checkpoint to begin from, `weights` a file of initial values, `checkpoint` the folder to save
    in, which goes on in the background where steps do. On GPUs, `eager` fires actor by actor,
    `loopback` puts all ranks on one device, and `deterministic` takes of libraries what needs no
    timing and adds up in one order. Where it is `alone`, no rank meets another: each computes its
    share of a step on data of no meaning.
    """

    graph: ActorGraph
    model: ModelSpec
    variables: dict[str, dict[str, int | float | str | bool]]
    global_batch: int
    microbatches: int
    batch: int
    steps: int
    seed: int
    data: str | None
    spans: bool
    first_step: int = 0
    resume: str | None = None
    weights: str | None = None
    checkpoint: str | None = None
    checkpoint_every: int = 0
    checkpoint_in_background: bool = False
    eager: bool = False
    loopback: bool = False
    deterministic: bool = False
    alone: bool = False

    def save(self, folder: Path) -> None:
        """Write the job into its folder."""
        with saving(folder / FILE):
            (folder / FILE).write_bytes(to_json(self))


def read_job(folder: Path) -> RunJob:
    """Job of a folder."""
    return msgspec.json.decode((folder / FILE).read_bytes(), type=RunJob)
