"""The catalogue: names of models, their sizes, and the graphs built from them."""

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import NamedTuple

import msgspec

from millrace.models.blocks import merge_templates, with_blocks
from millrace.models.builder import PRECISIONS
from millrace.models.errors import ModelError
from millrace.models.fp8 import NARROW, with_quantised_products
from millrace.models.graph import Graph, to_json, with_batch
from millrace.models.recompute import USUAL, Selective, with_recompute
from millrace.models.spec import GRAPH, Config, ModelSpec, TrainingSpec
from millrace.models.training import training_graph
from millrace.models.type_inference import check_graph
from millrace.models.zoo import bert, decoder, dlrm, face, gpt, mlp, resnet, t5, vit, wide_deep
from millrace.models.zoo.family import SAMPLE, TOKEN, Family, check_length

FAMILIES: dict[str, Family] = {
    "mlp": mlp.FAMILY,
    "gpt": gpt.FAMILY,
    "decoder": decoder.FAMILY,
    "bert": bert.FAMILY,
    "t5": t5.FAMILY,
    "vit": vit.FAMILY,
    "resnet": resnet.FAMILY,
    "wide_deep": wide_deep.FAMILY,
    "dlrm": dlrm.FAMILY,
    "face": face.FAMILY,
}
FUNCTION = "function"  # the family of `package.module:function`


class ZooEntry(NamedTuple):
    """Name of the zoo, with its family and sizes."""

    family: str
    config: Config


