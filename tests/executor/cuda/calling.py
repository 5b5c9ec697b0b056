"""Calling CUDA factories in tests: operands in NumPy memory, kernels on the emulator."""

from collections.abc import Mapping, Sequence

import numpy as np

from millrace.executor.cuda.calls import Call, Calls, Operand
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.kernels.context import Array, KernelContext, Shard, whole_shard
from millrace.planner.compile.stage_ir import ALIGNMENT
from tests.executor.cuda.call_trees import operands_of
from tests.executor.cuda.emulation.machine import (
    Emulator,
    Ranges,
    functions_of,
    to_stored,
    to_wide,
)
from tests.executor.kernel_calls import run_state

Attributes = Mapping[str, int | float | str | bool]
RUBBISH = 0x4D  # what outputs and scratch hold before a call
FLOATS = ("float64", "float32", "float16", "bfloat16")


def context_of(
    kind: str,
    labels: str,
    inputs: Sequence[Shard],
    outputs: Sequence[Shard],
    attributes: Attributes | None = None,
    **more: object,
) -> KernelContext:
    """The context of an op on shards."""
    return KernelContext(
        kind=kind,
        name=f"test.{kind}",
        labels=labels,
        attributes=attributes or {},
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        **({"run": run_state()} | more),  # type: ignore[arg-type]
    )


def aligned_buffer(size_bytes: int) -> Array:
    """Rubbish on as coarse a boundary as registers begin on, and on none that is coarser."""
    room = np.full(size_bytes + 2 * ALIGNMENT, RUBBISH, np.uint8)
    begin = (ALIGNMENT - room.ctypes.data) % (2 * ALIGNMENT)
    return room[begin : begin + size_bytes]


def to_device(array: Array, dtype: str) -> Array:
    """An array as a device holds it, with its own memory."""
    values = to_stored(array, dtype) if dtype in FLOATS else array.astype(dtype)
    room = aligned_buffer(values.nbytes).view(values.dtype).reshape(values.shape)
    room[...] = values
    return room


def loaded(array: Array, dtype: str) -> Array:
    """Numbers of an array as a device holds it (bfloat16 as uint16)."""
    return to_wide(array, dtype) if dtype in FLOATS else array


def empty(shard: Shard) -> Array:
    """Memory for a shard, full of rubbish."""
    dtype = np.dtype("uint16" if shard.dtype == "bfloat16" else shard.dtype)
    return aligned_buffer(shard.size * dtype.itemsize).view(dtype).reshape(shard.shape)


class Operands:
    """The memory of one actor: addresses by role."""

    def __init__(self, calls: Calls, reads: Sequence[Array], writes: Sequence[Array]) -> None:
        self._tables = [to_device(table, str(table.dtype)) for table in calls.tables]
        self._workspace = aligned_buffer(calls.workspace_bytes)
        self.state: Sequence[Array] = ()
        self.buffer: Array | None = None
        self.control = np.zeros(128, np.uint8)
        self.stage: Sequence[Array] = ()
        self.peers: Sequence[Array] = ()
        self._reads, self._writes = reads, writes

    def address(self, operand: Operand) -> int:
        """Address of an operand."""
        return self._array(operand).ctypes.data + operand.offset_bytes

    def ranges(self, call: Call) -> Ranges:
        """Begin and end addresses of the operands of a call."""
        arrays = [self._array(operand) for operand in dict.fromkeys(operands_of(call))]
        return [(array.ctypes.data, array.ctypes.data + array.nbytes) for array in arrays]

    def carry_out(self, calls: Sequence[Call], emulator: Emulator | None = None) -> None:
        """Carry out calls, on an emulator of all that they launch where none is given."""
        machine = emulator or Emulator(functions_of(calls))
        for call in calls:
            machine.run(call, self.address, self.ranges(call))

    def _array(self, operand: Operand) -> Array:
        arrays = {
            "read": self._reads,
            "write": self._writes,
            "state": self.state,
            "table": self._tables,
            "workspace": [self._workspace],
            "control": [self.control],
            "buffer": [self.buffer],
            "stage": self.stage,
            "peer": self.peers,
        }[operand.role]
        array = arrays[operand.number]
        assert array is not None, operand
        return array


def call(
    kind: str,
    labels: str,
    inputs: Sequence[Array],
    outputs: Sequence[Shard],
    *,
    input_shards: Sequence[Shard] | None = None,
    attributes: Attributes | None = None,
    emulator: Emulator | None = None,
    firings: int = 2,
    **more: object,
) -> list[Array]:
    """Make the calls of one actor and carry them out twice, into outputs that hold rubbish.

    The second time shows that nothing of the first is left, which the dtype has no part in: tests
    over all dtypes ask for it in one.

    Inputs are numbers in any width; they are rounded to the dtypes of `input_shards` (by default
    their own). What comes back is wide enough to compare.
    """
    shards = input_shards or [whole_shard(array.shape, str(array.dtype)) for array in inputs]
    calls = make_calls(context_of(kind, labels, shards, outputs, attributes, **more))
    reads = [to_device(array, shard.dtype) for array, shard in zip(inputs, shards, strict=True)]
    writes = [empty(shard) for shard in outputs]
    operands = Operands(calls, reads, writes)
    operands.carry_out(firings * list(calls.of(0)), emulator)
    return [loaded(array, shard.dtype) for array, shard in zip(writes, outputs, strict=True)]
