"""Layouts of pipelines: which chunk holds which layers, as `--pipeline-model-parallel-layout`."""

import re
from collections.abc import Sequence

from millrace.trainers.trainer import SettingsError

LONGEST = 100_000  # characters of a layout that is written out


def layout_text(chunk_layers: Sequence[int], further: int) -> str:
    """Layout of chunks, in model order: embedding, layers, modules for further tokens, loss.

    Parameters
    ----------
    chunk_layers : sequence of int
        Layers of every chunk.
    further : int
        Modules that predict further tokens, beside the loss.

    Examples
    --------
    >>> layout_text((3, 4, 4, 2), 1)
    'Et*3|t*4|t*4|t*2mL'
    """
    stages = [f"t*{count}" if count else "" for count in chunk_layers]
    stages[0] = "E" + stages[0]
    stages[-1] += (f"m*{further}" if further > 1 else "m" * further) + "L"
    return "|".join(stages)


def layout_layers(text: str) -> tuple[int, ...]:
    """Layers of every chunk of a layout.

    Parameters
    ----------
    text : str
        As Megatron-LM takes it: `E`, `t`, `m` and `L` are embedding, layer, module for a further
        token and loss; `|` ends a chunk, `x*3` and `(…)*3` repeat, commas say nothing.

    Raises
    ------
    SettingsError
        The layout has another character, or is too long.

    Examples
    --------
    >>> layout_layers("Ettt|(tt|)*3,m|L")
    (3, 2, 2, 2, 0, 0)
    """
    written = text.replace(",", "").strip("\"'")
    for pattern in (r"\(([^()]+)\)\*([0-9]{1,4})", r"([EtmL|])\*([0-9]{1,4})"):
        written = re.sub(pattern, lambda hit: (hit[1] * int(hit[2]))[: LONGEST + 1], written)
        if len(written) > LONGEST:
            raise SettingsError("--pipeline-model-parallel-layout: more layers than a model has")
    if wrong := re.search(r"[^EtmL|]", written):
        raise SettingsError(
            f"--pipeline-model-parallel-layout {text}: `{wrong[0]}` is no part of a layout; write "
            f"E, t, m, L, | and repetitions such as t*3"
        )
    return tuple(stage.count("t") for stage in written.split("|"))
