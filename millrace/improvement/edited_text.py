"""Edited texts: a setting changed, added or taken out where it stands, all else as it was.

Each function takes a text and a `SettingChange` and returns the text with it, or None where it does
not hold the setting and has no place for it. Nobody trusts them: what they return is read again.
"""

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from millrace.improvement.setting_changes import SettingChange, shown
from millrace.trainers.trainer import number_text

Edit = tuple[int, int, str]  # first character, the one after the last, and what takes their place
VALUE = r"""(?:"[^"\n]*"|'[^'\n]*'|(?!-\D)[^\s\\;|&()"']+)"""
GAP = r"(?:[ \t]+|[ \t]*\\\n[ \t]*)"
NAME = r"\$\{?(\w+)\}?"
DEFAULT = r"\$\{\w+:?[-=]([^}]*)\}"


def literal(value: Any, *, python: bool = False) -> str:
    """Value as JSON, TOML and YAML have it, or Python."""
    if isinstance(value, float):
        return number_text(value)
    if isinstance(value, list):
        return "[" + ", ".join(literal(item, python=python) for item in value) + "]"
    return repr(value) if python else json.dumps(value)


def edited_script(text: str, change: SettingChange, near: Sequence[str]) -> str | None:
    """Script or command line with a change; a new option goes behind one of `near`."""
    places = list(option_places(text, change.name, change.before is True))
    if change.after is None:
        for first, last, _ in reversed(places):
            text = _without(text, first, last)
        return text if places else None
    if places:
        for first, last, value in reversed(places):
            text = _revalued(text, first, last, value, change)
        return text
    for name in near:
        for first, last, value in option_places(text, name):
            if not value:
                continue
            words = [f"{change.name}={shown(change.after)}"]
            if text.startswith("--", first):
                listed = change.after if isinstance(change.after, list) else [change.after]
                values = [] if change.after is True else [shlex.quote(shown(x)) for x in listed]
                words = [f"--{change.name.removeprefix('--')}", *values]
            return f"{text[:last]} {' '.join(words)}{text[last:]}"
    return None


def option_places(text: str, name: str, bare: bool = False) -> Iterator[tuple[int, int, str]]:
    """Yield where an option stands with its value, and the value; not in comments.

    Parameters
    ----------
    text : str
        A script or a command line.
    name : str
        With its dashes, or dotted.
    bare : bool
        It has no value: a word behind it is something else.
    """
    spelled = re.sub("[-_]", "[-_]", re.escape(name.lstrip("-")).replace(r"\-", "-"))
    values = rf"{VALUE}(?:{GAP}{VALUE})*" if name.startswith("--") else VALUE
    dashes = "--" if name.startswith("--") else "(?:--)?"
    valued = "()" if bare and name.startswith("--") else rf"(?:(?:=|{GAP})({values}))?"
    pattern = rf"(?<![\w.=-]){dashes}{spelled}{valued}(?![\w.-])"
    for hit in re.finditer(pattern, text):
        line = text[text.rfind("\n", 0, hit.start()) + 1 : hit.start()]
        if not line.lstrip().startswith("#"):
            yield hit.start(), hit.end(), hit[1] or ""


def _without(text: str, first: int, last: int) -> str:
    """Text without a part, and without its line where nothing else is on it."""
    start = text.rfind("\n", 0, first) + 1
    end = text.find("\n", last) if "\n" in text[last:] else len(text)
    before, after = text[start:first], text[last:end].strip()
    if not before.strip() and after == "\\":
        return text[:start] + text[end + 1 :]
    if not before.strip() and not after and text[:start].endswith("\\\n"):
        return text[:start].removesuffix("\\\n").rstrip() + text[end:]
    if not before.strip() and not after:
        return text[:start] + text[end + 1 :]
    if before.strip():
        return text[:first].rstrip(" \t") + text[last:]
    return text[:first] + text[last:].lstrip(" ")


