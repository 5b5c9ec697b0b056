"""One kernel in Triton, to learn how its cubins are launched."""

import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def add(x, y, n, BLOCK: tl.constexpr):
    """Write x + 1 to y."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1.0, mask=at < n)
