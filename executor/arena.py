"""Arena: the one block of memory that holds every register of a rank, laid out at compile time."""

from typing import Any

import numpy as np

from millrace.executor.errors import ExecutorError
from millrace.models.arrays import Array
from millrace.planner.actors.graph import HOST, Program, Register

ALIGNMENT_BYTES = 64  # one cache line, and enough for every SIMD load


class Arena:
    """The registers of one program as NumPy views of a single allocation.

    Registers lie at the offsets that the compiler gave them, so that registers whose lives do not
    overlap may share bytes; those in host memory have an allocation of their own. Nothing is
    allocated after construction.

    Parameters
    ----------
    program
        The program whose registers are laid out.
    block
        The bytes in which to lay them out, aligned; None: memory of this process.

    Attributes
    ----------
    views
        `views[register][slot]`: a C-contiguous array in the register's shape and dtype.

    Raises
    ------
    ExecutorError
        A register's dtype has no NumPy form, or its shard does not fit its slot.
    """

    def __init__(self, program: Program, block: Array | None = None) -> None:
        self._block = _aligned(program.memory_bytes) if block is None else block
        self._host = _aligned(program.host_bytes)
        self.views = tuple(self._slots(register) for register in program.registers)

    def _slots(self, register: Register) -> tuple[Array, ...]:
        dtype = numpy_dtype(register)
        size_bytes = dtype.itemsize * int(np.prod(register.shape, dtype=np.int64))
        if size_bytes > register.slot_bytes:
            raise ExecutorError(
                f"register `{register.name}` needs {size_bytes} bytes for {register.shape} of "
                f"{register.dtype}, but a slot has {register.slot_bytes}: compile the plan again"
            )
        block = self._host if register.memory_kind == HOST else self._block
        starts = map(register.start_bytes, range(register.slots))
        return tuple(
            block[start : start + size_bytes].view(dtype).reshape(register.shape)
            for start in starts
        )


def _aligned(size_bytes: int) -> Array:
    """Bytes of this process's memory that begin on a cache line."""
    room = np.zeros(size_bytes + ALIGNMENT_BYTES, np.uint8)
    return room[-room.ctypes.data % ALIGNMENT_BYTES :]


def numpy_dtype(register: Register) -> np.dtype[Any]:
    """NumPy dtype of a register; raises ExecutorError for one that NumPy lacks."""
    try:
        return np.dtype(register.dtype)
    except TypeError:
        raise ExecutorError(
            f"register `{register.name}` is {register.dtype}, which the NumPy backend cannot "
            f"compute in: plan with --precision fp32 or fp64, or run on GPUs with --backend cupy"
        ) from None
