"""Resources of a multiprocessor that a compiled kernel takes, read off its machine code.

A cubin is an ELF file. Its section `.nv.info` lists attributes of functions, among them their
registers and the frame of their stack, which lies in local memory (of the device) and holds what
registers cannot: spilled values, and arrays that are indexed by what only a run knows.
`.nv.shared.<symbol>` is as long as the static shared memory. `occupancy` says how many blocks of a
kernel a multiprocessor holds at once.
"""

import struct
from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

from millrace.executor.cuda.calls import WARP_THREADS
from millrace.executor.errors import ExecutorError

SIZED = 4  # format of an attribute whose value follows its length
# Attributes as cuobjdump names them; each holds the index of a symbol and a number.
REGISTERS = 0x2F  # EIATTR_REGCOUNT
FRAME = 0x11  # EIATTR_FRAME_SIZE
SYMBOL_BYTES = 24

# CUDA C++ programming guide 13.0, technical specifications per compute capability (8.0 to 10.0).
REGISTERS_OF_THREAD_MAX = 255
REGISTER_UNIT = 256  # registers are given to a warp in multiples of these
PARTITIONS = 4  # of a multiprocessor; each has its own registers and warps
RESERVED_BYTES = 1024  # the system takes so much shared memory of every block
SHARED_UNIT = 128


class Multiprocessor(NamedTuple):
    """Resources of one multiprocessor for the blocks that it holds at once."""

    registers: int
    threads: int
    blocks: int
    shared_bytes: int
    counts_reserved: bool  # whether `.nv.shared` of a cubin holds the system's bytes too


# Multiprocessors by architecture, of the same source.
MULTIPROCESSORS = {
    "sm_80": Multiprocessor(65536, 2048, 32, 164 * 1024, False),
    "sm_86": Multiprocessor(65536, 1536, 16, 100 * 1024, False),
    "sm_89": Multiprocessor(65536, 1536, 24, 100 * 1024, False),
    "sm_90": Multiprocessor(65536, 2048, 32, 228 * 1024, True),
    "sm_100": Multiprocessor(65536, 2048, 32, 228 * 1024, True),
    "sm_120": Multiprocessor(65536, 1536, 24, 100 * 1024, True),
}


class Resources(NamedTuple):
    """Registers of a thread, bytes of static shared memory of a block, of a thread's stack."""

    registers: int
    shared_bytes: int
    stack_bytes: int = 0


class Occupancy(NamedTuple):
    """Blocks of a kernel that fit on a multiprocessor at once, by what runs out.

    `blocks` is the least of them, and `warps_share` how many of the warps that a multiprocessor
    can hold these are.
    """

    by_registers: int
    by_shared: int
    by_threads: int
    blocks: int
    warps_share: float


def resources_of(code: bytes) -> dict[str, Resources]:
    """Resources that every function of a cubin takes, by its symbol."""
    sections = tuple(_sections(code))
    by_name = {section.name: section for section in sections}
    symbols = by_name[".symtab"]
    names = sections[symbols.link]
    taken: dict[str, dict[int, int]] = {}
    for attribute, symbol, number in _attributes(code, by_name[".nv.info"]):
        (name_at,) = struct.unpack_from("<I", code, symbols.offset + symbol * SYMBOL_BYTES)
        taken.setdefault(_text(code, names.offset + name_at), {})[attribute] = number
    resources = {}
    for name, numbers in taken.items():
        if REGISTERS in numbers:
            shared = by_name.get(f".nv.shared.{name}")
            size = shared.size if shared else 0
            resources[name] = Resources(numbers[REGISTERS], size, numbers.get(FRAME, 0))
    return resources


def occupancy(
    taken: Resources, threads: int, architecture: str, dynamic_bytes: int = 0
) -> Occupancy:
    """Number of blocks of `threads` threads that a multiprocessor holds at once.

    Parameters
    ----------
    taken : Resources
        Resources that a function takes.
    threads : int
        Threads of a block.
    architecture : str
        `sm_90` and the like; letters behind the number do not count.
    dynamic_bytes : int
        Shared memory that a launch asks for beside the static.

    Returns
    -------
    Occupancy
        Also what runs out first.

    Raises
    ------
    ExecutorError
        Nothing is written down of the architecture.

    Examples
    --------
    >>> occupancy(Resources(registers=64, shared_bytes=0), 256, "sm_90").blocks
    4
    """
    has = _multiprocessor(architecture)
    warps = ceil(threads / WARP_THREADS)
    of_warp = ceil(taken.registers * WARP_THREADS / REGISTER_UNIT) * REGISTER_UNIT
    by_registers = PARTITIONS * (has.registers // PARTITIONS // of_warp) // warps
    shared = shared_bytes(taken, architecture) + dynamic_bytes + RESERVED_BYTES
    by_shared = has.shared_bytes // (ceil(shared / SHARED_UNIT) * SHARED_UNIT)
    by_threads = min(has.threads // (warps * WARP_THREADS), has.blocks)
    blocks = min(by_registers, by_shared, by_threads)
    share = blocks * warps * WARP_THREADS / has.threads
    return Occupancy(by_registers, by_shared, by_threads, blocks, share)


def shared_bytes(taken: Resources, architecture: str) -> int:
    """Bytes of static shared memory that a source asks for, without the system's."""
    counted = _multiprocessor(architecture).counts_reserved
    return max(taken.shared_bytes - RESERVED_BYTES, 0) if counted else taken.shared_bytes


def _multiprocessor(architecture: str) -> Multiprocessor:
    name = architecture.rstrip("af")
    if name not in MULTIPROCESSORS:
        raise ExecutorError(
            f"nothing is known of the multiprocessors of {architecture}: "
            f"choose one of {', '.join(MULTIPROCESSORS)}"
        )
    return MULTIPROCESSORS[name]


class _Section(NamedTuple):
    name: str
    offset: int  # in the file, in bytes
    size: int
    link: int


def _attributes(code: bytes, info: _Section) -> Iterator[tuple[int, int, int]]:
    """Yield attribute, symbol and number of all those that say something of a function."""
    offset = info.offset
    while offset < info.offset + info.size:
        form, attribute, size = struct.unpack_from("<BBH", code, offset)
        offset += 4
        if form != SIZED:
            continue
        if attribute in (REGISTERS, FRAME):
            symbol, number = struct.unpack_from("<II", code, offset)
            yield attribute, symbol, number
        offset += size


def _sections(code: bytes) -> Iterator[_Section]:
    (table,) = struct.unpack_from("<Q", code, 0x28)
    row_bytes, count, of_names = struct.unpack_from("<HHH", code, 0x3A)
    rows = [
        struct.unpack_from("<IIQQQQI", code, table + index * row_bytes) for index in range(count)
    ]
    for name_at, _, _, _, offset, size, link in rows:
        yield _Section(_text(code, rows[of_names][4] + name_at), offset, size, link)


def _text(code: bytes, offset: int) -> str:
    return code[offset : code.index(b"\0", offset)].decode()
