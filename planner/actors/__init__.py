"""Actors: the contract between what was planned and whatever clock runs it.

Comes in: an ActorGraph (`graph.py`). Goes out: firings, in an order that no timing can change, and
a Trace (`trace.py`) of when they happened.

Read first `protocol.py` (one rank's state machine), then `null_clock.py` (the proof that a graph
runs to its end). Importing this package loads no solver, no simulator and no transport.
"""

from millrace.planner.actors.graph import ActorGraph, Program
from millrace.planner.actors.null_clock import run_to_completion
from millrace.planner.actors.protocol import ActorProtocol, Fire
from millrace.planner.actors.rendezvous import Rendezvous
from millrace.planner.actors.trace import Trace
from millrace.planner.actors.validate import validate

__all__ = [
    "ActorGraph",
    "ActorProtocol",
    "Fire",
    "Program",
    "Rendezvous",
    "Trace",
    "run_to_completion",
    "validate",
]
