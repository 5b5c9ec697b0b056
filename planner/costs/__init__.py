"""Costs: how long one firing of an op or a collective takes, in whole nanoseconds.

In come shapes and documents (a Device, a Cluster), out come durations: pure functions. Where a
device was measured (`millrace profile`) its tables count, see `measured`. Elsewhere an op (`ops`)
costs what its kind does: `products` by tiles and waves, `attention` as a flash kernel, anything
else by its `traffic`; and a collective an α-β formula (`collectives`). More work never costs less.
`firings` says what of an op counts, `actors` prices what was compiled, `pacing` says what holds it
back. Shapes are one device's own (local) shapes throughout.
"""

from millrace.planner.costs.actors import durations
from millrace.planner.costs.collective_costs import (
    collective_duration_ns,
    collective_lines,
)
from millrace.planner.costs.op_batch import OpFirings
from millrace.planner.costs.ops import ATTENTION, op_duration_ns, op_durations_ns
from millrace.planner.costs.tables.profile_tables import interpolate_ns

__all__ = [
    "ATTENTION",
    "OpFirings",
    "collective_duration_ns",
    "collective_lines",
    "durations",
    "interpolate_ns",
    "op_duration_ns",
    "op_durations_ns",
]