def _revalued(text: str, first: int, last: int, value: str, change: SettingChange) -> str:
    """Text with another value of an option: in its place, or where its variable is set."""
    if not value:
        return text
    listed = change.after if isinstance(change.after, list) else [change.after]
    new = shlex.join(map(shown, listed))
    start = first + text[first:last].rindex(value)
    bare = value.strip("\"'")
    if default := re.fullmatch(DEFAULT, bare):
        offset = start + value.index(bare)
        return text[: offset + default.start(1)] + new + text[offset + default.end(1) :]
    if variable := re.fullmatch(NAME, bare):
        assigned = list(
            re.finditer(
                rf"^[ \t]*(?:(?:export|local|declare|readonly)[ \t]+)?{variable[1]}="
                rf"[\"']?(?:\$\{{\w+:?[-=]([^}}$]*)\}}|([^\s\"';#$]*))(?=[\s\"';#]|$)",
                text,
                re.M,
            )
        )
        if len(assigned) == 1:
            group = 1 if assigned[0][1] is not None else 2
            return text[: assigned[0].start(group)] + new + text[assigned[0].end(group) :]
    return text[:start] + new + text[start + len(value) :]


def edited_toml(text: str, change: SettingChange, near: Sequence[str]) -> str | None:
    """TOML with a change; a new setting goes below the heading of its section."""
    section, _, name = change.name.rpartition(".")
    lines, current, heading = text.splitlines(keepends=True), "", None
    for number, line in enumerate(lines):
        if title := re.match(r"\s*\[([^\[\]]+)\]", line):
            current = title[1].strip()
            heading = number if current == section else heading
        entry = re.match(rf"(\s*[\"']?{re.escape(name)}[\"']?\s*=\s*)", line)
        if entry and current == section:
            rest = "".join(lines[number:])[entry.end() :]
            length = _toml_value(rest)
            if change.after is None:
                rest = rest[length:].partition("\n")[2]
                return "".join(lines[:number]) + rest
            return "".join(lines[:number]) + entry[1] + literal(change.after) + rest[length:]
    if heading is None or change.after is None:
        return None
    lines.insert(heading + 1, f"{name} = {literal(change.after)}\n")
    return "".join(lines)


def _toml_value(text: str) -> int:
    """Number of characters of the value that a text begins with."""
    for end in (hit.start() for hit in re.finditer(r"[ \t]*(#|\r?\n|$)", text)):
        try:
            tomllib.loads(f"value = {text[:end]}")
        except tomllib.TOMLDecodeError:
            continue
        return end
    return len(text)


def edited_document(text: str, change: SettingChange, near: Sequence[str]) -> str | None:
    """YAML or JSON with a change; a new setting goes before the first of its section."""
    try:
        root = yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return None
    if not isinstance(root, yaml.MappingNode):
        return None
    pair = _pair(root, change.name)
    if pair is None:
        return _added(text, root, change, near)
    section, position = pair
    key, value = section.value[position]
    if change.after is not None:
        start, end = value.start_mark.index, value.end_mark.index
        end = start + len(text[start:end].rstrip())
        return text[:start] + _scalar(change, text) + text[end:]
    if not section.flow_style:
        start = text.rfind("\n", 0, key.start_mark.index) + 1
        end = text.find("\n", value.end_mark.index - 1) + 1 or len(text)
        return text[:start] + text[end:]
    start = key.start_mark.index
    if position + 1 < len(section.value):
        return text[:start] + text[section.value[position + 1][0].start_mark.index :]
    start = section.value[position - 1][1].end_mark.index if position else start
    return text[:start] + text[value.end_mark.index :]


def _pair(root: yaml.MappingNode, name: str) -> tuple[yaml.MappingNode, int] | None:
    """Mapping that holds a dotted name, or an option at any depth, and the position in it."""
    if name.startswith("--"):
        names = {name, name[2:], name[2:].replace("-", "_")}
        for section in _sections(root):
            for position, (key, _) in enumerate(section.value):
                if key.value in names:
                    return section, position
        return None
    first, _, rest = name.partition(".")
    for position, (key, value) in enumerate(root.value):
        if key.value == first:
            if not rest:
                return root, position
            return _pair(value, rest) if isinstance(value, yaml.MappingNode) else None
    return None


