"""ModelSpec and TrainingSpec: from these two a training Graph is rebuilt, byte for byte."""

import msgspec

from millrace.models.graph import Graph

GRAPH = "graph"  # the family of an imported model, whose specification holds its forward graph

Setting = int | float | str | bool | tuple[int, ...]
Config = dict[str, Setting | dict[str, Setting]]
"""Fields of a family by name; one that is several sizes together is a mapping of its own."""


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A zoo family, its configuration, and the sequence length and precision to build it at.

    `config` holds the family's own fields (`gpt`: layers, hidden, heads, ffn_hidden, vocab,
    positions; `function`: none, its `name` is `package.module:function`; `graph`: none, `graph`
    holds the imported forward graph). `precision` is fp64, fp32, tf32, bf16, fp16, fp8, mxfp8,
    mxfp4 or nvfp4: 16-bit kinds keep float32 variables and compute in 16 bits; narrower kinds do as
    bf16, but for the products of linear layers.
    """

    name: str
    family: str
    config: Config
    seq_len: int = 1
    precision: str = "fp32"
    graph: Graph | None = None


def ahead(source: str, places: int) -> str:
    """Source of the same ids of each sample, so many places further on in the data.

    Parameters
    ----------
    source : str
        `tokens` or `targets`.
    places : int
        1 or more.

    Examples
    --------
    >>> ahead("targets", 1), base_source("targets+1")
    ('targets+1', ('targets', 1))
    """
    return f"{source}+{places}"


def base_source(source: str) -> tuple[str, int]:
    """Source without places, and how many places further on it is (`ahead`).

    Parameters
    ----------
    source : str
        As an `input` op names it.
    """
    base, _, places = source.partition("+")
    return base, int(places or 0)


def graph_spec(graph: Graph, precision: str) -> ModelSpec:
    """Specification of an imported model, which the planner takes like any other.

    Parameters
    ----------
    graph : Graph
        Its forward graph, checked when it is built; gives the name and the tokens of a sample.
    precision : str
        fp64, fp32, tf32, bf16, fp16, fp8, mxfp8, mxfp4 or nvfp4, with which the dtypes
        of `graph` agree (a narrower kind than 16 bits: with bf16, its products are quantised when
        it is built).
    """
    return ModelSpec(
        name=graph.name,
        family=GRAPH,
        config={},
        seq_len=graph.tokens_per_sample,
        precision=precision,
        graph=graph,
    )


class TrainingSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The optimizer and its schedule; part of the graph, so part of the plan.

    The learning rate rises linearly over `warmup_steps`, then falls along a cosine to
    `final_fraction` of `learning_rate` at `decay_steps` (constant when `decay_steps` is 0).
    Gradients are clipped to a global norm of `clip_norm` (0: not clipped). `attention` is flash
    (one op, which finds the probabilities again in the backward pass) or unfused (products and a
    softmax, whose probabilities are kept). Muon updates the matrices between hidden layers, AdamW
    all else (`millrace.models.training.optimizer_updates`); its `momentum` is usually 0.95. With a
    `lora_rank` adapters of that rank are trained beside frozen weights, and what they add is
    multiplied by `lora_alpha` / `lora_rank` (0: as it is; `millrace.models.training.adapters`).
    """

    optimizer: str = "adamw"  # or "sgd", "muon"
    learning_rate: float = 1e-3
    warmup_steps: int = 0
    decay_steps: int = 0
    final_fraction: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    momentum: float = 0.0
    clip_norm: float = 1.0
    attention: str = "flash"
    lora_rank: int = 0
    lora_alpha: float = 0.0
