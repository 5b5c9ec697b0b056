"""Memory: bytes of one device by kind, from a Plan and its Graph, before anything is compiled.

`formula` says what the compiler will lay out, `device` what the device needs besides, `kinds` holds
what the search estimates single blocks with.
"""

from millrace.planner.memory.device_overhead import (
    device_overhead_bytes,
    reserved_bytes,
    slack_fraction,
)
from millrace.planner.memory.formula import plan_memory
from millrace.planner.memory.reserve import DEFAULT_RESERVE, NO_RESERVE, Reserve
from millrace.planner.memory.stage_memory import OperandSbps, SectionPeaks, StageMemory

__all__ = [
    "DEFAULT_RESERVE",
    "NO_RESERVE",
    "OperandSbps",
    "Reserve",
    "SectionPeaks",
    "StageMemory",
    "device_overhead_bytes",
    "plan_memory",
    "reserved_bytes",
    "slack_fraction",
]
