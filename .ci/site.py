"""Build the documentation site without a network, and check every page that was built.

A page loads nothing from another host, its links and anchors lead somewhere, and it holds the
headings, lists, tables and blocks that a code host shows of the same Markdown.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from posixpath import dirname, join, normpath
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

ROOT = Path(__file__).resolve().parent.parent
LOADED = {"href", "src", "srcset", "data", "poster"}
BLOCKS = {"h1", "h2", "h3", "h4", "h5", "ul", "ol", "li", "blockquote", "pre", "table", "tr"}
# An address in what a page runs or is drawn with; the namespaces of SVG are names, not addresses.
ADDRESS = re.compile(r"""(?:url\(|@import|import\(|\bsrc\s*=)\s*["']?(?:https?:)?//[^\s"')]+""")


class BuiltPage(HTMLParser):
    """A page as the reader's browser takes it: what it loads and links to, its ids and blocks."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.strange: list[str] = []
        self.blocks: Counter[str] = Counter()
        self.inside = False
        self.feed(text)
        self.strange += ADDRESS.findall(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of one element."""
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        self.inside = self.inside or tag == "article"
        self.blocks[tag] += self.inside and tag in BLOCKS
        if "mermaid" in values.get("class", "").split():
            self.strange.append("a mermaid block: the theme loads its program from another host")
        for name in LOADED & set(values):
            target = urlsplit(values[name])
            if not target.scheme and not target.netloc:
                self.links.append(values[name])
            elif tag != "a" and target.scheme != "data":
                self.strange.append(f"<{tag} {name}={values[name]}>")

    def handle_endtag(self, tag: str) -> None:
        """Leave the page's own text at its end."""
        self.inside = self.inside and tag != "article"


def problems(site: Path) -> Iterator[str]:
    """Yield, with its page, everything about the built site that a reader would stumble over."""
    pages = {
        path.relative_to(site).as_posix(): BuiltPage(path.read_text())
        for path in sorted(site.rglob("*.html"))
    }
    for name, page in pages.items():
        yield from (f"{name} needs another host: {said}" for said in page.strange)
        for link in page.links:
            target = urlsplit(link)
            path = unquote(target.path)
            place = normpath(join("" if path[:1] == "/" else dirname(name), path.lstrip("/")))
            place = name if not path else place
            file = site / place
            file = file / "index.html" if file.is_dir() else file
            if not file.is_file():
                yield f"{name} links to {link}: no such file"
            elif target.fragment and file.suffix == ".html":
                there = pages[file.relative_to(site).as_posix()].ids
                if unquote(target.fragment) not in there:
                    yield f"{name} links to {link}: no such anchor"
    for style in sorted(site.rglob("*.css")):
        addresses = ADDRESS.findall(style.read_text())
        yield from (f"{style.relative_to(site)} needs another host: {said}" for said in addresses)
    for name, page in pages.items():
        source = ROOT / (
            "README.md" if name == "index.html" else f"{name.removesuffix('.html')}.md"
        )
        if source.is_file() and "\n::: " not in source.read_text():
            yield from (f"{name}: {said}" for said in differences(source.read_text(), page.blocks))


def differences(text: str, built: Counter[str]) -> Iterator[str]:
    """Yield the kinds of blocks of which a page has more or fewer than its Markdown."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    written = Counter(
        "pre" if token.type in ("fence", "code_block") else token.tag
        for token in tokens
        if token.nesting >= 0 and not token.hidden
    )
    for tag in sorted(BLOCKS):
        if written[tag] != built[tag]:
            yield (
                f"{built[tag]} <{tag}>, on a code host {written[tag]}: leave a line free before"
                " each list, table and block"
            )


def offline(event: str, _: tuple[object, ...]) -> None:
    """Refuse every connection of this process."""
    if event in ("socket.connect", "socket.getaddrinfo"):
        raise OSError("the site is built without a network")


def main() -> None:
    """Build into a folder that is given, or into one that is thrown away."""
    sys.addaudithook(offline)
    with TemporaryDirectory() as scratch:
        site = Path(sys.argv[1] if len(sys.argv) > 1 else scratch).resolve()
        try:
            build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(site)))
        except Abort as error:
            sys.exit(str(error))
        faults = list(problems(site))
        if faults:
            sys.exit("\n".join(faults))
        print(f"{sum(1 for _ in site.rglob('*.html'))} pages, built and read without a network")


if __name__ == "__main__":
    main()