_ENTRIES = {
    name: ZooEntry(family, config)
    for family, row in FAMILIES.items()
    for name, config in row.models.items()
}
ALIASES = {alias: name for row in FAMILIES.values() for alias, name in row.aliases.items()}

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
        fp64, fp32, tf32, bf16, fp16, fp8, mxfp8, mxfp4 or nvfp4.

    Raises
    ------
    ModelError
        Unknown name (close names are offered) or precision; a sequence that does not fit.
    """
    if precision not in PRECISIONS:
        choices = ", ".join(PRECISIONS)
        raise ModelError(f"there is no precision `{precision}`; choose one of {choices}")
    if ":" in name:
        graph = _called(name)
        length = graph.tokens_per_sample if seq_len is None else seq_len
        spec = ModelSpec(name=name, family=FUNCTION, config={}, seq_len=length, precision=precision)
        _check_function(spec, graph)
        return spec
    catalogue_name = canonical_name(name)
    entry = _ENTRIES[catalogue_name]
    family = FAMILIES[entry.family]
    config = msgspec.convert(entry.config, family.config)
    spec = ModelSpec(
        name=catalogue_name,
        family=entry.family,
        config=dict(entry.config),
        seq_len=family.default_seq_len(config) if seq_len is None else seq_len,
        precision=precision,
    )
    check_length(spec)
    family.check(spec, config)
    return spec


def canonical_name(name: str) -> str:
    """Return the catalogue's name for a name or alias; raises ModelError with close ones."""
    plain = name.lower().replace("_", "-").replace("gpt-2", "gpt2").replace("gpt-3", "gpt3")
    catalogue_name = ALIASES.get(plain, plain)
    if catalogue_name in _ENTRIES:
        return catalogue_name
    close = get_close_matches(plain, [*NAMES, *ALIASES], n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else "`millrace models` lists them"
    raise ModelError(f"there is no model `{name}`; {hint}")


def unit_of(spec: ModelSpec) -> str:
    """Return what a model's speed is counted by: token, image or sample.

    Of an imported model, or a function's, tokens where its samples are sequences.

    Examples
    --------
    >>> unit_of(model_spec("gpt2-small")), unit_of(model_spec("resnet-50"))
    ('token', 'image')
    """
    if spec.family in FAMILIES:
        return FAMILIES[spec.family].unit
    return TOKEN if spec.seq_len > 1 else SAMPLE


def beyond_positions(spec: ModelSpec) -> str:
    """Say where sequences are longer than the model was made for; empty where they are not.

    Models that learn a vector for each position cannot be built so. Others can, and are trained so:
    their angles are stretched, or their positions are none.
    """
    positions = spec.config.get("positions")
    if not isinstance(positions, int) or spec.seq_len <= positions:
        return ""
    return (
        f"model `{spec.name}` was made for sequences of at most {positions:,} tokens, "
        f"{spec.seq_len:,} are planned: its positions have to be stretched"
    )


def approximations(spec: ModelSpec) -> tuple[str, ...]:
    """Parts of a model of the zoo that its graph leaves out or replaces, each in a clause.

    Examples
    --------
    >>> approximations(model_spec("gemma3-12b"))
    ()
    """
    if spec.family not in FAMILIES:
        return ()
    family = FAMILIES[spec.family]
    return family.approximations(spec, msgspec.convert(spec.config, family.config))


def build(spec: ModelSpec, batch: int) -> Graph:
    """Forward graph of a model for microbatches of `batch` samples.

    Parameters
    ----------
    spec : ModelSpec
        A model of the zoo, a function's or an imported one; products of linear layers are quantised
        where its precision is fp8, mxfp8, mxfp4 or nvfp4.
    batch : int
        Samples of a microbatch, 1 or more.

    Raises
    ------
    ModelError
        The family is unknown, a key of the configuration is missing or misspelt, or sizes do not
        fit; for a function, what it returns is not a graph of this sequence length and precision.
    """
    graph = _as_written(spec, batch)
    if spec.precision not in NARROW:
        return graph
    parts = str(spec.config.get("narrow_parts", "")).split()
    return with_quantised_products(graph, spec.precision, parts)


def _as_written(spec: ModelSpec, batch: int) -> Graph:
    """The forward graph in the arithmetic of its tensors."""
    if spec.family == FUNCTION:
        graph = _called(spec.name)
        _check_function(spec, graph)
        return with_batch(graph, batch)
    if spec.family == GRAPH:
        if spec.graph is None:
            raise ModelError(f"model `{spec.name}` is an imported one, but holds no graph")
        return with_batch(check_graph(spec.graph), batch)
    if spec.family not in FAMILIES:
        families = ", ".join((*FAMILIES, FUNCTION, GRAPH))
        raise ModelError(f"there is no family `{spec.family}`; choose one of {families}")
    family = FAMILIES[spec.family]
    try:
        config = msgspec.convert(spec.config, family.config)
    except msgspec.ValidationError as error:
        raise ModelError(
            f"model `{spec.name}`: configuration of `{spec.family}`: {error}"
        ) from None
    check_length(spec)
    family.check(spec, config)
    return family.build(spec, config, batch)


def build_training(
    spec: ModelSpec,
    training: TrainingSpec,
    batch: int,
    recompute: Mapping[str, str] | None = None,
    selective: Selective = USUAL,
) -> Graph:
    """Graph of a whole training step: forward, backward and optimizer.

    A model of the zoo, or an imported one, is built once and written for other batches, and for
    other modes of recomputation by block, from that.

    Parameters
    ----------
    spec : ModelSpec
        A model of the zoo, a function's or an imported one.
    training : TrainingSpec
        Optimizer, its schedule, and the kind of attention.
    batch : int
        Samples of a microbatch, 1 or more.
    recompute : mapping of str to str, optional
        Per block: none, selective or full; blocks that are not named: none. None: no block does.
    selective : Selective
        What mode selective makes again.

    Raises
    ------
    ModelError
        The model cannot be built (`build`) or trained (it has no loss, no variable that is trained,
        an op without gradient), a field of `training` is out of range, or a block or mode is not
        known.
    """
    if spec.family == FUNCTION or batch < 1:  # what a function returns is its own affair
        graph = training_graph(build(spec, batch), training)
        return with_recompute(graph, recompute, selective) if recompute else graph
    modes = tuple((recompute or {}).items())
    rule = selective if modes else USUAL
    return _of_batch(to_json(spec), to_json(training), batch, modes, rule)


@lru_cache(maxsize=4)  # a search and what is said of its plans ask for few; they are large
def _of_batch(
    spec: bytes,
    training: bytes,
    batch: int,
    recompute: tuple[tuple[str, str], ...],
    selective: Selective,
) -> Graph:
    """The training graph of two specifications, as JSON."""
    if recompute:
        plain = _of_batch(spec, training, batch, (), USUAL)
        return with_recompute(plain, dict(recompute), selective)
    return with_batch(_of_one_sample(spec, training), batch)


@lru_cache(maxsize=2)
def _of_one_sample(spec: bytes, training: bytes) -> Graph:
    """Training graph of two specifications, as JSON, for microbatches of one sample."""
    model = msgspec.json.decode(spec, type=ModelSpec)
    return training_graph(build(model, 1), msgspec.json.decode(training, type=TrainingSpec))


def _called(name: str) -> Graph:
    """Import `package.module:function` and return the graph it makes, its equal blocks tied.

    A graph of one block is cut where its structure repeats.
    """
    module_name, _, function_name = name.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ModelError(
            f"model `{name}` cannot be imported ({error}); expected `package.module:function`"
        ) from None
    except (Exception, SystemExit) as error:  # the module is the user's, and so are its errors
        raise ModelError(
            f"model `{name}` cannot be imported: `{module_name}` fails with "
            f"{type(error).__name__}: {error}"
        ) from error
    if not callable(function):
        raise ModelError(f"model `{name}` is not a function; expected one that returns a Graph")
    try:
        graph = function()
    except ModelError:
        raise
    except (Exception, SystemExit) as error:  # the function is the user's as well
        raise ModelError(
            f"model `{name}` fails with {type(error).__name__}: {error}; expected a function that "
            f"takes no arguments and returns a Graph"
        ) from error
    if not isinstance(graph, Graph):
        raise ModelError(f"model `{name}` returns a {type(graph).__name__}; expected a Graph")
    check_graph(graph)
    if len(graph.blocks) > 1:
        return merge_templates(graph)
    repeated = with_blocks(graph)
    return repeated if len(repeated.blocks) > 1 else graph


def _check_function(spec: ModelSpec, graph: Graph) -> None:
    """Refuse another sequence length or precision than those a function decides itself."""
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
