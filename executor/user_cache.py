"""The user's cache: `$XDG_CACHE_HOME` or `~/.cache`, and `millrace/` in it."""

import os
import pwd
from pathlib import Path


def cache_folder() -> Path:
    """Folder of what is measured, tuned or compiled once, whether or not it can be written to."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not root.is_absolute():  # the specification of it leaves such a value out
        root = Path(os.environ.get("HOME") or _home()) / ".cache"
    return root / "millrace"


def _home() -> str:
    """Home of the user; where there is none, a place in which nothing can be kept."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return os.devnull
