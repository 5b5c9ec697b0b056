"""Comparison calls: what is larger, what is both, and which ids an input is taken not to hold.

A comparison of computed numbers is 1 where it holds and 0 elsewhere. A comparison of the ids of an
input with one id is worked out now: padding, or a place for an image, that samples do not hold.
"""

from typing import Any

from millrace.models.importers.torch_export.algebra import scaled
from millrace.models.importers.torch_export.calls.elementwise_calls import (
    added,
    floating,
    multiplied,
    shifted,
)
from millrace.models.importers.torch_export.draft import Array, pointwise
from millrace.models.importers.torch_export.program_reader import (
    Arguments,
    Handler,
    ProgramReader,
    UnsupportedCallError,
)


def _equal(outcome: bool) -> Handler:
    """Handler of an input's ids compared with one that samples are taken not to hold."""

    def draft(reader: ProgramReader, a: Arguments) -> Any:
        import torch

        ids, number = a["self"], reader.number(a["other"])
        if not isinstance(ids, Array) or ids.tensor.kind != "input" or not ids.tensor.integer:
            raise UnsupportedCallError("it compares what is computed for equality")
        if number is None:
            raise UnsupportedCallError("it compares ids with others than one number")
        reader.absent_ids.setdefault(ids.tensor.name, {}).setdefault(
            int(number), reader.draft.where
        )
        return torch.full(ids.shape, outcome)

    return draft


def _in_range(reader: ProgramReader, ids: Array, a: Arguments, name: str) -> Any:
    """Ids compared with a bound: they are 0 or more, and below it where that is asked."""
    import torch

    bound = reader.number(a["other"])
    if ids.tensor.kind != "input" or bound is None:
        raise UnsupportedCallError("it computes with the ids of an input")
    if name == "ge" and bound <= 0:
        return torch.full(ids.shape, True)
    if name == "lt" and bound > 0:
        values = int(ids.tensor.attributes.get("values", bound))
        ids.tensor.attributes["values"] = min(values, int(bound))
        return torch.full(ids.shape, True)
    raise UnsupportedCallError("it compares ids with a bound that some reach")


def _larger(name: str) -> Handler:
    """Handler of gt, lt, ge or le: 1 where it holds."""

    def draft(reader: ProgramReader, a: Arguments) -> Any:
        left, right = a["self"], a["other"]
        if isinstance(left, Array) and left.tensor.integer:
            return _in_range(reader, left, a, name)
        above = name in ("gt", "le")  # le: not gt
        first, second = (left, right) if above else (right, left)
        difference = added(reader, first, second, -1.0)
        outcome = pointwise(reader.draft, "is_positive", difference)
        return _negated(reader, outcome) if name in ("ge", "le") else outcome

    return draft


def _negated(reader: ProgramReader, outcome: Array) -> Array:
    return shifted(reader.draft, scaled(reader.draft, outcome, -1.0), 1.0)


def _not(reader: ProgramReader, a: Arguments) -> Array:
    return _negated(reader, floating(a["self"]))


def _both(reader: ProgramReader, a: Arguments) -> Array:
    left, right = (x if isinstance(x, Array) else x.float() for x in (a["self"], a["other"]))
    return multiplied(reader, left, right)


def _extreme(sign: float) -> Handler:
    """Handler of the larger (1) or smaller (-1) of two arrays: one, and the other's excess."""

    def draft(reader: ProgramReader, a: Arguments) -> Array:
        if "other" not in a:
            raise UnsupportedCallError("it looks for the largest along a dim")
        left, right = a["self"], a["other"]
        for operand, other in ((left, right), (right, left)):
            number = reader.number(other)
            if number is not None and isinstance(operand, Array):
                bounds = {"low": number, "high": 3.0e38} if sign > 0 else {
                    "low": -3.0e38, "high": number,
                }  # fmt: skip
                return pointwise(reader.draft, "clip", floating(operand), bounds)
        beyond = scaled(reader.draft, added(reader, left, right, -1.0), sign)
        over = pointwise(reader.draft, "relu", beyond)
        return added(reader, right, over, sign)

    return draft


def _triangle(reader: ProgramReader, a: Arguments, lower: bool) -> Array:
    """The values of the last two dims on one side of a diagonal, zeros on the other."""
    import torch

    array = floating(a["self"])
    ones = torch.ones(array.shape[-2:])
    diagonal = int(a["diagonal"])
    return multiplied(reader, array, ones.tril(diagonal) if lower else ones.triu(diagonal))


HANDLERS: dict[str, Handler] = {
    "eq": _equal(False),
    "ne": _equal(True),
    **{name: _larger(name) for name in ("gt", "lt", "ge", "le")},
    **dict.fromkeys(("bitwise_not", "logical_not"), _not),
    **dict.fromkeys(("bitwise_and", "logical_and", "__and__"), _both),
    **dict.fromkeys(("max", "maximum"), _extreme(1.0)),
    **dict.fromkeys(("min", "minimum"), _extreme(-1.0)),
    "tril": lambda reader, a: _triangle(reader, a, lower=True),
    "triu": lambda reader, a: _triangle(reader, a, lower=False),
}
