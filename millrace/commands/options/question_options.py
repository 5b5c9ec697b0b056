"""Options that several commands have: the model, what it computes in, who runs it, its memory."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.commands.options import completion
from millrace.commands.options.option_words import PRECISIONS, RESERVE

if TYPE_CHECKING:
    from millrace.models.spec import TrainingSpec

MODEL_HELP = "A name of `millrace models`, a config.json, .onnx or .pt2 file, or module:function."
Model = Annotated[
    str, typer.Argument(metavar="MODEL", help=MODEL_HELP, autocompletion=completion.models)
]
SeqLen = Annotated[
    int | None, typer.Option(min=1, help="Tokens of a sample; the model's longest by default.")
]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"{PRECISIONS}. Left out: bf16 or fp16 on GPUs of the catalogue with it, else fp32.",
        autocompletion=completion.precisions,
    ),
]
Attention = Annotated[
    str, typer.Option(help="flash, or unfused: probabilities are kept in memory.")
]
Optimizer = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="adamw, sgd (with a momentum of 0.9), or muon: of momentum 0.95 for the matrices "
        "between hidden layers, and AdamW for all else.",
    ),
]
LoraRank = Annotated[
    int,
    typer.Option(
        min=0,
        help="Train adapters of this rank beside every matrix between hidden layers (LoRA), and "
        "freeze all else; 0 trains everything.",
    ),
]
MemoryLimit = Annotated[
    str | None, typer.Option(help="Memory of a device that may be filled: 80GiB.")
]
ReserveOption = Annotated[
    str | None,
    typer.Option(
        "--reserve",
        help="Memory of a device to leave, as a share or a size: 5%, 2GiB, 0. By default "
        f"{RESERVE} on GPUs of the catalogue, none with --memory-limit.",
    ),
]
Framework = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Who runs the plan: whose launches, overlap and kernels count, and what it can run "
        "is all that is planned. Left out: megatron-core on GPUs, millrace on local*, jax-xla on "
        "TPUs; `any` has the whole space of plans.",
        autocompletion=completion.frameworks,
    ),
]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A file of `millrace plan -o`.")]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Call the function that is the plan's model; only if you trust the file's author.",
    ),
]


MOMENTUM = {"sgd": 0.9, "muon": 0.95}  # Muon's: Jordan et al. (2024)


def checked_training(attention: str, optimizer: str, lora_rank: int) -> "TrainingSpec":
    """Training with what is asked for; ModelError where there is none."""
    from millrace.models.spec import TrainingSpec
    from millrace.models.training import check_training

    momentum = MOMENTUM.get(optimizer, 0.0)
    training = TrainingSpec(
        attention=attention, optimizer=optimizer, momentum=momentum, lora_rank=lora_rank
    )
    check_training(training)
    return training
