"""Binding: calls with their operands put in their places, by a function from role to address."""

from collections.abc import Callable, Iterator
from typing import Any

from executor.cuda.calls import (
    Argument,
    Bucket,
    Call,
    Clear,
    Collective,
    Copy,
    Launch,
    Operand,
    Pointers,
    Product,
)

Place = Callable[[Operand], Operand]


def bound(call: Call, place: Place) -> Call:
    """Return the call with every operand replaced by what `place` says of it."""
    match call:
        case Launch():
            return call._replace(args=tuple(_bound_argument(a, place) for a in call.args))
        case Product():
            placed: dict[str, Any] = {
                name: part._replace(operand=place(part.operand))
                for name, part in call.parts.items()
            }
            return call._replace(**placed)
        case Clear():
            return call._replace(target=place(call.target))
        case Copy():
            return call._replace(source=place(call.source), target=place(call.target))
        case Collective():
            return call._replace(send=place(call.send), recv=place(call.recv))
        case Bucket():
            return Bucket(
                tuple(
                    one._replace(send=place(one.send), recv=place(one.recv))
                    for one in call.collectives
                )
            )


def _bound_argument(argument: Argument, place: Place) -> Argument:
    if isinstance(argument, Pointers):
        return Pointers(tuple(place(operand) for operand in argument.operands))
    return place(argument) if isinstance(argument, Operand) else argument


def operands_of(call: Call) -> Iterator[Operand]:
    """Yield the operands of a call."""
    match call:
        case Launch():
            for argument in call.args:
                if isinstance(argument, Pointers):
                    yield from argument.operands
                elif isinstance(argument, Operand):
                    yield argument
        case Product():
            yield from (part.operand for part in call.parts.values())
        case Clear():
            yield call.target
        case Copy():
            yield from (call.source, call.target)
        case Collective():
            yield from (call.send, call.recv)
        case Bucket():
            for one in call.collectives:
                yield from (one.send, one.recv)
