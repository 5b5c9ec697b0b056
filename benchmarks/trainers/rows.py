"""Rows of the published table as the jobs that their trainers ran, without a search."""

from typing import Any

from millrace.planner.frameworks.capabilities import Capabilities
from millrace.planner.frameworks.experts import dispatcher_of, overlaps
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.search import Pins
from millrace.published.language import framework_name, question
from millrace.published.question import InexpressibleError, Question
from millrace.published.reading import Row
from millrace.trainers.job import TrainingJob


def job_of_row(row: Row) -> TrainingJob:
    """Training job that a row's run was, with every choice that `job_of` states of a plan.

    A setting that the row leaves blank is off, as trainers have it; but for sequence parallelism,
    which is as the framework always has it, and the degree of tensor parallelism inside experts,
    which stays open. Layers are dealt out evenly, also where the row says otherwise.

    Raises
    ------
    InexpressibleError
        The planner has no words for the row, or it does not say the size of a microbatch.
    """
    asked, pins = question(row)
    if pins.micro_batch is None:
        raise InexpressibleError("micro_batch is blank: expected the samples of one microbatch")
    framework = framework_name(row)
    return TrainingJob(
        model=asked.model,
        training=asked.training,
        global_batch=asked.global_batch,
        nodes=asked.cluster.nodes,
        devices_per_node=asked.cluster.devices_per_node,
        pins=Pins.of(_choices(asked, pins, capabilities(framework))),
        framework=framework,
        cluster=asked.cluster.name,
    )


def _choices(asked: Question, pins: Pins, runs: Capabilities) -> dict[str, Any]:
    """Pins of a row, with the choices that it leaves blank."""
    choices: dict[str, Any] = {"recompute": "none"}
    if int(pins.dp or 1) * int(pins.cp or 1) > 1:
        choices["zero"] = 0
    if int(pins.tp or 1) > 1:
        choices["sequence_parallel"] = runs.sequence_parallel == "always"
    if int(pins.cp or 1) > 1:
        choices["ring"] = False
    if asked.model.config.get("experts"):
        software = asked.cluster.software
        choices |= {"dispatcher": dispatcher_of(software), "expert_overlap": overlaps(software)}
    return choices | pins.document
