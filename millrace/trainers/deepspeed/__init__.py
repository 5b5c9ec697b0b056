"""DeepSpeed: a job as its JSON, the model's config.json and a script, and back.

DeepSpeed is told no model: a script makes one. What is exported is complete, `train_script.txt` and
`pipeline_script.txt` build the model with transformers; what is read needs the model's config.json,
or its name. `settings.json` has the names of all settings (`python -m
benchmarks.trainers.deepspeed_table`). Read `ds_config_writing.py` first.

transformers' Trainer and its kin (LLaMA-Factory, Axolotl, ms-swift, accelerate) are read here too:
`given_texts.py` tells what they say, FSDP as well, in DeepSpeed's words.
"""

from millrace.trainers.deepspeed.deepspeed_trainer import DEEPSPEED, TRANSFORMERS

__all__ = ["DEEPSPEED", "TRANSFORMERS"]
