"""Changes to sound files: bytes, JSON, lines of fields and ONNX models that nobody means."""

import json
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 2, 3, 7, 255, 1000, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, -(2**63)),
    *(2**64, 10**9, 10**12, 10**30, 10**400, 0.0, -0.0, 0.5, 1.5, -1.5, 1e-300, 1e15, 1e308),
)
TEXTS: tuple[Any, ...] = (
    *("", " ", "x", "\0", "\x1b]0;a\x07", "\x1b[31m", "é", "\u202e", "\U0001f600", "\x9b2J"),
    *("/dev/zero", "nan", "inf", "none", "null", "S(0)", "(B, B)", "P(sum)", "a" * 5000, "%s%n"),
    *("os:abort", "{}", "-", "--json", "1e999", "0x10", "1_000", "٣", "\\", "'", '"', "[/x]"),
    *("../../x", "/", "[bold]", "\ud800"),
)
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, [0] * 50)
BYTES = (b"\0", b"\xff", b"\xc0", b"\xff\xfe", b"\x80" * 9, b"[" * 20_000, b'{"a":' * 9000)
HOSTILE = st.one_of(map(st.sampled_from, (NUMBERS, TEXTS, OTHERS))).map(deepcopy)


def any_of(places: list[Any]) -> st.SearchStrategy[Any]:
    """One of the places, told by its number: they change while they are drawn from."""
    return st.integers(0, len(places) - 1).map(lambda index: places[index])


def places_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the container and the key of every value in a document."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places_of(value[key])


def near(value: Any) -> st.SearchStrategy[Any]:
    """Values of the same type, or nearly, that few would think of."""
    if isinstance(value, bool):
        return st.sampled_from((not value, int(value), str(value).lower()))
    if isinstance(value, int | float):
        return st.sampled_from((value + 1, value - 1, -value, value * 2, value * 1000, str(value)))
    if isinstance(value, str):
        return st.sampled_from((value[1:], value + "x", value.upper(), value * 2))
    if isinstance(value, list) and value:
        return st.sampled_from((value[1:], value * 2, value[::-1], [], value[0], [value]))
    return HOSTILE


@st.composite
def spoilt(draw: st.DrawFn, content: bytes) -> bytes:
    """Content with one to three changes to its bytes, whatever they mean."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(changed)))
        end = min(len(changed), start + draw(st.sampled_from((1, 1, 4, 64, 1024))))
        match draw(st.sampled_from(("flipped", "noise", "out", "twice", "in", "cut"))):
            case "flipped" if start < end:
                changed[start] ^= 1 << draw(st.integers(0, 7))
            case "noise":
                changed[start:end] = draw(st.binary(max_size=8))
            case "out":
                del changed[start:end]
            case "twice":
                changed[start:start] = changed[start:end]
            case "in":
                changed[start:start] = draw(st.sampled_from(BYTES))
            case "cut":
                del changed[start:]
    return bytes(changed)


@st.composite
def edited(draw: st.DrawFn, content: bytes) -> bytes:
    """JSON text with one to three changes to its values and keys."""
    document = json.loads(content)
    for _ in range(draw(st.integers(1, 3))):
        places = list(places_of(document))
        if not places:
            break
        inside, key = draw(any_of(places))
        match draw(st.sampled_from(("near", "near", "hostile", "dropped", "other", "more"))):
            case "near":
                inside[key] = deepcopy(draw(near(inside[key])))
            case "hostile":
                inside[key] = draw(HOSTILE)
            case "dropped":
                del inside[key]
            case "other":
                other, place = draw(any_of(places))
                inside[key] = deepcopy(other[place])
            case _ if isinstance(inside, list):
                inside.insert(key, deepcopy(inside[key]))
            case _:
                inside[draw(st.sampled_from((key + "s", key.upper(), *TEXTS)))] = inside.pop(key)
    return json.dumps(document, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")


@st.composite
def rewritten(draw: st.DrawFn, content: bytes, separator: str) -> bytes:
    """Lines of fields between separators with one to three changes: TOML at `=`, CSV at `,`."""
    lines = content.decode().split("\n")
    for _ in range(draw(st.integers(1, 3))):
        number = draw(st.integers(0, len(lines) - 1))
        fields = lines[number].split(separator)
        field = draw(st.integers(0, len(fields) - 1))
        match draw(st.sampled_from(("near", "hostile", "out", "twice", "line"))):
            case "near" if fields[field].strip().isdecimal():
                fields[field] = str(draw(near(int(fields[field]))))
            case "near" | "hostile":
                value = draw(HOSTILE)
                fields[field] = json.dumps(value) if draw(st.booleans()) else str(value)
            case "out":
                del fields[field]
            case "twice":
                fields.insert(field, draw(st.sampled_from(fields)))
            case "line":
                lines.insert(draw(st.integers(0, len(lines))), lines[number])
        lines[number] = separator.join(fields)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def fields_of(message: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every field that is set in a message or below it, behind the message that has it."""
    for field, value in message.ListFields():
        yield message, field.name
        for child in value if hasattr(value, "append") else [value]:
            if hasattr(child, "ListFields"):
                yield from fields_of(child)


@st.composite
def remodelled(draw: st.DrawFn, content: bytes) -> bytes:
    """ONNX model with one to three of its fields changed."""
    import onnx

    model = onnx.ModelProto.FromString(content)
    for _ in range(draw(st.integers(1, 3))):
        message, name = draw(any_of(list(fields_of(model))))
        value = getattr(message, name)
        if hasattr(value, "append"):
            index = draw(st.integers(0, len(value) - 1))
            if draw(st.booleans()):
                value.append(value[index])
            else:
                del value[index]
        elif isinstance(value, bytes):
            setattr(message, name, draw(st.sampled_from((b"", value[:-1], value * 2, b"\xff"))))
        elif isinstance(value, int | float | str) and draw(st.booleans()):
            with suppress(ValueError, TypeError, UnicodeEncodeError):  # out of the field's range
                setattr(message, name, draw(st.sampled_from(NUMBERS + TEXTS)))
        else:
            message.ClearField(name)
    return bytes(model.SerializeToString())
