"""Limits of the calls that cuDNN is given, narrower than its own: known faults, and ours."""

from millrace.executor.cuda.calls import Attention, AttentionGrad, LibraryCall

VERSION_MIN = 91200
"""The first version for CUDA 13 (package `nvidia-cudnn-cu13`, read 2026-11)."""
STATISTICS_VERSION_MIN = 92600
"""Before it, the backward kernels of some devices read the logsumexp as if it lay in the order
b h t, whatever its strides (NVIDIA/cudnn-frontend pull request 304, 2026-06)."""
SEQUENCE_MULTIPLE = 128
"""Places of a tile. Where the last one is not full, gradients have been NaN on Hopper when a row's
logsumexp is far below zero: keys (pytorch issue 196678, 2026), queries (NVIDIA/cudnn-frontend issue
1072, 2026-09)."""
HEAD_DIM_MAX, HEAD_DIM_MULTIPLE = 256, 8  # Hopper's; the library knows the lower ones of others
ALIGNMENT_BYTES = 16  # alignment that the library takes for granted of every address
DTYPES = {"bfloat16": "BFLOAT16", "float16": "HALF", "float32": "FLOAT"}
"""Names of the library's data types."""


def version_in_words(version: int) -> str:
    """A version as people write it.

    Examples
    --------
    >>> version_in_words(91203)
    '9.12.3'
    """
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def refusal(call: LibraryCall, version: int) -> str | None:
    """Reason why the library is not asked for a call, None where it is.

    Parameters
    ----------
    call
        Addresses do not matter.
    version
        Version of the library.
    """
    if any(tensor.dtype not in DTYPES for tensor in call.tensors):
        return "a dtype that it is not asked for"
    if isinstance(call, AttentionGrad):
        return _attention_refusal(call.forward, version)
    return _attention_refusal(call, version) if isinstance(call, Attention) else None


def _attention_refusal(call: Attention, version: int) -> str | None:
    if call.q.dtype == "float32":
        return "attention in float32"
    if call.t % SEQUENCE_MULTIPLE or call.s % SEQUENCE_MULTIPLE:
        return f"{call.t} queries and {call.s} keys are not multiples of {SEQUENCE_MULTIPLE}"
    widest = max(call.d, call.u)
    if call.d % HEAD_DIM_MULTIPLE or call.u % HEAD_DIM_MULTIPLE or widest > HEAD_DIM_MAX:
        return f"heads of {call.d} and {call.u} features"
    if version < STATISTICS_VERSION_MIN and not _in_order(call.sizes[-1], call.logsumexp.strides):
        return "a logsumexp that is not in the order b h t"
    return None


def _in_order(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """True if strides are those of memory in the order of the dims, without gaps."""
    expected = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True
