"""What a compiled kernel takes of a multiprocessor, read off its machine code.

A cubin is an ELF file. Its section `.nv.info` lists attributes, among them a function's registers
and its stack; `.nv.shared.<symbol>` is as long as its static shared memory.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

SIZED = 4  # format of an attribute whose value follows its length
# EIATTR_REGCOUNT and EIATTR_FRAME_SIZE, as cuobjdump names them: index of a symbol, and a number
REGISTERS, STACK = 0x2F, 0x11
SYMBOL_BYTES = 24


class Resources(NamedTuple):
    """Registers of a thread, bytes of static shared memory of a block, and of a thread's stack.

    On the stack is what does not fit into registers, and arrays whose places are not known before.
    """

    registers: int
    shared_bytes: int
    stack_bytes: int


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
    found: dict[int, dict[str, int]] = {REGISTERS: {}, STACK: {}}
    at = info.at
    while at < info.at + info.size:
        form, attribute, size = struct.unpack_from("<BBH", code, at)
        at += 4
        if form != SIZED:
            continue
        if attribute in found:
            symbol, number = struct.unpack_from("<II", code, at)
            (name_at,) = struct.unpack_from("<I", code, symbols.at + symbol * SYMBOL_BYTES)
            found[attribute][_text(code, names.at + name_at)] = number
        at += size
    shared = {name: sections.get(f".nv.shared.{name}") for name in found[REGISTERS]}
    return {
        name: Resources(registers, section.size if section else 0, found[STACK].get(name, 0))
        for (name, registers), section in zip(
            found[REGISTERS].items(), shared.values(), strict=True
        )
    }


def _sections(code: bytes) -> Iterator[_Section]:
    (table,) = struct.unpack_from("<Q", code, 0x28)
    row_bytes, count, of_names = struct.unpack_from("<HHH", code, 0x3A)
    rows = [struct.unpack_from("<IIQQQQI", code, table + at * row_bytes) for at in range(count)]
    for name_at, _, _, _, at, size, link in rows:
        yield _Section(_text(code, rows[of_names][4] + name_at), at, size, link)


def _text(code: bytes, at: int) -> str:
    return code[at : code.index(b"\0", at)].decode()
