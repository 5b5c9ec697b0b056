"""Calls: what one firing does on a device, told so that it can be printed, bound and replayed.

A factory of `millrace.executor.cuda.kernels` turns an actor's `KernelContext` into `Calls` once.
They name their operands (`read(0)`, `write(1)`, …) and no address; where an operand lies is known
when the slots of a firing are (`millrace.executor.cuda.binding`). Nothing here touches a device, so
a whole command buffer can be made, printed and checked where there is none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

import numpy as np

from millrace.executor.kernels.context import Array
from millrace.models.graph import ITEMSIZE

WARP_THREADS = 32
BLOCK_THREADS = 256  # threads of a block in kernels that go element by element
PACK_BYTES = 16  # the widest load and store of a thread (CUDA programming guide, vector types)
PACKS_TOGETHER = 2  # packs that a thread loads at once, `TOGETHER` of sources/packs.cuh
BLOCKS_MAX = 4096  # blocks of such kernels; their threads stride over what is left
EPILOGUE_PARTS = ("c", "bias", "aux")
ALIGNMENT_BYTES = 256  # alignment of cudaMalloc, and more than any load needs


def aligned(size_bytes: int) -> int:
    """Bytes up to where the next array may begin."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class Operand(NamedTuple):
    """Place at which a call reads or writes, by role.

    `role` is one of

    * `read`, `write`: the actor's operand `number`, as the op lists it;
    * `state`: register `number` of the optimizer's state; `buffer`: what it passes through;
    * `workspace`: scratch of the stream, which holds nothing between two firings;
    * `table`: array `number` of the actor's `Calls.tables`, written once before the first step;
    * `control`: the `Control` of the rank (`sources/control.cuh`): step, updates, loss scale;
    * `stage`: where the samples of an `input` actor's firing were copied to, in half `number` of
      the stage: steps take the halves in turn (`Control.run_step`), so that those of the next step
      are copied while this one runs;
    * `peer`: what member `number` of a meeting sends in a `part` of it, where that lies on the same
      device.
    """

    role: str
    number: int = 0
    offset_bytes: int = 0
    part: int = 0


def read(number: int) -> Operand:
    """Operand that is read."""
    return Operand("read", number)


def write(number: int) -> Operand:
    """Operand that is written."""
    return Operand("write", number)


def state(number: int) -> Operand:
    """Array of state that only this actor touches."""
    return Operand("state", number)


def workspace(offset_bytes: int = 0) -> Operand:
    """Scratch of the stream, from this byte on."""
    return Operand("workspace", 0, offset_bytes)


def table(number: int) -> Operand:
    """Array of constants."""
    return Operand("table", number)


def stage(half: int) -> Operand:
    """Samples of the firing in one half of the stage: 0 in the first step of a run, 1 in the next.

    A captured step serves both, so a kernel is given both places and takes that of its step.
    """
    return Operand("stage", half)


def peer(number: int) -> Operand:
    """Send register of a member of the meeting."""
    return Operand("peer", number)


CONTROL = Operand("control")
BUFFER = Operand("buffer")


class Pointers(NamedTuple):
    """Many operands as one argument: their addresses by value, in a struct of as many pointers.

    The kernel's parameter is `Pointers<len(operands)>` of `sources/scalar.cuh`.
    """

    operands: tuple[Operand, ...]


POINTERS_MAX = 480
"""Most pointers of a launch: its parameters have 4 KB on every device (CUDA programming guide, C++
language extensions, function parameters), and others are among them."""


class CallTensor(NamedTuple):
    """Tensor that a call reads or writes: its place, dtype and number of elements."""

    operand: Operand
    dtype: str
    size: int


Scalar = np.int32 | np.uint32 | np.int64 | np.float32 | np.float64
"""Argument by value, of exactly the type that the kernel's parameter has."""

Argument = Operand | Pointers | Scalar

Dim3 = tuple[int, int, int]


class Launch(NamedTuple):
    """One launch of a kernel of ours.

    Parameters
    ----------
    source
        Stem of its file in `executor/cuda/sources`.
    function
        Name of the kernel with template arguments: `layer_norm<bf16>`.
    grid, block
        Blocks, and threads of a block.
    args
        Arguments in the order of the kernel's parameters: pointers, structs of pointers, values.
    shared_bytes
        Dynamic shared memory of a block (`DYNAMIC_SHARED` of `sources/matrix_units.cuh`).
    """

    source: str
    function: str
    grid: Dim3
    block: Dim3
    args: tuple[Argument, ...]
    shared_bytes: int = 0


class Matrices(NamedTuple):
    """`batch` matrices of [rows, columns] inside an operand; strides in elements.

    One of `row_stride` and `column_stride` is 1.
    """

    operand: Operand
    dtype: str
    row_stride: int
    column_stride: int
    batch_stride: int


