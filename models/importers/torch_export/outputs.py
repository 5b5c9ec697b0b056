"""Outputs: which of the tensors that a module returns the loss is taken of."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from millrace.models.errors import ModelError

LOGITS = "logits"
_HIDDEN = "last_hidden_state"


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
        Whether a leaf of `returned` is a tensor that a loss could be taken of.

    Raises
    ------
    ModelError
        There is none, or several and none is named.
    """
    found = {path: leaf for path, leaf in _leaves(returned, "") if floating(leaf)}
    path = _path(found, output)
    return found[path], [leaf for other, leaf in found.items() if other != path]


def _path(found: Mapping[str, Any], output: str | int | None) -> str:
    named = ", ".join(f"`{path}`" for path in found)
    if output is not None:
        wanted = str(output) if len(found) > 1 or "" not in found or output != 0 else ""
        if wanted in found:
            return wanted
        raise ModelError(
            f"the module returns no floating tensor `{output}`; "
            + (f"choose one of {named}" if found.keys() - {""} else "leave `output` out")
        )
    if not found:
        raise ModelError("the module returns no floating tensor; the loss needs its predictions")
    if LOGITS in found:
        return LOGITS
    if len(found) > 1:
        first = next(iter(found))
        raise ModelError(
            f"the module returns {len(found)} floating tensors ({named}), and the loss is taken of "
            f"one: say which, for example output={first if first.isdigit() else repr(first)}"
        )
    (path,) = found
    if path == _HIDDEN:
        raise ModelError(
            f"the module returns hidden states (`{_HIDDEN}`), no predictions: import the model "
            f'with its head, or say output="{_HIDDEN}" if they are to be taken as classes'
        )
    return path


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Path and value of everything that is neither a mapping nor a sequence."""
    if isinstance(value, Mapping):
        inside: Iterator[tuple[str, Any]] = ((str(key), one) for key, one in value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        inside = iter(zip(value._fields, value, strict=True))
    elif isinstance(value, list | tuple):
        inside = ((str(at), one) for at, one in enumerate(value))
    elif is_dataclass(value) and not isinstance(value, type):
        inside = ((field.name, getattr(value, field.name)) for field in fields(value))
    else:
        yield path, value
        return
    for key, one in inside:
        yield from _leaves(one, f"{path}.{key}".lstrip("."))
