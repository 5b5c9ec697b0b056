"""Hugging Face: a `config.json` becomes a ModelSpec, with no other library needed.

In comes the path of a configuration, out goes a ModelSpec of a zoo family. `reading.py` opens the
file and is the file to read first; `table.py` lists the model types; each mapping reads its keys
with `keys.py`, which refuses what is ill-typed or out of range by name.
"""

from millrace.models.importers.huggingface.reading import read_config

__all__ = ["read_config"]
