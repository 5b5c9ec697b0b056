"""Operands of calls, and of choices the options that need no library."""

from collections.abc import Iterator

from millrace.executor.cuda.binding import leaves
from millrace.executor.cuda.calls import (
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
    Operand,
    Pointers,
    ProductCall,
)


def operands_of(call: Call) -> Iterator[Operand]:
    """Yield the operands of a call; of a choice those of every option."""
    match call:
        case Launch():
            for argument in call.args:
                if isinstance(argument, Pointers):
                    yield from argument.operands
                elif isinstance(argument, Operand):
                    yield argument
        case ProductCall():
            yield from (part.operand for part in call.parts.values())
        case Clear():
            yield call.target
        case CopyCall():
            yield from (call.source, call.target)
        case Collective():
            yield from (call.send, call.recv)
        case Bucket():
            for collective in call.collectives:
                yield from (collective.send, collective.recv)
        case Attention() | AttentionGrad() | Convolution():
            yield from (tensor.operand for tensor in call.tensors)
        case KernelAlternatives():
            for leaf in leaves(call):
                yield from operands_of(leaf)


def last_options(*calls: Call) -> Iterator[Call]:
    """Yield the calls that a device without the library carries out: a choice's last option."""
    for call in calls:
        if isinstance(call, KernelAlternatives):
            yield from last_options(*call.options[-1])
        else:
            yield call
