"""The catalogue: names of models, their sizes, and the graphs built from them."""

import importlib
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, NamedTuple

import msgspec

from models.builder import PRECISIONS
from models.errors import ModelError
from models.graph import Graph, with_batch
from models.inference import check_graph
from models.spec import ModelSpec, TrainingSpec
from models.training import training_graph
from models.zoo import gpt, mlp

Config = dict[str, int | float | str | bool]


class Family(NamedTuple):
    """How a family reads its configuration, checks it, chooses a sequence length and builds."""

    config: type[Any]
    check: Callable[[ModelSpec, Any], None]
    default_seq_len: Callable[[Any], int]
    build: Callable[[ModelSpec, Any, int], Graph]


FAMILIES = {
    "gpt": Family(gpt.GptConfig, gpt.check, gpt.default_seq_len, gpt.build),
    "mlp": Family(mlp.MlpConfig, mlp.check, mlp.default_seq_len, mlp.build),
}
FUNCTION = "function"  # the family of `package.module:function`


class Entry(NamedTuple):
    """One name of the zoo."""

    family: str
    config: Config


def _gpt(
    layers: int, hidden: int, heads: int, vocab: int, positions: int, **initial: float
) -> Entry:
    config: Config = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "ffn_hidden": 4 * hidden,
        "vocab": vocab,
        "positions": positions,
        **initial,
    }
    return Entry("gpt", config)


# GPT-2: the released checkpoints' hparams.json (openai/gpt-2, 2019).
# GPT-3: Brown et al., arXiv 2005.14165 (2020), table 2.1, with GPT-2's vocabulary. Two rows of the
# table contradict themselves: 1.3B lists 24 heads of 128, which is not its hidden size of 2048
# (here 16 heads of 128); 13B lists hidden 5140, which its 40 heads of 128 do not make (here 5120,
# as used in practice).
_ENTRIES: dict[str, Entry] = {
    "mlp": Entry("mlp", {"inputs": 784, "columns": 28, "hidden": 256, "layers": 4, "classes": 10}),
    "gpt-demo": _gpt(4, 192, 8, 256, 128, token_std=0.005),
    "gpt2-small": _gpt(12, 768, 12, 50257, 1024),
    "gpt2-medium": _gpt(24, 1024, 16, 50257, 1024),
    "gpt2-large": _gpt(36, 1280, 20, 50257, 1024),
    "gpt2-xl": _gpt(48, 1600, 25, 50257, 1024),
    "gpt3-125m": _gpt(12, 768, 12, 50257, 2048),
    "gpt3-350m": _gpt(24, 1024, 16, 50257, 2048),
    "gpt3-760m": _gpt(24, 1536, 16, 50257, 2048),
    "gpt3-1.3b": _gpt(24, 2048, 16, 50257, 2048),
    "gpt3-2.7b": _gpt(32, 2560, 32, 50257, 2048),
    "gpt3-6.7b": _gpt(32, 4096, 32, 50257, 2048),
    "gpt3-13b": _gpt(40, 5120, 40, 50257, 2048),
    "gpt3-175b": _gpt(96, 12288, 96, 50257, 2048),
}

ALIASES = {
    "gpt2": "gpt2-small",
    "gpt2-124m": "gpt2-small",
    "gpt2-355m": "gpt2-medium",
    "gpt2-774m": "gpt2-large",
    "gpt2-1.5b": "gpt2-xl",
    "gpt3": "gpt3-175b",
    "gpt3-small": "gpt3-125m",
    "gpt3-medium": "gpt3-350m",
    "gpt3-large": "gpt3-760m",
    "gpt3-xl": "gpt3-1.3b",
}

NAMES: tuple[str, ...] = tuple(_ENTRIES)


