"""Options that `scale` and `recommend` have in common: pins as for `plan`, and those of a sweep."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from inspect import signature
from pathlib import Path
from re import fullmatch
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.commands.options import completion
from millrace.commands.options.option_words import ADAMW, FLASH, SEED_MAX
from millrace.commands.options.pin_options import pin_parameters, set_pins, with_options
from millrace.commands.options.question_options import (
    Attention,
    LoraRank,
    MemoryLimit,
    Optimizer,
    checked_training,
)
from millrace.output import say
from millrace.planner.errors import ClusterError, PlanError
from millrace.units import parse_bytes

if TYPE_CHECKING:
    from millrace.models.spec import ModelSpec
    from millrace.planner.search import Pins

Clusters = Annotated[
    list[str],
    typer.Option(
        "--cluster",
        metavar="C,…",
        help="As for plan, xNODES may be left out. May be repeated.",
        autocompletion=completion.listed_clusters,
    ),
]
Batches = Annotated[
    str,
    typer.Option(
        "--global-batch",
        metavar="N,…",
        help="Samples of one step; 8/device grows with the devices.",
    ),
]
Networks = Annotated[
    list[str] | None,
    typer.Option(
        "--network", metavar="NET,…", help="Networks between nodes to try: ndr, 8xhdr, 8x400Gb/s."
    ),
]
Prices = Annotated[
    list[str] | None,
    typer.Option(
        "--price-per-gpu-hour",
        metavar="USD,…",
        help="In place of the catalogue's price: 2.50, or CLUSTER=2.50 for one of them.",
    ),
]
Mtbf = Annotated[float | None, typer.Option(help="Mean hours between failures of one device.")]
Rate = Annotated[
    str | None,
    typer.Option(
        help="Bytes a second that all devices write to checkpoints (2TB); by default 122 MB each."
    ),
]
Restart = Annotated[
    float | None, typer.Option(help="Minutes from a failure to the next step; by default 10.")
]
TOKENS = "1e12, 300B or 15T"
Jitter = Annotated[
    float, typer.Option(help="Standard deviation of durations, as a share (0.1): slower steps.")
]
JitterSeed = Annotated[int, typer.Option(min=0, max=SEED_MAX, help="Of the jitter.")]


def sweep_options(
    network: Networks = None,
    attention: Attention = FLASH,
    optimizer: Optimizer = ADAMW,
    lora_rank: LoraRank = 0,
    memory_limit: MemoryLimit = None,
    price_per_gpu_hour: Prices = None,
    mtbf_hours: Mtbf = None,
    checkpoint_rate: Rate = None,
    restart_minutes: Restart = None,
    jitter: Jitter = 0.0,
    seed: JitterSeed = 0,
) -> dict[str, Any]:
    """Arguments of `millrace.scale` that these options say."""
    from millrace.requested_cluster import read_option
    from millrace.scaling.prices import parse_prices

    return {
        "networks": texts("--network", network or ()),
        "training": checked_training(attention, optimizer, lora_rank),
        "memory_limit_bytes": None
        if memory_limit is None
        else read_option("--memory-limit", parse_bytes, memory_limit),
        "prices_usd_per_hour": parse_prices(
            texts("--price-per-gpu-hour", price_per_gpu_hour or ())
        ),
        "failures": _failures(mtbf_hours, checkpoint_rate, restart_minutes),
        "jitter": jitter,
        "seed": seed,
    }


def takes_sweep(command: Callable[..., None]) -> Callable[..., None]:
    """Command that takes the pins of `plan` as its argument `pins`, and `sweep_options` as `asked`.

    Parameters
    ----------
    command : callable
        With both arguments, by name, beside its own options.
    """
    sweeps = dict(signature(sweep_options).parameters)

    @wraps(command)
    def called(**values: Any) -> None:
        asked = sweep_options(**{name: values.pop(name) for name in sweeps})
        from millrace.planner.search import Pins

        pins = Pins.of(set_pins(values))
        command(**values, pins=pins, asked=asked)

    return with_options(called, command, sweeps | pin_parameters(), hidden=("pins", "asked"))


def opened(
    model: str,
    cluster: Sequence[str],
    seq_len: int | None,
    precision: str | None,
    pins: "Pins",
    files: Mapping[str, Path | None],
) -> tuple["ModelSpec", list[str]]:
    """Model and clusters of a sweep, once what can be refused without a search has been.

    `files` are what the answer is written to, `csv` and `plot`.
    """
    from millrace.api.plan_search import check_question
    from millrace.files import check_writable
    from millrace.models.zoo.catalogue import beyond_positions
    from millrace.pictures.picture_file import check_drawable
    from millrace.requested_cluster import usual_precision_on

    check_writable(*files.values())
    if (plot := files["plot"]) is not None:
        check_drawable(plot)
    named = texts("--cluster", cluster)
    precision = precision or usual_precision_on(named, model)
    spec = check_question(model, seq_len=seq_len, precision=precision, pins=pins, progress=say)
    if stretched := beyond_positions(spec):
        say(stretched)
    return spec, named


def warn_of_profiles(rows: Iterable[Mapping[str, Any]]) -> None:
    """Say on stderr what predictions of a sweep are in doubt of.

    Parameters
    ----------
    rows : iterable of mapping
        Rows of a sweep.
    """
    for warning in dict.fromkeys(row["profile_warning"] for row in rows):
        if warning is not None:
            say(warning)


def texts(option: str, given: Sequence[str]) -> list[str]:
    """Values of an option that may be repeated, or hold several between commas.

    Parameters
    ----------
    option : str
        Name of the option.
    given : sequence of str
        Its values as typed.

    Raises
    ------
    ClusterError
        A value is empty.
    """
    split = [text.strip() for list_text in given for text in list_text.split(",")]
    if not all(split):
        raise ClusterError(
            f"{option} {','.join(given) or '(nothing)'}: expected a name, found none"
        )
    return split


def numbers(option: str, text: str) -> list[int]:
    """Numbers between commas; their range is checked where they are used.

    Parameters
    ----------
    option : str
        Name of the option.
    text : str
        Its value as typed.

    Raises
    ------
    PlanError
        A number is none.
    """
    parsed = []
    for number in text.split(","):
        if not fullmatch(r"\s*[+-]?[0-9]{1,12}\s*", number):
            raise PlanError(f"{option} {text}: `{number}` is not a whole number; write 1,2,4")
        parsed.append(int(number))
    return parsed


def _failures(mtbf_hours: float | None, rate: str | None, minutes: float | None) -> Any:
    from millrace.scaling import Failures

    if mtbf_hours is None:
        for option, given in (("--checkpoint-rate", rate), ("--restart-minutes", minutes)):
            if given is not None:
                raise PlanError(
                    f"{option} {given}: it needs --mtbf-hours, without which none fails"
                )
        return None
    failures = Failures(
        mtbf_hours=mtbf_hours,
        checkpoint_bytes_per_s=None if rate is None else _bytes_per_s(rate),
    )
    return failures if minutes is None else replace(failures, restart_s=60 * minutes)


def _bytes_per_s(text: str) -> int:
    try:
        return parse_bytes(text)
    except PlanError as error:
        raise PlanError(f"--checkpoint-rate: {error}") from None
