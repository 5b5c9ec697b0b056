"""Several emulated devices that meet through flat collectives, as GPUs do through NCCL.

Every rank has a device and a host thread of its own. A collective is a piece of work on a stream
that begins when all members of its group have come to it; other streams of the device go on
meanwhile, as kernels of several communicators do that fit on a GPU together.
"""

import threading
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from millrace.executor.cuda.calls import Bucket, Collective
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.collectives import groups_of
from millrace.executor.gpu.nccl import LaneGroup
from millrace.planner.actors.graph import ActorGraph
from tests.executor.cuda.flat_collectives import FLAT
from tests.executor.gpu.emulated_device import TICK_NS, EmulatedDevice, _bytes_at

ITEM_BYTES = {"float64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}
DTYPES = {"bfloat16": "uint16"}
PATIENCE_S = 300.0  # ends a hang: others may be compiling meanwhile
EMULATOR = threading.Lock()  # a block's threads and shared memory are of the whole process


class MeetingPlace:
    """Place at which the devices of a run find each other."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._arrived: dict[tuple[LaneGroup, int], dict[int, Collective | Bucket]] = {}
        self.finished: set[tuple[LaneGroup, int]] = set()
        self.failed = False

    def arrive(self, group: LaneGroup, turn: int, position: int, call: Collective | Bucket) -> None:
        """Take note that a member has come to its collective number `turn`; the last moves data."""
        with self.changed:
            present = self._arrived.setdefault((group, turn), {})
            present[position] = call
            if len(present) == len(group.members):
                every = [self._arrived[group, turn][member] for member in range(len(present))]
                parts = (
                    arrived.collectives if isinstance(arrived, Bucket) else (arrived,)
                    for arrived in every
                )
                for calls in zip(*parts, strict=True):
                    _move(list(calls))
                del self._arrived[group, turn]
                self.finished.add((group, turn))
                self.changed.notify_all()


def _move(calls: list[Collective]) -> None:
    """Carry out one collective of all members."""
    kinds = {call.kind for call in calls}
    if kinds == {"send", "recv"}:
        _write(calls[1], _flat(calls[0], calls[0].elements))
        return
    (kind,) = kinds
    assert len({call.elements for call in calls}) == 1
    first, members = calls[0], len(calls)
    sent = first.elements * (members if kind in ("reduce_scatter", "all_to_all") else 1)
    outputs = FLAT[kind]([_flat(call, sent) for call in calls], first.reduction, first.dtype)
    for call, values in zip(calls, outputs, strict=True):
        _write(call, values)


def _flat(call: Collective, count: int) -> np.ndarray:
    content = _bytes_at(call.send.offset_bytes, count * ITEM_BYTES[call.dtype])
    return content.view(DTYPES.get(call.dtype, call.dtype)).copy()


def _write(call: Collective, values: np.ndarray) -> None:
    _bytes_at(call.recv.offset_bytes, values.nbytes)[:] = values.view(np.uint8)


class MeetingDevice(EmulatedDevice):
    """A device whose streams may hold collectives."""

    def __init__(self, place: MeetingPlace, seed: int) -> None:
        super().__init__(seed)
        self._place = place
        self._turns: dict[LaneGroup, int] = {}
        self._pending: dict[Any, tuple[LaneGroup, int]] = {}  # by stream

    def meet(self, group: LaneGroup, position: int, call: Collective | Bucket, stream: int) -> None:
        """Put a collective on a stream."""
        self._put(stream, "meet", (group, position, call))

    def done(self, event: int) -> bool:
        self.synchronize(event)  # others come, or the test ends
        return True

    def _go_on(self) -> None:
        """Begin collectives that have come to the head of a stream, and end those that are done."""
        with self._place.changed:
            for stream, queue in list(self._streams.items()):
                if not queue or queue[0][0] != "meet":
                    continue
                group, position, call = queue[0][1]
                if stream not in self._pending:
                    turn = self._turns[group] = self._turns.get(group, 0) + 1
                    self._pending[stream] = (group, turn)
                    self._place.arrive(group, turn, position, call)
                if self._pending[stream] in self._place.finished:
                    del self._pending[stream]
                    queue.popleft()
                    self._clock_ns += TICK_NS
                    return
            if not self._others():
                came = self._place.changed.wait(PATIENCE_S)
                assert came, f"all streams wait for others: {sorted(self._pending.values())}"
                assert not self._place.failed, "another rank has failed"
                return
        with EMULATOR:
            super()._go_on()

    def load(self, functions: Mapping[str, Collection[str]]) -> None:
        with EMULATOR:
            super().load(functions)

    def _others(self) -> bool:
        """True if a stream can go on that does not wait for other ranks."""
        return any(
            queue and queue[0][0] != "meet" and (queue[0][0] != "wait" or queue[0][1] in self._done)
            for queue in self._streams.values()
        )

    def _ready(self) -> list[Any]:
        return [stream for stream in super()._ready() if self._streams[stream][0][0] != "meet"]


class PlaceCollectives:
    """The collectives of one rank: which group each meeting actor is of."""

    def __init__(self, graph: ActorGraph, rank: int, device: MeetingDevice) -> None:
        self._device = device
        self._groups = groups_of(graph, rank)

    def issue(self, rank: int, actor: int, call: Collective | Bucket, stream: int) -> None:
        group = self._groups[actor]
        self._device.meet(group, group.members.index(rank), call, stream)

    def check(self) -> None:
        """Do nothing: nothing fails late here."""

    def last_issued(self) -> list[str]:
        return []

    def abandon(self, error: ExecutorError) -> None:
        """Do nothing: nothing hangs here."""
