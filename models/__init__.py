"""Models: what is computed, with no devices in it.

In comes a name of the zoo (`gpt2-small`), or ops put together with a GraphBuilder; out goes a
Graph: ops with index labels, tensors with a shape and a rate. `training_graph` adds the gradients
and the optimizer, so that planning sees one graph of a whole step.

Read first: `graph.py` (the document), then `labels.py` (index labels) and `ops/` (the table of op
kinds). `builder.py` puts graphs together, `gradients/` and `training/` differentiate them, `zoo/`
holds the models.
"""
