"""The picture of the README, drawn as SVG for light and for dark pages.

Its pipelines are real orders: 1F1B of `millrace.planner.schedules` over four stages, played once
with even durations and once with uneven ones. `python -m benchmarks.quality.printed` writes the two
files.

Shapes: x and y in pixels from the upper left corner of a canvas of `WIDTH` × `HEIGHT`.
"""

from collections.abc import Iterator
from html import escape
from math import sin

from millrace.palette import DARK, HUES, LIGHT, Theme, tint
from millrace.planner.schedules import schedule_order

WIDTH, HEIGHT = 880, 470
STAGES, MICROBATCHES = 4, 6
STAGE_HUES = ("blue", "green", "orange", "purple")


def _colours(theme: Theme, forward: str, wait: str) -> dict[str, str]:
    return {
        "ink": theme.ink,
        "soft": theme.soft,
        "line": theme.rule,
        "card": theme.card,
        "edge": theme.grid,
        "forward": forward,
        "backward": tint(forward, 0.45, theme.paper),
        "wait": wait,
        "stages": " ".join(HUES[hue] for hue in STAGE_HUES),
    }


ALTERNATIVE = (
    "A graph is searched for a plan; the plan is compiled to actors with registers and queues; "
    "these run on simulated time and on real devices, and the two traces are compared."
)


def picture(dark: bool) -> str:
    """SVG of the way from a model to the comparison of prediction and run."""
    light = _colours(LIGHT, HUES["blue"], LIGHT.lines[1])
    colours = _colours(DARK, HUES["sky"], HUES["orange"]) if dark else light
    parts = [
        *_card(10, 10, 246, 190, "Graph", "what is computed", colours),
        *_graph(10, 10, colours),
        *_card(317, 10, 246, 190, "Plan", "who computes what", colours),
        *_plan(317, 10, colours),
        *_card(624, 10, 246, 190, "ActorGraph", "in which order and memory", colours),
        *_actors(624, 10, colours),
        *_arrow(((256, 105), (317, 105)), colours),
        *_arrow(((563, 105), (624, 105)), colours),
        *_arrow(((747, 200), (747, 224), (160, 224), (160, 250)), colours),
        *_arrow(((450, 224), (450, 250)), colours),
        _label(285, 96, "search", colours),
        _label(592, 96, "compile", colours),
        _label(150, 240, "simulate", colours, anchor="end"),
        _label(460, 240, "execute", colours, anchor="start"),
        *_card(10, 250, 283, 210, "Trace", "on simulated time", colours),
        *_timeline(26, 322, 250, 0.0, colours),
        *_card(310, 250, 283, 210, "Trace", "on real devices", colours),
        *_timeline(326, 322, 250, 0.35, colours),
        *_arrow(((593, 355), (625, 355)), colours),
        *_card(625, 250, 245, 210, "compare", "actor by actor", colours),
        *_comparison(641, 322, colours),
    ]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">\n'
        f"<title>{escape(ALTERNATIVE)}</title>\n{body}\n</svg>\n"
    )


def _text(
    x: float, y: float, text: str, size: int, fill: str, *, anchor: str = "start", style: str = ""
) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"'
        f"{style}>{escape(text)}</text>"
    )


def _rect(
    x: float,
    y: float,
    width: float,
    height: float,
    fill: str,
    *,
    radius: float = 2,
    style: str = "",
) -> str:
    return (
        f'<rect x="{x:.4g}" y="{y:.4g}" width="{width:.4g}" height="{height:.4g}" rx="{radius}" '
        f'fill="{fill}"{style}/>'
    )


def _card(
    x: int, y: int, width: int, height: int, title: str, meaning: str, colours: dict[str, str]
) -> Iterator[str]:
    """Yield a frame with its title and what it holds."""
    edge = f' stroke="{colours["edge"]}"'
    yield _rect(x, y, width, height, colours["card"], radius=8, style=edge)
    yield _text(x + 16, y + 30, title, 19, colours["ink"], style=' font-weight="600"')
    yield _text(x + 16, y + 51, meaning, 15, colours["soft"])


def _arrow(points: tuple[tuple[int, int], ...], colours: dict[str, str]) -> Iterator[str]:
    """Yield a line through points that ends in a head."""
    (_, y0), (x1, y1) = points[-2:]
    path = " ".join(f"{x},{y}" for x, y in points)
    stroke = f'fill="none" stroke="{colours["line"]}" stroke-width="2"'
    yield f'<polyline points="{path}" {stroke}/>'
    right = y0 == y1
    head = ((x1 - 8, y1 - 5), (x1, y1), (x1 - 8, y1 + 5))
    if not right:
        head = ((x1 - 5, y1 - 8), (x1, y1), (x1 + 5, y1 - 8))
    yield f'<polyline points="{" ".join(f"{x},{y}" for x, y in head)}" {stroke}/>'


def _label(x: int, y: int, text: str, colours: dict[str, str], *, anchor: str = "middle") -> str:
    """Name of a verb beside its arrow."""
    return _text(x, y, text, 14, colours["ink"], anchor=anchor, style=' font-style="italic"')


