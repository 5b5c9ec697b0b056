"""Sliders of the page: their positions, and the what-ifs that they lead to first."""

from collections.abc import Iterator

from millrace.serving.questions import WhatIfs

_FACTORS = (0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 10)
NORMAL = 1  # of every factor
SLIDERS: dict[str, tuple[float, ...]] = {
    "straggler_factor": (1, 1.05, 1.1, 1.2, 1.3, 1.5, 2, 3, 5),
    "jitter": (0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5),
    "network": _FACTORS,
    "links": _FACTORS,
    "compute": _FACTORS,
    "memory_bandwidth": _FACTORS,
    "overlap": (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1),
    "microbatch_factor": (0.5, 1, 2, 4, 8),
}
SLOW = ("network", "links", "compute", "memory_bandwidth", "overlap", "jitter")


def likely_changes(
    now: WhatIfs, before: WhatIfs, overlap: float, several_nodes: bool
) -> Iterator[WhatIfs]:
    """Slow what-ifs that one move of a slider leads to, likely ones first.

    Parameters
    ----------
    now, before : WhatIfs
        The last two that were asked for: the slider between them is probably moved on.
    overlap : float
        Share of their speed that the plan's devices keep beside communication.
    several_nodes : bool
        The plan's cluster has a network.
    """
    steps: list[tuple[bool, int, str, float]] = []
    for name in SLOW:
        if name == "network" and not several_nodes:
            continue
        positions = SLIDERS[name]
        value = getattr(now, name)
        value = overlap if value is None else value
        start = min(range(len(positions)), key=lambda place: abs(positions[place] - value))
        is_still = getattr(before, name) == getattr(now, name)
        for place, step in enumerate(positions):
            steps.append((is_still, abs(place - start), name, step))
    for _, distance, name, value in sorted(steps):
        if distance:
            normal = value == NORMAL and name != "overlap"
            yield now.model_copy(update={name: 1.0 if normal else float(value)})
