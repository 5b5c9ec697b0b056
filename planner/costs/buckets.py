"""Buckets: which messages are state, so that a framework may send them as parts of larger ones.

Gradients are summed and split weights gathered from one long array (DDP's buckets, Megatron's
gradient buffer, ZeRO's flat parameters), `Software.bucket_bytes` at a time. A variable smaller than
that shares a bucket with its neighbours and pays its part of what a bucket costs; a larger one
fills several. Activations travel as they are made.
"""

from collections import Counter
from typing import NamedTuple

from models.graph import ITEMSIZE, Graph, Rate
from planner.actors.graph import Actor, Program


class State(NamedTuple):
    """What is known of a message of state beside its size; 0: not known.

    `itemsize` is the bytes of one element as the plan has it, `bytes_of_block` those of all
    messages of its kind that belong to its block, and `bytes_together` those of all blocks, over
    whichever ranks.
    """

    itemsize: int = 0
    bytes_of_block: int = 0
    bytes_together: int = 0


UNKNOWN = State()


class Totals:
    """Bytes of state that a program's actors move, by kind of meeting and by block.

    Parameters
    ----------
    program
        With all actors of each of its blocks.
    """

    def __init__(self, program: Program) -> None:
        self._dtypes = [register.dtype for register in program.registers]
        self._blocks: Counter[object] = Counter()
        self._all: Counter[object] = Counter()
        for actor in program.actors:
            meeting = actor.meeting
            if meeting is not None and meeting.bucketed:
                kind = meeting.kind, meeting.axes, actor.phase
                self._blocks[actor.block, *kind] += meeting.message_bytes
                self._all[meeting.kind, actor.phase] += meeting.message_bytes

    def state(self, actor: Actor) -> State:
        """What is known of the message of an actor."""
        meeting = actor.meeting
        if meeting is None or not meeting.bucketed:
            return UNKNOWN
        kind = meeting.kind, meeting.axes, actor.phase
        ports = actor.inputs or actor.outputs
        itemsize = ITEMSIZE[self._dtypes[ports[0].register]] if ports else 0
        together = self._all[meeting.kind, actor.phase]
        return State(itemsize, self._blocks[actor.block, *kind], together)


def state_tensors(graph: Graph) -> frozenset[str]:
    """Tensors whose boxing moves weights or gradients of weights.

    Those that are there once a step, weights as each microbatch reads them, and gradients as each
    microbatch makes them. Scalars are none.

    Parameters
    ----------
    graph
        A training graph, or part of one.
    """
    beside = {
        name
        for op in graph.ops
        if op.kind in ("repeat", "accumulate")
        for name in (op.outputs if op.kind == "repeat" else op.inputs)
    }
    return frozenset(
        tensor.name
        for tensor in graph.tensors
        if tensor.shape and (tensor.rate is Rate.STEP or tensor.name in beside)
    )
