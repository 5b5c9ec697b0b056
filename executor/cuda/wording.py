"""Wording of library calls: for listings, errors, and a device's word on its choice."""

from millrace.executor.cuda.calls import (
    Attention,
    AttentionGrad,
    Convolution,
    LibraryCall,
    ProductCall,
)


def described(call: LibraryCall | ProductCall) -> str:
    """A call of a library without its operands, in words.

    Examples
    --------
    >>> from millrace.executor.cuda.calls import Matrices, Vector, read, write
    >>> a, b, d = (Matrices(place, "float32", 8, 1, 0) for place in (read(0), read(1), write(0)))
    >>> described(ProductCall(a, b, d, 2, 8, 8, 1, "fp32", bias=Vector(read(2), "float32")))
    'product m 2 n 8 k 8 batch 1 in fp32 with bias'
    """
    match call:
        case ProductCall():
            sizes = f"m {call.m} n {call.n} k {call.k} batch {call.batch} in {call.arithmetic}"
            terms = (
                "adding up" if call.accumulate else "",
                "another added" if call.c is not None else "",
                "bias" if call.bias is not None else "",
                call.activation,
                f"slope of {call.slope}" if call.slope else "",
            )
            epilogue = ", ".join(term for term in terms if term)
            return f"product {sizes}{' with ' if epilogue else ''}{epilogue}"
        case Attention():
            seen = f"-{call.ahead} < i - j < {call.behind}" if call.ahead or call.behind else "all"
            return (
                f"attention b {call.b} h {call.h} g {call.g} t {call.t} s {call.s} d {call.d} "
                f"u {call.u} sees {seen} in {call.q.dtype}"
            )
        case AttentionGrad():
            return f"gradient of {described(call.forward)}"
        case Convolution():
            window = f"{call.window} stride {call.stride} pad {call.pad} dilation {call.dilation}"
            return (
                f"convolution {call.direction} b {call.b} c {call.c} n {call.n} groups "
                f"{call.groups} {call.image_size} -> {call.output_size} window {window} "
                f"in {call.arithmetic}"
            )
