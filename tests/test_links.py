"""Relative links of Markdown files and notebooks lead to files, and headings, that are there."""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from posixpath import dirname, join, normpath
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parent.parent


@cache
def tracked() -> frozenset[str]:
    """The files of the repository and their folders, by path."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    return frozenset(
        path.as_posix() for name in listed for path in (Path(name), *Path(name).parents)
    )


def markdown(page: str) -> str:
    """The text of a Markdown file, or of a notebook's Markdown cells."""
    text = (ROOT / page).read_text()
    if not page.endswith(".ipynb"):
        return text
    cells = (cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")
    return "\n\n".join("".join(cell["source"]) for cell in cells)


def tokens(text: str) -> Iterator[Token]:
    """The blocks of a Markdown text and what stands in them, in order."""
    for block in MarkdownIt("commonmark").enable("table").parse(text):
        yield block
        yield from block.children or ()


def anchors(text: str) -> set[str]:
    """Anchors that code hosts give a page: of its headings, in their order, and by `id`."""
    names, seen = set(), Counter[str]()
    blocks = MarkdownIt("commonmark").enable("table").parse(text)
    for block, inside in pairwise(blocks):
        if block.type == "heading_open":
            words = "".join(part.content for part in inside.children or () if not part.nesting)
            name = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
            names.add(f"{name}-{seen[name]}" if seen[name] else name)
            seen[name] += 1
    html = "".join(token.content for token in tokens(text) if token.type.startswith("html"))
    return names | set(re.findall(r'\b(?:id|name)="([^"]+)"', html))


def targets(text: str) -> Iterator[str]:
    """Targets of links and pictures, in Markdown or in HTML."""
    for token in tokens(text):
        if token.type in ("link_open", "image"):
            yield str(token.attrs.get("href") or token.attrs.get("src"))
        elif token.type.startswith("html"):
            yield from re.findall(r'\b(?:href|src|srcset)="([^"]*)"', token.content)


def broken(page: str) -> Iterator[str]:
    for target in targets(markdown(page)):
        url = urlsplit(target)
        if url.scheme or url.netloc:
            continue
        path = normpath(join(dirname(page), unquote(url.path))) if url.path else page
        if url.path.startswith("/") or path not in tracked():
            yield f"{page}: {target}: no such file"
        elif url.fragment and unquote(url.fragment) not in anchors(markdown(path)):
            yield f"{page}: {target}: no such heading"


def test_every_relative_link_leads_somewhere() -> None:
    pages = sorted(name for name in tracked() if name.endswith((".md", ".ipynb")))
    assert [said for page in pages for said in broken(page)] == []


def test_anchors_are_those_of_code_hosts() -> None:
    text = '# A `b_c` — d, e!\n\n## Twice\n\n## Twice\n\n<a id="here"></a>\n\n```\n# not one\n```\n'
    assert anchors(text) == {"a-b_c--d-e", "twice", "twice-1", "here"}
