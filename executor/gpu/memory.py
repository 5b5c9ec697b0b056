"""The memory of the ranks of one device: every region allocated once, before the first step."""

from collections.abc import Mapping, Sequence

import numpy as np

from millrace.executor.cuda.binding import bind
from millrace.executor.cuda.calls import Call, Operand
from millrace.executor.cuda.control import HISTORY_FIELDS
from millrace.executor.cuda.cuda_rank import HISTORY_STEPS, RankCalls
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.device import DeviceDriver
from millrace.executor.kernels.context import BITS
from millrace.executor.shards import RankValues
from millrace.models.arrays import Array
from millrace.planner.actors.graph import HOST
from millrace.planner.errors import InfeasibleError

PINNED = ("host", "history")  # regions in the memory of the node, which the device reads too
STAGING = "staging"  # the host's side of the stage


class DeviceRegions:
    """The regions of the ranks that one device holds, and the addresses in them.

    Parameters
    ----------
    device
        The device that they are allocated on.
    ranks
        The calls of every rank on it.

    Raises
    ------
    InfeasibleError
        They do not fit; names the rank, the bytes of every region and what is free.
    """

    def __init__(self, device: DeviceDriver, ranks: Sequence[RankCalls]) -> None:
        self._device = device
        _check_room(device, ranks)
        self._bases: dict[tuple[str, int], int] = {}
        self._views: dict[tuple[str, int], Array] = {}
        for calls in ranks:
            for region, size_bytes in calls.sizes.items():
                self._allocate(region, calls.rank, size_bytes)
            self._allocate(STAGING, calls.rank, calls.sizes["stage"])
            for offset, content in calls.tables:
                device.to_device(self.address(calls.region_operand("tables", offset)), content)
            device.to_device(self.address(calls.region_operand("control")), calls.control())

    def _allocate(self, region: str, rank: int, size_bytes: int) -> None:
        if region in (*PINNED, STAGING):
            base, view = self._device.allocate_host(max(size_bytes, 1))
            self._views[region, rank] = view[:size_bytes]
        else:
            base = self._device.allocate(max(size_bytes, 1))
        self._bases[region, rank] = base

    def address(self, operand: Operand) -> int:
        """Address of a located operand."""
        return self._bases[operand.role, operand.number] + operand.offset_bytes

    def placed(self, call: Call) -> Call:
        """A located call with addresses."""
        return bind(call, lambda operand: Operand("address", 0, self.address(operand)))

    def view(self, region: str, rank: int) -> Array:
        """Bytes of a region in the memory of the node."""
        return self._views[region, rank]

    def history(self, rank: int) -> Array:
        """Rows that the steps of a rank have left, by step modulo their number."""
        return (
            self.view("history", rank).view(np.float64).reshape(HISTORY_STEPS, len(HISTORY_FIELDS))
        )


class DeviceValues(RankValues):
    """The values of a rank's registers, read and written between two steps.

    Parameters
    ----------
    calls
        The rank.
    regions
        Memory in which its registers lie.
    device
        The device that holds them.
    """

    def __init__(self, calls: RankCalls, regions: DeviceRegions, device: DeviceDriver) -> None:
        super().__init__(calls.graph, calls.rank, calls.run_state)
        self._calls, self._regions, self._device = calls, regions, device

    def write(self, register: int, slot: int, values: Array) -> None:
        """Write this rank's shard.

        Raises
        ------
        ExecutorError
            The shard has another shape; names the tensor.
        """
        entry = self.program.registers[register]
        if values.shape != entry.shape:
            raise ExecutorError(
                f"`{entry.tensor}` has shape {entry.shape} here, but a value of shape "
                f"{values.shape} was given",
                rank=self.rank,
            )
        dtype = BITS.get(entry.dtype, entry.dtype)
        content = np.ascontiguousarray(values, dtype).view(np.uint8).reshape(-1)
        where = self._calls.register_at(register, slot)
        if entry.memory_kind == HOST:
            view = self._regions.view("host", self.rank)
            view[where.offset_bytes : where.offset_bytes + content.size] = content
        else:
            self._device.to_device(self._regions.address(where), content)

    def value(self, register: int, slot: int) -> Array:
        """Copy of this rank's shard."""
        entry = self.program.registers[register]
        shape = (*entry.shape[:-1], entry.pitch) if entry.pitch else entry.shape
        values = np.empty(shape, BITS.get(entry.dtype, entry.dtype))
        content = values.reshape(-1).view(np.uint8)
        where = self._calls.register_at(register, slot)
        if entry.memory_kind == HOST:
            view = self._regions.view("host", self.rank)
            content[:] = view[where.offset_bytes : where.offset_bytes + content.size]
        else:
            self._device.to_host(content, self._regions.address(where))
        return np.ascontiguousarray(values[..., : entry.shape[-1]]) if entry.pitch else values


def device_bytes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Bytes of the regions that lie on the device."""
    return {region: size for region, size in sizes.items() if region not in PINNED}


def _check_room(device: DeviceDriver, ranks: Sequence[RankCalls]) -> None:
    """Refuse what does not fit before anything is allocated."""
    free_bytes = device.free_bytes()
    needed = {calls.rank: device_bytes(calls.sizes) for calls in ranks}
    total = sum(sum(regions.values()) for regions in needed.values())
    if total <= free_bytes:
        return
    rank, regions = max(needed.items(), key=lambda item: sum(item[1].values()))
    parts = ", ".join(f"{name} {_in_words(size)}" for name, size in regions.items() if size)
    beside = total - sum(regions.get("arena", 0) for regions in needed.values())
    limit_mib = max(free_bytes - beside, 0) // len(ranks) // 2**20
    fix = f"plan with --memory-limit {limit_mib}MiB" if limit_mib else "plan for a larger one"
    raise InfeasibleError(
        f"rank {rank} needs {_in_words(sum(regions.values()))} ({parts}) and {len(ranks)} rank(s) "
        f"share {device.name}, which has {_in_words(free_bytes)} free "
        f"({_in_words(total - free_bytes)} short): {fix} or for more devices"
    )


def _in_words(size_bytes: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.2f} {unit}"
    return f"{size_bytes} bytes"
