"""Megatron-LM's arguments and Megatron-Bridge's recipes, both of Megatron-Core.

In comes a `TrainingJob`, out goes `launch.sh`, and back. `model_values.py` and `model_reading.py`
are about the model, `job_values.py` and `job_of_arguments.py` about how it is spread; keys are the
destinations of Megatron-LM's arguments, whose table is `arguments.json`. Read `command_line.py`
first.
"""

from millrace.trainers.megatron.bridge_overrides import MEGATRON_BRIDGE
from millrace.trainers.megatron.command_line import MEGATRON_CORE

__all__ = ["MEGATRON_BRIDGE", "MEGATRON_CORE"]
