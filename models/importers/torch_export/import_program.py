"""Program import: a module, program or file in, `ExportedModel` out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from millrace.models.blocks import cut
from millrace.models.builder import GraphBuilder
from millrace.models.graph import Graph, with_batch
from millrace.models.importers.notes import left_out, seen_answers
from millrace.models.importers.torch_export.calls import (
    attention_calls,
    comparison_calls,
    elementwise_calls,
    layer_calls,
    mixture_calls,
    place_calls,
    product_calls,
    rotary_calls,
    router_calls,
    shape_calls,
)
from millrace.models.importers.torch_export.draft import Array, DraftOp, DraftTensor
from millrace.models.importers.torch_export.fused_projections import split_fused_projections
from millrace.models.importers.torch_export.losses import Loss, add_loss, name_sources
from millrace.models.importers.torch_export.node_matching import MATCHERS
from millrace.models.importers.torch_export.program_reader import Handler, ProgramReader
from millrace.models.importers.torch_export.sources import ExportedModel, ParameterSource
from millrace.models.importers.torch_export.tracing import (
    WRAPPED,
    TracedProgram,
    has_values,
    load,
    program_of,
    trace,
    whole_number,
)
from millrace.models.importers.torch_export.writing import BLOCK, DraftWriter

HANDLERS: dict[str, Handler] = {
    **elementwise_calls.HANDLERS,
    **comparison_calls.HANDLERS,
    **shape_calls.HANDLERS,
    **product_calls.HANDLERS,
    **attention_calls.HANDLERS,
    **router_calls.HANDLERS,
    **mixture_calls.HANDLERS,
    **rotary_calls.HANDLERS,
    **layer_calls.HANDLERS,
    **place_calls.HANDLERS,
}


def import_module(
    module: Any,
    inputs: Any,
    *,
    loss: str = "cross_entropy",
    name: str | None = None,
    precision: str = "fp32",
    output: str | int | None = None,
    classes_dim: int | None = None,
    mask_id: int | None = None,
) -> ExportedModel:
    """Import a PyTorch module.

    Parameters
    ----------
    module : torch.nn.Module
        May be on the meta device or fake; its mode (training or evaluation) is kept.
    inputs : tensor, sequence or mapping
        Example inputs, positional or by name; dim 0 of each is the batch.
    loss : str
        cross_entropy (against class or token ids) or logistic (of one logit per sample against 0
        or 1).
    name, precision : str
        The graph's; the module's class name by default.
    output : str or int, optional
        Output, of several, that holds the predictions; `logits`, or the only floating one, by
        default.
    classes_dim : int, optional
        Dim of the predictions that is classes. Known by itself for [batch, classes], for
        predictions of every token (the last) and for images (1, as PyTorch's cross_entropy has it).
    mask_id : int, optional
        The id of a hidden token; a model that fills in masked text needs it to be trained.

    Returns
    -------
    ExportedModel
        With values where the module's parameters have some.

    Raises
    ------
    ModelError
        The module cannot be traced; calls cannot be expressed: all of them are named; it returns
        several tensors, or predictions whose dim of classes cannot be told.

    Notes
    -----
    What depends on neither inputs nor parameters (masks, tables of angles) is worked out now. A
    batch norm in training keeps no running statistics. Experts have places for all tokens of a
    sample.

    Examples
    --------
    >>> import_module(module, ids).graph.blocks  # doctest: +SKIP
    ('stem', 'layer.0', 'layer.1', 'head')
    """
    asked = ImportOptions(
        loss=Loss(kind=loss, classes_dim=classes_dim, mask_id=mask_id),
        name=name or type(module).__name__,
        precision=precision,
        output=output,
    )
    imported = _imported(program_of(trace(module, inputs, output), module, output=output), asked)
    samples = _samples(inputs)
    if samples == imported.graph.batch:
        return imported
    return replace(imported, graph=with_batch(imported.graph, samples))


def import_program(
    exported: Any,
    *,
    loss: str = "cross_entropy",
    name: str | None = None,
    precision: str = "fp32",
    output: str | int | None = None,
    classes_dim: int | None = None,
    mask_id: int | None = None,
) -> ExportedModel:
    """Import a `torch.export.ExportedProgram`; parameters and errors as for `import_module`.

    The program is best as `torch.export.export` gives it: taken down to core ops
    (`run_decompositions`), attention is no longer one op and cannot be recognised.
    """
    asked = ImportOptions(
        loss=Loss(kind=loss, classes_dim=classes_dim, mask_id=mask_id),
        name=name or "program",
        precision=precision,
        output=output,
    )
    return _imported(program_of(exported, output=output), asked)


def import_file(
    path: str | Path,
    *,
    loss: str = "cross_entropy",
    name: str | None = None,
    precision: str = "fp32",
    output: str | int | None = None,
    classes_dim: int | None = None,
    mask_id: int | None = None,
) -> ExportedModel:
    """Import a `.pt2` file; parameters and errors as for `import_module`."""
    return import_program(
        load(path),
        loss=loss,
        name=name or Path(path).stem,
        precision=precision,
        output=output,
        classes_dim=classes_dim,
        mask_id=mask_id,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """Options of an import, besides the program; as `import_module` takes them."""

    loss: Loss
    name: str
    precision: str
    output: str | int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadProgram:
    """A program as a graph of one block.

    Attributes
    ----------
    graph : Graph
        Its ops are named by the paths of their modules, behind the block's name.
    sources : dict
        Parameter of each variable.
    """

    graph: Graph
    sources: dict[str, ParameterSource]
    program: TracedProgram
    reader: ProgramReader
    classes_dim: int | None

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on what was taken for granted."""
        return (*dict.fromkeys(self.reader.notes), *_absent(self.reader))

    @property
    def absent_ids(self) -> dict[str, tuple[int, ...]]:
        """Ids that samples are taken not to hold, by input."""
        return {name: tuple(ids) for name, ids in self.reader.absent_ids.items()}


def read(program: TracedProgram, options: ImportOptions) -> ReadProgram:
    """Read a program and add its loss.

    Parameters
    ----------
    program : TracedProgram
        Its calls, parameters and inputs.
    options : ImportOptions
        Its loss, name and precision.

    Raises
    ------
    ModelError
        As for `import_module`.
    """
    matchers = (*MATCHERS, *rotary_calls.MATCHERS, router_calls.router, mixture_calls.mixture)
    reader = ProgramReader(program=program, handlers=HANDLERS, matchers=matchers)
    predictions = reader.read()
    name_sources(reader.inputs)
    added = add_loss(reader.draft, reader.inputs, predictions, options.loss, reader.both_ways)
    steps = _live(split_fused_projections(reader.draft, reader.draft.steps), added.kept_tensors)
    builder = GraphBuilder(
        name=options.name,
        batch=program.batch,
        tokens_per_sample=_tokens(reader.inputs),
        precision=options.precision,
    )
    builder.begin_block(BLOCK)
    writer = DraftWriter(builder=builder)
    writer.write(steps)
    return ReadProgram(
        graph=builder.build(),
        sources=writer.sources,
        program=program,
        reader=reader,
        classes_dim=added.classes_dim,
    )


def _imported(program: TracedProgram, options: ImportOptions) -> ExportedModel:
    """Read a program and cut its graph into blocks."""
    one_block = read(program, options)
    reader = one_block.reader
    blocked = cut(one_block.graph)
    sources = {blocked.names[name]: source for name, source in one_block.sources.items()}
    both_ways = f" (`{next(iter(reader.both_ways.values()), '') or 'the module itself'}`)"
    return ExportedModel(
        graph=blocked.graph,
        parameters=sources,
        values=_values(program, sources),
        precision=options.precision,
        inputs=_fed(program, reader, blocked.names),
        loss=options.loss.kind,
        output=options.output,
        classes_dim=one_block.classes_dim,
        notes=(
            *_left_out(program, reader, sources),
            *one_block.notes,
            *seen_answers(blocked.graph, both_ways),
        ),
        absent_ids=one_block.absent_ids,
    )


def _absent(reader: ProgramReader) -> Iterator[str]:
    """Notes on ids that inputs are taken not to hold."""
    for name, ids in reader.absent_ids.items():
        for number, place in ids.items():
            yield (
                f"samples are taken to hold no id {number} in `{name}` (padding, or the place of "
                f"an image), for which `{place or 'the module itself'}` looks"
            )


def _fed(
    program: TracedProgram, reader: ProgramReader, names: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Inputs of the program, each with the op that reads its data."""
    read = {
        array.tensor.name: names.get(f"{BLOCK}.{array.tensor.name}", "") for array in reader.inputs
    }
    return tuple((name, read.get(name, "")) for name in program.inputs)


def _left_out(
    program: TracedProgram, reader: ProgramReader, sources: Mapping[str, ParameterSource]
) -> Iterator[str]:
    """Notes on the inputs and parameters that the loss does not depend on."""
    for name in program.inputs:
        if all(array.tensor.name != name for array in reader.inputs):
            yield f"the loss does not depend on input `{name}`: left out"
    used_names = {source.fqn for source in sources.values()}
    yield from left_out(
        {
            name.removeprefix(WRAPPED): tensor.numel()
            for name, tensor in program.parameters.values()
            if name.removeprefix(WRAPPED) not in used_names
        }
    )


def _samples(inputs: Any) -> int:
    values = inputs.values() if hasattr(inputs, "values") and not hasattr(inputs, "ndim") else None
    if values is None:
        values = inputs if isinstance(inputs, list | tuple) else [inputs]
    return next(whole_number(x.shape[0]) for x in values if getattr(x, "ndim", 0))


def _tokens(inputs: list[Array]) -> int:
    """Tokens of a sample: those of the decoder where there is one."""
    for array in sorted(inputs, key=lambda x: x.tensor.attributes["source"] != "decoder_tokens"):
        for axis in array.tensor.axes:
            if axis.role == "t":
                return axis.size
    return 1


def _live(steps: list[DraftOp], wanted: set[DraftTensor]) -> list[DraftOp]:
    """Steps that the wanted tensors need."""
    needed, live_steps = set(wanted), []
    for step in reversed(steps):
        if not needed.isdisjoint((step.output.tensor, *step.more)):
            live_steps.append(step)
            needed |= {operand.tensor for operand in step.inputs}
    return live_steps[::-1]


def _values(program: TracedProgram, sources: dict[str, ParameterSource]) -> dict[str, Any] | None:
    tensors = {name.removeprefix(WRAPPED): tensor for name, tensor in program.parameters.values()}
    if not all(has_values(tensors[source.fqn]) for source in sources.values()):
        return None
    return {
        name: source.read(tensors[source.fqn].detach().cpu().float().numpy())
        for name, source in sources.items()
    }
