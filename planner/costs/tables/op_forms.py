"""Forms of ops: labels without their names, so that equal work has one table in every model.

A measured device may have a table for a form (`matmul/a b, b c -> a c`) beside that of the kind
(`matmul`). Labels that lie side by side wherever they appear count as one, as their sizes do.
"""

from collections.abc import Mapping
from functools import lru_cache

from millrace.models.labels import BATCH, Expression, parse
from millrace.models.spec import base_source

# Attributes of windows, which the sizes of what goes in and comes out do not tell.
WINDOW = ("size_y", "size_x")


@lru_cache(maxsize=4096)
def op_form(labels: str) -> str:
    """Labels of an op with equal letters for equal forms.

    Parameters
    ----------
    labels : str
        As in `millrace.models.graph.Op`.

    Examples
    --------
    >>> op_form("b t k, k h d -> b t h d")
    'a b, b c -> a c'
    >>> op_form("b n, k n -> b k")
    'a b, c b -> a c'
    >>> op_form("b y x c -> c")
    'a b -> b'
    """
    expression = parse(labels)
    rows = _rows(expression)
    parts = _side_by_side(rows)
    letters: dict[str, str] = {}
    texts = []
    for row in rows:
        names = [label for label in row if parts[label] == label]
        for name in names:
            letters.setdefault(name, _letter(len(letters)))
        texts.append(" ".join(letters[name] for name in names) or "()")
    count = len(expression.inputs)
    return f"{', '.join(texts[:count])} -> {', '.join(texts[count:])}".strip()


def form_table(kind: str, labels: str, attributes: Mapping[str, object]) -> str:
    """Name of the measured table of an op's form.

    What an `input` takes follows from where its data comes from.

    Parameters
    ----------
    kind, labels, attributes : str, str, mapping
        The op, as in `millrace.models.graph.Op`.

    Examples
    --------
    >>> form_table("input", "-> b t", {"source": "tokens"})
    'input/tokens'
    """
    if kind == "input":
        return f"input/{base_source(str(attributes.get('source', '')))[0]}"
    return f"{kind}/{op_form(labels)}"


@lru_cache(maxsize=4096)
def shape_labels(labels: str) -> tuple[tuple[str, ...], ...]:
    """Labels whose sizes tell shapes of one form apart: all but those that lie with the batch.

    Those that lie side by side wherever they appear are one entry. Where there is no batch, the
    first entry of the form is left out; what is left then are rows of one op.

    Parameters
    ----------
    labels : str
        As in `millrace.models.graph.Op`.

    Examples
    --------
    >>> shape_labels("b t k, k h d -> b t h d")
    (('k',), ('h', 'd'))
    >>> shape_labels("b y x c -> c")
    (('c',),)
    >>> shape_labels("k n, k n -> k n")
    ()
    """
    groups: dict[str, list[str]] = {}
    for label, first in _side_by_side(_rows(parse(labels))).items():
        groups.setdefault(first, []).append(label)
    entries = [tuple(group) for group in groups.values()]
    batch = next((entry for entry in entries if BATCH in entry), entries[0] if entries else ())
    return tuple(entry for entry in entries if entry != batch)


def shape_suffix(attributes: Mapping[str, object]) -> str:
    """Suffix of a shape's name: attributes that change what an op of these sizes takes.

    Parameters
    ----------
    attributes : mapping
        Those of the op, as in `millrace.models.graph.Op`.

    Examples
    --------
    >>> shape_suffix({"causal": True, "size_y": 3, "size_x": 3, "op": "layer.2"})
    ' causal size_x 3 size_y 3'
    """
    flags = (name for name, value in attributes.items() if value is True)
    windows = (f"{name} {attributes[name]}" for name in WINDOW if name in attributes)
    return "".join(f" {text}" for text in sorted((*flags, *windows)))


def _rows(expression: Expression) -> list[tuple[str, ...]]:
    """Labels of every operand, in the order of its dims."""
    return [tuple(label for dim in operand for label in dim) for operand in expression.operands]


def _side_by_side(rows: list[tuple[str, ...]]) -> dict[str, str]:
    """First label of the group that each label is in: always together, always in one order."""
    firsts: dict[str, str] = {}
    for label in dict.fromkeys(label for row in rows for label in row):
        before = {_before(row, label) for row in rows if label in row}
        previous = before.pop() if len(before) == 1 else None
        together = previous is not None and all((previous in row) == (label in row) for row in rows)
        firsts[label] = firsts[previous] if together and previous is not None else label
    return firsts


def _before(row: tuple[str, ...], label: str) -> str | None:
    place = row.index(label)
    return row[place - 1] if place else None


def _letter(number: int) -> str:
    """The n-th letter; numbered ones after the last."""
    letter = chr(ord("a") + number % 26)
    return letter if number < 26 else f"{letter}{number // 26}"
