"""Forms of ops: labels without their names, so that equal work has one table in every model.

A measured device may have a table for a form (`matmul/a b, b c -> a c`) beside that of the kind
(`matmul`). Labels that lie side by side wherever they appear count as one, as their sizes do.
"""

from collections.abc import Mapping
from functools import lru_cache

from millrace.models.labels import parse
from millrace.models.spec import base_source


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
    rows = [tuple(label for dim in operand for label in dim) for operand in expression.operands]
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
