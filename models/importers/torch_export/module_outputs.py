"""Outputs: which of the tensors that a module returns the loss is taken of."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from millrace.models.importers.predictions import prediction_output


def chosen(
    returned: Any, output: str | int | None, floating: Callable[[Any], bool]
) -> tuple[Any, list[Any]]:
    """Return the tensor the loss is taken of, and the other floating ones.

    Parameters
    ----------
    returned : Any
        What a module returns: a tensor, or mappings and sequences of some.
    output : str, int or None
        Name or index of the tensor; by default `logits`, or the only floating one.
    floating : callable
        True of a leaf of `returned` that is a tensor a loss could be taken of.

    Raises
    ------
    ModelError
        There is none, or several and none is named.
    """
    candidates = {path: leaf for path, leaf in _leaves(returned, "") if floating(leaf)}
    asked = None if output is None else "" if (output, [*candidates]) == (0, [""]) else str(output)
    path = prediction_output([*candidates], asked, "module", "import")
    return candidates[path], [leaf for other, leaf in candidates.items() if other != path]


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Path and value of everything that is neither a mapping nor a sequence."""
    if isinstance(value, Mapping):
        inside: Iterator[tuple[str, Any]] = ((str(key), child) for key, child in value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        inside = iter(zip(value._fields, value, strict=True))
    elif isinstance(value, list | tuple):
        inside = ((str(index), child) for index, child in enumerate(value))
    elif is_dataclass(value) and not isinstance(value, type):
        inside = ((field.name, getattr(value, field.name)) for field in fields(value))
    else:
        yield path, value
        return
    for key, child in inside:
        yield from _leaves(child, f"{path}.{key}".lstrip("."))
