"""Bucket sizes of state: weights and gradients travel as parts of larger messages.

Gradients are summed and split weights gathered from one long array (DDP's buckets, Megatron's
gradient buffer, ZeRO's flat parameters), `Software.bucket_bytes` at a time. A variable smaller than
that shares a bucket with its neighbours and pays its part of what a bucket costs; a larger one
fills several. Activations travel as they are made.

What our own executor runs has buckets that the compiler makes
(`millrace.planner.compile.collectives`), as large as `bucket_bytes` says. Where a plan is compiled
with them each is priced as the one message that it is; what prices collectives before there is a
compiled plan (the search, pieces of chunks) has a cluster `with_own_buckets`, on which a message of
state pays its part of one.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from millrace.models.graph import ITEMSIZE, Graph, Rate
from millrace.planner.actors.graph import Actor, Program
from millrace.planner.cluster import Cluster, Software

# A bucket larger than what latency takes a twentieth of gains less than that, and shows its whole
# length where nothing hides it.
LATENCY_SHARE = 0.05

# Sizes that are considered, each twice the one before: what buckets cost is flat around its least,
# a tenth more at most for a size within a factor of 1.4 of the best where half of it is latency.
SIZES = tuple(1 << power for power in range(16, 33))


class State(NamedTuple):
    """Known facts of a message of state beside its size; 0: not known.

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
        """Known facts of an actor's message; `UNKNOWN` where it moves no state in buckets."""
        meeting = actor.meeting
        if meeting is None or not meeting.bucketed:
            return UNKNOWN
        kind = meeting.kind, meeting.axes, actor.phase
        ports = actor.inputs or actor.outputs
        itemsize = ITEMSIZE[self._dtypes[ports[0].register]] if ports else 0
        together = self._all[meeting.kind, actor.phase]
        return State(itemsize, self._blocks[actor.block, *kind], together)


def bucket_bytes(duration_ns: Callable[[int], int], bytes_together: int = 0) -> int:
    """Bytes that a bucket should have.

    Let N bytes travel in buckets of n, each of which takes t(n). All of them take t(n) N / n; the
    backward pass hides them but for the last, which begins when it ends (for weights: the first,
    for which the forward pass waits). So that buckets are neither many nor the last one long, n is
    the size at which

        (N / n + 1) t(n)

    is least: with a latency a and s per byte that is n = √(N a / s), hence √(N s / a) buckets.
    Where N is large, or not known, n is the smallest size at which latency takes no more than
    `LATENCY_SHARE` of what the bytes take: t(n) ≤ 1.05 s n.

    Parameters
    ----------
    duration_ns : callable
        t: nanoseconds of a collective by its bytes, int to int.
    bytes_together : int
        N; 0: not known.

    Returns
    -------
    int
        One of `SIZES` (64 KiB to 4 GiB), so that it may be more than N.

    Examples
    --------
    >>> bucket_bytes(lambda size: 20_000 + size // 200) // 2**20
    128
    >>> bucket_bytes(lambda size: 20_000 + size // 200, 500_000_000) // 2**20
    32
    """
    rate = _ns_per_byte(duration_ns)
    best, least = SIZES[0], float("inf")
    for size in SIZES:
        took = duration_ns(min(size, bytes_together) if bytes_together else size)
        if bytes_together:
            cost = (max(bytes_together / size, 1.0) + 1.0) * took
            best, least = (size, cost) if cost < least else (best, least)
        else:
            best = size
        if took <= (1 + LATENCY_SHARE) * rate * size or 0 < bytes_together <= size:
            break
    return best


def shown_bytes(duration_ns: Callable[[int], int]) -> int:
    """Bytes that the bucket should have which nothing hides.

    The smallest size at which latency is no more than half of what it takes: less hardly shows
    less.

    Examples
    --------
    >>> shown_bytes(lambda size: 20_000 + size // 200) // 2**20
    4
    """
    rate = _ns_per_byte(duration_ns)
    return next((size for size in SIZES if duration_ns(size) <= 2 * rate * size), SIZES[-1])


def _ns_per_byte(duration_ns: Callable[[int], int]) -> float:
    """Nanoseconds per byte of a large message."""
    *_, half, most = SIZES
    return (duration_ns(most) - duration_ns(half)) / (most - half)


def with_own_buckets(cluster: Cluster, state_bytes: int) -> Cluster:
    """Cluster on which state is priced as it travels in our own compiler's buckets.

    Parameters
    ----------
    cluster : Cluster
        Where its software has buckets of its own, it stays as it is.
    state_bytes : int
        Of one kind of message of a step over one group, about: the size of a bucket goes with its
        root only. Sharing among stages and tensor parallelism is left out. 0 counts as 1.
    """
    if cluster.software.bucketing:
        return cluster
    return replace(cluster, software=replace(cluster.software, state_bytes=max(state_bytes, 1)))


def state_bytes_of(graph: Graph) -> int:
    """Bytes of all trained variables of a graph, as `with_own_buckets` takes them."""
    tensors = graph.tensors_by_name
    variables = (op.outputs[0] for op in graph.ops if op.trains)
    return sum(tensors[name].size_bytes for name in variables)


def padded_ops(graph: Graph, software: Software) -> frozenset[str]:
    """Ops of which shards may be padded: those of state alone, where a framework pads.

    Parameters
    ----------
    graph
        A training graph, or part of one.
    software
        The framework.
    """
    if not software.pads:
        return frozenset()
    others = {tensor.name for tensor in graph.tensors if tensor.shape} - state_tensors(graph)
    return frozenset(op.name for op in graph.ops if others.isdisjoint((*op.inputs, *op.outputs)))


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
