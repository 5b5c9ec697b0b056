"""Sizes that `millrace profile` times kernels at: those of small models on a CPU, of real on a GPU.

`profiled_kernels.py` says what the labels are. Bytes of `boxing` are those of the larger side.
"""

from collections.abc import Mapping

Sizes = Mapping[str, int]
Scales = Mapping[str, tuple[Sizes, ...]]


def _scales(tokens: tuple[Sizes, ...], others: dict[str, tuple[Sizes, ...]]) -> Scales:
    """Sizes by name: of activations all for what many models use, some for what few use."""
    few, ends = (tokens[0], *tokens[2:]), (tokens[0], tokens[3])
    scalars = ({"z": 3},)
    return {"tokens": tokens, "few": few, "ends": ends, "scalars": scalars, **others}


def _heads(sizes: tuple[int, ...], batches: tuple[tuple[int, int, int], ...]) -> tuple[Sizes, ...]:
    """Sizes of attention, whose core is taken per head: d features of one head."""
    return tuple({"b": b, "t": t, "h": h, "d": d} for d in sizes for b, t, h in batches)


def _products(*sizes: tuple[int, int, int, int]) -> tuple[Sizes, ...]:
    return tuple(dict(zip("btkn", each, strict=True)) for each in sizes)


def _filters(*sizes: tuple[int, int, int, int, int]) -> tuple[Sizes, ...]:
    """Sizes of convolutions: images of b, c channels, n made, q by q windows, sides of places."""
    return tuple(
        {"b": b, "c": c, "n": n, "q": q, "p": q, "y": side, "x": side, "j": side, "i": side}
        for b, c, n, q, side in sizes
    )


_CPU_TOKENS: tuple[Sizes, ...] = (
    {"b": 1, "t": 32, "h": 2, "d": 32},
    {"b": 2, "t": 64, "h": 4, "d": 64},
    {"b": 4, "t": 128, "h": 4, "d": 192},
    {"b": 16, "t": 128, "h": 8, "d": 384},
    {"b": 16, "t": 128, "h": 8, "d": 1536},
)

# Activations of one microbatch, from what one launch hides to what no cache of a core holds.
CPU_SCALES = _scales(
    _CPU_TOKENS,
    {
        "weights": tuple({"k": k, "n": n} for k, n in ((32, 32), (192, 192), (512, 1024))),
        "products": _products(
            (1, 32, 32, 32), (2, 64, 64, 64), (4, 64, 128, 192), (4, 128, 192, 384),
            (4, 128, 384, 1024), (16, 128, 512, 1024),
        ),
        "logits": _CPU_TOKENS[:4],
        "lookups": _CPU_TOKENS[:4],
        "heads": _heads((16, 32, 64), ((1, 32, 4), (1, 128, 4), (4, 128, 4), (8, 128, 8))),
        "turned": (
            {"b": 1, "t": 32, "h": 2, "d": 32},
            {"b": 8, "t": 128, "h": 8, "d": 64},
        ),
        "images": (
            {"b": 1, "c": 16, "y": 16, "x": 16, "j": 8, "i": 8},
            {"b": 16, "c": 64, "y": 28, "x": 28, "j": 14, "i": 14},
            {"b": 32, "c": 32, "y": 56, "x": 56, "j": 28, "i": 28},
        ),
        "filters": _filters(
            (1, 3, 16, 3, 16), (2, 32, 32, 3, 16), (8, 64, 64, 3, 16), (8, 32, 64, 3, 56)
        ),
        "points": _filters((4, 64, 128, 1, 16)),
        "routes": (
            {"b": 1, "t": 32, "d": 32, "e": 4, "k": 2, "c": 16},
            {"b": 8, "t": 128, "d": 256, "e": 8, "k": 2, "c": 32},
        ),
        "features": tuple({"b": b, "y": 28, "x": 28} for b in (16, 1024)),
        "pictures": ({"b": 16, "y": 16, "x": 16, "c": 3}, {"b": 8, "y": 112, "x": 112, "c": 3}),
        "clicks": tuple({"b": b, "y": 26, "x": 13} for b in (64, 1024)),
        "boxing": tuple({"bytes": size} for size in (2**12, 2**17, 2**22)),
    },
)  # fmt: skip

# From what a launch hides to what no L2 holds. Products are those of training: GPT-2 small's
# projections (768 features), those of models of one to eight billion parameters (2048 and 4096),
# heads over their vocabularies.
GPU_SCALES = _scales(
    (
        {"b": 1, "t": 64, "h": 1, "d": 128},
        {"b": 1, "t": 1024, "h": 1, "d": 768},
        {"b": 4, "t": 1024, "h": 1, "d": 1024},
        {"b": 8, "t": 2048, "h": 1, "d": 2048},
    ),
    {
        "weights": tuple({"k": k, "n": n} for k, n in ((128, 128), (1024, 1024), (4096, 4096))),
        "products": _products(
            (1, 64, 64, 64), (1, 256, 256, 256), (1, 1024, 768, 768), (4, 1024, 768, 3072),
            (4, 1024, 2048, 8192), (4, 1024, 768, 50304), (8, 1024, 4096, 4096),
            (8, 1024, 4096, 14336),
        ),
        "logits": (
            {"b": 1, "t": 64, "v": 1024},
            {"b": 1, "t": 512, "v": 32000},
            {"b": 2, "t": 1024, "v": 50304},
        ),
        "lookups": (
            {"b": 1, "t": 64, "d": 128, "v": 1024},
            {"b": 4, "t": 1024, "d": 768, "v": 50304},
            {"b": 8, "t": 2048, "d": 2048, "v": 32000},
        ),
        "heads": _heads((64, 128), ((1, 128, 4), (1, 1024, 12), (4, 1024, 16), (1, 4096, 16))),
        "turned": (
            {"b": 1, "t": 64, "h": 2, "d": 64},
            {"b": 8, "t": 2048, "h": 16, "d": 128},
        ),
        "images": (
            {"b": 1, "c": 16, "y": 16, "x": 16, "j": 8, "i": 8},
            {"b": 32, "c": 64, "y": 112, "x": 112, "j": 56, "i": 56},
        ),
        "filters": _filters(
            (1, 3, 16, 3, 16), (8, 64, 64, 3, 56), (32, 128, 128, 3, 28), (32, 512, 512, 3, 14)
        ),
        "points": _filters((32, 64, 256, 1, 56), (32, 1024, 512, 1, 14)),
        "routes": (
            {"b": 1, "t": 64, "d": 128, "e": 4, "k": 2, "c": 32},
            {"b": 4, "t": 2048, "d": 1024, "e": 8, "k": 2, "c": 640},
        ),
        # The host draws samples while a GPU computes.
        "features": (),
        "pictures": (),
        "clicks": (),
        "boxing": tuple({"bytes": size} for size in (2**14, 2**20, 2**28)),
    },
)  # fmt: skip