def _graph(x: int, y: int, colours: dict[str, str]) -> Iterator[str]:
    """Yield ops and the tensors between them, and the labels of one."""
    ops = ((28, 98), (78, 78), (78, 118), (128, 98), (178, 78), (178, 118), (228, 98))
    tensors = ((0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 6), (5, 6), (0, 3))
    for start, end in tensors:
        (x0, y0), (x1, y1) = ops[start], ops[end]
        yield (
            f'<line x1="{x + x0}" y1="{y + y0}" x2="{x + x1}" y2="{y + y1}" '
            f'stroke="{colours["line"]}" stroke-width="2"/>'
        )
    for op_x, op_y in ops:
        yield (
            f'<circle cx="{x + op_x}" cy="{y + op_y}" r="10" fill="{colours["forward"]}" '
            f'stroke="{colours["card"]}" stroke-width="3"/>'
        )
    mono = ' font-family="ui-monospace, SFMono-Regular, Menlo, monospace"'
    yield _text(x + 16, y + 160, "matmul", 14, colours["soft"])
    yield _text(x + 16, y + 179, "b t k, k n → b t n", 14, colours["ink"], style=mono)


def _plan(x: int, y: int, colours: dict[str, str]) -> Iterator[str]:
    """Yield devices by stage, and how a tensor lies on them."""
    for stage, colour in enumerate(colours["stages"].split()):
        for device in range(4):
            column, row = divmod(device, 2)
            yield _rect(
                x + 16 + 56 * stage + 24 * column, y + 68 + 24 * row, 21, 21, colour, radius=3
            )
        middle = x + 39 + 56 * stage
        yield _text(middle, y + 134, f"stage {stage}", 13, colours["soft"], anchor="middle")
    mono = ' font-family="ui-monospace, SFMono-Regular, Menlo, monospace"'
    yield _text(x + 16, y + 160, "how its tensors lie there", 14, colours["soft"])
    for place, sbp in ((16, "S(0)"), (76, "B"), (110, "P(sum)")):
        yield _text(x + place, y + 179, sbp, 14, colours["ink"], style=mono)


def _actors(x: int, y: int, colours: dict[str, str]) -> Iterator[str]:
    """Yield two actors with the slots of the register between them, and their queues."""
    edge = f' stroke="{colours["line"]}" stroke-width="1.5"'
    for place, name in ((14, "matmul"), (152, "all_reduce")):
        yield _rect(x + place, y + 68, 80, 32, "none", radius=6, style=edge)
        yield _text(x + place + 40, y + 89, name, 14, colours["ink"], anchor="middle")
    for slot, fill in enumerate((colours["forward"], "none")):
        yield _rect(x + 103 + 22 * slot, y + 75, 18, 18, fill, radius=3, style=edge)
    yield _text(x + 123, y + 117, "register, 2 slots", 13, colours["soft"], anchor="middle")
    for row, (queue, order) in enumerate((("compute", "FFFBFBFBBB"), ("network", "  f f f ff"))):
        top = y + 134 + 26 * row
        yield _text(x + 16, top + 13, queue, 14, colours["soft"])
        for place, slot in enumerate(order):
            if slot != " ":
                fill = colours["forward" if slot == "F" else "wait" if slot == "f" else "backward"]
                yield _rect(x + 86 + 14.8 * place, top, 13, 17, fill)


def _played(unevenness: float) -> list[tuple[int, str, float, float]]:
    """Stage, part, start and end of every slot of 1F1B, in units of a forward pass."""
    ends: dict[tuple[int, int, str], float] = {}
    orders = [
        list(schedule_order("1f1b", stage=s, stages=STAGES, chunks=1, microbatches=MICROBATCHES))
        for s in range(STAGES)
    ]
    free = [0.0] * STAGES
    played: list[tuple[int, str, float, float]] = []
    while any(orders):
        for stage, order in enumerate(orders):
            while order:
                slot = order[0]
                part = "F" if slot.part == "F" else "B"
                before = (stage - 1, slot.microbatch, "F") if part == "F" else None
                if part == "B" and stage < STAGES - 1:
                    before = (stage + 1, slot.microbatch, "B")
                if before is not None and before[0] >= 0 and before not in ends:
                    break
                start = max(free[stage], ends.get(before, 0.0) if before else 0.0)
                longer = 1 + unevenness * abs(sin(7.0 * stage + 3.1 * slot.microbatch + len(part)))
                end = start + (1.0 if part == "F" else 2.0) * longer
                ends[stage, slot.microbatch, part] = free[stage] = end
                played.append((stage, part, start, end))
                order.pop(0)
    return played


def _timeline(
    x: int, y: int, width: int, unevenness: float, colours: dict[str, str]
) -> Iterator[str]:
    """Yield a lane for every stage; forward passes dark, backward passes light."""
    last = max(end for *_, end in _played(0.35))
    for stage, part, start, end in _played(unevenness):
        fill = colours["forward" if part == "F" else "backward"]
        scale = width / last
        yield _rect(x + start * scale, y + 31 * stage, (end - start) * scale - 1.2, 25, fill)


def _comparison(x: int, y: int, colours: dict[str, str]) -> Iterator[str]:
    """Yield predicted and measured time of a few causes, a bar each."""
    rows = (("matmul", 92, 97), ("attention", 55, 63), ("all_reduce", 34, 41), ("idle", 18, 26))
    yield _text(x + 213, y - 44, "predicted", 14, colours["forward"], anchor="end")
    yield _text(x + 213, y - 26, "measured", 14, colours["wait"], anchor="end")
    for row, (cause, predicted, measured) in enumerate(rows):
        top = y + 31 * row
        yield _text(x, top + 17, cause, 14, colours["ink"])
        yield _rect(x + 88, top + 2, predicted * 1.25, 9, colours["forward"])
        yield _rect(x + 88, top + 13, measured * 1.25, 9, colours["wait"])
