"""Round trips: published runs planned, exported, read back and planned again.

Run `python -m benchmarks.trainers.round_trips TABLE [--processes P]` from the root of the
repository. Every run that a trainer's framework can run is planned with its pins, written as that
trainer's settings, read back, and planned with the pins that were read; the two plans have to be
equal but for their names and pins. A line for each trainer has the runs, and what became of those
that do not come back.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.planner.errors import InfeasibleError
from millrace.planner.plan import Plan
from millrace.planner.search import Pins
from millrace.planner.worker_processes import map_in_processes
from millrace.published.language import question
from millrace.published.prediction import planned
from millrace.published.question import InexpressibleError, Question
from millrace.published.reading import read_table
from millrace.trainers.catalogue import TRAINERS
from millrace.trainers.job_of_plan import job_of
from millrace.trainers.model_names import stated
from millrace.trainers.trainer import SettingsError, SettingsSource, Trainer

EQUAL = "come back equal"


def trainers_of(framework: str) -> Iterator[Trainer]:
    """Yield trainers that can run what a framework's record plans."""
    for trainer in TRAINERS.values():
        if framework in trainer.frameworks:
            yield trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrip:
    """Fate of a run, and the settings it was written as, as a line of `--save`."""

    text: str
    saved: str = ""


def outcome(task: tuple[str, Question, Pins]) -> RoundTrip:
    """Fate of a run that is exported to a trainer and read back."""
    name, asked, pins = task
    trainer = TRAINERS[name]
    try:
        plan = planned(asked, pins).plan
        job = job_of(plan, trainer)
        written = trainer.write(job)
    except InexpressibleError as error:
        return RoundTrip(text=f"no plan: {error}")
    except InfeasibleError as error:
        return RoundTrip(text=f"not written: {error}")
    line = {"trainer": name, "devices": job.devices, "arguments": written.arguments}
    saved = msgspec.json.encode(line).decode()
    try:
        job = trainer.read(SettingsSource(files=written.files, values={})).job
        read = replace(asked, model=job.model, training=job.training, global_batch=job.global_batch)
        again = planned(read, job.pins).plan
    except (SettingsError, InexpressibleError) as error:
        return RoundTrip(text=f"not read: {error}", saved=saved)
    equal = _decisions(plan) == _decisions(again)
    return RoundTrip(text=EQUAL if equal else "another plan", saved=saved)


def _decisions(plan: Plan) -> Plan:
    """Plan without evidence and pins, its model by what is stated of it."""
    config = stated(plan.model.family, plan.model.config)
    if config.get("experts"):
        sizes = msgspec.convert(config, DecoderConfig)
        if all(sizes.has_experts(layer) for layer in range(sizes.layers)):
            config.pop("ffn_hidden", None)  # no layer has a dense part
    model = msgspec.structs.replace(plan.model, name="", config=config)
    cleared = {"pins": {}, "evidence": None, "figures": {}}
    return msgspec.structs.replace(plan, model=model, **cleared)


def main(
    table: Annotated[Path, typer.Argument(help="A table of published runs.")],
    every: Annotated[int, typer.Option(help="One row of so many.")] = 1,
    processes: Annotated[int, typer.Option(help="Processes that plan.")] = 2,
    only: Annotated[str | None, typer.Option(help="This trainer alone.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the exported settings here.")] = None,
) -> None:
    """Print what becomes of the runs of a table, trainer by trainer."""
    tasks: dict[object, tuple[str, Question, Pins]] = {}
    rows: Counter[object] = Counter()
    for row in read_table(table).rows[::every]:
        try:
            asked, pins = question(row)
        except InexpressibleError:
            continue
        for trainer in trainers_of(row["framework"]):
            if only not in (None, trainer.name):
                continue
            key = (trainer.name, asked.key, pins)
            tasks.setdefault(key, (trainer.name, asked, pins))
            rows[key] += 1
    trips = list(map_in_processes(outcome, list(tasks.values()), processes))
    by_trainer: dict[str, Counter[str]] = {}
    for (key, task), trip in zip(tasks.items(), trips, strict=True):
        by_trainer.setdefault(task[0], Counter())[trip.text] += rows[key]
    if save is not None:
        save.write_text("\n".join(trip.saved for trip in trips if trip.saved) + "\n", "utf-8")
    for name, counts in by_trainer.items():
        print(f"{name}: {counts.total()} runs, {counts[EQUAL]} {EQUAL}")
        for text, count in counts.most_common():
            if text != EQUAL:
                print(f"  {count:3} {text}")


if __name__ == "__main__":
    typer.run(main)
