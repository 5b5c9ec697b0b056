"""Issuing of the library's calls on one device: opened at the first, scratch memory per stream.

Every stream has one workspace, as large as any of its calls needs. What that is, is known when the
calls of a step have been prepared; so it is taken when the first is issued or a capture begins, and
never while one is captured.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from millrace.executor.cuda.binding import bound_library
from millrace.executor.cuda.calls import LibraryCall, Operand
from millrace.executor.cuda.wording import described
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.cudnn.limits import ALIGNMENT_BYTES
from millrace.executor.gpu.device import address_of

SHARE = 8
"""A call may take one part in so many of the device's memory: 9.9 GiB of an H100's 79, which holds
the deterministic backward pass of four samples of 32 heads over 4,096 places, 4 GiB, twice over
(b h t s 2 bytes, cuDNN 9.28)."""
RESERVE_BYTES = 2**30  # bytes left free for NCCL's buffers, kernels' code and captured steps


class ReadyCall(Protocol):
    """A call that a library is ready to carry out."""

    @property
    def workspace_bytes(self) -> int:
        """Scratch that it takes."""
        ...


class NeuralLibrary(Protocol):
    """A library of neural networks (`millrace.executor.gpu.cudnn.library.CudnnLibrary`)."""

    def plan(self, call: LibraryCall, workspace_bytes: int) -> Any:
        """Plan that takes at most so much scratch; None where there is none."""
        ...

    def run(self, planned: Any, addresses: tuple[int, ...], workspace: int, stream: int) -> None:
        """Put a planned call on a stream."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class WorkspaceMemory(Protocol):
    """Device memory that scratch is taken from."""

    total_bytes: int

    def free_bytes(self) -> int:
        """Bytes of memory that nobody holds now."""
        ...

    def allocate(self, size_bytes: int) -> int:
        """Address of device memory, held until the device is closed."""
        ...

    def free(self, address: int) -> None:
        """Give back what was allocated, when all work is done."""
        ...


class LibraryCalls:
    """Plans and workspaces of the library's calls on one device.

    Parameters
    ----------
    memory
        The device.
    open_library
        Opens the library, the device being current; returns None where there is none to be used.

    Attributes
    ----------
    workspace_bytes
        Device memory that the workspaces take.
    """

    def __init__(
        self, memory: WorkspaceMemory, open_library: Callable[[], NeuralLibrary | None]
    ) -> None:
        self._memory, self._open_library = memory, open_library
        self._library: NeuralLibrary | None = None
        self._opened = False
        self._plans: dict[LibraryCall, ReadyCall | None] = {}  # by call without addresses
        self._needed: dict[int, int] = {}  # by stream, of the calls prepared
        self._workspaces: dict[int, tuple[int, int]] = {}  # by stream, address and size
        self.workspace_bytes = 0

    def supports(self, call: LibraryCall) -> bool:
        """True if a bound call can be carried out."""
        return self._planned(call) is not None

    def prepare(self, call: LibraryCall, stream: int) -> None:
        """Plan a bound call, which `supports` said can be carried out, for a stream."""
        planned = self._planned(call)
        if planned is None:
            raise ExecutorError(f"the library has no {described(call)}")
        self._needed[stream] = max(self._needed.get(stream, 0), planned.workspace_bytes)

    def reserve(self) -> None:
        """Take the workspaces of all streams, as large as the calls prepared need them.

        One that is too small by now is kept: a graph that was captured may write to it.
        """
        for stream, size_bytes in self._needed.items():
            if stream not in self._workspaces or size_bytes > self._workspaces[stream][1]:
                self._workspaces[stream] = self._memory.allocate(size_bytes), size_bytes
                self.workspace_bytes += size_bytes

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Forget at the end of the `with` what calls needed in it, and give back their scratch."""
        needed, workspaces = dict(self._needed), dict(self._workspaces)
        try:
            yield
        finally:
            for stream, (address, size_bytes) in self._workspaces.items():
                if (address, size_bytes) != workspaces.get(stream):
                    self._memory.free(address)
                    self.workspace_bytes -= size_bytes
            self._needed, self._workspaces = needed, workspaces

    def issue(self, call: LibraryCall, stream: int, *, captured: bool) -> None:
        """Put a bound call on a stream; `captured`: while that is recorded."""
        if not captured:
            self.prepare(call, stream)
            self.reserve()
        planned = self._planned(call) if self._opened else None
        address, size_bytes = self._workspaces.get(stream, (0, -1))
        if planned is None or self._library is None or planned.workspace_bytes > size_bytes:
            raise ExecutorError(
                f"a call was captured before it was prepared on its stream: {described(call)}"
            )
        addresses = tuple(address_of(tensor.operand) for tensor in call.tensors)
        self._library.run(planned, addresses, address, stream)

    def close(self) -> None:
        """Give the library back; the device frees the workspaces."""
        if self._library is not None:
            self._library.close()
        self._library, self._opened = None, True
        self._plans.clear()
        self._needed.clear()
        self._workspaces.clear()

    def _planned(self, call: LibraryCall) -> ReadyCall | None:
        """Plan of a bound call, made at the first that is alike but for its places."""
        if not self._opened:
            self._library, self._opened = self._open_library(), True
        aligned = all(address_of(tensor.operand) % ALIGNMENT_BYTES == 0 for tensor in call.tensors)
        if self._library is None or not aligned:
            return None
        unplaced = bound_library(call, lambda operand: Operand("address"))
        if unplaced not in self._plans:
            self._plans[unplaced] = self._library.plan(unplaced, self._room())
        return self._plans[unplaced]

    def _room(self) -> int:
        """Scratch that a call may take: of what is free now, or as much as a stream needs anyway.

        A plan is made once, before the workspaces are taken, so later calls ask for no other.
        """
        needed = max(self._needed.values(), default=0)
        room = max(self._memory.free_bytes() - RESERVE_BYTES, needed)
        return min(room, self._memory.total_bytes // SHARE)
