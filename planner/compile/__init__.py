"""Compile: from a Plan to an ActorGraph that provably runs to its end.

Comes in: a Plan (and the training Graph that its specification rebuilds). Goes out: an ActorGraph
with one program per stage: actors, registers with computed slots and places, queues with static
orders.

Read first `passes.py` (the passes in order), then `stages.py` and `lowering.py` (ops and boxing
become actors) and `queue_orders.py` (launch order).
"""

from millrace.planner.compile.passes import compile_plan

__all__ = ["compile_plan"]
