"""Requests of tests to the search, each in a line: fields and pins."""

from dataclasses import fields as fields_of
from typing import Any

from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.planner.cluster import Cluster
from millrace.planner.clusters import local_cluster, parse_cluster
from millrace.planner.plan import Plan
from millrace.planner.search import Pins, SearchRequest, search

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


def plan_of(
    model: ModelSpec, where: Cluster | str | int, global_batch: int = 8, **choices: Any
) -> Plan:
    """Plan that the search gives as its answer."""
    return search(request_of(model, where, global_batch, **choices))
