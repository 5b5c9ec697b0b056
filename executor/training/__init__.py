"""Training: the steps of a plan that are to be made, what is said meanwhile, and what came of it.

`training_run.py` makes one attempt at the steps, with its checkpoints and whoever looks after it;
`millrace.executor.launch.execute` makes another where one fails.
"""
