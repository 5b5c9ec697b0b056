"""Trainer record of DeepSpeed."""

from millrace.trainers.deepspeed.ds_config_reading import read_settings, recognizes
from millrace.trainers.deepspeed.ds_config_writing import (
    FRAMEWORK,
    NAME,
    respelled,
    written_settings,
)
from millrace.trainers.deepspeed.ds_names import names_table
from millrace.trainers.trainer import Trainer

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
