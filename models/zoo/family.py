"""Family: what a file of the zoo offers to the catalogue."""

from collections.abc import Callable
from typing import Any, NamedTuple

from millrace.models.errors import ModelError
from millrace.models.graph import Graph
from millrace.models.spec import Config, ModelSpec

LAYERS_MAX = 1_000
"""Layers are built one by one, some seconds for so many: the deepest model that was trained has a
thousand (DeepNet, arXiv 2203.00555, 2022)."""
SEQ_LEN_MAX = 2**24  # sixteen million tokens: ten times the longest that was ever published
TOKEN, IMAGE, SAMPLE = "token", "image", "sample"


def exact(spec: ModelSpec, config: Any) -> tuple[str, ...]:
    """Approximations of a family whose graphs compute what its models do: none."""
    return ()


class Family(NamedTuple):
    """Functions that read a family's configuration, check it, choose a length and build the graph.

    `models` are the family's names in the catalogue with their configurations, `aliases` other
    names for them. `unit` is what speed, cost and energy are counted by: what `seq_len` counts.
    `approximations` says, in a clause each, what a model computes and its graph does not.
    """

    config: type[Any]
    check: Callable[[ModelSpec, Any], None]
    default_seq_len: Callable[[Any], int]
    build: Callable[[ModelSpec, Any, int], Graph]
    models: dict[str, Config]
    aliases: dict[str, str]
    unit: str = TOKEN
    approximations: Callable[[ModelSpec, Any], tuple[str, ...]] = exact


def check_length(spec: ModelSpec) -> None:
    """Raise ModelError where a sequence is longer than sizes of tensors can be written down."""
    if not 1 <= spec.seq_len <= SEQ_LEN_MAX:
        raise ModelError(
            f"model `{spec.name}`: {spec.seq_len} tokens do not fit; use 1 to {SEQ_LEN_MAX:,}"
        )


def one_item(config: Any) -> int:
    """Sequence length of a family whose sample is one item, whatever its sizes: one."""
    return 1


def check_no_sequence(spec: ModelSpec) -> None:
    """Raise ModelError where a family without sequences is asked for one."""
    if spec.seq_len != 1:
        raise ModelError(
            f"model `{spec.name}` has no sequence: leave its length out, {spec.seq_len} was given"
        )


def check_sizes(spec: ModelSpec, config: Any, *fields: str) -> None:
    """Raise ModelError when a field of the configuration, or one of its numbers, is below 1.

    `layers` are also not more than can be built.
    """
    for field in fields:
        value = getattr(config, field)
        for size in value if isinstance(value, tuple) else (value,):
            if size < 1:
                raise ModelError(f"model `{spec.name}`: `{field}` is {size}, below 1")
        if field == "layers":
            check_depth(spec, field, value)


def check_depth(spec: ModelSpec, field: str, layers: int) -> None:
    """Raise ModelError where a model has more layers than can be built.

    Parameters
    ----------
    spec : ModelSpec
        Gives the name in the message.
    field : str
        Field of the configuration to blame, such as `layers` or `depths`.
    layers : int
        Number of layers, over all stages; at most `LAYERS_MAX`.

    Raises
    ------
    ModelError
        There are more.
    """
    if layers > LAYERS_MAX:
        raise ModelError(
            f"model `{spec.name}`: `{field}` is {layers}; at most {LAYERS_MAX} layers are built"
        )
