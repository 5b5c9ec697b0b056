"""TrainingJob: what a trainer is told of a job, in the planner's words."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.planner.search import Pins


def warmup_within(warmup: int, decay: int) -> int:
    """Steps of a warm-up, which ends where the run does.

    Runs of a few steps keep the warm-up of a long one; rates change no step's duration.

    Parameters
    ----------
    warmup, decay : int
        Steps, as settings say; 0 without decay.

    Examples
    --------
    >>> warmup_within(100, 60), warmup_within(100, 0)
    (60, 100)
    """
    return min(warmup, decay) if decay else warmup


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """Training job: a model, its batch, devices, and how it is spread over them.

    Attributes
    ----------
    model, training : ModelSpec, TrainingSpec
        Sizes, sequence length and precision; the optimizer and the form of attention.
    global_batch : int
        Samples of a step.
    nodes, devices_per_node : int
        Devices that the job is started on.
    pins : Pins
        Choices that the settings state, with all degrees; `micro_batch` is that of a replica.
    framework : str
        The record of `planner/frameworks/frameworks.toml` that predicts the trainer.
    cluster : str
        Cluster as `millrace.cluster` reads it; empty where the settings do not say which devices.
    chunk_layers : tuple of int
        Layers of every chunk of the pipeline, in model order, without embedding and loss; empty:
        divided evenly.
    recompute_layers : int
        So many first layers of every chunk are recomputed, by the pinned mode; 0: all of them.
    software : mapping
        How the trainer's software is set where that changes what it costs, by the names and words
        of the columns of `millrace.published.columns.SOFTWARE_COLUMNS` (`overlap` is `0`).
    """

    model: ModelSpec
    training: TrainingSpec = field(default_factory=TrainingSpec)
    global_batch: int
    nodes: int
    devices_per_node: int
    pins: Pins
    framework: str
    cluster: str = ""
    chunk_layers: tuple[int, ...] = ()
    recompute_layers: int = 0
    software: Mapping[str, str] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.nodes * self.devices_per_node
