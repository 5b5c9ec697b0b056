"""DTensor: PyTorch's placements and device meshes, from nd-SBPs and plans, and back.

In comes a Plan, out goes a module with its device mesh and the placements of every tensor of a
block. Read `conversions.py` first; `torch` is imported when a placement is asked for.
"""

from millrace.trainers.dtensor.conversions import device_mesh as device_mesh
from millrace.trainers.dtensor.conversions import mesh_of as mesh_of
from millrace.trainers.dtensor.conversions import nd_sbp as nd_sbp
from millrace.trainers.dtensor.conversions import placements as placements
from millrace.trainers.dtensor.placements_module import DTENSOR as DTENSOR