class Vector(NamedTuple):
    """A value for every column of some matrices, side by side in an operand.

    `batch_stride` elements lie between those of one matrix of a stack and of the next; 0: all
    matrices share them.
    """

    operand: Operand
    dtype: str
    batch_stride: int = 0


class ProductCall(NamedTuple):
    """d = f(a b + c + bias) for `batch` pairs of matrices [m, k] and [k, n].

    `arithmetic` is fp64, fp32, tf32 (of float32 operands) or the 16-bit dtype's own products with
    float32 sums. Everything behind it is an epilogue, computed on those sums before d is rounded,
    in this order:

    * `accumulate`: add what d holds; or `c`: add other matrices [m, n]. A product has one of them.
    * `bias`: add a value per column of d.
    * `aux`, matrices [m, n]: keep what there is now, rounded.
    * `activation`: gelu (the tanh form), relu or none.

    Backward, instead of all these, `slope`: d = (a b) times the slope of gelu at `aux`, which is
    then read.

    Stacks may share an operand that is read: its batch stride is 0.
    """

    a: Matrices
    b: Matrices
    d: Matrices
    m: int
    n: int
    k: int
    batch: int
    arithmetic: str
    accumulate: bool = False
    c: Matrices | None = None
    bias: Vector | None = None
    activation: str = ""
    aux: Matrices | None = None
    slope: str = ""

    @property
    def parts(self) -> dict[str, Matrices | Vector]:
        """Everything that lies in memory, by field."""
        fields = {name: getattr(self, name) for name in ("a", "b", "d", *EPILOGUE_PARTS)}
        return {name: part for name, part in fields.items() if part is not None}

    @property
    def plain(self) -> "ProductCall":
        """The product without an epilogue, but for `accumulate`."""
        return ProductCall(*self[:9])


class Clear(NamedTuple):
    """Call that zeroes bytes."""

    target: Operand
    size_bytes: int


class CopyCall(NamedTuple):
    """Call that copies bytes, between device and host memory too."""

    source: Operand
    target: Operand
    size_bytes: int


class Collective(NamedTuple):
    """One call of a collective library: contiguous elements, blocks of members one after the other.

    `kind` is all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, rotate, send or recv.
    `elements` are those that are reduced (all_reduce), that a member sends (all_gather,
    broadcast, rotate, send, recv), that it keeps (reduce_scatter), or that it sends to each member
    (all_to_all). `reduction` is sum or max.
    """

    kind: str
    send: Operand
    recv: Operand
    elements: int
    dtype: str
    reduction: str = "sum"


class Bucket(NamedTuple):
    """Collectives of one kind and group that a library is given at once, and may make one of."""

    collectives: tuple[Collective, ...]


class Strided(NamedTuple):
    """A tensor inside an operand; strides in elements, one for every dim that its call names."""

    operand: Operand
    dtype: str
    strides: tuple[int, ...]


class Attention(NamedTuple):
    """Attention by the vendor's library, with the logsumexp of every query's scaled scores.

    Sizes by letter: b samples, h query heads, g heads of keys and values (query head i reads head
    i // (h / g)), t queries, s keys, d head dim, u value dim. Dims are q [b h t d], k [b g s d],
    v [b g s u], out [b h t u] and logsumexp [b h t], whatever order their strides give them. Query
    i sees the keys j with -`ahead` < i - j < `behind`; None is without end, and an `ahead` of 1 is
    causal. `scale` multiplies the products of q and k.
    """

    q: Strided
    k: Strided
    v: Strided
    out: Strided
    logsumexp: Strided
    b: int
    h: int
    g: int
    t: int
    s: int
    d: int
    u: int
    scale: float
    behind: int | None = None
    ahead: int | None = None

    @property
    def tensors(self) -> tuple[Strided, ...]:
        """Tensors that are read, then those that are written."""
        return self.q, self.k, self.v, self.out, self.logsumexp

    @property
    def sizes(self) -> tuple[tuple[int, ...], ...]:
        """Sizes of the dims of each of `tensors`."""
        b, h, g, t, s, d, u = self.b, self.h, self.g, self.t, self.s, self.d, self.u
        return (b, h, t, d), (b, g, s, d), (b, g, s, u), (b, h, t, u), (b, h, t)


class AttentionGrad(NamedTuple):
    """dq, dk and dv of an `Attention`, from what it read and made, and dout.

    Each gradient has the dims of what it is the gradient of.
    """

    forward: Attention
    dout: Strided
    dq: Strided
    dk: Strided
    dv: Strided

    @property
    def tensors(self) -> tuple[Strided, ...]:
        """Tensors that are read, those of `forward` first, then those that are written."""
        return *self.forward.tensors, self.dout, self.dq, self.dk, self.dv

    @property
    def sizes(self) -> tuple[tuple[int, ...], ...]:
        """Sizes of the dims of each of `tensors`."""
        q, k, v, out, logsumexp = self.forward.sizes
        return q, k, v, out, logsumexp, out, q, k, v


