"""Floats whose 16 bits are known by hand: what rounds, what flushes nothing, what is no number."""

import numpy as np

from millrace.executor.kernels.context import Array, KernelContext, whole_shard
from tests.executor.cuda.calling import context_of

# A row has the bits of a float32, of the bfloat16 and of the float16 that it becomes. A NaN becomes
# 0x7fff, whatever it was (PTX ISA 9.0, cvt).
BITS = (
    (0x00000000, 0x0000, 0x0000),
    (0x80000000, 0x8000, 0x8000),
    (0x3F808000, 0x3F80, 0x3C04),  # bf16: half way, to the even below
    (0x3F818000, 0x3F82, 0x3C0C),  # and above
    (0x3F808001, 0x3F81, 0x3C04),
    (0x3F801000, 0x3F80, 0x3C00),  # f16: half way
    (0x3F803000, 0x3F80, 0x3C02),
    (0xBF803000, 0xBF80, 0xBC02),
    (0x7F7F7FFF, 0x7F7F, 0x7C00),
    (0x7F7FFFFF, 0x7F80, 0x7C00),  # the largest float is beyond both
    (0x477FEFFF, 0x4780, 0x7BFF),
    (0x477FF000, 0x4780, 0x7C00),
    (0x7F800000, 0x7F80, 0x7C00),
    (0xFF800000, 0xFF80, 0xFC00),
    (0x00000001, 0x0000, 0x0000),  # denormals of float32, which bf16 has too
    (0x00008000, 0x0000, 0x0000),
    (0x00008001, 0x0001, 0x0000),
    (0x00018000, 0x0002, 0x0000),
    (0x807F0000, 0x807F, 0x8000),
    (0x33000000, 0x3300, 0x0000),  # denormals of f16
    (0x33000001, 0x3300, 0x0001),
    (0x38000000, 0x3800, 0x0200),
    (0x7FC00000, 0x7FFF, 0x7FFF),
    (0x7F800001, 0x7FFF, 0x7FFF),
    (0xFFC01234, 0x7FFF, 0x7FFF),
    (0xFFFFFFFF, 0x7FFF, 0x7FFF),
)
WANTED = {"bfloat16": 1, "float16": 2}
"""Columns of `BITS`."""


def floats() -> Array:
    """The floats of `BITS`, in packs and behind the last of them, in either half of a pair."""
    bits = np.array([row[0] for row in BITS], np.uint32)
    return np.concatenate((bits, bits[1:], bits)).view(np.float32)


def wanted_bits(dtype: str) -> Array:
    """Bits that `floats` become in the dtype, as uint16."""
    bits = np.array([row[WANTED[dtype]] for row in BITS], np.uint16)
    return np.concatenate((bits, bits[1:], bits))


def cast_context(dtype: str) -> KernelContext:
    """Context of a cast of `floats` to the dtype."""
    shape = floats().shape
    return context_of(
        "cast", "n -> n", [whole_shard(shape, "float32")], [whole_shard(shape, dtype)]
    )
