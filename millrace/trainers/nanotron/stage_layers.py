"""Layers of pipeline stages as nanotron deals them out: by the elements of their matrices.

`build_model` (models/base.py) with `get_block_compute_costs` (models/llama.py, models/qwen.py) of
github.com/huggingface/nanotron, read 2026-11. A block that exceeds a stage's share still lies on
that stage. Keys and values count as if they were as wide as queries, tables count nothing.
"""

from millrace.models.zoo.decoder.config import DecoderConfig


def stage_layers(config: DecoderConfig, stages: int) -> tuple[int, ...]:
    """Layers of every stage; some have none where the loss is as much work as many layers.

    Parameters
    ----------
    config : DecoderConfig
        Its feed-forward part counts as the dense one, whatever its experts.
    stages : int
        Number of stages.

    Examples
    --------
    >>> from millrace.models.zoo.catalogue import model_spec
    >>> import msgspec
    >>> llama = msgspec.convert(model_spec("llama3-8b").config, DecoderConfig)
    >>> stage_layers(llama, 4)
    (9, 9, 8, 6)
    """
    width = config.heads * (config.hidden // config.heads)
    layer = 4 * width * config.hidden + 3 * config.ffn_hidden * config.hidden
    blocks = [0, *[layer] * config.layers, 0, config.vocab * config.hidden, 0]
    total, done, stage = sum(blocks), 0, 0
    counts = [0] * stages
    for position, elements in enumerate(blocks):
        counts[stage] += 1 <= position <= config.layers
        done += elements
        if stage < stages - 1 and done > total * ((stage + 1) / stages):
            stage += 1
    return tuple(counts)
