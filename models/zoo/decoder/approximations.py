"""Approximations: what a published decoder computes and its graph does not.

What is left out changes neither sizes nor, by more than a rounding of the prediction, durations.
But the graph computes another function, so that released weights are not for it.
"""

from collections.abc import Iterator

from millrace.models.spec import ModelSpec
from millrace.models.zoo.decoder.config import DecoderConfig


def approximations(spec: ModelSpec, config: DecoderConfig) -> tuple[str, ...]:
    """Parts of the model that its graph leaves out or replaces, each in a clause."""
    return tuple(_clauses(spec, config))


def _clauses(spec: ModelSpec, config: DecoderConfig) -> Iterator[str]:
    if config.value_norm:
        yield "a factor on what every layer hands on, which is one before training, is left out"
    if config.hash_layers:
        yield (
            f"experts of {len(config.hash_layers)} layers, which a table chooses by token, are "
            f"chosen by their scores"
        )
    if config.chunk and config.chunk < spec.seq_len:
        yield (
            f"attention within chunks of {config.chunk:,} tokens is planned as a window of "
            f"{config.chunk // 2:,}, as many keys as a query of a chunk sees on average"
        )
