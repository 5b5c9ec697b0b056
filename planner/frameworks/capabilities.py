"""Capabilities: what a training framework can run of all that the search could plan.

A framework's record (`planner/frameworks/frameworks.toml`, table `runs`) has them. The search keeps
to them: candidates have its axes, schedules and levels of ZeRO alone, and blocks of one kind are
one variant, dealt out in equal numbers. `EVERYTHING` leaves the search as it is.
"""

from collections.abc import Iterator, Sequence

import msgspec

from millrace.planner.errors import InfeasibleError
from millrace.planner.schedules import SCHEDULES

LAYERS = ("any", "ends", "even")
SEQUENCE = ("free", "always", "never")
MODES = ("none", "selective", "full")
LEVELS = ("0", "1", "2", "3", "3-hybrid")
DEGREES = ("dp", "tp", "pp", "cp", "ep")
FURTHER = "mtp."  # begins the names of blocks that predict further tokens
# Dispatchers of tokens to experts, and whether they send a token once to each place that has
# experts of it (`millrace.planner.costs.expert_routing`).
DISPATCHERS = {"alltoall": False, "deepep": True, "hybridep": True, "allgather": False}
# Routings: shares of the tokens that experts get, all equal, or as the tokens choose.
ROUTINGS = (BALANCED, NATURAL) = ("balanced", "natural")
GATHERING = "allgather"  # the one that brings all tokens of a group to each of its ranks


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Capabilities of a framework; the defaults are everything.

    Attributes
    ----------
    degrees : tuple of str
        Degrees of parallelism that may be above one. Unless all are `mixed`, every axis of a mesh
        has one of these roles, the same for all blocks.
    mixed : bool
        Axes may play several roles, blocks of one kind may differ in signatures, recomputation and
        ZeRO.
    schedules : tuple of str
        Names of pipeline schedules; none: every schedule that there is.
    layers : str
        Layers of a chunk: `any` number each, `even`, or even but for the first and the last chunk
        (`ends`), which hold fewer beside the embedding and the loss.
    recompute : tuple of str
        Modes of recomputation, one for all layers.
    recompute_some : bool
        The first layers of every chunk, as many on each, may be recomputed in full, and no other.
    zero, pp_zero : tuple of str
        Levels of ZeRO, as `--zero` names them, one for all layers; those with a pipeline too.
    sequence_parallel : str
        `always` or `never` beside tensor parallelism, or `free`.
    ring : bool
        Keys and values may travel round the context-parallel ranks.
    offload : bool
        Optimizer state may lie in host memory.
    dispatchers : tuple of str
        Dispatchers of tokens to experts, the one that is usually best first; none: it is not known
        which, and the software stays as it is.
    dropless : bool
        Experts compute the tokens that routers send them, however many; else each has a number of
        places, which are padded or overflow.
    expert_overlap : bool
        The all_to_all of a microbatch can move beside the products of another.
    overlap_schedules, overlap_recompute : tuple of str
        Schedules of pipelines, and modes of recomputation, beside which it can; none: all of them.
    overlap_alone : bool
        It can without a pipeline too.
    version, source : str
        The framework's version, and where these are from.
    """

    degrees: tuple[str, ...] = DEGREES
    mixed: bool = True
    schedules: tuple[str, ...] = ()
    layers: str = "any"
    recompute: tuple[str, ...] = MODES
    recompute_some: bool = False
    zero: tuple[str, ...] = LEVELS
    pp_zero: tuple[str, ...] = LEVELS
    sequence_parallel: str = "free"
    ring: bool = True
    offload: bool = True
    dispatchers: tuple[str, ...] = ()
    dropless: bool = False
    expert_overlap: bool = False
    overlap_schedules: tuple[str, ...] = ()
    overlap_recompute: tuple[str, ...] = ()
    overlap_alone: bool = True
    version: str = ""
    source: str = ""

    def has_schedule(self, name: str) -> bool:
        """True if pipelines may have a schedule."""
        return not self.schedules or name in self.schedules

    def levels(self, stages: int) -> tuple[str, ...]:
        """Levels of ZeRO of a plan with so many pipeline stages."""
        return tuple(level for level in self.zero if stages == 1 or level in self.pp_zero)

    @property
    def overlapping(self) -> "Capabilities":
        """Capabilities of plans in which experts' all_to_all moves beside other products."""
        modes = self.overlap_recompute or self.recompute
        return msgspec.structs.replace(
            self,
            schedules=self.overlap_schedules or self.schedules,
            recompute=tuple(mode for mode in self.recompute if mode in modes),
            recompute_some=self.recompute_some and MODES[-1] in modes,
        )

    def faults(self) -> Iterator[str]:
        """Say what of the record names nothing there is."""
        closed = {
            "degrees": DEGREES,
            "schedules": tuple(SCHEDULES),
            "overlap_schedules": tuple(SCHEDULES),
            "recompute": MODES,
            "overlap_recompute": MODES,
            "zero": LEVELS,
            "pp_zero": LEVELS,
            "dispatchers": tuple(DISPATCHERS),
        }
        for field, words in closed.items():
            for word in getattr(self, field):
                if word not in words:
                    yield f"{field}: `{word}`, expected some of {', '.join(words)}"
        if self.layers not in LAYERS:
            yield f"layers: `{self.layers}`, expected one of {', '.join(LAYERS)}"
        if self.sequence_parallel not in SEQUENCE:
            yield f"sequence_parallel: `{self.sequence_parallel}`, expected one of {SEQUENCE}"


