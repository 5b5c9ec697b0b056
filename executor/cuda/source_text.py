"""The text of our CUDA sources: one file and what it includes, as one translation unit."""

import re
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "sources"
_INCLUDE = re.compile(r'^#include "(.+)"$', flags=re.MULTILINE)


@cache
def source_text(stem: str) -> str:
    """Text of `sources/<stem>.cu` with every header in the place of its first use.

    Raises
    ------
    FileNotFoundError
        There is no such file (a bug of ours: stems are written in factories).

    Examples
    --------
    >>> "struct Control" in source_text("optimizer")
    True
    """
    return _joined(f"{stem}.cu", set())


def source_stems() -> tuple[str, ...]:
    """Stems of all sources, in order."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.cu")))


def _joined(name: str, seen: set[str]) -> str:
    """Text of a file with its headers, each once."""

    def included(match: re.Match[str]) -> str:
        if match[1] in seen:
            return ""
        seen.add(match[1])
        return _joined(match[1], seen)

    text = (FOLDER / name).read_text()
    return _INCLUDE.sub(included, text.replace("#pragma once\n", ""))
