"""Calls of the engine: the one file of the server that asks for plans and simulations.

Questions have been checked against `millrace.serving.questions`. Models and clusters are names of
the catalogues: no path is opened and no function of a user's is called.
"""

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING

from msgspec.structs import replace

from millrace.api.clusters import cluster as cluster_of
from millrace.api.plan_search import opened_question, search
from millrace.models.builder import PRECISIONS
from millrace.models.zoo.catalogue import NAMES
from millrace.planner.cluster import Cluster
from millrace.planner.plan import Plan
from millrace.requested_cluster import is_local, with_software
from millrace.serving.questions import DEVICES_MAX, PlanQuestion, WhatIfs
from millrace.serving.refusals import RefusedError

if TYPE_CHECKING:
    from millrace.models.spec import ModelSpec
    from millrace.planner.search import Pins

Progress = Callable[[str], None]

_CLUSTER = re.compile(r"[a-z0-9][a-z0-9.-]*:[0-9]{1,4}x[0-9]{1,4}")
FORM = "expected DEVICE:GPUS_PER_NODExNODES with a device of the list (h100:8x2)"


def checked_name(field: str, text: str, names: "tuple[str, ...] | list[str]") -> str:
    """The text itself, once it is known to be a name of a catalogue.

    Parameters
    ----------
    field : str
        Field of the question, for the refusal.
    text : str
        What was asked for.
    names : sequence of str
        The catalogue's.
    """
    if text in names:
        return text
    close = get_close_matches(text, names, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else "choose a name of the list"
    raise RefusedError(f"there is no {field.replace('_', ' ')} `{text}`: {hint}", field=field)


def _cluster(text: str, network: str | None = None) -> Cluster:
    """Cluster of the catalogue; this machine, which would have to be measured, is refused."""
    if is_local(text):
        raise RefusedError(
            f"{text} is this machine, and a page measures nothing: ask `millrace plan --cluster "
            f"{text}`, or choose a device of the list",
            field="cluster",
        )
    if not _CLUSTER.fullmatch(text):
        raise RefusedError(
            f"`{text}` is no cluster that a page may ask for: {FORM}; files are for "
            f"`millrace plan`",
            field="cluster",
        )
    on = cluster_of(text)
    if on.devices > DEVICES_MAX:
        raise RefusedError(
            f"{text} has {on.devices:,} devices, and a page may ask about {DEVICES_MAX:,}: "
            f"`millrace plan` takes more",
            field="cluster",
        )
    if network is None:
        return on
    from millrace.planner.clusters import network as link_of
    from millrace.planner.clusters.fabrics import fabrics

    outside = [fabric.name for fabric in fabrics().values() if not fabric.inside]
    link = link_of(checked_name("network", network, outside), on.devices_per_node)
    return replace(on, inter_node=link, name=f"{on.name} over {network}")


def opened(question: PlanQuestion) -> tuple["ModelSpec", Cluster]:
    """Model and cluster of a question, each by its name, with the framework that drives it."""
    from millrace.planner.frameworks.framework_tables import frameworks

    model = checked_name("model", question.model, NAMES)
    on = _cluster(question.cluster, question.network)
    if question.framework is not None:
        checked_name("framework", question.framework, [*frameworks(), "any"])
    if question.precision is not None:
        checked_name("precision", question.precision, list(PRECISIONS))
    return opened_question(
        model,
        on,
        seq_len=question.seq_len,
        precision=question.precision,
        framework=question.framework,
        pins=pins_of(question),
        optimize_for=question.optimize_for,
    )


def pins_of(question: PlanQuestion) -> "Pins":
    """Pins of a question, checked to be such."""
    from millrace.planner.search import Pins

    return Pins.of(question.pins.model_dump(exclude_none=True))


def searched(question: PlanQuestion, progress: Progress) -> Plan:
    """Plan that answers a question.

    Parameters
    ----------
    question : PlanQuestion
        Checked here against the catalogues.
    progress : callable
        Called with a sentence that says how far the search is.
    """
    spec, on = opened(question)
    return search(
        spec,
        on,
        question.global_batch,
        pins=pins_of(question),
        reserve=question.reserve,
        optimize_for=question.optimize_for,
        progress=progress,
    )


def tried(plan: Plan, changes: WhatIfs) -> Plan:
    """The plan on the cluster, in the precision and in the batch that changes ask for.

    Parameters
    ----------
    plan : Plan
        The plan, whose mesh, stages and layouts stay.
    changes : WhatIfs
        Stragglers and jitter in it are no change of the plan.
    """
    from millrace.transfer import in_precision, on_cluster, software_kept

    on = plan.cluster
    if changes.cluster is not None:
        on = with_software(software_kept(plan, _cluster(changes.cluster)), None)
    on = _changed_links(_changed_device(on, changes), changes)
    changed = plan if on is plan.cluster else on_cluster(plan, on)
    if changes.precision is not None:
        changed = in_precision(changed, changes.precision)
    if changes.microbatches not in (None, plan.microbatches):
        count = changes.microbatches or 1
        changed = replace(changed, microbatches=count, global_batch=count * plan.batch)
    elif changed is not plan and changes.precision is None:
        vars(changed)["graph"] = plan.graph  # equal, and takes long to build
    return changed


def _changed_device(on: Cluster, changes: WhatIfs) -> Cluster:
    """Cluster whose devices compute, and reach their memory, faster or slower."""
    factors = (changes.compute, changes.memory_bandwidth)
    if factors == (1.0, 1.0):
        return on
    if on.device.kernels or on.others:
        raise RefusedError(
            f"{on.name}: its kernels were measured, or its devices are of several kinds, so that "
            f"their speed cannot be changed: try a cluster of the catalogue",
            field="compute",
        )
    device = on.device
    rates = {name: changes.compute * rate for name, rate in device.flops_per_s.items()}
    bandwidth = changes.memory_bandwidth * device.memory_bandwidth_bytes_per_s
    return replace(
        on, device=replace(device, flops_per_s=rates, memory_bandwidth_bytes_per_s=bandwidth)
    )


def _changed_links(on: Cluster, changes: WhatIfs) -> Cluster:
    """Cluster whose links are faster or slower, and whose framework hides more or less."""
    for name, factor in (("inter_node", changes.network), ("intra_node", changes.links)):
        if factor == 1.0:
            continue
        if on.device.collectives:
            raise RefusedError(
                f"{on.name}: its collectives were measured, so that links cannot be changed: try "
                f"a cluster of the catalogue",
                field="network" if name == "inter_node" else "links",
            )
        link = getattr(on, name)
        faster = replace(link, bandwidth_bytes_per_s=factor * link.bandwidth_bytes_per_s)
        on = replace(on, **{name: faster})
    if changes.overlap is not None:
        on = replace(on, software=replace(on.software, overlap=changes.overlap))
    return on
