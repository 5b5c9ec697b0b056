"""Profiles of this machine's cores: kernels and collectives timed alone, then inside a step.

What ops take behind other ops, what a driver adds between them and how long ranks wait for one
another only a step shows. So a small transformer is trained for some steps, split by samples and
split by features, and both runs are folded into the profile.
"""

from collections.abc import Callable

import msgspec

from millrace.executor.errors import ExecutorError
from millrace.executor.launch import execute
from millrace.executor.measure import SECONDS, cached_profile
from millrace.executor.probes.recheck import CROWDED
from millrace.executor.processes import usable_cores
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.trace import Trace
from millrace.planner.cluster import Cluster, Device
from millrace.planner.clusters import parse_cluster
from millrace.planner.compile import compile_plan
from millrace.planner.errors import InfeasibleError
from millrace.planner.search import Pins, SearchRequest, search
from millrace.profiling.profile_update import updated_profile

STEPS = 14
SAMPLES_PER_RANK = 4
# Sizes between those that kernels are timed at.
PROBE_MODEL = ModelSpec(
    name="probe",
    family="gpt",
    config={
        "layers": 3,
        "hidden": 256,
        "heads": 4,
        "ffn_hidden": 1024,
        "vocab": 256,
        "positions": 96,
    },
    seq_len=96,
)


def local_profile(
    ranks: int,
    *,
    refresh: bool = False,
    seconds: float | None = None,
    progress: Callable[[str], None] | None = None,
    unkept: Callable[[str], None] | None = None,
) -> Device:
    """Profile of this machine with `ranks` processes, measured once and then kept.

    Parameters
    ----------
    ranks : int
        Number of processes that share the machine.
    refresh : bool
        Measure it in any case.
    seconds : float, optional
        About how long kernels and collectives are timed; where it is less than by default, nothing
        is run beyond that, nor where many processes share a core.
    progress, unkept : callable, optional
        As for `millrace.executor.measure.cached_profile`.

    Raises
    ------
    ExecutorError
        A process failed.
    InfeasibleError
        This machine cannot hold so many processes.
    """
    is_short = seconds is not None and seconds < SECONDS
    is_crowded = ranks > CROWDED * usable_cores()
    return cached_profile(
        ranks,
        refresh=refresh,
        seconds=seconds or SECONDS,
        progress=progress,
        unkept=unkept,
        refine=None
        if is_short or is_crowded
        else lambda device: _in_a_step(device, ranks, progress or unkept),
    )


def _in_a_step(device: Device, ranks: int, tell: Callable[[str], None] | None) -> Device:
    """Profile with runs of the probe model folded in, as far as it can be run so."""
    cluster = parse_cluster(f"local:{ranks}", device)
    runs = []
    for pins in ({"dp": ranks}, {"tp": ranks})[: min(ranks, 2)]:
        try:
            runs.append(_run(cluster, pins))
        except (InfeasibleError, ExecutorError) as error:
            if tell is not None:
                tell(f"the profile goes without a run of {pins}: {error}")
    learned = updated_profile(cluster, *runs) if runs else device
    return msgspec.structs.replace(learned, measured=device.measured)


def _run(cluster: Cluster, pins: dict[str, int]) -> tuple[ActorGraph, Trace]:
    """Plan of the probe model, compiled, and the trace of a run of it."""
    asked = SearchRequest(
        model=PROBE_MODEL,
        training=TrainingSpec(),
        cluster=cluster,
        global_batch=SAMPLES_PER_RANK * cluster.devices,
        pins=Pins.of(pins),
    )
    plan = search(asked)
    return compile_plan(plan), execute(plan, steps=STEPS, trace=True).trace
