"""Pin options: choices of a search that are fixed beforehand."""

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any

import typer

from millrace.commands.options import completion
from millrace.commands.options.option_words import DISPATCHERS, SCHEDULES

PIN_OPTIONS: dict[str, Any] = {
    "dp": Annotated[int | None, typer.Option(min=1, help="Pin: degree of data parallelism.")],
    "tp": Annotated[int | None, typer.Option(min=1, help="Pin: degree of tensor parallelism.")],
    "pp": Annotated[int | None, typer.Option(min=1, help="Pin: pipeline stages.")],
    "cp": Annotated[int | None, typer.Option(min=1, help="Pin: degree of context parallelism.")],
    "ep": Annotated[int | None, typer.Option(min=1, help="Pin: degree of expert parallelism.")],
    "etp": Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Pin: ranks over which tensor parallelism splits one expert (expert tensor "
            "parallelism); 1: over tp lie different experts.",
        ),
    ],
    "micro_batch": Annotated[
        int | None, typer.Option(min=1, help="Pin: samples of a microbatch on one rank.")
    ],
    "schedule": Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Pin: {SCHEDULES}.",
            autocompletion=completion.schedules,
        ),
    ],
    "interleave": Annotated[
        int | None, typer.Option(min=1, help="Pin: chunks of a stage (virtual pipeline stages).")
    ],
    "recompute": Annotated[
        str | None,
        typer.Option(help="Pin: none, selective or full recomputation of activations."),
    ],
    "zero": Annotated[
        str | None,
        typer.Option(help="Pin: 0, 1, 2, 3 or 3-hybrid (inside a node): what replicas split."),
    ],
    "sequence_parallel": Annotated[
        bool | None,
        typer.Option(
            "--sequence-parallel/--no-sequence-parallel",
            help="Pin: activations between tensor-parallel ops are split along the sequence.",
        ),
    ],
    "offload": Annotated[
        str | None, typer.Option(help="Pin: none or optimizer (its state in host memory).")
    ],
    "ring": Annotated[
        bool | None,
        typer.Option(
            "--ring/--no-ring",
            help="Pin: keys and values travel round a ring of cp (ring attention).",
        ),
    ],
    "fusion": Annotated[
        str | None,
        typer.Option(help="Pin: none or full (ops that one kernel can compute are one actor)."),
    ],
    "dispatcher": Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Pin: how tokens reach their experts: {DISPATCHERS}.",
            autocompletion=completion.dispatchers,
        ),
    ],
    "expert_overlap": Annotated[
        bool | None,
        typer.Option(
            "--expert-overlap/--no-expert-overlap",
            help="Pin: experts' all_to_all moves beside the products of another microbatch.",
        ),
    ],
    "mtp_layers": Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Pin: modules that predict the tokens after the next (multi-token prediction); "
            "left out: as the model's configuration has them, none in `millrace models`.",
        ),
    ],
    "capacity_factor": Annotated[
        str | None,
        typer.Option(
            metavar="X",
            help="Pin: places of an expert in multiples of an even share of the tokens, or "
            "dropless. Left out: dropless where the framework is, else as the model's "
            "configuration says.",
        ),
    ],
    "routing": Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Tokens of an expert: balanced (equal shares, the default) or natural (the device "
            "with the most sets the pace, by a published spread).",
        ),
    ],
}
PINS = tuple(PIN_OPTIONS)


def takes_pins(command: Callable[..., None]) -> Callable[..., None]:
    """Command that takes every pin as an option, and those that are set as its argument `pins`.

    Parameters
    ----------
    command : callable
        With the argument `pins` beside its own options.
    """

    @wraps(command)
    def called(**values: Any) -> None:
        chosen = set_pins(values)
        command(**values, pins=chosen)

    return with_options(called, command, pin_parameters(), hidden=("pins",))


def pin_parameters() -> dict[str, Parameter]:
    """Parameters of a command that takes all pins, by name."""
    return {
        name: Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in PIN_OPTIONS.items()
    }


def set_pins(values: dict[str, Any]) -> dict[str, str | int | bool]:
    """Pins that are set, by name; all of them are taken out of `values`.

    Parameters
    ----------
    values : dict
        Values of a command's options, by name.
    """
    pins = {name: values.pop(name) for name in PINS}
    return {name: value for name, value in pins.items() if value is not None}


def with_options(
    called: Callable[..., None],
    command: Callable[..., None],
    options: Mapping[str, Parameter],
    hidden: tuple[str, ...],
) -> Callable[..., None]:
    """Function with the options of a command and further ones, as its parser reads them.

    Parameters
    ----------
    called : callable
        What is called with all of them.
    command : callable
        Its options come first, and its last one, `as_json`, after all others.
    options : mapping
        Further parameters, by name.
    hidden : tuple of str
        Parameters of `command` that are no options.
    """
    before = {
        name: parameter
        for name, parameter in signature(command).parameters.items()
        if name not in hidden
    }
    last = {"as_json": before.pop("as_json")}
    parameters = {
        name: parameter.replace(kind=Parameter.KEYWORD_ONLY)
        for name, parameter in (before | dict(options) | last).items()
    }
    called.__signature__ = signature(command).replace(  # type: ignore[attr-defined]
        parameters=list(parameters.values())
    )
    called.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return called
