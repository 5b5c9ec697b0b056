"""Trainers' settings, out of plans and back: `millrace export` and `millrace import-config`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.commands.options import completion
from millrace.output import Json, answer, say, working

if TYPE_CHECKING:
    from rich.console import Console

    from millrace.planner.plan import Plan
    from millrace.trainers.trainer import ReadSettings, SettingsSource, Trainer

To = Annotated[
    str,
    typer.Option(
        "--to", metavar="TRAINER", help="Whose settings.", autocompletion=completion.trainers
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TRAINER",
        help="Whose settings they are; by default told from the settings.",
        autocompletion=completion.trainers,
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Write the files to this folder; else print them."),
]
Settings = Annotated[
    list[str],
    typer.Argument(
        metavar="SETTINGS...",
        help="Files, a folder of files, or the command line that starts the job, in quotes.",
    ),
]
OnDevices = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="CLUSTER",
        help="The devices that the job runs on: h100, or a whole cluster as for plan. Exported "
        "files say it themselves.",
        autocompletion=completion.clusters,
    ),
]
Nodes = Annotated[
    int, typer.Option(min=0, help="Nodes of the job, where the settings leave it open.")
]
PerNode = Annotated[
    int,
    typer.Option("--gpus-per-node", min=0, help="Devices of a node, where the settings leave it."),
]
Values = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A variable of a script, or a setting, that the files leave open. May be repeated.",
    ),
]
LeftOut = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        metavar="NAME",
        help="A setting to go on without, where it is refused. May be repeated.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("export")(export)
    app.command("import-config")(import_config)


def export(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A file of `millrace plan -o`.")],
    to: To,
    output: Folder = None,
    as_json: Json = False,
) -> None:
    """Write a plan as another trainer's settings, and say what it cannot be told."""
    from millrace.files import load_plan
    from millrace.trainers.catalogue import trainer_named
    from millrace.trainers.exporting import export_plan, write_files

    trainer = trainer_named(to)
    written = export_plan(load_plan(plan), trainer)
    for sentence in written.unsaid:
        say(f"not said: {sentence}")
    if output is not None:
        for path in write_files(written, output):
            say(f"written: {path}")
    document = {
        "trainer": trainer.name,
        "version": trainer.version,
        "arguments": list(written.arguments),
        "files": dict(written.files),
        "unsaid": list(written.unsaid),
    }

    def draw(console: "Console") -> None:
        if output is None:
            for name, text in written.files.items():
                heading = f"# ---- {name}\n" if len(written.files) > 1 else ""
                console.out(heading + text, highlight=False, end="")
        else:
            console.print(f"settings of {trainer.name} {trainer.version} are in {output}")

    answer(document, as_json, draw)


def import_config(
    settings: Settings,
    source: From = None,
    cluster: OnDevices = None,
    nodes: Nodes = 0,
    gpus_per_node: PerNode = 0,
    values: Values = None,
    left_out: LeftOut = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the job's plan to this file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Read another trainer's settings as model, cluster, batch and pins.

    Scripts run in a sandbox that starts nothing.
    """
    from millrace.files import check_writable, write_document
    from millrace.improvement.setting_changes import left_out as left_out_of

    check_writable(output)
    trainer, read, _ = read_settings(
        settings, source, nodes, gpus_per_node, values, cluster, left_out
    )
    document = _documented(read) | {"left_out": list(left_out_of(read, trainer))}
    if output is not None or cluster is not None:
        document["cluster"] = _cluster_text(read, cluster)
    if output is not None:
        write_document(output, planned_job(read, cluster))
        say(f"plan written to {output}")
    schedule = document["left_out"] if output is not None else []
    answer(document, as_json, lambda console: _draw(read, document, schedule, console))


def read_settings(
    settings: list[str],
    trainer: str | None,
    nodes: int,
    gpus_per_node: int,
    values: list[str] | None,
    cluster: str | None,
    left_out: list[str] | None,
) -> tuple["Trainer", "ReadSettings", "SettingsSource"]:
    """Trainer of the settings that a command names, their job, and their texts.

    Parameters
    ----------
    settings : list of str
        Paths, or a command line.
    trainer : str or None
        Whose they are; None: told from the settings.
    nodes, gpus_per_node : int
        0 where the settings say.
    values : list of str or None
        As `--set` has them.
    cluster : str or None
        As `--cluster` has it: its sizes count.
    left_out : list of str or None
        As `--ignore` has them.

    Raises
    ------
    SettingsError, PlanError, FileError
        As `Trainer.read` says; or there is no such trainer or file.
    """
    from millrace.trainers import catalogue
    from millrace.trainers.sources import added_values, source_of

    added = added_values(values or ())
    named = source_of(settings, added, nodes, gpus_per_node, cluster, left_out or ())
    return *catalogue.read_settings(named, trainer, "--from"), named


def planned_job(read: "ReadSettings", cluster: str | None) -> "Plan":
    """Plan of a job that settings describe, on its cluster."""
    from millrace.trainers.job_plans import plan_of_job

    with working(f"planning {read.job.model.name}") as told:
        return plan_of_job(read.job, cluster, told)


def _cluster_text(read: "ReadSettings", cluster: str | None) -> str:
    from millrace.trainers.asking import cluster_text

    return cluster_text(read.job, cluster)


def _documented(read: "ReadSettings") -> dict[str, Any]:
    job = read.job
    return {
        "model": job.model.name,
        "family": job.model.family,
        "config": dict(job.model.config),
        "seq_len": job.model.seq_len,
        "precision": job.model.precision,
        "global_batch": job.global_batch,
        "framework": job.framework,
        "nodes": job.nodes,
        "gpus_per_node": job.devices_per_node,
        "cluster": job.cluster or None,
        "pins": job.pins.document,
        "chunk_layers": list(job.chunk_layers),
        "recompute_layers": job.recompute_layers,
        "software": dict(job.software),
        "assumed": list(read.assumed),
        "unplanned": list(read.unplanned),
        "unread": list(read.unread),
        "ignored": list(read.ignored),
    }


def _draw(
    read: "ReadSettings", document: dict[str, Any], left_out: list[str], console: "Console"
) -> None:
    job = read.job
    where = document["cluster"] or f"{job.nodes} nodes of {job.devices_per_node} devices"
    console.print(
        f"{job.model.name}, {job.model.precision}, {job.model.seq_len:,} tokens, "
        f"{job.global_batch:,} samples a step, by {job.framework} on {where}",
        markup=False,
    )
    pins = " ".join(f"{name}={value}" for name, value in job.pins.document.items())
    console.print(f"pins: {pins}", markup=False, soft_wrap=True)
    if job.chunk_layers:
        console.print(f"layers of chunks: {', '.join(map(str, job.chunk_layers))}")
    if job.recompute_layers:
        console.print(f"recomputed: the first {job.recompute_layers} layers of every chunk")
    sections = (
        ("assumed", read.assumed),
        ("changes speed or memory and is not planned", read.unplanned),
    )
    for title, sentences in sections:
        for sentence in sentences:
            console.print(f"{title}: {sentence}", markup=False, soft_wrap=True)
    lists = (
        ("not read, since no release has them", read.unread),
        ("without influence on a plan", read.ignored),
        ("not as the plan has it, and so left out of an export", left_out),
    )
    for title, names in lists:
        if names:
            console.print(f"{title}: {' '.join(names)}", markup=False, soft_wrap=True)
