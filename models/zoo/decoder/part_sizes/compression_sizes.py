"""Compression sizes: those of attention to keys that stand for several tokens each."""

import msgspec


class Compression(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of compressed attention (DeepSeek-V4).

    Attributes
    ----------
    ratios : tuple of int
        For every layer, how many tokens a compressed key stands for; 0 where there are none, and a
        query sees the window alone.
    sparse_ratio : int
        The ratio at which compressed keys overlap and an indexer chooses among them; at others a
        query sees all of them.
    out_groups, out_rank : int
        Groups of heads that are projected each by itself, and to so many features.
    """

    ratios: tuple[int, ...]
    sparse_ratio: int = 4
    out_groups: int = 1
    out_rank: int = 0
