"""Refusals: what is answered with a sentence and a status of 4xx or 5xx instead of a document."""

import re
from typing import Any

# Options of the command line that sentences speak of, and the field of a question that each is.
_OPTION = re.compile(r"--([a-z][a-z-]*)")
_FIELDS = ("cluster", "network", "global_batch", "seq_len", "precision", "framework", "reserve")
_PINS = (
    *("dp", "tp", "pp", "cp", "ep", "etp", "micro_batch", "schedule", "interleave"),
    *("recompute", "zero", "sequence_parallel", "offload", "ring", "fusion"),
    *("dispatcher", "expert_overlap", "mtp_layers", "capacity_factor", "routing"),
)


class RefusedError(Exception):
    """A request is refused.

    Parameters
    ----------
    sentence : str
        Says what was expected, what came, and what to do.
    status : int
        The HTTP status.
    field : str
        Field of the question that is at fault, `pins.tp` for a pin; empty where none is.
    """

    def __init__(self, sentence: str, status: int = 422, field: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.status = status
        self.field = field

    @property
    def document(self) -> dict[str, Any]:
        """JSON document that the request is answered with."""
        return {"error": self.sentence, "field": self.field or None}


def field_of(sentence: str, default: str = "") -> str:
    """Field of a question that a sentence of the command line speaks of.

    Parameters
    ----------
    sentence : str
        Names an option, as all refusals of options do.
    default : str
        Field where it names none.

    Examples
    --------
    >>> field_of("--tp 3 does not divide the heads (32)")
    'pins.tp'
    >>> field_of("no model `gpt5`", "model")
    'model'
    """
    match = _OPTION.search(sentence)
    name = match[1].replace("-", "_").removeprefix("no_") if match else ""
    if name in _PINS:
        return f"pins.{name}"
    return name if name in _FIELDS else default
