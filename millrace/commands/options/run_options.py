"""Options of `millrace run`."""

from pathlib import Path
from typing import Annotated

import typer

from millrace.commands.options.option_words import SEED_MAX

Steps = Annotated[int, typer.Option(min=1, help="Training steps.")]
Data = Annotated[
    Path | None,
    typer.Option(help="Text: a file or folder; the standard library's sources by default."),
]
BackendName = Annotated[
    str, typer.Option(help="numpy: this machine's CPUs; cupy: its GPUs, one per rank.")
]
Eager = Annotated[
    bool, typer.Option("--eager", help="On GPUs: actor by actor, not a captured step.")
]
Loopback = Annotated[
    bool, typer.Option("--loopback", help="All ranks on one GPU: to check a plan.")
]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic", help="On GPUs: equal bits every time, nothing chosen by timing."
    ),
]
LearningRate = Annotated[float | None, typer.Option(help="Peak learning rate.")]
Seed = Annotated[
    int, typer.Option(min=0, max=SEED_MAX, help="Of initial values and the order of samples.")
]
Weights = Annotated[Path | None, typer.Option(help="Initial values: a .npz of arrays by variable.")]
Checkpoint = Annotated[Path | None, typer.Option(help="Folder to save the state in.")]
CheckpointEvery = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Save every N steps too, not only the last."),
]
CheckpointMinutes = Annotated[
    float | None,
    typer.Option(
        metavar="M", help="Save too when M minutes have passed since the last checkpoint."
    ),
]
CheckpointKeep = Annotated[
    int | None,
    typer.Option(min=1, metavar="K", help="Only the last K checkpoints stay, not all."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on from the last state in --checkpoint.")
]
Restarts = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        help="When a rank fails, go on from the last checkpoint, N times at the most.",
    ),
]
Stall = Annotated[
    float | None,
    typer.Option(
        "--stall",
        min=0.0,
        metavar="SECONDS",
        help="End the run when a rank comes no further for so long; 0: never. Default: 10 s and "
        "ten predicted steps.",
    ),
]
HostNames = Annotated[
    str | None,
    typer.Option(
        "--hosts",
        metavar="A,B,…",
        help="Hosts of the ranks, a node of the plan each, then spares; @FILE: a line each; slurm: "
        "those of the job.",
    ),
]
Launcher = Annotated[
    str | None,
    typer.Option(
        metavar="PROGRAM", help="What runs a command on a host in place of ssh: PROGRAM HOST …"
    ),
]
Address = Annotated[
    str | None,
    typer.Option(help="Address of this machine that the hosts reach. Default: the way to them."),
]
