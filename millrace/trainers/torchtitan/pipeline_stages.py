"""Stages of a pipeline: layers of every chunk, as torchtitan names or counts them."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from millrace.trainers.trainer import SettingsError

FIRST, LAST = "tok_embeddings", ("norm", "lm_head")
HEADS = ("lm_head", "output")  # since 0.3, and before


def module_names(layers: Sequence[int]) -> list[list[str]]:
    """Names of the modules of every chunk, for `module_fqns_per_model_part`.

    Parameters
    ----------
    layers : sequence of int
        Layers of every chunk, in model order.

    Examples
    --------
    >>> module_names([1, 2])
    [['tok_embeddings', 'layers.0'], ['layers.1', 'layers.2', 'norm', 'lm_head']]
    """
    parts, first = [], 0
    for count in layers:
        parts.append([f"layers.{layer}" for layer in range(first, first + count)])
        first += count
    parts[0].insert(0, FIRST)
    parts[-1].extend(LAST)
    return parts


def layers_of_names(parts: Sequence[Sequence[str]]) -> list[int]:
    """Layers of every chunk of `module_fqns_per_model_part`.

    Parameters
    ----------
    parts : sequence of sequences of str
        Names of modules.

    Raises
    ------
    SettingsError
        Layers are not in order, or embedding and head are not at the ends.
    """
    named = [name for part in parts for name in part if name.startswith("layers.")]
    in_order = named == [f"layers.{layer}" for layer in range(len(named))]
    at_ends = FIRST in parts[0] and any(head in parts[-1] for head in HEADS)
    if not (in_order and at_ends):
        raise SettingsError(
            "parallelism.module_fqns_per_model_part: expected tok_embeddings first, layers in "
            "order, the head last; a plan has no other pipeline"
        )
    return [sum(name.startswith("layers.") for name in part) for part in parts]


def layers_of_points(points: Sequence[str], layers: int) -> list[int]:
    """Layers of every chunk, by the names of the modules with which all but the first begin.

    Parameters
    ----------
    points : sequence of str
        Of `pipeline_parallel_split_points`, which there was until 0.2.0.
    layers : int
        Of the model.

    Raises
    ------
    SettingsError
        One names no layer, or they are not in order.

    Examples
    --------
    >>> layers_of_points(["layers.2", "layers.5"], 8)
    [2, 3, 3]
    """
    numbers = [int(name[7:]) for name in points if re.fullmatch(r"layers\.[0-9]{1,6}", name)]
    ends = [0, *numbers, layers]
    if len(numbers) < len(points) or ends != sorted(set(ends)):
        raise SettingsError(
            "pipeline_parallel_split_points: expected layers in order, such as layers.4, layers.8"
        )
    return [end - start for start, end in pairwise(ends)]


def divided(layers: int, settings: Mapping[str, Any], chunks_per_rank: int) -> list[int]:
    """Layers of every chunk as torchtitan divides them, if it is not told names.

    Parameters
    ----------
    layers : int
        Of the model.
    settings : mapping
        `parallelism.…` by dotted name.
    chunks_per_rank : int
        As the schedule has by default: 1, or 2 of one that takes several.

    Raises
    ------
    SettingsError
        Torchtitan would not divide them so.

    Notes
    -----
    `_get_pipeline_metadata` and `_generate_llm_fqn_per_model_part` of 0.3.0,
    distributed/pipeline_parallel.py: embedding and head count as so many layers each, what is left
    over goes to the first chunks.
    """
    pp = settings["parallelism.pipeline_parallel_degree"]
    first = settings["parallelism.pipeline_parallel_first_stage_less_layers"]
    last = settings["parallelism.pipeline_parallel_last_stage_less_layers"]
    per_stage = settings["parallelism.pipeline_parallel_layers_per_stage"]
    counted = layers + first + last
    chunks = pp * chunks_per_rank if per_stage is None else -(-counted // per_stage)
    if chunks % pp:
        raise SettingsError(
            f"parallelism.pipeline_parallel_layers_per_stage {per_stage} makes {chunks} chunks, "
            f"which {pp} ranks do not share evenly"
        )
    if max(first, last) > counted // chunks:
        raise SettingsError(
            f"{layers} layers in {chunks} chunks: embedding ({first}) or head ({last}) count as "
            f"more layers than a chunk has"
        )
    counts = [counted // chunks + (chunk < counted % chunks) for chunk in range(chunks)]
    counts[0] -= first
    counts[-1] -= last
    return counts
