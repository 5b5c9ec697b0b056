"""Device as its driver sees it, so that one in memory of this host can take its place.

Streams and events are plain ints, as CUDA's own handles are; a graph is whatever the device makes
of it. Addresses are of device memory, or of host memory that the device sees: both lie in one
address space.

A call that is issued is *bound*: every operand is `Operand("address", 0, where)`, an absolute
address in `offset_bytes`. `millrace.executor.cuda.calls.Operand` names the roles that calls have
before.
"""

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from millrace.executor.cuda.calls import Call, Operand
from millrace.executor.errors import ExecutorError

Bytes = NDArray[np.uint8]
ADDRESS = "address"


class DeviceDriver(Protocol):
    """One GPU as its driver sees it: memory, streams, events, kernels, graphs.

    All methods are called from one thread; `done`, `synchronize` and `check` from any.

    Attributes
    ----------
    name
        Name that its maker gives it.
    total_bytes
        Memory that it has.
    context_bytes
        Part of it that was taken before the first allocation: by the context of this process, and
        by other processes.
    """

    name: str
    total_bytes: int
    context_bytes: int

    @property
    def library_bytes(self) -> int:
        """Memory that the scratch of libraries takes by now."""
        ...

    def free_bytes(self) -> int:
        """Bytes of memory that nobody holds now."""
        ...

    def allocate(self, size_bytes: int) -> int:
        """Address of zeros in newly allocated device memory, held until the device is closed.

        Raises
        ------
        ExecutorError
            There is not so much; says how much is free.
        """
        ...

    def allocate_host(self, size_bytes: int) -> tuple[int, Bytes]:
        """Zeros in new pinned host memory: their address on the device, and a view of them."""
        ...

    def to_device(self, address: int, array: NDArray[Any]) -> None:
        """Copy an array to device memory; it is there on return.

        What was issued on other streams is not waited for, here and in `to_host`.
        """
        ...

    def to_host(self, array: NDArray[Any], address: int) -> None:
        """Fill an array from device memory; it is filled on return."""
        ...

    def copy_async(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Copy bytes in the order of a stream, whatever memories they lie in."""
        ...

    def stream(self, priority: int = 0) -> int:
        """Make a stream that waits for no other; a lower number goes first."""
        ...

    def event(self, timed: bool = False) -> int:
        """Make an event; only a timed one can be given to `elapsed_ns`."""
        ...

    def record(self, event: int, stream: int) -> None:
        """Let an event happen when all that the stream was given by now is done."""
        ...

    def wait(self, stream: int, event: int) -> None:
        """Let a stream go on only after what the event was last recorded for."""
        ...

    def done(self, event: int) -> bool:
        """True if what the event was recorded for is done.

        Raises
        ------
        ExecutorError
            Something issued before has failed on the device.
        """
        ...

    def synchronize(self, event: int) -> None:
        """Wait until the event has happened; raises as `done` does."""
        ...

    def elapsed_ns(self, start: int, end: int) -> int:
        """Nanoseconds between two events that have happened."""
        ...

    def load(self, functions: Mapping[str, Collection[str]]) -> None:
        """Compile kernels of ours, once: names with template arguments, by source.

        Raises
        ------
        ExecutorError
            A source does not compile; gives the compiler's words.
        """
        ...

    def prepare(self, call: Call, stream: int) -> None:
        """Do what a call needs done once, before it is issued or captured on that stream.

        Ways of computing one thing may be carried out, to be timed: this comes before operands hold
        anything that is read.
        """
        ...

    def picked(self) -> dict[str, dict[str, int]]:
        """Number of the choices prepared that took each way, by what they compute.

        Both are words (`millrace.executor.gpu.kernel_selection`): `{"attention b 8 …": {"cudnn":
        12}}`.
        """
        ...

    def issue(self, call: Call, stream: int) -> None:
        """Carry out one bound call, other than a collective, in the order of a stream."""
        ...

    def begin_capture(self, stream: int) -> None:
        """Record what is issued from now on instead of carrying it out.

        All of it has been carried out once before: kernels and libraries take memory at their first
        call, which a capture does not allow. Streams that wait for an event recorded on this one
        are captured too, and must have been waited for by it at the end. Events that were recorded
        meanwhile are only edges of the graph: nobody can ask for them.
        """
        ...

    def end_capture(self, stream: int) -> Any:
        """Graph of what was issued since `begin_capture`, ready to be replayed."""
        ...

    def replay(self, graph: Any, stream: int) -> None:
        """Carry out a graph in the order of a stream."""
        ...

    def range(self, name: str) -> AbstractContextManager[None]:
        """Name what is issued inside, for profilers."""
        ...

    def check(self) -> None:
        """Raise an ExecutorError if anything issued before has failed on the device."""
        ...

    def close(self) -> None:
        """Wait for all work and give back all memory, streams and events."""
        ...


def address_of(operand: Operand) -> int:
    """Address of a bound operand.

    Raises
    ------
    ExecutorError
        The operand is not bound (a bug of ours).

    Examples
    --------
    >>> address_of(Operand("address", 0, 4096))
    4096
    """
    if operand.role != ADDRESS:
        raise ExecutorError(
            f"a call was issued with operand {operand.role}({operand.number}), which is not bound "
            f"to an address"
        )
    return operand.offset_bytes
