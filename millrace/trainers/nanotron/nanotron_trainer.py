"""Trainer record of nanotron.

Its settings do not say how layers are dealt out: any plan's can be written, and the export says
what nanotron makes of them.
"""

from msgspec.structs import replace

from millrace.planner.frameworks.framework_tables import capabilities
from millrace.trainers.nanotron.setting_names import settings_table
from millrace.trainers.nanotron.yaml_reading import read_settings, recognizes
from millrace.trainers.nanotron.yaml_writing import NAME, written_settings
from millrace.trainers.trainer import Trainer

NANOTRON = Trainer(
    name=NAME,
    frameworks=(NAME,),
    version=settings_table().version,
    source=settings_table().source,
    recognizes=recognizes,
    write=written_settings,
    read=read_settings,
    runs=replace(capabilities(NAME), layers="any"),
)
