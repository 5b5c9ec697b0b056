"""Binding: calls with their operands put in their places, by a function from role to address."""

from collections.abc import Callable, Iterator
from typing import Any

from millrace.executor.cuda.calls import (
    Argument,
    Attention,
    AttentionGrad,
    Bucket,
    Call,
    Clear,
    Collective,
    Convolution,
    CopyCall,
    KernelAlternatives,
    Launch,
    LibraryCall,
    Operand,
    Pointers,
    ProductCall,
    Strided,
)

Place = Callable[[Operand], Operand]


def bind(call: Call, place: Place) -> Call:
    """The call with every operand replaced by what `place` returns for it."""
    match call:
        case Launch():
            return call._replace(args=tuple(_bound_argument(a, place) for a in call.args))
        case ProductCall():
            placed: dict[str, Any] = {
                name: part._replace(operand=place(part.operand))
                for name, part in call.parts.items()
            }
            return call._replace(**placed)
        case Clear():
            return call._replace(target=place(call.target))
        case CopyCall():
            return call._replace(source=place(call.source), target=place(call.target))
        case Collective():
            return call._replace(send=place(call.send), recv=place(call.recv))
        case Attention() | AttentionGrad() | Convolution():
            return bound_library(call, place)
        case KernelAlternatives():
            return KernelAlternatives(
                tuple(
                    tuple(bind(option_call, place) for option_call in option)
                    for option in call.options
                )
            )
        case Bucket():
            return Bucket(
                tuple(
                    collective._replace(send=place(collective.send), recv=place(collective.recv))
                    for collective in call.collectives
                )
            )


def bound_library(call: LibraryCall, place: Place) -> LibraryCall:
    """A call of the library with every operand replaced by what `place` returns for it."""
    fields: dict[str, Any] = {
        name: value._replace(operand=place(value.operand))
        for name, value in call._asdict().items()
        if isinstance(value, Strided)
    }
    if isinstance(call, AttentionGrad):
        fields["forward"] = bound_library(call.forward, place)
    return call._replace(**fields)


def _bound_argument(argument: Argument, place: Place) -> Argument:
    if isinstance(argument, Pointers):
        return Pointers(tuple(place(operand) for operand in argument.operands))
    return place(argument) if isinstance(argument, Operand) else argument


def leaves(*calls: Call) -> Iterator[Call]:
    """Yield every call that may be carried out: for a choice those of all its options."""
    for call in calls:
        if isinstance(call, KernelAlternatives):
            for option in call.options:
                yield from leaves(*option)
        else:
            yield call
