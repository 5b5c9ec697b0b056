"""Class import: a decoded configuration in, the specification of its class's graph out.

The module is made without weights, its layers are shortened to two of each kind, the short module
is traced at one length of sequence or two, and the graph is lengthened again. Where the layers are
no chain of equal ones the whole module is traced, if it is small enough.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import msgspec

from millrace.models.blocks import cut
from millrace.models.builder import GraphBuilder
from millrace.models.errors import ModelError
from millrace.models.graph import Graph, with_batch
from millrace.models.importers.notes import left_out, seen_answers
from millrace.models.importers.torch_export.classes.class_building import built_module, offline
from millrace.models.importers.torch_export.classes.graph_lengthening import (
    NotAChainError,
    lengthened,
)
from millrace.models.importers.torch_export.classes.layer_kinds import LayerList, shorten
from millrace.models.importers.torch_export.classes.token_restating import (
    FixedLengthError,
    with_tokens,
)
from millrace.models.importers.torch_export.import_program import ImportOptions, ReadProgram, read
from millrace.models.importers.torch_export.losses import Loss
from millrace.models.importers.torch_export.sources import ExportedModel, ParameterSource
from millrace.models.importers.torch_export.tracing import program_of, trace
from millrace.models.importers.torch_export.writing import BLOCK
from millrace.models.spec import ModelSpec, graph_spec

LENGTH_STEP = 64  # tokens; the two lengths that are traced are multiples of it
CHUNK_STEP = 256  # instead, where there are chunks or windows: published ones divide it
WORKED_OUT_MAX = 8192  # tokens for which masks and tables are worked out; 1.7 GiB at that length
PLAIN_LENGTH = 2048  # tokens where a configuration names no longest sequence, or a longer is fixed
WHOLE_LAYERS_MAX = 64  # layers that are traced one by one where they are no chain
_LONGEST = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "context_length")
# Parts of the keys that say from which length on a model computes another way.
_THRESHOLDS = ("window", "chunk", "local", "topk", "sparse", "compress", "original_max", "stride")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRequest:
    """A configuration that is imported through its class.

    Attributes
    ----------
    values : mapping
        The decoded configuration; infinities are floats.
    name : str
        The model's name.
    seq_len : int or None
        Tokens of a sample; None: the longest that the configuration names.
    precision : str
        As `import_module` takes it.
    """

    values: Mapping[str, Any]
    name: str
    seq_len: int | None = None
    precision: str = "fp32"


def class_spec(request: ClassRequest, told: Callable[[str], None] | None = None) -> ModelSpec:
    """Specification of the model that a class of transformers makes of a configuration.

    Parameters
    ----------
    request : ClassRequest
        The configuration and what is asked of it.
    told : callable, optional
        Told in words how the model was read and which parts are not computed.

    Raises
    ------
    ModelError
        There is no such class, it cannot be made of the configuration, or it has calls that cannot
        be expressed: all of them are named.
    """
    imported = import_class(request)
    if told is not None:
        for note in imported.notes:
            told(note)
    return graph_spec(imported.graph, imported.precision)


def import_class(request: ClassRequest) -> ExportedModel:
    """Import of a class, with the parameter of the class's module that each variable is.

    Parameters
    ----------
    request : ClassRequest
        As for `class_spec`, whose errors it raises.
    """
    return _ClassImport(request).imported()


class _ClassImport:
    """Import under way: the module, its parameters before it was shortened, and the notes."""

    def __init__(self, request: ClassRequest) -> None:
        self.request = request
        self.module = built_module(request.values)
        self.class_name = type(self.module).__name__
        self.parameters = {
            name: tuple(tensor.shape) for name, tensor in self.module.named_parameters()
        }
        self.options = ImportOptions(
            loss=Loss(kind="cross_entropy"), name=request.name, precision=request.precision
        )
        self.layers: tuple[LayerList, ...] = ()  # that were shortened
        self.notes: list[str] = []

    def imported(self) -> ExportedModel:
        """Graph of the whole module in blocks, with notes."""
        try:
            self.layers = shorten(self.module)
            one_block = self._at_length()
            graph, sources = self._with_all_layers(one_block)
        except NotAChainError as error:
            depth = sum(len(row.kinds) for row in self.layers)
            if depth > WHOLE_LAYERS_MAX:
                raise ModelError(
                    f"{self.class_name} cannot be traced by two layers of each kind ({error}), and "
                    f"{depth} layers are more than are traced one by one ({WHOLE_LAYERS_MAX})"
                ) from None
            self.layers, self.notes = (), []
            self.module = built_module(self.request.values)
            one_block = self._at_length()
            graph, sources = self._with_all_layers(one_block)
        graph = self._with_idle(graph, sources)
        blocked = cut(with_batch(graph, 1))
        inputs = [op for op in blocked.graph.ops if op.attributes.get("source") == "tokens"]
        return ExportedModel(
            graph=blocked.graph,
            parameters={blocked.names[name]: source for name, source in sources.items()},
            precision=self.request.precision,
            inputs=tuple(("input_ids", op.name) for op in inputs),
            classes_dim=2,  # behind samples and tokens
            notes=(self._how(), *self.notes, *one_block.notes, *seen_answers(blocked.graph)),
            absent_ids=one_block.absent_ids,
        )

    def _how(self) -> str:
        import transformers

        traced = "".join(
            f"; of the {len(row.kinds)} layers of `{row.path}` {len(row.traced)} were traced, and "
            f"the others are copies of those of their kind"
            for row in self.layers
        )
        return f"read through {self.class_name} of transformers {transformers.__version__}{traced}"

    def _with_all_layers(self, one_block: ReadProgram) -> tuple[Graph, dict[str, ParameterSource]]:
        """Graph with all layers; its parameters are those of the module, each of its size."""
        graph, sources = one_block.graph, one_block.sources
        for row in self.layers:
            graph, sources = lengthened(graph, sources, row)
        sizes: dict[str, int] = {}
        for name, source in sources.items():
            sizes[source.fqn] = sizes.get(source.fqn, 0) + prod(graph.tensor(name).shape)
        for name, size in sizes.items():
            if name not in self.parameters or prod(self.parameters[name]) != size:
                raise NotAChainError(f"`{name}` has {size:,} values in the copies of its layer")
        return graph, sources

    def _with_idle(self, graph: Graph, sources: dict[str, ParameterSource]) -> Graph:
        """Graph with the parameters that the loss does not depend on: held, and not trained."""
        used = {source.fqn for source in sources.values()}
        idle = {name: shape for name, shape in self.parameters.items() if name not in used}
        if not idle:
            return graph
        builder = GraphBuilder(
            name=graph.name,
            batch=graph.batch,
            tokens_per_sample=graph.tokens_per_sample,
            precision=self.request.precision,
        )
        builder.begin_block(BLOCK)
        for name, shape in idle.items():
            dims = " ".join(f"k{dim}" for dim in range(len(shape)))
            builder.variable(name, dims, shape, frozen=True)
            sources[f"{BLOCK}.{name}"] = ParameterSource(fqn=name, shape=shape)
        beside = builder.build()
        (note,) = left_out({name: prod(shape) for name, shape in idle.items()})
        self.notes.append(note.replace("left out", "held in memory, not computed with or trained"))
        return msgspec.structs.replace(
            graph, ops=(*beside.ops, *graph.ops), tensors=(*beside.tensors, *graph.tensors)
        )

    def _at_length(self) -> ReadProgram:
        """Program of the module for as many tokens as were asked for, or as it was made for."""
        longest = _longest(self.module.config)
        tokens = self.request.seq_len or longest or PLAIN_LENGTH
        first, second = _traced_lengths(self.request.values, tokens)
        if tokens <= second:
            return self._read(tokens)
        try:
            if second > WORKED_OUT_MAX:
                raise FixedLengthError(f"it computes another way from {first:,} tokens on")
            short, longer = self._read(first), self._read(second)
            return replace(short, graph=with_tokens(short.graph, longer.graph, tokens))
        except FixedLengthError as error:
            if self.request.seq_len is not None and tokens > WORKED_OUT_MAX:
                raise ModelError(
                    f"the graph of {self.class_name} is not known for {tokens:,} tokens "
                    f"({error}); up to {WORKED_OUT_MAX:,} can be asked for"
                ) from None
            if self.request.seq_len is None and tokens > PLAIN_LENGTH:
                self.notes.append(
                    f"for sequences of {PLAIN_LENGTH:,} tokens, of at most {tokens:,} ({error}); "
                    f"another length can be asked for"
                )
                tokens = PLAIN_LENGTH
        return self._read(tokens)

    def _read(self, tokens: int) -> ReadProgram:
        import torch

        inputs: dict[str, Any] = {"input_ids": torch.zeros(1, tokens, dtype=torch.int64)}
        if "use_cache" in inspect.signature(self.module.forward).parameters:
            inputs["use_cache"] = False
        with offline():
            try:
                exported = trace(self.module, inputs)
            except ModelError as error:  # the fault may be the missing layers'
                raise NotAChainError(str(error)) if self.layers else error from None
            return read(program_of(exported, self.module), self.options)


def _longest(config: Any) -> int | None:
    """Tokens of the longest sequence that a configuration, or its part for text, names."""
    for part in (config, config.get_text_config()):
        for key in _LONGEST:
            value = getattr(part, key, None)
            if isinstance(value, int) and value > 0:
                return value
    return None


def _traced_lengths(values: Mapping[str, Any], tokens: int) -> tuple[int, int]:
    """Two lengths to trace at: beyond each threshold that the length asked for is beyond."""
    thresholds = [value for value in _numbers(values) if value < tokens]
    step = CHUNK_STEP if thresholds else LENGTH_STEP
    first = (max(thresholds, default=0) // step + 2) * step
    return first, first + step


def _numbers(values: Mapping[str, Any]) -> Iterator[int]:
    """Numbers of tokens at which a model begins to compute another way."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        elif type(value) is int and any(word in key for word in _THRESHOLDS):
            yield value
