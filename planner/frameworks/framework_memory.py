"""Memory of a framework: bytes of a parameter and of a loss, and what it keeps beside a plan's.

It is in a framework's record (`planner/frameworks/frameworks.toml`, table `memory`). Plans are held
to it, and the peak that a framework prints of a run is predicted with it
(`millrace.planner.frameworks.peak_memory`).
"""

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from millrace.planner.frameworks.resident_memory import Workspaces


class LayerSplit(StrEnum):
    """Rule by which layers are dealt out to stages: as many each, or as heavy."""

    EVEN = "even"
    WEIGHT = "weight"


class LossKernel(StrEnum):
    """Kernel of a loss that a run may have in place of its framework's usual one."""

    FUSED = "fused"
    COMPILED = "compiled"


class ParameterBytes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes of a parameter: the weights that products read, sums of gradients, and the rest.

    ZeRO-1 splits the rest, ZeRO-2 the sums of gradients too, ZeRO-3 all three.
    """

    weight_bytes: int = 2
    gradient_bytes: int = 4
    state_bytes: int = 12


class FrameworkMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memory of a framework, the same for all its runs.

    Attributes
    ----------
    parameters : ParameterBytes
        What is kept of a parameter.
    bf16_parameters, pipelined_parameters : ParameterBytes, optional
        The same in bfloat16, and with a pipeline, where it differs.
    pipelined_zero : int, optional
        Level of ZeRO by which they are split between the microbatches of a pipeline.
    passing_bytes : int
        Bytes of a parameter: the gradients of one microbatch before they are summed, most when its
        activations are gone.
    loss_bytes : int
        A logit of 2 bytes with all that is made of it, at the peak of the loss.
    fused_loss_bytes : int
        The same of a loss in one kernel.
    softmax_bytes : int, optional
        What stays of it until its gradient, beside which another head's loss is made; None: all.
    compiled_loss_bytes, split_loss_bytes : int, optional
        The same of a compiled loss, and of one that tensor parallel ranks split, where it differs.
    deferred : int
        Microbatches whose gradients of logits wait until a step's last, for the table's gradient.
    bucket_bytes : int
        Buffers whose size depends on nothing.
    byte_multiples : tuple of (str, float)
        Ops beside whose results more is kept, or that keep nothing, by kind or by the end of their
        names: how many times their bytes in all.
    lets_sent_go : bool
        What a stage sends is let go once it is sent, where a plan keeps it until it is taken.
    placeholders : bool
        Products add weight gradients to their sums, and a tensor that is never read stands in for
        the gradient: one for every shape of weight, which stays.
    gathered_outside : bool
        ZeRO-3 leaves weights outside of layers gathered from step to step.
    layer_split : LayerSplit
        How layers are dealt out to stages, where a plan may do else.
    workspaces : Workspaces, optional
        Those of kernel libraries, with what else stays from step to step; None: not known.
    """

    parameters: ParameterBytes = ParameterBytes()
    bf16_parameters: ParameterBytes | None = None
    pipelined_parameters: ParameterBytes | None = None
    pipelined_zero: int | None = None
    passing_bytes: int = 0
    loss_bytes: int = 8
    fused_loss_bytes: int = 6
    softmax_bytes: int | None = None
    compiled_loss_bytes: int | None = None
    split_loss_bytes: int | None = None
    deferred: int = 0
    bucket_bytes: int = 0
    byte_multiples: tuple[tuple[str, float], ...] = ()
    lets_sent_go: bool = False
    placeholders: bool = False
    gathered_outside: bool = False
    layer_split: LayerSplit = LayerSplit.EVEN
    workspaces: Workspaces | None = None


USUAL = FrameworkMemory()


def memory_of_run(
    memory: FrameworkMemory, *, precision: str, tp: int, pp: int, loss: str = ""
) -> FrameworkMemory:
    """Memory of a framework as a run with such settings has it.

    Parameters
    ----------
    memory : FrameworkMemory
        The framework's.
    precision : str
        The run's: `bf16` may differ.
    tp, pp : int
        Degrees of tensor and pipeline parallelism.
    loss : str
        A value of `LossKernel`, or blank: the framework's usual one.
    """
    parameters, loss_bytes = memory.parameters, memory.loss_bytes
    if precision == "bf16":
        parameters = memory.bf16_parameters or parameters
    if pp > 1:
        parameters = memory.pipelined_parameters or parameters
    if tp > 1 and memory.split_loss_bytes is not None:
        loss_bytes = memory.split_loss_bytes
    elif loss == LossKernel.FUSED:
        loss_bytes = memory.fused_loss_bytes
    elif loss == LossKernel.COMPILED and memory.compiled_loss_bytes is not None:
        loss_bytes = memory.compiled_loss_bytes
    return replace(memory, parameters=parameters, loss_bytes=loss_bytes)
