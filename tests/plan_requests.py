"""Requests of tests to the search, each in a line: fields and pins."""

from dataclasses import fields as fields_of
from typing import Any

from millrace.api.plan_search import check_question
from millrace.api.plan_search import search as simulated_search
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.planner.cluster import Cluster
from millrace.planner.clusters import local_cluster, parse_cluster
from millrace.planner.plan import Plan
from millrace.planner.search import Pins, SearchRequest, search
from millrace.requested_cluster import usual_precision

NEAR = 5.0  # gap at which a search of tests ends that looks for a plan, not for how good it is
PINS = frozenset(field.name for field in fields_of(Pins))


def request_of(
    model: ModelSpec, where: Cluster | str | int, global_batch: int = 8, **choices: Any
) -> SearchRequest:
    """Request for a plan on a cluster, on one by its name or on so many processes of a machine.

    Choices are pins by name, or fields of the request.
    """
    if isinstance(where, int):
        where = local_cluster(where, cores=2, memory_bytes=2**33)
    pins = {name: choices.pop(name) for name in PINS & choices.keys()}
    return SearchRequest(
        model=model,
        cluster=parse_cluster(where) if isinstance(where, str) else where,
        global_batch=global_batch,
        **{"training": TrainingSpec(), "pins": Pins(**pins), **choices},
    )


def searched(
    model: str | ModelSpec,
    where: Cluster | str | int,
    global_batch: int = 8,
    *,
    seq_len: int | None = None,
    precision: str | None = None,
    **choices: Any,
) -> Plan:
    """Plan that the front door's search gives, simulated; a cluster stays as it is.

    Choices are pins by name, or arguments of the search.
    """
    if isinstance(where, int):
        where = local_cluster(where, cores=2, memory_bytes=2**33)
    cluster = parse_cluster(where) if isinstance(where, str) else where
    if isinstance(model, str):
        precision = precision or usual_precision(cluster, model)
        model = check_question(model, seq_len=seq_len, precision=precision)
    pins = Pins(**{name: choices.pop(name) for name in PINS & choices.keys()})
    return simulated_search(model, cluster, global_batch, pins=pins, **{"max_gap": NEAR, **choices})


def plan_of(
    model: ModelSpec, where: Cluster | str | int, global_batch: int = 8, **choices: Any
) -> Plan:
    """Plan that the search gives as its answer."""
    return search(request_of(model, where, global_batch, **{"max_gap": NEAR, **choices}))
