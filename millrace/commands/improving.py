"""Improving a job that runs today, by a single change or the free plan: `millrace improve`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.commands.trainers import (
    From,
    LeftOut,
    Nodes,
    OnDevices,
    PerNode,
    Settings,
    Values,
    read_settings,
)
from millrace.output import Json, answer, say, working

if TYPE_CHECKING:
    from rich.console import Console

    from millrace.improvement import Improvement
    from millrace.trainers.trainer import ReadSettings, SettingsSource, Trainer

Measured = Annotated[
    float | None,
    typer.Option(
        "--measured",
        metavar="SECONDS",
        help="Step time as you measured it: predictions are corrected by it where it lies in "
        "their range; else it is said what to look for.",
    ),
]
ChangesOnly = Annotated[
    bool, typer.Option("--changes-only", help="Do not search for the best plan of the trainer.")
]
Destination = Annotated[
    Path | None,
    typer.Option(
        "--write",
        metavar="PATH",
        help="Write your files with the best plan's settings, or the best change's, to this "
        "folder, or to this file where they are one; a script that cannot be changed plainly as a "
        "patch.",
    ),
]
PlanFile = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write the best plan to this file.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("improve")(improve)


def improve(
    settings: Settings,
    source: From = None,
    cluster: OnDevices = None,
    nodes: Nodes = 0,
    gpus_per_node: PerNode = 0,
    values: Values = None,
    left_out: LeftOut = None,
    measured: Measured = None,
    changes_only: ChangesOnly = False,
    output: PlanFile = None,
    write: Destination = None,
    as_json: Json = False,
) -> None:
    """Say what a job that runs today gains from each single change, and from a free plan.

    The job is read as by import-config; every change is planned and simulated.
    """
    from millrace.files import check_writable, write_document
    from millrace.improvement import improved
    from millrace.improvement.improvement_tables import (
        change_table,
        closing_lines,
        improvement_document,
        today_lines,
    )
    from millrace.planner.clusters import machine_cores

    if output is not None and changes_only:
        raise typer.BadParameter("--output writes the best plan, which --changes-only leaves out")
    check_writable(output)
    trainer, read, texts = read_settings(
        settings, source, nodes, gpus_per_node, values, cluster, left_out
    )
    for sentence in read.remarks:
        say(sentence)
    with working(f"improving {read.job.model.name}") as told:
        improvement = improved(
            read.job,
            cluster,
            trainer=trainer,
            given=read.given,
            measured_s=measured,
            free=not changes_only,
            processes=machine_cores(),
            progress=told,
        )
    if output is not None and improvement.free_plan is not None:
        write_document(output, improvement.free_plan)
        say(f"plan written to {output}")
    document = improvement_document(improvement)
    if write is not None:
        document["written"] = _write(improvement, texts, read, trainer, settings, write)
    document |= {"assumed": list(read.assumed), "unplanned": list(read.unplanned)}
    document |= {"unread": list(read.unread)}

    def draw(console: "Console") -> None:
        for line in today_lines(improvement):
            console.print(line, markup=False, soft_wrap=True)
        console.print(change_table(improvement))
        for line in closing_lines(improvement):
            console.print(line, markup=False, soft_wrap=True)

    answer(document, as_json, draw)
    if write is not None and document["written"] is None:
        raise typer.Exit(1)


def _write(
    improvement: "Improvement",
    texts: "SettingsSource",
    read: "ReadSettings",
    trainer: "Trainer",
    settings: list[str],
    place: Path,
) -> dict[str, Any] | None:
    """Fields on what was written of the best job; None where nothing gains that can be written."""
    from millrace.improvement.changed_files import changed_files
    from millrace.planner.errors import InfeasibleError
    from millrace.trainers.exporting import write_texts

    for _, text, job in improvement.gaining:
        try:
            changed = changed_files(texts, read, job, trainer)
        except InfeasibleError as error:
            say(f"{text}: {error}")
            continue
        paths = write_texts(changed.files, place, read=map(Path, settings))
        for path in paths:
            say(f"written, with {text}: {path}")
        changes = [change.document for change in changed.changes]
        return {"what": text, "files": [str(path) for path in paths], "settings": changes}
    say("nothing is written: there is no other change that fits and gains")
    return None
