"""Cases that are run unless all are asked for (`pytest -m exhaustive`).

Kernels are templates over dtypes, and whoever cuts a label does not know the dtype: so an example
meets every width of packs, every cut and both kinds of 16 bits, but not every pair of these.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from tests.executor.examples.example import Example

NARROW = ("bfloat16", "float16")  # as wide as each other


def enumerate_by_kind(examples: Iterable[Example]) -> Iterator[tuple[int, Example]]:
    """Examples, each with its number among those of its kind."""
    seen: Counter[str] = Counter()
    for example in examples:
        yield seen[example.kind], example
        seen[example.kind] += 1


def runs_exhaustive(request: pytest.FixtureRequest) -> bool:
    """True where tests of the module that are not usual will be run."""
    return any(
        item.path == request.path and item.get_closest_marker("exhaustive")
        for item in request.session.items
    )
