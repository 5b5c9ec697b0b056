"""Texts that are compared with what was written down; `MILLRACE_UPDATE_GOLDEN=1` writes anew."""

import os
from pathlib import Path


def assert_golden(text: str, path: Path) -> None:
    """Compare a text with a file, or write the file where that is asked for."""
    if os.environ.get("MILLRACE_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
