"""The one palette of all pictures and pages: hues that few confuse, and light and dark themes.

Hues are those of Okabe and Ito, "Color universal design" (2008), with three dark ones in place of
their black; they are the same in both themes. Tests hold the contrasts of WCAG 2.2 and the
distances for readers who see red, green or blue in another way. No meaning hangs on a colour alone:
cells have labels, lines have markers, areas have names.
"""

from dataclasses import asdict, dataclass

HUES = {
    "blue": "#0072b2",
    "sky": "#56b4e9",
    "green": "#009e73",
    "yellow": "#f0e442",
    "orange": "#e69f00",
    "vermillion": "#d55e00",
    "purple": "#cc79a7",
    "stone": "#555555",
    "wine": "#6b0f3a",
    "indigo": "#340196",
}

# Names of hues by the phase of an op, in the order of legends.
PHASES = {
    "begin": "stone",
    "forward": "blue",
    "recompute": "sky",
    "backward_input": "orange",
    "backward_weight": "yellow",
    "update": "green",
    "communication": "purple",
}
# Names of hues by kind of memory, from below in stacks: what stays, then what comes and goes.
MEMORY_KINDS = {
    "runtime": "stone",
    "parameter": "blue",
    "optimizer": "sky",
    "gradient": "green",
    "lent": "vermillion",
    "communication": "purple",
    "temporary": "yellow",
    "activation": "orange",
}
MARKERS = ("o", "^", "s", "D", "v", "P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Colours of a page: `paper` under all, `card` under what stands out, text, lines.

    `ink` and `soft` are text, `rule` axes and frames, `grid` fine lines, `mist` time in which
    nothing happens, `alarm` a limit. `lines` are hues that a thin line can have on this paper.
    """

    paper: str
    card: str
    ink: str
    soft: str
    rule: str
    grid: str
    mist: str
    alarm: str
    lines: tuple[str, ...]


LIGHT = Theme(
    paper="#ffffff",
    card="#f6f7f9",
    ink="#1b1b1b",
    soft="#5f6670",
    rule="#868d96",
    grid="#e1e4e8",
    mist="#e6e6e6",
    alarm="#b3261e",
    lines=("#0072b2", "#ba3532", "#42a472", "#b383bd", "#c97a0b", "#222222"),
)
DARK = Theme(
    paper="#14181d",
    card="#1c2229",
    ink="#f0f3f6",
    soft="#a3abb5",
    rule="#737b85",
    grid="#2c333b",
    mist="#333a42",
    alarm="#ff8a80",
    lines=("#56b4e9", "#ef4700", "#3a935c", "#dd709f", "#e6b521", "#f0f3f6"),
)


def style_sheet() -> str:
    """CSS variables of all hues and of the theme that the reader's system asks for.

    `var(--blue)`, `var(--on-blue)` for text on it, `var(--ink)`, `var(--line-0)` and so on.
    """
    fixed = HUES | {f"on-{name}": ink_on(colour) for name, colour in HUES.items()}
    return (
        f":root {{ color-scheme: light dark; {_declared(fixed | theme_colours(LIGHT))} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {_declared(theme_colours(DARK))} }} }}\n"
    )


def theme_colours(theme: Theme) -> dict[str, str]:
    """Colours of a theme by the names of their CSS variables."""
    colours = {name: colour for name, colour in asdict(theme).items() if name != "lines"}
    return colours | {f"line-{place}": colour for place, colour in enumerate(theme.lines)}


def _declared(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


def ink_on(colour: str) -> str:
    """Colour of text on a fill: black or white, whichever has more contrast."""
    return max(("#000000", "#ffffff"), key=lambda ink: contrast(ink, colour))


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.2, "contrast ratio").

    Parameters
    ----------
    first, second : str
        Colours as `#rrggbb`.
    """
    low, high = sorted((_luminance(first), _luminance(second)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    """Relative luminance of a colour (WCAG 2.2)."""
    red, green, blue = linear_rgb(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def linear_rgb(colour: str) -> tuple[float, float, float]:
    """Red, green and blue light of an sRGB colour, each 0 to 1."""
    shares = [int(colour[digit : digit + 2], 16) / 255 for digit in (1, 3, 5)]
    red, green, blue = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares
    )
    return red, green, blue


def tint(colour: str, share: float, paper: str) -> str:
    """Colour mixed with the paper.

    Parameters
    ----------
    colour, paper : str
        Colours as `#rrggbb`.
    share : float
        Share of the colour: 1 leaves it as it is.
    """
    mixed = [
        round(
            share * int(colour[digit : digit + 2], 16)
            + (1 - share) * int(paper[digit : digit + 2], 16)
        )
        for digit in (1, 3, 5)
    ]
    return "#" + "".join(f"{part:02x}" for part in mixed)
