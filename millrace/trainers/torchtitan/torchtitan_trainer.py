"""Trainer record of torchtitan."""

from millrace.trainers.torchtitan.described_job import read
from millrace.trainers.torchtitan.given_settings import looks_familiar
from millrace.trainers.torchtitan.job_writing import respelled, write
from millrace.trainers.torchtitan.settings_table import NEWEST
from millrace.trainers.trainer import Trainer

TORCHTITAN = Trainer(
    name="torchtitan",
    frameworks=("torchtitan", "pytorch-fsdp"),
    version=NEWEST,
    source="pypi.org/project/torchtitan, read 2026-11",
    recognizes=looks_familiar,
    write=write,
    read=read,
    respelled=respelled,
)
