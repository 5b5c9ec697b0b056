"""Values of variables and optimizer state: where they come from and where they are kept.

In goes a rank whose registers hold values (`millrace.executor.shards.RankValues`), whatever its
device. They begin as drawn from the seed (`initial.py`), as a file of weights says (`weights.py`)
or as a checkpoint has them (`checkpoint.py`); read `loading.py` first. A run writes checkpoints:
each rank its shards (`saver.py`), and the parent makes a checkpoint of them (`committer.py`).
"""
