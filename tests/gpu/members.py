"""Values of every member of a group after a collective, by NumPy, and the bound calls."""

import numpy as np

from millrace.executor.cuda.calls import Collective, Operand
from millrace.executor.kernels.context import Array

ELEMENTS = 1000
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "rotate")


def sent(kind: str, rank: int, members: int) -> Array:
    """Values that a member sends: small whole numbers, whose sums are exact in every dtype."""
    blocks = members if kind in ("reduce_scatter", "all_to_all") else 1
    generator = np.random.default_rng(rank)
    return generator.integers(-8, 8, (blocks, ELEMENTS)).astype(np.float32)


def received(kind: str, rank: int, members: int, reduction: str = "sum") -> Array:
    """Values that a member receives."""
    everyone = [sent(kind, member, members) for member in range(members)]
    join = np.add.reduce if reduction == "sum" else np.maximum.reduce
    match kind:
        case "all_reduce":
            return join(everyone)
        case "all_gather":
            return np.concatenate(everyone)
        case "reduce_scatter":
            return join([values[rank : rank + 1] for values in everyone])
        case "all_to_all":
            return np.stack([values[rank] for values in everyone])
        case "rotate":
            return everyone[(rank - 1) % members]
    return everyone[0]


def collective(kind: str, send: int, recv: int, dtype: str, reduction: str = "sum") -> Collective:
    """The bound call."""
    operands = (Operand("address", 0, send), Operand("address", 0, recv))
    return Collective(kind, *operands, ELEMENTS, dtype, reduction)
