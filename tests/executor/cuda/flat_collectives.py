"""What a library of collectives does, as NCCL documents it: flat arrays, blocks one by one.

Every function takes what the members send, in order, and returns what each receives. Sums of 16-bit
values are rounded after each member that is added.
"""

from collections.abc import Callable, Sequence

import numpy as np

from millrace.executor.kernels.context import Array
from tests.executor.cuda.emulation.machine import to_stored, to_wide

REDUCTIONS = {"sum": np.add, "max": np.maximum}


def joined(terms: Sequence[Array], reduction: str, dtype: str) -> Array:
    """What is stored of some terms, added up in their order (or the largest of them)."""
    total = terms[0]
    for term in terms[1:]:
        if dtype == "int32":
            total = REDUCTIONS[reduction](total, term)
        else:
            wide = REDUCTIONS[reduction](to_wide(total, dtype), to_wide(term, dtype))
            total = to_stored(wide, dtype)
    return total


def _all_reduce(sends: Sequence[Array], reduction: str, dtype: str) -> list[Array]:
    return [joined(sends, reduction, dtype)] * len(sends)


def _reduce_scatter(sends: Sequence[Array], reduction: str, dtype: str) -> list[Array]:
    return np.split(joined(sends, reduction, dtype), len(sends))


def _all_gather(sends: Sequence[Array], reduction: str, dtype: str) -> list[Array]:
    return [np.concatenate(sends)] * len(sends)


def _all_to_all(sends: Sequence[Array], reduction: str, dtype: str) -> list[Array]:
    blocks = [np.split(send, len(sends)) for send in sends]
    return [np.concatenate([cut[at] for cut in blocks]) for at in range(len(sends))]


def _rotate(sends: Sequence[Array], reduction: str, dtype: str) -> list[Array]:
    return [sends[at - 1] for at in range(len(sends))]


FLAT: dict[str, Callable[[Sequence[Array], str, str], list[Array]]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "rotate": _rotate,
}
