"""Lines: everything that is found on a GPU, one JSON document each, written when it is found.

All processes of a slice append to one file, each line by one write, so what was found before a
process was killed is there, whoever was killed. A line holds `run` and `part`, whose it is, `name`
(a fact, a test, an item or a part) and `ok`: true, false, or null where nothing is decided. It may
hold `seconds`, `figures`, `error` and `details`. Lines of one name are one finding, as it grew.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Line = dict[str, Any]
FILE, LOG = "MILLRACE_GPU_LINES", "MILLRACE_GPU_LOG"
RUN, PART = "MILLRACE_GPU_RUN", "MILLRACE_GPU_PART"
DETAILS = 2000  # characters, of what a process said


def lines_file() -> Path:
    """File to which lines go: a new one for this process and its own where none is named."""
    if FILE not in os.environ:
        descriptor, name = tempfile.mkstemp(suffix=".jsonl")
        os.close(descriptor)
        os.environ[FILE] = name
    return Path(os.environ[FILE])


def log_file() -> Path:
    """File to which processes print: that of the lines with another ending, unless named."""
    return Path(os.environ.setdefault(LOG, str(lines_file().with_suffix(".log"))))


def append(name: str, ok: bool | None, **more: object) -> None:
    """Append a line, behind what a process left that was killed while it wrote."""
    line = {
        "run": os.environ.get(RUN, ""),
        "part": os.environ.get(PART, ""),
        "name": name,
        "ok": ok,
    }
    written = (json.dumps(line | more, default=str) + "\n").encode()
    descriptor = os.open(lines_file(), os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        end = os.lseek(descriptor, 0, os.SEEK_END)
        torn = end > 0 and os.pread(descriptor, 1, end - 1) != b"\n"
        os.write(descriptor, b"\n" * torn + written)
    finally:
        os.close(descriptor)


def read(path: Path, start: int = 0) -> list[Line]:
    r"""Lines of a file from a byte on; one that was torn is left out.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "lines.jsonl"
    ...     _ = path.write_text('{"name": "a", "ok": true}\n{"name": "b", "o')
    ...     read(path)
    [{'name': 'a', 'ok': True}]
    """
    lines: list[Line] = []
    if not path.exists():
        return lines
    for text in path.read_bytes()[start:].splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and {"name", "ok"} <= set(line):
            lines.append(line)
    return lines


def folded(lines: Iterable[Mapping[str, Any]]) -> dict[str, Line]:
    """Lines of each name joined, by name: a later line replaces what an earlier one said.

    Examples
    --------
    >>> growing = [{"name": "a", "ok": None, "figures": {"x": 1}}, {"name": "a", "ok": False}]
    >>> folded(growing)["a"]
    {'name': 'a', 'ok': False, 'figures': {'x': 1}}
    """
    line_by_name: dict[str, Line] = {}
    for line in lines:
        line_by_name[line["name"]] = line_by_name.pop(line["name"], {}) | dict(line)
    return line_by_name
