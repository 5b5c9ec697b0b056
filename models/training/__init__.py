"""Training: a forward graph becomes the graph of one step.

In come a forward graph and a TrainingSpec, out goes the graph with gradients, totals and optimizer.
`step_graph.py` puts it together and is the file to read first; `unfused_attention.py` and
`adapters.py` rewrite the forward graph before, `optimizer_updates.py` adds the updates.
"""

from millrace.models.training.step_graph import (
    LEARNING_RATE,
    OPTIMIZERS,
    STEP_TOTALS,
    check_training,
    training_graph,
)

__all__ = ["LEARNING_RATE", "OPTIMIZERS", "STEP_TOTALS", "check_training", "training_graph"]
