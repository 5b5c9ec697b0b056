"""Mutations: a sound input made unsound, in as many ways as a seed draws.

Bytes are flipped, taken out, doubled and cut off, whatever they mean; what has a form is also
changed within it, where a decoder lets it in: values become extremes, or change their places and
types, keys go, come twice or get another name, members of an archive are changed as what they are.
"""

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from random import Random
from typing import Any

Mutation = Callable[[bytes, Random], bytes]

NESTED = "NESTED"  # stands for what no encoder writes: brackets without end
NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64),
    *(10**6, 10**9, 10**12, 10**30, 10**400, -(10**400), 0.0, -0.0, 0.5, 1.5, 1e-300, 1e300, 1e308),
    *(1e15, -1.5, 1e-9, 99, 1000, 65536),
)
TEXTS: tuple[Any, ...] = (
    *("", " ", "x", "\0", "\x1b]0;a\x07", "\x1b[31m", "é", "\u202e", "\U0001f600", "\x9b2J"),
    *("/dev/zero", "nan", "inf", "none", "null", "S(0)", "(B, B)", "P(sum)", "a" * 5000, "%s%n"),
    *("os:abort", "{}", "-", "--json", "1e999", "0x10", "1_000", "٣", "\\", "'", '"', "[/x]"),
    *("../../x", "/", "[bold]"),
)
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, [0] * 50, NESTED)
BYTES = (b"\0", b"\xff", b"\xc0", b"\xff\xfe", b"\x80" * 9, b"[" * 3000, b'{"a":' * 2000)


def of_bytes(content: bytes, draw: Random) -> bytes:
    """Content with one to four changes to bytes, whatever they mean."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        offset = draw.randrange(len(changed) + 1)
        end = min(len(changed), offset + draw.choice((1, 1, 2, 4, 8, 64, 1024)))
        change = draw.randrange(7)
        if change == 0 and offset < len(changed):
            changed[offset] ^= 1 << draw.randrange(8)
        elif change == 1 and offset < len(changed):
            changed[offset] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, ord("9"), ord("-")))
        elif change == 2:
            del changed[offset:end]
        elif change == 3:
            changed[offset:offset] = changed[offset:end]
        elif change == 4:
            del changed[offset if draw.random() < 0.3 else end :]
        elif change == 5:
            changed[offset:offset] = draw.choice(BYTES)
        else:
            changed[offset:end] = draw.randbytes(end - offset)
    return bytes(changed)


def of_json(content: bytes, draw: Random) -> bytes:
    """JSON text with one to three changes to its values and keys."""
    document = json.loads(content)
    for _ in range(draw.randint(1, 3)):
        places = list(_places(document))
        if not places:
            break
        _change(*draw.choice(places), document, draw)
    return _text(document).encode("utf-8", "surrogatepass")


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the container and the key of every value in a document."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield value, key
            yield from _places(child)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield value, index
            yield from _places(child)


def _change(holder: Any, key: Any, document: Any, draw: Random) -> None:
    change = draw.randrange(9)
    if change <= 2:
        holder[key] = extreme(holder[key], draw)
    elif change == 3:
        del holder[key]
    elif change == 4:
        holder[key] = deepcopy(draw.choice(draw.choice((NUMBERS, TEXTS, OTHERS))))
    elif change == 5:
        other, place = draw.choice(list(_places(document)))
        holder[key] = deepcopy(other[place])
    elif isinstance(holder, list):
        holder.insert(draw.randrange(len(holder) + 1), holder[key])
    elif change == 6:
        holder[draw.choice((key + "s", key.upper(), "", "a\0", *TEXTS[:8]))] = holder.pop(key)
    elif change == 7:
        holder[draw.choice(list(TEXTS))] = draw.choice(NUMBERS)
    else:
        holder["\1twice"] = key


def extreme(value: Any, draw: Random) -> Any:
    """Value of the same type, or nearly, that few would think of."""
    if isinstance(value, bool):
        return draw.choice((not value, int(value), str(value).lower()))
    if isinstance(value, int | float):
        near = (value + 1, value - 1, -value, value * 2, value * 1000, str(value))
        return draw.choice((*near, *NUMBERS))
    if isinstance(value, str):
        return draw.choice((value[1:], value + "x", value.upper(), value * 2, *TEXTS))
    if isinstance(value, list) and value:
        return draw.choice((value[1:], value * 2, value[::-1], [], value[0], [value]))
    return deepcopy(draw.choice(OTHERS))


def _text(value: Any) -> str:
    """JSON of a document, with keys that come twice and brackets without end."""
    if isinstance(value, str) and value == NESTED:
        return "[" * 20_000
    if isinstance(value, dict):
        twice = value.get("\1twice")
        pairs = [(k, child) for k, child in value.items() if k != "\1twice"]
        pairs += [(twice, child) for k, child in pairs if k == twice]
        return "{" + ",".join(f"{json.dumps(k)}:{_text(child)}" for k, child in pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    return json.dumps(value)


def of_lines(separator: str) -> Mutation:
    """Mutation of lines of fields between separators: TOML at `=`, CSV at `,`."""

    def mutation(content: bytes, draw: Random) -> bytes:
        lines = content.decode().split("\n")
        for _ in range(draw.randint(1, 3)):
            number = draw.randrange(len(lines))
            fields = lines[number].split(separator)
            field = draw.randrange(len(fields))
            change = draw.randrange(6)
            if change <= 2:
                value = deepcopy(draw.choice(draw.choice((NUMBERS, TEXTS, OTHERS))))
                with suppress(ValueError):
                    value = extreme(int(fields[field].replace("_", "")), draw)
                fields[field] = _text(value) if draw.random() < 0.5 else str(value)
            elif change == 3:
                del fields[field]
            elif change == 4:
                fields.insert(field, fields[draw.randrange(len(fields))])
            lines[number] = separator.join(fields)
            if change == 5:
                lines[number:number] = draw.choice(
                    ([lines[number]], [], [lines[draw.randrange(len(lines))]])
                )
                del lines[draw.randrange(len(lines))]
                lines = lines or [""]
        return "\n".join(lines).encode("utf-8", "surrogatepass")

    return mutation


def of_archive(content: bytes, draw: Random) -> bytes:
    """Zip archive with one or two members changed as what they are."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    method = draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    for _ in range(draw.randint(1, 2)):
        index = draw.randrange(len(members))
        name, member = members[index]
        change = draw.randrange(8)
        if change == 0:
            del members[index]
            members = members or [(name, b"")]
        elif change == 1:
            members[index] = (name + draw.choice(("x", "/../../y", ".npy", "")), member)
        elif change == 2:
            members[index] = (name, members[draw.randrange(len(members))][1])
        else:
            form = {"json": of_json, "npy": of_array}.get(name.rpartition(".")[2], of_bytes)
            try:
                members[index] = (
                    name,
                    form(member, draw) if change < 7 else of_bytes(member, draw),
                )
            except (ValueError, RecursionError):  # changed already, beyond its form
                members[index] = (name, of_bytes(member, draw))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, member in members:
            if name not in archive.namelist():
                archive.writestr(name, member)
    return buffer.getvalue()


