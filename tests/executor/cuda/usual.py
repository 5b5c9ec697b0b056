"""Cases that are run unless all are asked for (`pytest -m exhaustive`).

Kernels are templates over dtypes, and whoever cuts a label does not know the dtype: so an example
meets every width of packs, every cut and both kinds of 16 bits, but not every pair of these.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from tests.executor.examples.example import Example

NARROW = ("bfloat16", "float16")  # as wide as each other


def enumerate_by_kind(examples: Iterable[Example]) -> Iterator[tuple[int, Example]]:
    """Examples, each with its number among those of its kind."""
    seen: Counter[str] = Counter()
    for example in examples:
        yield seen[example.kind], example
        seen[example.kind] += 1


def params(cases: Iterable[Any], usual: Callable[[Any], bool]) -> list[ParameterSet]:
    """Cases as values of a parameter, those marked that are not usual."""
    return [
        pytest.param(case, marks=() if usual(case) else pytest.mark.exhaustive) for case in cases
    ]


def runs_exhaustive(request: pytest.FixtureRequest) -> bool:
    """True where tests of the module that are not usual will be run."""
    return any(
        item.path == request.path and item.get_closest_marker("exhaustive")
        for item in request.session.items
    )
