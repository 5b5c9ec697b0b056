"""CuPy's binding of NCCL (version 14.2, name for name) between threads, in this host's memory."""

import ctypes
import threading
from collections import defaultdict
from itertools import count
from queue import SimpleQueue

import numpy as np

NAMES = {"int32": 2, "int64": 4, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9}
STORED = {2: np.int32, 4: np.int64, 6: np.float16, 7: np.float32, 8: np.float64, 9: np.uint16}
REDUCED = {0: np.add.reduce, 2: np.maximum.reduce}


class NcclError(RuntimeError):
    """Refusal of the library."""


class SharedMailbox:
    """State that the members of one communicator share."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=120)
        self.sent: list[np.ndarray | None] = [None] * size
        self.mail: dict[tuple[int, int], SimpleQueue[np.ndarray]] = defaultdict(SimpleQueue)


class NcclInMemory:
    """The module `cupy.cuda.nccl`."""

    NcclError = NcclError
    NCCL_INT32, NCCL_INT64, NCCL_FLOAT16 = 2, 4, 6
    NCCL_FLOAT32, NCCL_FLOAT64, NCCL_BFLOAT16 = 7, 8, 9
    NCCL_SUM, NCCL_MAX = 0, 2

    def __init__(self) -> None:
        self._meetings: dict[bytes, SharedMailbox] = {}
        self._lock = threading.Lock()
        self._numbers = count()
        self._grouped = threading.local()
        self.launches = 0
        self.broken: Exception | None = None
        self.aborted = 0
        self.answers = threading.Event()  # cleared while an abort does not return
        self.answers.set()
        self.destroyed = 0

    def get_unique_id(self) -> bytes:
        return next(self._numbers).to_bytes(128, "little")

    def groupStart(self) -> None:  # noqa: N802 - as the binding has it
        self._grouped.calls = []

    def groupEnd(self) -> None:  # noqa: N802
        # Sends never wait here, so that they go first, as they all begin at once in NCCL.
        for _, work in sorted(self._grouped.calls, key=lambda call: call[0]):
            work()
        self._grouped.calls = None
        self._launched()

    def NcclCommunicator(self, size: int, unique_id: bytes, rank: int) -> "CommunicatorInMemory":  # noqa: N802
        with self._lock:
            meeting = self._meetings.setdefault(unique_id, SharedMailbox(size))
        try:
            meeting.barrier.wait()
        except threading.BrokenBarrierError as error:
            raise NcclError("broken") from error
        return CommunicatorInMemory(self, meeting, size, rank)

    def do(self, order: int, work) -> None:
        if getattr(self._grouped, "calls", None) is None:
            work()
            self._launched()
        else:
            self._grouped.calls.append((order, work))

    def _launched(self) -> None:
        with self._lock:
            self.launches += 1


class CommunicatorInMemory:
    """The class `NcclCommunicator`."""

    def __init__(self, library: NcclInMemory, meeting: SharedMailbox, size: int, rank: int) -> None:
        self.library, self.meeting, self.size, self.rank = library, meeting, size, rank

    def allReduce(self, send, recv, count, dtype, op, stream):  # noqa: N802
        def work() -> None:
            array(recv, count, dtype)[:] = REDUCED[op](self._all(send, count, dtype))

        self.library.do(1, work)

    def allGather(self, send, recv, count, dtype, stream):  # noqa: N802
        def work() -> None:
            every = self._all(send, count, dtype)
            array(recv, count * self.size, dtype)[:] = np.concatenate(every)

        self.library.do(1, work)

    def reduceScatter(self, send, recv, count, dtype, op, stream):  # noqa: N802
        def work() -> None:
            every = self._all(send, count * self.size, dtype)
            own_block = slice(self.rank * count, (self.rank + 1) * count)
            array(recv, count, dtype)[:] = REDUCED[op](every)[own_block]

        self.library.do(1, work)

    def send(self, send, count, dtype, peer, stream):
        mail = self.meeting.mail[self.rank, peer]
        self.library.do(0, lambda: mail.put(array(send, count, dtype).copy()))

    def recv(self, recv, count, dtype, peer, stream):
        mail = self.meeting.mail[peer, self.rank]
        target = array(recv, count, dtype)
        self.library.do(1, lambda: np.copyto(target, mail.get(timeout=120)))

    def check_async_error(self) -> None:
        if self.library.broken is not None:
            raise self.library.broken

    def abort(self) -> None:
        assert self.library.answers.wait(120)
        self.library.aborted += 1

    def destroy(self) -> None:
        self.library.destroyed += 1

    def _all(self, send, count, dtype):
        self.meeting.sent[self.rank] = array(send, count, dtype).copy()
        self.meeting.barrier.wait()
        every = list(self.meeting.sent)
        self.meeting.barrier.wait()
        return every


def array(address: int, count: int, dtype: int) -> np.ndarray:
    """Memory at an address."""
    stored = np.dtype(STORED[dtype])
    room = (ctypes.c_char * (count * stored.itemsize)).from_address(address)
    return np.frombuffer(room, stored)