def _sections(root: yaml.MappingNode) -> Iterator[yaml.MappingNode]:
    yield root
    for _, value in root.value:
        if isinstance(value, yaml.MappingNode):
            yield from _sections(value)


def _added(
    text: str, root: yaml.MappingNode, change: SettingChange, near: Sequence[str]
) -> str | None:
    """Text with a setting that was not there."""
    name, value = change.name, change.after
    if value is None:
        return None
    if name.startswith("--"):
        options = (other for other in near if other.startswith("--"))
        place = next((pair for other in options if (pair := _pair(root, other))), None)
        if place is None:
            return None
        section = place[0]
        sibling = section.value[place[1]][0]
        word = name if sibling.value.startswith("--") else name[2:].replace("-", "_")
    else:
        path, section = name.split("."), root
        while len(path) > 1:
            inner = _pair(section, path[0])
            if inner is None or not isinstance(inner[0].value[inner[1]][1], yaml.MappingNode):
                break
            section, path = inner[0].value[inner[1]][1], path[1:]
        if not section.value:
            return None
        for outer in reversed(path[1:]):
            value = {outer: value}
        sibling, word = section.value[0][0], path[0]
    start = sibling.start_mark.index
    line = text[text.rfind("\n", 0, start) + 1 : start]
    quoted = f'"{word}"' if section.flow_style else word
    entry = f"{quoted}: {_scalar(SettingChange(name=name, before=None, after=value), text)}"
    between = f",\n{line}" if section.flow_style and not line.strip() else ", "
    if not section.flow_style:
        between = f"\n{line}"
    return f"{text[:start]}{entry}{between}{text[start:]}"


def _scalar(change: SettingChange, text: str) -> str:
    """Value as JSON has it, which YAML has too, but for bare words and exponents."""
    value = change.after
    if text.lstrip().startswith("{"):
        return literal(value)
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w./-]*", value):
        return value
    written = literal(value)
    return re.sub(r"^(-?\d+)e", r"\1.0e", written) if isinstance(value, float) else written


def edited_module(text: str, change: SettingChange, near: Sequence[str]) -> str | None:
    """Python module with a change of a keyword argument of a section's configuration."""
    section, _, name = change.name.rpartition(".")
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    policy = {"none": None, "selective": "SelectiveAC", "full": "FullAC"}
    written = literal(change.after, python=True)
    if not section and change.after not in policy:
        written = f"{change.after}.Config()"
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        for keyword in call.keywords:
            inner = keyword.value
            if not section and keyword.arg == name:
                return _replaced(text, inner, written)
            if keyword.arg != section or not isinstance(inner, ast.Call):
                continue
            for field in inner.keywords:
                if field.arg == name and change.after is None:
                    return re.sub(r"\s*\w+=\0,?", "", _replaced(text, field.value, "\0"))
                if field.arg == name:
                    return _replaced(text, field.value, written)
            if change.after is None:
                return None
            place = _offset(text, inner.func.end_lineno or 1, inner.func.end_col_offset or 0)
            comma = ", " if inner.keywords or inner.args else ""
            return f"{text[: place + 1]}{name}={written}{comma}{text[place + 1 :]}"
    return None


def _offset(text: str, line: int, column: int) -> int:
    """Number of characters before a place of `ast`, whose columns are bytes of UTF-8."""
    lines = text.splitlines(keepends=True)
    return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())


def _replaced(text: str, node: ast.expr, written: str) -> str:
    start = _offset(text, node.lineno, node.col_offset)
    end = _offset(text, node.end_lineno or 1, node.end_col_offset or 0)
    return text[:start] + written + text[end:]
