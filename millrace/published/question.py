"""Question: what a published row asks the planner, and what it is refused for."""

from dataclasses import dataclass, field

import msgspec

from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.planner.cluster import Cluster
from millrace.planner.frameworks.peak_memory import MemoryHabit


class InexpressibleError(Exception):
    """A row that the planner has no words for; says why."""


@dataclass(frozen=True, slots=True)
class Question:
    """Question of a published row to the planner; rows that ask the same share one search."""

    model: ModelSpec
    cluster: Cluster
    global_batch: int
    training: TrainingSpec = field(default_factory=TrainingSpec)
    keeping: MemoryHabit | None = None  # None: memory as the plan has it
    chunk_layers: tuple[int, ...] = ()  # of every chunk of the pipeline; (): as the search deals

    @property
    def key(self) -> tuple[object, ...]:
        """Key that is equal for equal questions; hashable."""
        model = msgspec.structs.replace(self.model, name="")
        parts = (model, self.cluster, self.training)
        encoded = (msgspec.json.encode(part, order="sorted") for part in parts)
        return *encoded, self.keeping, self.chunk_layers, self.global_batch

    @property
    def text(self) -> str:
        """The question in one line."""
        return (
            f"{self.model.name}, {self.model.seq_len} tokens, {self.model.precision}, batch "
            f"{self.global_batch} on {self.cluster.name}"
        )
