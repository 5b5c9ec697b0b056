"""Torchtitan: settings in Python of 0.3, and those in TOML of 0.2, which are read alone.

In comes a TrainingJob, out go a module of its configuration and `launch.sh`; and back. Read
`job_settings.py` first (what each choice is called), then `described_job.py`. `settings.json` has
torchtitan's own settings, as `benchmarks/trainers/torchtitan_table.py` reads them off its code.
"""

from millrace.trainers.torchtitan.torchtitan_trainer import TORCHTITAN as TORCHTITAN
