"""Hooks of the documentation site: what lies where in the repository lies there on the site.

A page keeps its path, so the same relative link is right on a code host and on the site. Source
files and folders that a page links to get pages of their own, found by links and not by search.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any
from urllib.parse import unquote

from markdown_it import MarkdownIt
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from pygments.lexers import find_lexer_class_for_filename

ROOT = Path(__file__).resolve().parent.parent
SHOWN = ("*.md", "benchmarks/*.md", "docs/**/*", "notebooks/*.ipynb", "examples/*")
LINK = re.compile(r'(?:\]\(|^\[[^\]]+\]:\s+|\b(?:href|src|srcset)=")([^\s()"#:]+)', re.MULTILINE)
HREF = re.compile(r'(<a\b[^>]*?\shref=")([^"#:]+)')
PICTURE = re.compile(
    r'<picture>\s*<source\s+media="\(prefers-color-scheme: dark\)"\s+srcset="([^"]+)"\s*/?>\s*'
    r'<img\s+([^>]*?)src="([^"]+)"([^>]*?)/?>\s*</picture>'
)
MARK = re.compile(r"\s*(?:[*+-]|\d+[.)])\s+")
CELL = re.compile(r'<div class="highlight-ipynb[^>]*><pre>(.*?)</pre></div>', re.DOTALL)
JUPYTER = re.compile(  # its styles and programs, and its own buttons with what they copy
    r'<(script|style)\b.*?</\1>|<div class="clipboard-copy-txt".*?</div>'
    r'|<div class="zeroclipboard-container">.*?</clipboard-copy>\s*</div>',
    re.DOTALL,
)


class SourceFile(File):
    """A source file or folder with a page of its own."""

    def is_documentation_page(self) -> bool:
        """Return that it is rendered, whatever its name ends in."""
        return True


def on_config(config: MkDocsConfig) -> None:
    """Write out the patterns of the navigation."""
    config.nav = list(_written_out(config.nav or []))


def _written_out(entries: list[Any]) -> Iterator[Any]:
    for entry in entries:
        if isinstance(entry, dict):
            yield {
                title: list(_written_out(inside)) if isinstance(inside, list) else inside
                for title, inside in entry.items()
            }
        elif "*" in entry:
            yield from sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(entry))
        else:
            yield entry


@event_priority(100)  # before the plugin that tells notebooks by their file
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the theme's files and the repository's, each under its path there."""
    files_by_name = {file.src_uri: file for file in files if file.src_dir != config.docs_dir}
    paths = sorted({path for shown in SHOWN for path in ROOT.glob(shown) if path.is_file()})
    for name in (path.relative_to(ROOT).as_posix() for path in paths):
        files_by_name[name] = (
            _source(name, config)
            if name.endswith(".py")
            else File(name, str(ROOT), config.site_dir, False, inclusion=InclusionLevel.INCLUDED)
        )
    for page in (path for path in paths if path.suffix in (".md", ".ipynb")):
        for target in LINK.findall(page.read_text().replace('\\"', '"')):
            name = normpath(join(dirname(page.relative_to(ROOT).as_posix()), unquote(target)))
            path = ROOT / name
            is_shown = (
                name in files_by_name or name.startswith("..") or (path / "README.md").exists()
            )
            if not is_shown and path.exists():
                files_by_name[name] = _source(name, config)
    return Files(list(files_by_name.values()))


def _source(name: str, config: MkDocsConfig) -> SourceFile:
    """The page of a source file, or of a folder: what its files say they are."""
    path = ROOT / name
    if path.is_dir():
        rows = (
            f"| `{inside.name}{'/' * inside.is_dir()}` | " + _docstring(inside).partition("\n")[0]
            for inside in sorted(path.iterdir())
            if inside.name not in ("__init__.py", "__pycache__")
        )
        body = "\n".join([_docstring(path), "\n| file | what it is |", "|---|---|", *rows])
    else:
        text = path.read_text()
        lexer = find_lexer_class_for_filename(name)
        language = lexer.aliases[0] if lexer else "sh" if text.startswith("#!") else "text"
        body = f"``````{language}\n{text}\n``````"
    page = f"{name}/index.html" if path.is_dir() else f"{name}.html"
    file = SourceFile(name, None, config.site_dir, False, dest_uri=page.lstrip("."))
    file.inclusion = InclusionLevel.NOT_IN_NAV
    head = f"---\ntitle: {name}\nsearch: {{exclude: true}}\nhide: [toc]\n---\n# `{name}`\n\n"
    file.content_string = head + body
    return file


def _docstring(path: Path) -> str:
    """Docstring of a module or a package; empty where it is neither."""
    path = path / "__init__.py" if path.is_dir() else path
    python = path.suffix == ".py" and path.exists()
    return (python and ast.get_docstring(ast.parse(path.read_text()))) or ""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return lists and tables as Python-Markdown reads them, pictures in the palette's colours."""
    lines = markdown.split("\n")
    depth, column = [0] * len(lines), [0] * len(lines)
    apart: set[int] = set()  # lines that need an empty one before them
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        first, end = token.map or (0, 0)
        if token.type == "list_item_open" and (mark := MARK.match(lines[first])):
            for row in range(first + 1, end):
                depth[row] += 1
                column[row] = mark.end()
        elif token.type == "table_open" or (token.type.endswith("list_open") and not token.level):
            apart.add(first)
    moved = (
        "\n" * (row in apart)
        + "    " * depth[row]
        + (line.lstrip() if line[: column[row]].strip() else line[column[row] :])
        for row, line in enumerate(lines)
    )
    both = r'<img \2src="\3#only-light"\4><img \2src="\1#only-dark"\4>'
    return PICTURE.sub(both, "\n".join(moved))


def on_page_content(html: str, page: Page, files: Files, **_: Any) -> str:
    """Return the page with the links of raw HTML and notebooks resolved, in the site's look."""
    if page.file.src_uri.endswith(".ipynb"):
        html = JUPYTER.sub("", html).replace("anchor-link", "headerlink")
        html = CELL.sub(r'<div class="highlight"><pre><code>\1</code></pre></div>', html)

    def resolved(match: re.Match[str]) -> str:
        target = normpath(join(dirname(page.file.src_uri), unquote(match[2])))
        file = files.get_file_from_path(target)
        return match[1] + (file.url_relative_to(page.file) if file else match[2])

    return HREF.sub(resolved, html)
