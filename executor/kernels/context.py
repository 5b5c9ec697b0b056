"""Kernel contexts: a kernel's op, the shards it reads and writes, and the run it belongs to.

A shard knows the global index of its first element, so that a kernel of an op that depends on
positions (a causal mask, a row of a split table) gives the same values however tensors are split.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from millrace.models.graph import ITEMSIZE
from millrace.planner.sbp import NdSbp

Array = NDArray[Any]

BITS = {"bfloat16": "uint16"}
"""Dtypes that NumPy has none of, and as what their bits are kept and moved."""

LOSS_SCALE = 65536.0  # the documented init_scale of torch.amp.GradScaler (stable, read 2026-11)

Kernel = Callable[[int, Sequence[Array], Sequence[Array]], None]
"""`kernel(firing, inputs, outputs)`: writes every output; arrays are C-contiguous."""

KernelFactory = Callable[["KernelContext"], Kernel]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One rank's part of a tensor: its shape and the global index of its first element.

    `pitch`: elements from one row of the last dim to the next, where a backend lays them out so; 0:
    rows lie one behind the other.
    """

    global_shape: tuple[int, ...]
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    pitch: int = 0

    @property
    def size(self) -> int:
        """Number of elements of the shard."""
        return prod(self.shape)

    @property
    def row_stride(self) -> int:
        """Elements from one row of the last dim to the next."""
        return self.pitch or (self.shape[-1] if self.shape else 1)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return ITEMSIZE[self.dtype]  # bfloat16 is none of NumPy's own


def whole_shard(shape: tuple[int, ...], dtype: str) -> Shard:
    """Shard that is the whole tensor."""
    return Shard(global_shape=shape, offsets=(0,) * len(shape), shape=shape, dtype=dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSource:
    """Part of every sample that an `input` op reads.

    Parameters
    ----------
    name
        `tokens`, `targets`, `images`, `classes`, …
    values
        How many different ids there are; 0 for features.
    shape
        Shape of one whole sample.
    region
        The part of a sample that this rank holds.
    channels_last
        Of images: rows, columns and channels, not channels, rows and columns.
    """

    name: str
    values: int
    shape: tuple[int, ...]
    region: tuple[slice, ...]
    channels_last: bool = False


class Dataset(Protocol):
    """Samples by number; `millrace.executor.data` holds the implementations.

    A sample is known by its number in the whole run, so that every rank reads its own rows and
    gets the values it would find in the whole batch. `description` says what a run trains on.
    """

    @property
    def description(self) -> str:
        """One short line for the reader."""
        ...

    def read(self, source: SampleSource, samples: NDArray[np.int64]) -> Array:
        """Region of the source in each of `samples`, stacked along dim 0."""
        ...


@dataclass(slots=True, kw_only=True)
class RunState:
    """State that all kernels of one rank share during a run.

    Parameters
    ----------
    seed
        Seed of the run (samples and initial values).
    dataset
        Where the `input` kernel reads; None when nothing reads.
    global_batch, microbatches, batch
        Samples of a step, microbatches of a step, samples of a microbatch.
    first_step
        Steps that earlier runs have made (resuming from a checkpoint).
    loss_scale
        Scale at which fp16's gradients begin, those of a mean over the tokens of a microbatch.
    arithmetic
        Arithmetic of products of float32 operands: fp32, or tf32 where a GPU has it.
    totals
        One `(loss sum, token count, sum of squared gradients)` per step of this run.
    smallest_margin
        By how much, at the least, an expert that a token chose beat one that it did not; infinite
        where nothing was chosen. In a smaller margin than rounding, the choice may flip.
    """

    seed: int
    dataset: Dataset | None
    global_batch: int
    microbatches: int
    batch: int
    first_step: int = 0
    loss_scale: float = LOSS_SCALE
    arithmetic: str = "fp32"
    totals: list[tuple[float, float, float]] = field(default_factory=list)
    smallest_margin: float = inf

    def record_margin(self, margin: float) -> None:
        """Keep the margin of a choice where it is smaller than any before."""
        self.smallest_margin = min(self.smallest_margin, margin)

    def record_totals(self, step: int, totals: Array) -> None:
        """Keep the totals of `step` (counted from this run's first); later calls are ignored."""
        if len(self.totals) == step:
            self.totals.append((float(totals[0]), float(totals[1]), float(totals[2])))


@dataclass(slots=True, kw_only=True)
class KernelContext:
    """Context of one actor of one rank: all that its kernel factory is told.

    Parameters
    ----------
    kind, name, labels, attributes
        Those of the op.
    inputs, outputs
        The shards the kernel reads and writes, in the op's order.
    output_hold
        Firings that write the same version of the outputs (`accumulate`: microbatches).
    input_sbp, output_sbp
        nd-SBP of every input and output; empty on a single device.
    coordinate, axis_sizes
        The rank's place in the mesh of its stage, and the mesh's sizes.
    state
        Arrays that only this actor touches, zero before the first step: for `adamw` the two
        moments, for `sgd` with momentum the velocity, in the shape of the variable's shard.
    buffer
        Where `state` lies in host memory: the device's bytes that it passes through.
    buffer_bytes
        How many these are; 0 without.
    variable_in_host
        The variable that an optimizer updates lies in host memory too (of a `cast` with a buffer
        the one that it reads always does).
    parts
        The ops of a fused actor, in their order; their operands are numbered inputs first, then
        outputs, then what is inner.
    inner
        What one part makes for another alone; a kernel need not write it down.
    run
        The run that the actor belongs to.
    """

    kind: str
    name: str
    labels: str
    attributes: Mapping[str, int | float | str | bool]
    inputs: tuple[Shard, ...]
    outputs: tuple[Shard, ...]
    run: RunState
    output_hold: int = 1
    input_sbp: tuple[NdSbp, ...] = ()
    output_sbp: tuple[NdSbp, ...] = ()
    coordinate: tuple[int, ...] = ()
    axis_sizes: tuple[int, ...] = ()
    state: Sequence[Array] = ()
    buffer: Array | None = None
    buffer_bytes: int = 0
    variable_in_host: bool = False
    parts: tuple["FusedPart", ...] = ()
    inner: tuple[Shard, ...] = ()

    def number(self, attribute: str, default: float) -> float:
        """Attribute as a float."""
        return float(self.attributes.get(attribute, default))


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedPart:
    """One op of a fused actor.

    Parameters
    ----------
    context
        The context of its own kernel, were it alone.
    inputs, outputs
        Its operands, as numbers of the actor's.
    state
        Its arrays of state, as places in the actor's.
    """

    context: KernelContext
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    state: tuple[int, ...] = ()
