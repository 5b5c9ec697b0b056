"""Planner: who computes what, and in which order.

Comes in: a training Graph (`models`), a Cluster, a global batch and pins. Goes out: a Plan (every
decision, with its proof) and, compiled, an ActorGraph (actors, registers, queues with orders).

Read first `sbp.py` (how a tensor lies on devices), then `plan.py` (the document), `boxing.py`
(from one sbp to another), `search/` (how a plan is found), `compile/` (from plan to actors) and
`actors/` (the protocol that the simulator and the executor share).
"""
