"""Costs: how long one firing of an op or a collective takes, in whole nanoseconds.

In come shapes and documents (a Device, a Cluster), out come durations: pure functions. Where a
device was measured (`millrace profile`) its tables count, see `measured`; elsewhere an op costs a
roofline (`ops`) and a collective an α-β formula (`collectives`). Either way more work never costs
less. `actors` prices what was compiled. Shapes are one device's own (local) shapes throughout.
"""

from planner.costs.actors import actor_duration_ns, durations
from planner.costs.collectives import (
    collective_duration_ns,
    collective_durations_ns,
    collective_pieces,
)
from planner.costs.measured import interpolate_ns
from planner.costs.ops import ATTENTION, op_duration_ns, op_durations_ns, precision_of

__all__ = [
    "ATTENTION",
    "actor_duration_ns",
    "collective_duration_ns",
    "collective_durations_ns",
    "collective_pieces",
    "durations",
    "interpolate_ns",
    "op_duration_ns",
    "op_durations_ns",
    "precision_of",
]
