"""Stages: how many blocks of each variant every chunk of the pipeline holds.

In come runs of equal blocks with the figures of their variants (`shape.py`: read it first), out
comes a division of the blocks over the chunks with its predicted step time and a proven bound
(`division.py`).
"""

from millrace.planner.search.stages.bounds import lower_bound_ns
from millrace.planner.search.stages.dearth import memory_pressure_slowdown
from millrace.planner.search.stages.division import divide
from millrace.planner.search.stages.even_layers import divide_evenly
from millrace.planner.search.stages.measured_steps import in_order
from millrace.planner.search.stages.shape import (
    BlockRun,
    Division,
    Pipeline,
    VariantFigures,
    inflight_counts,
)

__all__ = [
    "BlockRun",
    "Division",
    "Pipeline",
    "VariantFigures",
    "divide",
    "divide_evenly",
    "in_order",
    "inflight_counts",
    "lower_bound_ns",
    "memory_pressure_slowdown",
]