EVERYTHING = Capabilities()


def check_pins(runs: Capabilities, framework: str, pins: dict[str, str | int | bool]) -> None:
    """Refuse pins beyond what a framework can run.

    Parameters
    ----------
    runs : Capabilities
        The framework's.
    framework : str
        Its name, for the refusal.
    pins : dict
        Pins that are set, by name (`Pins.document`).

    Raises
    ------
    InfeasibleError
        Names the pin, the row of the framework's record that forbids it, and the way out.
    """
    for fault in _beyond(runs, pins):
        version = f" {runs.version}" if runs.version else ""
        raise InfeasibleError(
            f"{fault} in {framework}{version}: choose otherwise, or plan for another --framework "
            f"(`any` has the whole space)"
        )


def _beyond(runs: Capabilities, pins: dict[str, str | int | bool]) -> Iterator[str]:
    for name in DEGREES:
        if name not in runs.degrees and int(pins.get(name, 1)) > 1:
            yield f"--{name} {pins[name]}: degrees above one are {', '.join(runs.degrees)}"
    rows = (
        ("schedule", runs.schedules or tuple(SCHEDULES)),
        ("recompute", runs.recompute),
        ("zero", runs.levels(int(pins.get("pp", 1)))),
        ("dispatcher", runs.dispatchers or tuple(DISPATCHERS)),
    )
    for name, allowed in rows:
        if name in pins and str(pins[name]) not in allowed:
            yield f"--{name} {pins[name]}: {name} is {' or '.join(allowed)}"
    parallel = pins.get("sequence_parallel")
    if parallel and runs.sequence_parallel == "never":
        yield "--sequence-parallel: there is none"
    if parallel is False and runs.sequence_parallel == "always" and int(pins.get("tp", 1)) > 1:
        yield "--no-sequence-parallel: tensor parallelism always has it"
    if pins.get("ring") and not runs.ring:
        yield "--ring: keys and values are gathered"
    if pins.get("expert_overlap") and runs.dispatchers and not runs.expert_overlap:
        yield "--expert-overlap: the exchange of experts waits for their products"
    if pins.get("expert_overlap") and pins.get("dispatcher") == GATHERING:
        yield f"--expert-overlap: dispatcher {GATHERING} moves beside nothing"
    if pins.get("offload") == "optimizer" and not runs.offload:
        yield "--offload optimizer: optimizer state stays on the devices"


def divided_blocks(blocks: Sequence[str]) -> int:
    """Number of a model's blocks without modules that predict further tokens.

    Those lie beside the loss, whatever the layers of its chunk: Megatron-Core's default
    (docs.nvidia.com/megatron-core, developer guide 0.16.1, multi-token prediction, read 2026-11).

    Parameters
    ----------
    blocks : sequence of str
        All blocks by name, the loss last.

    Examples
    --------
    >>> divided_blocks(["embedding", "h.0", "h.1", "mtp.0", "head"])
    4
    """
    return sum(not block.startswith(FURTHER) for block in blocks)


def layer_counts(layers: int, chunks: int, rule: str, further: int = 0) -> list[tuple[int, ...]]:
    """Layers of every chunk, in each way that a rule allows; none where it allows no way.

    Parameters
    ----------
    layers : int
        Layers of the model, without embedding and loss.
    chunks : int
        Chunks that they are dealt out to.
    rule : str
        `even` or `ends`, as `Capabilities.layers`.
    further : int
        Modules beside the loss, each as long as a layer: the last chunk may have fewer by so many.

    Examples
    --------
    >>> layer_counts(6, 3, "even")
    [(2, 2, 2)]
    >>> layer_counts(7, 3, "ends")
    [(1, 3, 3), (2, 3, 2), (3, 3, 1), (1, 4, 2), (2, 4, 1)]
    >>> layer_counts(7, 3, "even")
    []
    >>> layer_counts(4, 2, "ends", further=2)
    [(3, 1)]
    """
    if layers % chunks == 0 and (rule == "even" or chunks == 1):
        return [(layers // chunks,) * chunks]
    if rule == "even" or chunks == 1:
        return []
    if chunks == 2:
        halves = dict.fromkeys(((layers + further) // 2, -(-(layers + further) // 2)))
        return [(count, layers - count) for count in halves if count <= layers]
    ways: list[tuple[int, ...]] = []
    even = -(-layers // chunks)
    for inner in range(even, min(even + 1, layers // (chunks - 2)) + 1):
        ends = layers - inner * (chunks - 2)
        ways += [
            (first, *[inner] * (chunks - 2), ends - first)
            for first in range(max(ends - inner, 0), min(inner, ends) + 1)
            if abs(2 * first - ends - further) <= 2
        ]
    return ways
