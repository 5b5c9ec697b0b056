"""nanotron: a job as the YAML of github.com/huggingface/nanotron, and back.

Written is what its repository reads today; read is that of its release 0.4 too. `settings.json` has
the names of all settings (`python -m benchmarks.trainers.nanotron_table`). Read `yaml_writing.py`
first.
"""

from millrace.trainers.nanotron.nanotron_trainer import NANOTRON

__all__ = ["NANOTRON"]
