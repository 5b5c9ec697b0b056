"""Jobs of published runs, and how many of them a trainer's settings give back.

Run `python -m benchmarks.trainers.published_jobs TABLE FRAMEWORK TRAINER` from the root of the
repository, with a table of published runs.
"""

import csv
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from millrace.models.zoo.catalogue import FAMILIES
from millrace.planner.errors import InfeasibleError
from millrace.planner.frameworks.experts import dispatcher_of, overlaps
from millrace.planner.search import Pins
from millrace.published.language import question
from millrace.published.reading import Row
from millrace.trainers.catalogue import trainer_named
from millrace.trainers.job import TrainingJob
from millrace.trainers.trainer import SettingsSource, Trainer


def job_of_row(row: Row, framework: str) -> TrainingJob:
    """Job of a published run; what the row leaves blank is 1, none or off.

    Parameters
    ----------
    row : Row
        Of a table of published runs.
    framework : str
        Record that predicts the job.

    Raises
    ------
    InexpressibleError
        The planner has no words for the row.
    """
    asked, pins = question(row)
    return TrainingJob(
        model=asked.model,
        training=asked.training,
        global_batch=asked.global_batch,
        nodes=asked.cluster.nodes,
        devices_per_node=asked.cluster.devices_per_node,
        pins=_completed(pins, asked.cluster.software, bool(asked.model.config.get("experts"))),
        framework=framework,
        cluster=asked.cluster.name,
        chunk_layers=_ends_lighter(asked.model.config, (pins.pp or 1) * (pins.interleave or 1)),
    )


def _ends_lighter(config: Mapping[str, Any], chunks: int) -> tuple[int, ...]:
    """Layers of every chunk, one less at the ends; empty where all have as many."""
    counted = int(config.get("layers", 0)) + 2
    if chunks == 1 or (counted - 2) % chunks == 0 or counted % chunks:
        return ()
    middle = counted // chunks
    return (middle - 1, *[middle] * (chunks - 2), middle - 1)


def _completed(pins: Pins, software: object, experts: bool) -> Pins:
    """Pins with those that a job always has."""
    defaults: dict[str, object] = {"micro_batch": 1, "recompute": "none"}
    if (pins.dp or 1) * (pins.cp or 1) > 1:
        defaults["zero"] = 0
    if (pins.tp or 1) > 1:
        defaults["sequence_parallel"] = False
    if (pins.cp or 1) > 1:
        defaults["ring"] = False
    if experts:
        defaults |= {"ep": 1, "dispatcher": dispatcher_of(software)}  # type: ignore[arg-type]
        defaults["expert_overlap"] = overlaps(software)  # type: ignore[arg-type]
    return Pins.of(defaults | pins.document)


def spelled_out(job: TrainingJob) -> TrainingJob:
    """The job with every size of its model, as settings that were read have them.

    Parameters
    ----------
    job : TrainingJob
        A job.
    """
    config = msgspec.convert(dict(job.model.config), FAMILIES[job.model.family].config)
    sizes = msgspec.structs.asdict(config)
    return replace(job, model=msgspec.structs.replace(job.model, config=sizes))


def round_trip(job: TrainingJob, trainer: Trainer) -> str:
    """Outcome of a job that is written and read: same, the parts that differ, or why it is not.

    Parameters
    ----------
    job : TrainingJob
        A job.
    trainer : Trainer
        Whose settings are written.
    """
    try:
        written = trainer.write(job)
    except InfeasibleError as error:
        return f"not written: {error}"
    before = spelled_out(job)
    after = spelled_out(trainer.read(SettingsSource(files=written.files, values={})).job)
    parts = [name for name in job.__slots__ if getattr(before, name) != getattr(after, name)]
    return f"differs in {', '.join(parts)}" if parts else "same"


def main(table: str, framework: str, trainer: str) -> None:
    """Print how many rows of a framework go round, and what becomes of the others."""
    with Path(table).open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["framework"] == framework]
    record = trainer_named(trainer)
    outcomes = Counter(round_trip(job_of_row(row, framework), record) for row in rows)
    for outcome, count in outcomes.most_common():
        print(f"{count:4} of {len(rows)}  {outcome}")


if __name__ == "__main__":
    main(*sys.argv[1:4])