def model_spec(name: str, seq_len: int | None = None, precision: str = "fp32") -> ModelSpec:
    """Return the specification of a model of the zoo, or of a function that returns a Graph.

    Parameters
    ----------
    name : str
        One of `NAMES`, an alias (`gpt2`, `gpt-3-175B`), or `package.module:function`.
    seq_len : int, optional
        Tokens of a sample; the model's longest by default.
    precision : str
        fp64, fp32, tf32, bf16 or fp16.

    Raises
    ------
    ModelError
        Unknown name (close names are offered) or precision; a sequence that does not fit.
    """
    if precision not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise ModelError(f"there is no precision `{precision}`; choose one of {known}")
    if ":" in name:
        graph = _called(name)
        length = graph.tokens_per_sample if seq_len is None else seq_len
        spec = ModelSpec(name=name, family=FUNCTION, config={}, seq_len=length, precision=precision)
        _check_function(spec, graph)
        return spec
    found = canonical_name(name)
    entry = _ENTRIES[found]
    family = FAMILIES[entry.family]
    config = msgspec.convert(entry.config, family.config)
    spec = ModelSpec(
        name=found,
        family=entry.family,
        config=dict(entry.config),
        seq_len=family.default_seq_len(config) if seq_len is None else seq_len,
        precision=precision,
    )
    family.check(spec, config)
    return spec


def canonical_name(name: str) -> str:
    """Return the catalogue's name for a name or alias; raises ModelError with close ones."""
    plain = name.lower().replace("_", "-").replace("gpt-2", "gpt2").replace("gpt-3", "gpt3")
    found = ALIASES.get(plain, plain)
    if found in _ENTRIES:
        return found
    close = get_close_matches(plain, [*NAMES, *ALIASES], n=3) or list(NAMES)
    raise ModelError(f"there is no model `{name}`; did you mean {' or '.join(close)}?")


def build(spec: ModelSpec, batch: int) -> Graph:
    """Return the forward graph of a model for microbatches of `batch` samples.

    Raises
    ------
    ModelError
        The family is unknown, a key of the configuration is missing or misspelt, or sizes do not
        fit; for a function, what it returns is not a graph of this sequence length and precision.
    """
    if spec.family == FUNCTION:
        graph = _called(spec.name)
        _check_function(spec, graph)
        return with_batch(graph, batch)
    if spec.family not in FAMILIES:
        known = ", ".join((*FAMILIES, FUNCTION))
        raise ModelError(f"there is no family `{spec.family}`; choose one of {known}")
    family = FAMILIES[spec.family]
    try:
        config = msgspec.convert(spec.config, family.config)
    except msgspec.ValidationError as error:
        raise ModelError(
            f"model `{spec.name}`: configuration of `{spec.family}`: {error}"
        ) from None
    return family.build(spec, config, batch)


def build_training(spec: ModelSpec, training: TrainingSpec, batch: int) -> Graph:
    """Return the graph of a whole training step: forward, backward and optimizer."""
    return training_graph(build(spec, batch), training)


def _called(name: str) -> Graph:
    """Import `package.module:function` and return the graph it makes."""
    module_name, _, function_name = name.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ModelError(
            f"model `{name}` cannot be imported ({error}); expected `package.module:function`"
        ) from None
    if not callable(function):
        raise ModelError(f"model `{name}` is not a function; expected one that returns a Graph")
    graph = function()
    if not isinstance(graph, Graph):
        raise ModelError(f"model `{name}` returns a {type(graph).__name__}; expected a Graph")
    return check_graph(graph)


def _check_function(spec: ModelSpec, graph: Graph) -> None:
    """A function decides its own sequence length and precision: refuse to be asked for others."""
    if graph.tokens_per_sample != spec.seq_len:
        raise ModelError(
            f"model `{spec.name}` makes sequences of {graph.tokens_per_sample} tokens, "
            f"{spec.seq_len} were asked for; change the function"
        )
    dtypes = {tensor.dtype for tensor in graph.tensors if not tensor.dtype.startswith("int")}
    if dtypes != set(PRECISIONS[spec.precision]):
        raise ModelError(
            f"model `{spec.name}` computes in {' and '.join(sorted(dtypes))}, which is not "
            f"precision {spec.precision}; change the function"
        )
