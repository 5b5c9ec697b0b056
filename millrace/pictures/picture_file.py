"""A picture and its file: PNG, SVG, PDF or a page, the same bytes for the same picture."""

import re
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

from millrace.comparison_page import document
from millrace.models.documents import FileError, write_bytes
from millrace.palette import HUES, LIGHT, Theme, theme_colours
from millrace.pictures.look import look

FORMS = ("png", "svg", "pdf", "html")
DPI = 150

_STYLE = """
figure { margin: 0; overflow-x: auto; } figure svg { min-width: 720px; }
figure svg text { fill: black; }
figcaption { margin-top: .8rem; color: var(--soft); max-width: 70rem; }
"""


@dataclass(frozen=True, slots=True, repr=False)
class Picture:
    """A drawn figure with its title, and in words what it shows, for those who cannot see it."""

    figure: Any
    title: str
    description: str
    theme: Theme = LIGHT

    def save(self, path: Path) -> None:
        """Write the picture in the form that the file's name ends in.

        Raises
        ------
        FileError
            The name ends otherwise, or the file cannot be written.
        """
        path = Path(path)
        check_drawable(path)
        match form_of(path):
            case "svg":
                written = self.svg().encode()
            case "html":
                written = self.html().encode()
            case form:
                written = self._saved(form)
        write_bytes(path, written)

    def svg(self) -> str:
        """SVG of the picture, its text as text, with title and description."""
        text = self._saved("svg").decode()
        begin = text.index("<svg")
        end = text.index(">", begin)
        named = (
            f' role="img" aria-labelledby="picture-title picture-description">\n'
            f' <title id="picture-title">{escape(self.title)}</title>\n'
            f' <desc id="picture-description">{escape(self.description)}</desc'
        )
        return text[:end] + named + text[end:]

    def html(self) -> str:
        """Page of the picture, which needs nothing else and is light or dark as its reader's."""
        svg = self.svg()
        drawn = _themed(svg[svg.index("<svg") :])
        return document(
            self.title,
            [
                f"<figure>{drawn}",
                f"<figcaption>{escape(self.description)}</figcaption></figure>",
                "<footer>Millrace</footer>",
            ],
            _STYLE,
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
        )

    def __repr__(self) -> str:
        return f"{self.title}\n{self.description}"

    def _repr_svg_(self) -> str:
        return self.svg()

    def _saved(self, form: str) -> bytes:
        metadata: dict[str, dict[str, str | None]] = {
            "svg": {"Date": None, "Creator": "Millrace"},
            "pdf": {"CreationDate": None, "Title": self.title, "Subject": self.description},
            "png": {"Title": self.title, "Description": self.description, "Software": "Millrace"},
        }
        written = BytesIO()
        with look(self.theme):
            self.figure.savefig(written, format=form, dpi=DPI, metadata=metadata[form])
        return written.getvalue()


def form_of(path: Path) -> str:
    """Form that a file's name ends in, in small letters, without the dot."""
    return path.suffix.removeprefix(".").lower()


def check_drawable(path: Path) -> None:
    """Raise FileError where a picture could not be drawn in the form that the file's name ends in.

    To be called before the long work that fills it.
    """
    if form_of(path) not in FORMS:
        raise FileError(f"cannot draw `{path}`: name a file that ends in .{', .'.join(FORMS)}")
    if find_spec("matplotlib") is None:
        raise FileError(
            f"`{path}` is drawn by matplotlib: pip install '.[plot]' in Millrace's checkout"
        )


def _themed(svg: str) -> str:
    """SVG whose colours are the page's variables; labels on fills stay as they are."""
    names = {colour: name for name, colour in reversed(theme_colours(LIGHT).items())}
    names |= {colour: name for name, colour in HUES.items()}

    def themed(match: re.Match[str]) -> str:
        tag = match.group()
        kept_white = tag.startswith("<text")
        for colour, name in names.items():
            if not (kept_white and colour == LIGHT.paper):
                tag = tag.replace(colour, f"var(--{name})")
        return tag

    return re.sub(r"<(?:path|text|g|use|rect|line)\b[^>]*>", themed, svg)
