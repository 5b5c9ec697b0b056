"""Words and bounds that options show, whose owners take a third of a second to import.

A page of help and a completion wait for nothing but these. Beside each stands its owner, and
`tests/millrace/test_help.py` holds the two equal.
"""

PRECISIONS = "fp64, fp32, tf32, bf16, fp16, fp8, mxfp8, mxfp4, nvfp4"  # millrace.models.builder
SCHEDULES = (  # millrace.planner.schedules
    "gpipe, 1f1b, eager-1f1b, interleaved-1f1b, zb-h1, zb-v, dualpipe-v"
)
DISPATCHERS = "alltoall, deepep, hybridep, allgather"  # millrace.planner.frameworks.capabilities
RESERVE = "13%"  # millrace.planner.memory.DEFAULT_RESERVE
FLASH = "flash"  # millrace.models.training.unfused_attention
ADAMW = "adamw"  # millrace.models.training.optimizer_updates
COUNT_MAX = 2**24  # millrace.planner.plan
MAX_GAP = 0.02  # millrace.planner.plan
SEED_MAX = 2**63 - 1  # millrace.planner.plan
