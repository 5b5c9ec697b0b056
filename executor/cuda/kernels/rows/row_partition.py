"""Row partition: teams of threads share a row, so that each keeps its part in registers.

A team is a warp where a row is short, else a block (`sources/teams.cuh`). Sizes follow from the
shape alone, so that sums go up in the same order on every device.
"""

from math import ceil
from typing import NamedTuple

import numpy as np

from millrace.executor.cuda.calls import BLOCK_THREADS, WARP_THREADS, Argument, Launch

WARPS_MAX = BLOCK_THREADS // WARP_THREADS  # warps of a block whose teams are warps
WARP_PACKS_MAX = 4  # packs that a thread keeps of a row of a warp
BLOCK_TEAM_THREADS = 512  # most threads of a team, as in sources/teams.cuh
BLOCK_PACKS = (2, 4)  # packs that a thread keeps of a row of a block
MULTIPROCESSORS = 132  # multiprocessors of an H100 (data sheet, 2022)
BLOCKS_MAX = 16 * MULTIPROCESSORS  # most blocks, whose teams go on to further rows
SLAB_THREADS = 512  # threads of a multiprocessor where blocks leave sums; 128 registers each


class Team(NamedTuple):
    """Threads of a row: packs of each (0: none kept), a warp or a block, threads of a block."""

    packs: int
    by_warp: bool
    threads: int

    @property
    def arguments(self) -> tuple[str, str]:
        """Template arguments of a kernel."""
        return str(self.packs), str(self.by_warp).lower()

    @property
    def rows(self) -> int:
        """Rows that a block has at once."""
        return self.threads // WARP_THREADS if self.by_warp else 1

    @property
    def slab_blocks(self) -> int:
        """Most blocks where every one leaves a row of sums behind: those that fit at once.

        Examples
        --------
        >>> team_of(16384, 2048, 8).slab_blocks, team_of(16384, 4096, 8).slab_blocks
        (528, 264)
        """
        return MULTIPROCESSORS * max(2, SLAB_THREADS // self.threads)

    def launch(
        self,
        source: str,
        function: str,
        rows: int,
        columns: int,
        *args: Argument,
        blocks_max: int = BLOCKS_MAX,
    ) -> Launch:
        """Launch over rows; the kernel's last arguments are `rows` and `columns`."""
        blocks = max(1, min(ceil(rows / self.rows), blocks_max))
        last = (np.int64(rows), np.int64(columns))
        return Launch(source, function, (blocks, 1, 1), (self.threads, 1, 1), (*args, *last))


def team_of(rows: int, columns: int, pack: int) -> Team:
    """Team of a row of `columns`, in packs of `pack` elements.

    Examples
    --------
    >>> team_of(8192, 768, 8)
    Team(packs=3, by_warp=True, threads=256)
    >>> team_of(8192, 4096, 8), team_of(8192, 50000, 8).packs
    (Team(packs=2, by_warp=False, threads=256), 0)
    """
    packs = max(1, ceil(columns / pack))
    warp_packs = ceil(packs / WARP_THREADS)
    if warp_packs <= WARP_PACKS_MAX:
        warps = max(1, min(ceil(rows / MULTIPROCESSORS), WARPS_MAX))
        return Team(warp_packs, by_warp=True, threads=warps * WARP_THREADS)
    for block_packs in BLOCK_PACKS:
        threads = ceil(packs / block_packs / WARP_THREADS) * WARP_THREADS
        if threads <= BLOCK_TEAM_THREADS:
            return Team(block_packs, by_warp=False, threads=threads)
    return Team(0, by_warp=False, threads=BLOCK_TEAM_THREADS)