class Convolution(NamedTuple):
    """A convolution or one of its gradients by the vendor's library.

    Dims are image [b c y x], weight [n c i j] and output [b n y x], whatever order their strides
    give them; c channels of a weight, the image having `groups` times as many. `direction` is
    forward (makes the output), grad_input (the image) or grad_weight (the weight): that one operand
    is written, the others are read. Sizes are of image, output and window, as are `stride`, `pad`
    and `dilation`, each along y and x. `arithmetic` as in `ProductCall`.
    """

    direction: str
    image: Strided
    weight: Strided
    output: Strided
    b: int
    c: int
    n: int
    groups: int
    image_size: tuple[int, int]
    output_size: tuple[int, int]
    window: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int]
    dilation: tuple[int, int]
    arithmetic: str

    @property
    def tensors(self) -> tuple[Strided, ...]:
        """Image, weight and output."""
        return self.image, self.weight, self.output

    @property
    def sizes(self) -> tuple[tuple[int, ...], ...]:
        """Sizes of the dims of each of `tensors`."""
        image = (self.b, self.groups * self.c, *self.image_size)
        return image, (self.n, self.c, *self.window), (self.b, self.n, *self.output_size)


class KernelAlternatives(NamedTuple):
    """Ways to compute one thing, of which the device picks one before the first step.

    They are in the order of preference. The last consists of our own kernels and products and can
    be carried out by every device; one that cannot carry out the others takes it.
    """

    options: tuple[tuple["Call", ...], ...]


Call = (
    Launch
    | ProductCall
    | Clear
    | CopyCall
    | Collective
    | Attention
    | AttentionGrad
    | Convolution
    | KernelAlternatives
    | Bucket
)
LibraryCall = Attention | AttentionGrad | Convolution
"""Calls of the vendor's library of neural networks alone: always in a `KernelAlternatives`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Calls of every firing of an actor, with the constants and the scratch that they need.

    Parameters
    ----------
    of
        `of(firing)`: the calls of firing number `firing` of a step, in the order of the stream.
    tables
        Constants that the calls read.
    workspace_bytes
        Scratch that they need.
    """

    of: Callable[[int], tuple[Call, ...]]
    tables: tuple[Array, ...] = ()
    workspace_bytes: int = 0


def same_calls(*calls: Call, tables: tuple[Array, ...] = (), workspace_bytes: int = 0) -> Calls:
    """Calls that every firing makes alike."""
    return Calls(of=lambda firing: calls, tables=tables, workspace_bytes=workspace_bytes)


def prefer(preferred: Call, calls: Calls) -> Calls:
    """`calls`, with `preferred` alone as the first option of every firing."""
    return replace(calls, of=lambda firing: (KernelAlternatives(((preferred,), calls.of(firing))),))


def elementwise(source: str, function: str, count: int, *args: Argument) -> Launch:
    """Launch of a kernel whose threads stride over `count` elements, its last argument."""
    blocks = max(1, min(ceil(count / BLOCK_THREADS), BLOCKS_MAX))
    return Launch(source, function, (blocks, 1, 1), (BLOCK_THREADS, 1, 1), (*args, np.int64(count)))


def by_packs(
    source: str, function: str, count: int, dtypes: Sequence[str], *args: Argument
) -> Launch:
    """Launch of a kernel whose threads take packs of neighbours; `count` is its last argument.

    A pack is 16 bytes of the narrowest of the dtypes of what lies as the elements do.
    """
    elements = PACK_BYTES // min(ITEMSIZE[dtype] for dtype in dtypes)
    blocks = ceil(count / (elements * PACKS_TOGETHER * BLOCK_THREADS))
    grid, block = (max(1, min(blocks, 2**31 - 1)), 1, 1), (BLOCK_THREADS, 1, 1)
    return Launch(source, function, grid, block, (*args, np.int64(count)))


def by_row(source: str, function: str, rows: int, columns: int, *args: Argument) -> Launch:
    """Launch of a kernel with one block per row; its last arguments are `rows` and `columns`.

    A block has as many warps as a row fills, at most eight.
    """
    warps = max(1, min(ceil(columns / WARP_THREADS), BLOCK_THREADS // WARP_THREADS))
    return Launch(
        source,
        function,
        (max(1, min(rows, 2**31 - 1)), 1, 1),
        (warps * WARP_THREADS, 1, 1),
        (*args, np.int64(rows), np.int64(columns)),
    )


TYPES = {
    "float64": "double",
    "float32": "float",
    "bfloat16": "bf16",
    "float16": "f16",
    "int32": "int",
    "int64": "i64",
}
"""C++ type of every dtype (`sources/scalar.cuh`)."""


def types(*dtypes: str) -> str:
    """Template arguments of these dtypes: `<float, bf16>`."""
    return f"<{', '.join(TYPES[dtype] for dtype in dtypes)}>"
