"""Binding: calls with their operands put in their places, by a function from role to address."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from executor.cuda.calls import (
    Attention,
    AttentionGrad,
    Call,
    Choice,
    Clear,
    Collective,
    Convolution,
    Copy,
    Launch,
    LibraryCall,
    Matrices,
    Operand,
    Product,
    Strided,
)

Place = Callable[[Operand], Operand]
Tensor = TypeVar("Tensor", Strided, Matrices)


def bound(call: Call, place: Place) -> Call:
    """Return the call with every operand replaced by what `place` says of it."""
    match call:
        case Launch():
            args = tuple(place(a) if isinstance(a, Operand) else a for a in call.args)
            return call._replace(args=args)
        case Product():
            return call._replace(
                a=_placed(call.a, place), b=_placed(call.b, place), d=_placed(call.d, place)
            )
        case Clear():
            return call._replace(target=place(call.target))
        case Copy():
            return call._replace(source=place(call.source), target=place(call.target))
        case Collective():
            return call._replace(send=place(call.send), recv=place(call.recv))
        case Attention() | AttentionGrad() | Convolution():
            return bound_library(call, place)
        case Choice():
            return Choice(
                tuple(tuple(bound(one, place) for one in option) for option in call.options)
            )


def bound_library(call: LibraryCall, place: Place) -> LibraryCall:
    """Return a call of the library with every operand replaced by what `place` says of it."""
    fields: dict[str, Any] = {
        name: _placed(value, place)
        for name, value in call._asdict().items()
        if isinstance(value, Strided)
    }
    if isinstance(call, AttentionGrad):
        fields["forward"] = bound_library(call.forward, place)
    return call._replace(**fields)


def _placed(tensor: Tensor, place: Place) -> Tensor:
    return tensor._replace(operand=place(tensor.operand))


def operands_of(call: Call) -> Iterator[Operand]:
    """Yield the operands of a call; of a choice those of every option."""
    match call:
        case Launch():
            yield from (a for a in call.args if isinstance(a, Operand))
        case Product():
            yield from (call.a.operand, call.b.operand, call.d.operand)
        case Clear():
            yield call.target
        case Copy():
            yield from (call.source, call.target)
        case Collective():
            yield from (call.send, call.recv)
        case Attention() | AttentionGrad() | Convolution():
            yield from (tensor.operand for tensor in call.tensors)
        case Choice():
            for one in leaves(call):
                yield from operands_of(one)


def leaves(*calls: Call) -> Iterator[Call]:
    """Yield every call that may be carried out: for a choice those of all its options."""
    for call in calls:
        if isinstance(call, Choice):
            for option in call.options:
                yield from leaves(*option)
        else:
            yield call


def last_options(*calls: Call) -> Iterator[Call]:
    """Yield what a device carries out that has no library: for a choice its last option."""
    for call in calls:
        if isinstance(call, Choice):
            yield from last_options(*call.options[-1])
        else:
            yield call
