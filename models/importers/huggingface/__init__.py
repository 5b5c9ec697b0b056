"""Huggingface configs: a `config.json` becomes a ModelSpec, with no other library needed.

In comes the path of a configuration, out goes a ModelSpec of a zoo family. `config_reading.py`
opens the file and is the file to read first; `model_types.py` lists the model types; each mapping
reads its keys with `keys.py`, which refuses what is ill-typed or out of range by name.
"""

from millrace.models.importers.huggingface.config_reading import (
    UnreadError,
    config_file,
    config_spec,
    raw_values,
    read_config,
)

__all__ = ["UnreadError", "config_file", "config_spec", "raw_values", "read_config"]