def of_array(content: bytes, draw: Random) -> bytes:
    """File `.npy` with another header: of another type, shape or order."""
    length = int.from_bytes(content[8:10], "little")
    header, data = content[10 : 10 + length], content[10 + length :]
    types = ("<f8", "<i4", "|S4", "|O", "<c8", "<M8[s]", ">f4", "|V3", "<U2", "f", "<f2")
    shapes = ("()", "(0,)", "(-1, 4)", f"({10**40},)", f"({2**62}, {2**62})", "(4", "[3]", "(3.5,)")
    before = header.decode("latin-1")
    after = draw.choice(
        (
            before.replace("<f4", draw.choice(types)).replace("<f8", draw.choice(types)),
            before[: before.index("(")] + draw.choice(shapes) + before[before.index(")") + 1 :],
            before.replace("False", draw.choice(("True", "1", "None"))),
        )
    )
    text = (after.rstrip() + "\n").encode("latin-1")
    values = draw.choice((data, data[:-1], b"", b"\xff" * len(data), data * 2))
    return content[:8] + len(text).to_bytes(2, "little") + text + values


def of_message(content: bytes, draw: Random) -> bytes:
    """ONNX model with one to three of its fields changed."""
    import onnx

    model = onnx.ModelProto.FromString(content)
    for _ in range(draw.randint(1, 3)):
        message, field = draw.choice(list(_fields(model)))
        value = getattr(message, field.name)
        if draw.random() < 0.3:
            message.ClearField(field.name)
        elif isinstance(value, bool | int | float):
            _set(message, field.name, draw.choice((0, 1, -1, 2, 7, 99, 2**31 - 1, 2**63 - 1)))
        elif isinstance(value, str):
            _set(
                message, field.name, draw.choice((value + "x", "", "../x", "\x1b[31m", "x" * 5000))
            )
        elif isinstance(value, bytes):
            spoilt = (b"", value[:-1], b"\xff" * len(value), value * 2)
            _set(message, field.name, draw.choice(spoilt))
        elif hasattr(value, "append") and len(value):
            index = draw.randrange(len(value))
            if draw.random() < 0.5:
                del value[index]
            else:
                value.append(value[index])
    return bytes(model.SerializeToString())


def _set(message: Any, name: str, value: Any) -> None:
    try:
        setattr(message, name, value)
    except (ValueError, TypeError):  # out of the field's range
        message.ClearField(name)


def _fields(message: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every field that is set in a message or below it, behind the message that holds it."""
    for field, value in message.ListFields():
        yield message, field
        for child in value if hasattr(value, "append") else [value]:
            if hasattr(child, "ListFields"):
                yield from _fields(child)
