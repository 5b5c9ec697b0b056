"""The page's script, style and data as text inside it, and the policy that shuts all else out."""

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import Any

import msgspec

# In this order they are one script: each uses names of those before it.
SCRIPTS = (
    "columns.js",
    "view.js",
    "timelines.js",
    "memory.js",
    "gestures.js",
    "scatter.js",
    "actors.js",
)
DATA_ID = "comparison-data"


def style() -> str:
    """CSS of the comparison page, which follows that of all pages."""
    return _text("page.css")


def script() -> str:
    """Script of the page: the files of `browser/`, in one function of their own."""
    return f'(() => {{\n"use strict";\n{"".join(map(_text, SCRIPTS))}}})();\n'


def _text(name: str) -> str:
    return files("millrace.comparison_page").joinpath("browser", name).read_text("utf-8")


def policy(script_text: str) -> str:
    """Content security policy, as a tag of the head: this one script and the page's own styles.

    Nothing may be loaded, sent or framed, and no handler in the page's text runs.
    """
    digest = b64encode(sha256(script_text.encode()).digest()).decode()
    return (
        '<meta http-equiv="Content-Security-Policy" content="'
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
    )


def data_block(data: Any) -> str:
    """Data as JSON in a block that no browser runs; no text in it can end the block."""
    text = msgspec.json.encode(data).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{DATA_ID}">{text}</script>'


def script_block(script_text: str) -> str:
    """Script as a block of the page."""
    return f"<script>{script_text}</script>"
