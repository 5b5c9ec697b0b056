"""Labelling of an op: its index expression is written from the factors of its operands.

Factors that stand together in every operand of an op become one label; `b` and `t` keep their
names, all other labels are local to the op.
"""

from collections.abc import Iterable, Mapping, Sequence

from millrace.models.importers.onnx.values import Dim, Dims, LabelFactor
from millrace.models.labels import BATCH, SEQUENCE, parse

_FIXED = (BATCH, SEQUENCE)
_POOL = ("d", "n", "k", "h", "m", "c", "s", "y", "x", "i", "j", "p", "q", "u", "v", "w", "a", "f")


def labels_of(
    inputs: Sequence[Dims],
    outputs: Sequence[Dims],
    names: Mapping[LabelFactor, str] | None = None,
    whole_factors: Iterable[LabelFactor] = (),
) -> str:
    """Write an index expression for operands of factors."""
    given, not_split = names or {}, set(whole_factors)
    merged = _merged((*inputs, *outputs))
    present = {factor for operand in (*inputs, *outputs) for dim in operand for factor in dim}
    taken = {label for factor, label in given.items() if factor in present}
    taken.update(factor.name for factor in present)
    pool = iter(name for name in (*_POOL, *(f"f{n}" for n in range(99))) if name not in taken)
    chosen = {}
    for operand in (*inputs, *outputs):
        for factor in (f for dim in operand for f in dim if f in merged):
            if factor not in chosen:
                fixed_label = factor.name if factor.name in _FIXED else None
                label = given.get(factor) or fixed_label or next(pool)
                chosen[factor] = label + "!" * any(f in not_split for f in merged[factor])

    def written(operand: Dims) -> str:
        texts = []
        for dim in operand:
            labels = [chosen[factor] for factor in dim if factor in merged]
            texts.append(labels[0] if len(labels) == 1 else f"({' '.join(labels)})")
        return " ".join(texts)

    left = ", ".join(written(operand) for operand in inputs)
    if len(inputs) == 1 and not left:
        left = "()"
    return f"{left} -> {', '.join(written(operand) for operand in outputs)}"


def labels_of_tensor(operand: Dims) -> str:
    """Write the labels of one tensor."""
    return labels_of((), (operand,)).removeprefix(" -> ") or "()"


def restricted(operand: Iterable[Dim], factors: Iterable[LabelFactor]) -> Dims:
    """Dims with only some of their factors; dims that lose all of them go.

    Parameters
    ----------
    operand
        Dims of an operand, as factors.
    factors
        Those that stay.
    """
    allowed = set(factors)
    dims = (tuple(factor for factor in dim if factor in allowed) for dim in operand)
    return tuple(dim for dim in dims if dim)


def apart(operand: Dims) -> Dims:
    """Dims of one factor each, for every factor of the operand."""
    return tuple((factor,) for dim in operand for factor in dim)


def is_underdetermined(labels: str) -> bool:
    """True if shapes alone do not give every label its size (`millrace.models.labels.bind`)."""
    dims = [set(dim) for operand in parse(labels).operands for dim in operand]
    sized_labels: set[str] = set()
    while settled := [dim for dim in dims if len(dim - sized_labels) == 1]:
        sized_labels.update(*settled)
    return any(dim - sized_labels for dim in dims)


def _merged(operands: Sequence[Dims]) -> dict[LabelFactor, Dim]:
    """Factors that stand together wherever they occur, under the first of each group."""
    following: dict[LabelFactor, set[LabelFactor | None]] = {}
    preceding: dict[LabelFactor, set[LabelFactor | None]] = {}
    for operand in operands:
        for dim in operand:
            for before, factor in zip((None, *dim), (*dim, None), strict=True):
                if factor is not None:
                    preceding.setdefault(factor, set()).add(before)
                if before is not None:
                    following.setdefault(before, set()).add(factor)
    groups: dict[LabelFactor, Dim] = {}
    head: dict[LabelFactor, LabelFactor] = {}
    for operand in operands:
        for factor in (f for dim in operand for f in dim):
            if factor in head:
                continue
            (before, *others) = preceding[factor]
            together = before is not None and not others and following[before] == {factor}
            if together and before is not None and not {before.name, factor.name} & set(_FIXED):
                head[factor] = head[before]
                groups[head[before]] += (factor,)
            else:
                head[factor] = factor
                groups[factor] = (factor,)
    return groups
