"""Patterns of layers: which of them differ, as Megatron's options write it."""

import ast
from collections.abc import Mapping, Sequence
from itertools import groupby
from re import fullmatch
from typing import Any

from millrace.trainers.trainer import SettingsError


def layer_pattern(option: str, value: object, config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Zeros and ones of all layers that an option's pattern says; None where it is not given.

    Parameters
    ----------
    option : str
        The option, for its refusal.
    value : object
        A number N, every N-th layer differs; or lists of zeros and ones, added and multiplied:
        `([0]*3+[1]*1)*2`.
    config : mapping
        Its `layers` are those of the model.

    Raises
    ------
    SettingsError
        The pattern cannot be read, or is of another number of layers.

    Examples
    --------
    >>> layer_pattern("--moe-layer-freq", "([0]*1+[1]*2)*2", {"layers": 6})
    (0, 1, 1, 0, 1, 1)
    """
    layers, text = config["layers"], str(value).strip().strip("\"'")
    if value is None or text == "1":
        return None
    if fullmatch(r"[0-9]{1,6}", text):
        every = int(text)
        if option == "--moe-layer-freq":
            return tuple(int(layer % every == 0) for layer in range(layers))
        return (
            tuple(int((layer + 1) % every == 0) for layer in range(layers))
            if (option == "--no-rope-freq")
            else tuple(int((layer + 1) % every != 0) for layer in range(layers))
        )
    pattern = _listed(text, layers)
    if pattern is None or len(pattern) != layers:
        raise SettingsError(
            f"{option} {text}: expected a number, or zeros and ones of all {layers} layers such as "
            f"([0]*1+[1]*{layers - 1})"
        )
    return tuple(pattern)


def pattern_text(pattern: Sequence[int]) -> str:
    """Text of a pattern of layers, in runs of equal ones and without spaces.

    Parameters
    ----------
    pattern : sequence of int
        Zeros and ones of all layers.

    Examples
    --------
    >>> pattern_text((0, 1, 1, 1)), pattern_text((1, 0, 1, 0, 1, 0))
    ('([0]*1+[1]*3)', '([1]*1+[0]*1)*3')
    """
    layers = len(pattern)
    period = next(
        length
        for length in range(1, layers + 1)
        if layers % length == 0 and [*pattern[:length]] * (layers // length) == [*pattern]
    )
    runs = "+".join(f"[{value}]*{len([*run])}" for value, run in groupby(pattern[:period]))
    return f"({runs})" + (f"*{layers // period}" if period < layers else "")


def _listed(text: str, most: int) -> Sequence[int] | None:
    """Zeros and ones of a text of lists, sums and products; None where it is none."""

    def worked_out(node: ast.expr) -> list[int] | int:
        if isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value <= 10**4:
            return node.value
        if isinstance(node, ast.List):
            items = [worked_out(item) for item in node.elts]
            if all(item in (0, 1) for item in items):
                return [item for item in items if isinstance(item, int)]
        if isinstance(node, ast.BinOp):
            left, right = worked_out(node.left), worked_out(node.right)
            if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
                return left + right
            if (
                isinstance(node.op, ast.Mult)
                and isinstance(left, list)
                and isinstance(right, int)
                and len(left) * right <= most
            ):
                return left * right
        raise ValueError

    try:
        pattern = worked_out(ast.parse(text, mode="eval").body)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return pattern if isinstance(pattern, list) else None
