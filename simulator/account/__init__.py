"""Account: where one simulated step's time and memory go.

Comes in: a plan and what `predict(…, detailed=True)` found. Goes out: an `Account`, whose rows add
up to the step's figures: compute by kind of op, communication by collective, stages, and memory
over time.

Read first `rows.py` (what is said), then `step_breakdown.py` (how it is found; of large plans by
what `millrace.simulator.chunks.phase_contents` counted) and `memory.py`.
"""

from millrace.simulator.account.rows import (
    Account,
    CommunicationRow,
    ComputeRow,
    MemoryTimeline,
    StageRow,
)
from millrace.simulator.account.step_breakdown import account_of

__all__ = [
    "Account",
    "CommunicationRow",
    "ComputeRow",
    "MemoryTimeline",
    "StageRow",
    "account_of",
]
