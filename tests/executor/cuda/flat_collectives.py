"""Collectives of a library, as NCCL documents them: flat arrays, blocks one by one."""

from collections.abc import Callable, Sequence

import numpy as np

from millrace.executor.kernels.context import Array
from tests.executor.cuda.emulation.machine import to_stored, to_wide

REDUCTIONS = {"sum": np.add, "max": np.maximum}


def reduce_terms(terms: Sequence[Array], reduction: str, dtype: str) -> Array:
    """Sum of some terms in their order (or the largest of them), as it is stored."""
    total = terms[0]
    for term in terms[1:]:
        if dtype == "int32":
            total = REDUCTIONS[reduction](total, term)
        else:
            wide = REDUCTIONS[reduction](to_wide(total, dtype), to_wide(term, dtype))
            total = to_stored(wide, dtype)
    return total


def _all_reduce(sends: Sequence[Array], reduction: str, dtype: str) -> list[Array]:
    return [reduce_terms(sends, reduction, dtype)] * len(sends)


def _reduce_scatter(sends: Sequence[Array], reduction: str, dtype: str) -> list[Array]:
    return np.split(reduce_terms(sends, reduction, dtype), len(sends))


def _all_gather(sends: Sequence[Array], reduction: str, dtype: str) -> list[Array]:
    return [np.concatenate(sends)] * len(sends)


def _all_to_all(sends: Sequence[Array], reduction: str, dtype: str) -> list[Array]:
    blocks = [np.split(send, len(sends)) for send in sends]
    return [np.concatenate([cut[member] for cut in blocks]) for member in range(len(sends))]


def _rotate(sends: Sequence[Array], reduction: str, dtype: str) -> list[Array]:
    return [sends[member - 1] for member in range(len(sends))]


FLAT: dict[str, Callable[[Sequence[Array], str, str], list[Array]]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "rotate": _rotate,
}
