"""The palette can be read, and told apart by readers who see few colours."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from millrace.palette import (
    DARK,
    HUES,
    LIGHT,
    MEMORY_KINDS,
    PHASES,
    contrast,
    ink_on,
    linear_rgb,
    style_sheet,
    tint,
)

ROOT = Path(__file__).resolve().parent.parent.parent
SURFACES = ROOT / "millrace" / "serving" / "browser" / "page.css"
THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])

# Linear RGB as readers without one kind of cone see it (Machado, Oliveira and Fernandes, 2009,
# severity 1).
VISIONS = {
    "trichromacy": np.eye(3),
    "deuteranopia": [
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ],
    "protanopia": [
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ],
    "tritanopia": [
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ],
}
# Oklab (Ottosson, 2020): distances of 0.02 are about the least that can be seen.
LMS = [
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
]
OKLAB = [
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
]
DISTANCE = 0.075


def distance(first: str, second: str, vision: str) -> float:
    """Distance of two colours in Oklab, as a vision has them."""
    rows = []
    for colour in (first, second):
        seen = np.clip(np.asarray(VISIONS[vision]) @ linear_rgb(colour), 0, 1)
        rows.append(np.asarray(OKLAB) @ np.cbrt(np.asarray(LMS) @ seen))
    return float(np.linalg.norm(rows[0] - rows[1]))


def test_contrast_is_that_of_the_guidelines():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


@THEMES
def test_text_has_the_contrast_of_level_aa(theme):
    for under in (theme.paper, theme.card):
        for text in (theme.ink, theme.soft, theme.alarm):
            assert contrast(text, under) >= 4.5
    assert contrast(theme.ink, theme.mist) >= 4.5


@pytest.mark.parametrize("hue", HUES)
def test_labels_on_fills_have_the_contrast_of_level_aa(hue):
    assert contrast(ink_on(HUES[hue]), HUES[hue]) >= 4.5


@THEMES
def test_lines_and_axes_stand_out_from_the_paper(theme):
    for colour in (*theme.lines, theme.rule, theme.alarm):
        assert contrast(colour, theme.paper) >= 3


@pytest.mark.parametrize("vision", VISIONS)
def test_fills_are_told_apart(vision):
    for first, second in combinations(HUES, 2):
        assert distance(HUES[first], HUES[second], vision) >= DISTANCE, (first, second)


@THEMES
@pytest.mark.parametrize("vision", VISIONS)
def test_lines_are_told_apart(theme, vision):
    for first, second in combinations(theme.lines, 2):
        assert distance(first, second, vision) >= DISTANCE


@pytest.mark.parametrize("vision", VISIONS)
def test_idle_time_is_told_from_work(vision):
    """Yellow on light mist is the nearest pair: readers without blue cones see both pale."""
    for theme in (LIGHT, DARK):
        for hue in PHASES.values():
            assert distance(HUES[hue], theme.mist, vision) >= 0.05


def test_roles_have_hues_of_their_own():
    for roles in (PHASES, MEMORY_KINDS):
        assert len(set(roles.values())) == len(roles)
        assert set(roles.values()) <= HUES.keys()


def test_a_tint_lies_between_the_colour_and_the_paper():
    assert tint("#000000", 1, "#ffffff") == "#000000"
    assert tint("#000000", 0.5, "#ffffff") == "#808080"


def test_pages_have_both_themes():
    sheet = style_sheet()
    light, dark = sheet.split("@media")
    assert f"--paper: {LIGHT.paper};" in light
    assert f"--paper: {DARK.paper};" in dark
    assert "--on-yellow: #000000;" in light


def test_no_other_file_of_the_front_door_has_colours_of_its_own():
    """The page of `millrace serve` has surfaces of its own; what is drawn on them has hues."""
    pattern = re.compile(r"""["':\s(](#(?:[0-9a-fA-F]{6}|[0-9a-fA-F]{3}))\b""")
    colours: dict[str, set[str]] = {}
    for form in ("py", "css", "js"):
        for path in (ROOT / "millrace").rglob(f"*.{form}"):
            if path not in (ROOT / "millrace" / "palette.py", SURFACES):
                colours[str(path)] = {text.lower() for text in pattern.findall(path.read_text())}
    assert len(colours) > 50
    inks = {"#111111", "#ffffff"}
    served = {path for path in colours if "serving/browser" in path}
    assert {path for path, texts in colours.items() if texts and path not in served} == set()
    assert all(colours[path] <= {*HUES.values(), *inks} for path in served)
