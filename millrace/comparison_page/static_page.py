"""Static page: the shell of every HTML page of Millrace, one document with its style, legends."""

from collections.abc import Iterable, Mapping
from html import escape

from millrace.palette import style_sheet

STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1180px;
       color: var(--ink); background: var(--paper); padding: 0 1rem; }
h1 { font-size: 1.35rem; margin: 0 0 .3rem; } h2 { font-size: 1.05rem; margin: 1.8rem 0 .4rem; }
p { margin: .3rem 0; } .key { display: inline-block; margin-right: 1.1rem; }
.key i { display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .9rem .15rem 0; text-align: right; border-bottom: 1px solid var(--grid); }
th:first-child, td:first-child { text-align: left; } td code { font-size: 12.5px; }
svg { display: block; width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: var(--ink); }
footer { margin-top: 2rem; color: var(--soft); font-size: 12px; }
"""


def document(title: str, parts: Iterable[str], style: str = "", head: str = "") -> str:
    """Self-contained HTML page.

    Parameters
    ----------
    title : str
        Plain text, escaped here.
    parts : iterable of str
        HTML of the body, piece by piece.
    style : str
        CSS that is added to that of all pages.
    head : str
        HTML that is added to the head.
    """
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{head}'
        f"<title>{escape(title)}</title><style>{style_sheet()}{STYLE}{style}</style></head>\n<body>\n{body}\n"
        f"</body></html>\n"
    )


def legend(hues: Mapping[str, str]) -> str:
    """Paragraph that says what each hue of `millrace/palette.py` means."""
    keys = "".join(
        f'<span class="key"><i style="background:var(--{hue})"></i>{escape(what)}</span>'
        for what, hue in hues.items()
    )
    return f"<p>{keys}</p>"
