"""Trainer records of DeepSpeed, and of transformers' Trainer and its kin."""

from millrace.planner.errors import InfeasibleError
from millrace.trainers.deepspeed.ds_config_reading import FSDP, read_settings, recognizes
from millrace.trainers.deepspeed.ds_config_writing import (
    FRAMEWORK,
    NAME,
    respelled,
    written_settings,
)
from millrace.trainers.deepspeed.ds_names import names_table
from millrace.trainers.deepspeed.given_texts import is_job
from millrace.trainers.deepspeed.trainer_arguments import argument_table
from millrace.trainers.job import TrainingJob
from millrace.trainers.trainer import Trainer, WrittenSettings

DEEPSPEED = Trainer(
    name=NAME,
    frameworks=(FRAMEWORK, "deepspeed-zero"),
    version=names_table().version,
    source=names_table().source,
    recognizes=recognizes,
    write=written_settings,
    read=read_settings,
    respelled=respelled,
)


def _unwritten(job: TrainingJob) -> WrittenSettings:
    raise InfeasibleError(
        "arguments of transformers' Trainer are not written: take --to deepspeed or torchtitan"
    )


TRANSFORMERS = Trainer(
    name="transformers",
    frameworks=(FSDP, FRAMEWORK),
    version="5.24",
    source=argument_table().source,
    recognizes=is_job,
    write=_unwritten,
    read=read_settings,
)
