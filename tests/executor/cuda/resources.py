"""What a compiled kernel takes of a multiprocessor, read off its machine code.

A cubin is an ELF file. Its section `.nv.info` lists attributes, among them a function's registers
and its stack, which holds what registers could not; `.nv.shared.<symbol>` is as long as its static
shared memory.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

SIZED = 4  # format of an attribute whose value follows its length
REGISTERS = 0x2F  # EIATTR_REGCOUNT, as cuobjdump names it: index of a symbol, and its registers
STACK = 0x11  # EIATTR_FRAME_SIZE: index of a symbol, and bytes of its stack
SYMBOL_BYTES = 24


class Resources(NamedTuple):
    """Registers and bytes of stack of a thread, and bytes of static shared memory of a block."""

    registers: int
    shared_bytes: int
    stack_bytes: int = 0


class _Section(NamedTuple):
    name: str
    at: int
    size: int
    link: int


def resources_of(code: bytes) -> dict[str, Resources]:
    """Return what every function of a cubin takes, by its symbol."""
    sections = {one.name: one for one in _sections(code)}
    symbols, info = sections[".symtab"], sections[".nv.info"]
    names = next(one for at, one in enumerate(_sections(code)) if at == symbols.link)
    registers, stacks = (dict(_told(code, info, attribute)) for attribute in (REGISTERS, STACK))
    found = {}
    for symbol, count in registers.items():
        (name_at,) = struct.unpack_from("<I", code, symbols.at + symbol * SYMBOL_BYTES)
        name = _text(code, names.at + name_at)
        shared = sections.get(f".nv.shared.{name}")
        found[name] = Resources(count, shared.size if shared else 0, stacks.get(symbol, 0))
    return found


def _told(code: bytes, info: _Section, wanted: int) -> Iterator[tuple[int, int]]:
    """Yield the symbols of which an attribute is told, with its value."""
    at = info.at
    while at < info.at + info.size:
        form, attribute, size = struct.unpack_from("<BBH", code, at)
        at += 4
        if form == SIZED:
            if attribute == wanted:
                yield struct.unpack_from("<II", code, at)
            at += size


def _sections(code: bytes) -> Iterator[_Section]:
    (table,) = struct.unpack_from("<Q", code, 0x28)
    row_bytes, count, of_names = struct.unpack_from("<HHH", code, 0x3A)
    rows = [struct.unpack_from("<IIQQQQI", code, table + at * row_bytes) for at in range(count)]
    for name_at, _, _, _, at, size, link in rows:
        yield _Section(_text(code, rows[of_names][4] + name_at), at, size, link)


def _text(code: bytes, at: int) -> str:
    return code[at : code.index(b"\0", at)].decode()
