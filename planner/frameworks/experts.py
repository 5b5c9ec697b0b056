"""Experts as a framework runs them: which dispatcher sends tokens, and what that moves beside.

These are settings of the software (`Software.merges`, `gathers`, `pieces`, `routing`, `load`) that
a plan chooses or assumes. What an allgather brings to a device counts in time, not in memory.
"""

from msgspec.structs import replace

from millrace.models.graph import Graph
from millrace.planner.cluster import Device, ExpertLoad, Software
from millrace.planner.collectives import EXPERT_EXCHANGE
from millrace.planner.costs.expert_routing import copies_of_tokens, largest_of
from millrace.planner.errors import InfeasibleError
from millrace.planner.frameworks.capabilities import (
    BALANCED,
    DISPATCHERS,
    GATHERING,
    NATURAL,
    Capabilities,
)

# Times as long the host takes to launch where the all_to_all of a microbatch moves beside another's
# products and nothing is captured: forward and backward take turns, and autograd is entered for
# every part of a layer (Megatron-Core, pipeline_parallel/utils.py, `ScheduleNode`, read 2026-11).
# By published runs with 16 experts a device, 2026-11.
IN_TURNS = 1.5

# Tokens of the fullest of 64 experts beyond the mean, over the mean (MaxVio of a validation set),
# of models balanced by an auxiliary loss, and of those balanced by a bias on the router's scores:
# Wang et al., "Auxiliary-loss-free load balancing strategy for mixture-of-experts", arXiv
# 2408.15664 (2024), table 2, 1B. Shares of one microbatch vary more, by how much is not said there.
LOSS_EXCESS, BIAS_EXCESS, COUNTED_EXPERTS = 0.72, 0.04, 64


def with_experts(
    software: Software,
    device: Device,
    runs: Capabilities,
    dispatcher: str | None = None,
    overlap: bool | None = None,
    *,
    captured: bool = False,
) -> Software:
    """Software of a framework with its experts' dispatcher, and their exchange beside products.

    Parameters
    ----------
    software : Software
        The framework's.
    device : Device
        Devices that tokens are sent between.
    runs : Capabilities
        What the framework can run; its first dispatcher that the device has is taken unless one is
        named. Where it says nothing of dispatchers, the software stays as it is.
    dispatcher : str, optional
        One of `DISPATCHERS`.
    overlap : bool, optional
        Whether the all_to_all of a microbatch moves beside the products of another.
    captured : bool
        Steps or layers are captured as CUDA graphs: parts of layers, launched in turns, take no
        longer than others.

    Raises
    ------
    InfeasibleError
        The device has no such dispatcher.
    """
    if dispatcher is None and runs.dispatchers:
        usable = (name for name in runs.dispatchers if not _lacking(name, device))
        dispatcher = next(usable, None)
    if dispatcher is not None:
        if lacking := _lacking(dispatcher, device):
            raise InfeasibleError(
                f"--dispatcher {dispatcher}: {device.name} {lacking}; choose alltoall"
            )
        gathers = dispatcher == GATHERING
        software = replace(software, merges=DISPATCHERS[dispatcher], gathers=gathers)
    if overlap is None and runs.dispatchers:
        overlap = runs.expert_overlap and not software.gathers
    if overlap is None or overlap == overlaps(software):
        return software
    pieces = {*software.pieces} ^ {EXPERT_EXCHANGE}
    turns = 1 if captured else IN_TURNS
    host_ns = round(software.host_ns * turns if overlap else software.host_ns / turns)
    return replace(software, pieces=tuple(sorted(pieces)), host_ns=host_ns)


def with_expert_recompute(software: Software, ep: int | None) -> Software:
    """Software of a framework whose selective recomputation is what it is for experts.

    Parameters
    ----------
    software : Software
        The framework's.
    ep : int or None
        Ranks that share the experts of a layer; None: not known, more than one.
    """
    rule = software.expert_selective or software.selective
    if ep != 1 and rule.sent:
        rule = replace(rule, keeps=(*rule.keeps, *rule.sent), sent=())
    return replace(software, selective=rule, expert_selective=None)


def with_routing(
    software: Software, routing: str | None, experts: int, *, biased: bool
) -> Software:
    """Software whose experts get equal shares of the tokens, or such as tokens choose.

    Parameters
    ----------
    software : Software
        The framework's.
    routing : str or None
        One of `ROUTINGS`; None: as the software has it.
    experts : int
        Experts of a layer.
    biased : bool
        A bias on the router's scores balances them, not an auxiliary loss.
    """
    if routing is None:
        return software
    load = ExpertLoad()
    if routing == NATURAL:
        excess = BIAS_EXCESS if biased else LOSS_EXCESS
        load = ExpertLoad(deviation=excess / largest_of(COUNTED_EXPERTS), experts=experts)
    return replace(software, load=load)


def routing_of(software: Software) -> str:
    """Routing that software has, one of `ROUTINGS`."""
    return NATURAL if software.load.deviation else BALANCED


def _lacking(dispatcher: str, device: Device) -> str:
    """Say what a device lacks for a dispatcher; empty where it has it.

    DeepEP's kernels need Hopper or later, the first GPUs with fp8 (github.com/deepseek-ai/DeepEP,
    requirements, read 2026-11).
    """
    merges, fp8 = DISPATCHERS[dispatcher], "fp8" in device.flops_per_s
    return "is older than Hopper, which its kernels need" if merges and not fp8 else ""


def overlaps(software: Software) -> bool:
    """True if experts' all_to_all moves beside the products of another microbatch."""
    return EXPERT_EXCHANGE in software.pieces


def exchange_hides(software: Software, graph: Graph) -> bool:
    """True if tokens go to experts beside the products of another microbatch.

    Parameters
    ----------
    software : Software
        The framework's.
    graph : Graph
        A training graph, with experts or without.
    """
    return overlaps(software) and bool(copies_of_tokens(graph))


def dispatcher_of(software: Software) -> str:
    """Name of the dispatcher that software has: of those that send a token once, the first."""
    if software.gathers:
        return GATHERING
    return next(name for name, merges in DISPATCHERS.items() if merges == software.merges)
