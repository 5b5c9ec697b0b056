"""The importer's front: module, program or file in, `Imported` out."""

from pathlib import Path
from typing import Any

from millrace.models.blocks import cut
from millrace.models.builder import GraphBuilder
from millrace.models.errors import ModelError
from millrace.models.graph import with_batch
from millrace.models.importers.torch_export.calls import (
    attention,
    elementwise,
    layers,
    mixture,
    products,
    rotary,
    shapes,
)
from millrace.models.importers.torch_export.draft import Array, Operand, Slot, Step, Tensor, Token
from millrace.models.importers.torch_export.extents import Axis, leaves, size_of
from millrace.models.importers.torch_export.fused import taken_apart
from millrace.models.importers.torch_export.patterns import MATCHERS
from millrace.models.importers.torch_export.reading import Handler, Reader
from millrace.models.importers.torch_export.sources import Imported, Source
from millrace.models.importers.torch_export.tracing import (
    WRAPPED,
    Program,
    has_values,
    load,
    program_of,
    trace,
    whole_number,
)
from millrace.models.importers.torch_export.writing import BLOCK, Writer

HANDLERS: dict[str, Handler] = {
    **elementwise.HANDLERS,
    **shapes.HANDLERS,
    **products.HANDLERS,
    **attention.HANDLERS,
    **mixture.HANDLERS,
    **rotary.HANDLERS,
    **layers.HANDLERS,
}

LOSSES = ("cross_entropy", "logistic")


def import_module(
    module: Any,
    inputs: Any,
    *,
    loss: str = "cross_entropy",
    name: str | None = None,
    precision: str = "fp32",
) -> Imported:
    """Import a PyTorch module.

    Parameters
    ----------
    module : torch.nn.Module
        May be on the meta device or fake; its mode (training or evaluation) is kept.
    inputs : tensor, sequence or mapping
        Example inputs, positional or by name; dim 0 of each is the batch.
    loss : str
        cross_entropy (of the last dim of the predictions against class or token ids) or logistic
        (of one logit per sample against 0 or 1).
    name, precision : str
        The graph's; the module's class name by default.

    Returns
    -------
    Imported
        With values where the module's parameters have some.

    Raises
    ------
    ModelError
        The module cannot be traced, or calls cannot be expressed: all of them are named.

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
    exported = trace(module, inputs)
    program = program_of(exported, module)
    found = _imported(program, loss, name or type(module).__name__, precision)
    asked = _samples(inputs)
    return found if asked == program.batch else _for_batch(found, asked)


def import_program(
    exported: Any,
    *,
    loss: str = "cross_entropy",
    name: str | None = None,
    precision: str = "fp32",
) -> Imported:
    """Import a `torch.export.ExportedProgram`; parameters and errors as for `import_module`.

    The program is best as `torch.export.export` gives it: taken down to core ops
    (`run_decompositions`), attention is no longer one op and cannot be recognised.
    """
    return _imported(program_of(exported), loss, name or "program", precision)


def import_file(
    path: str | Path,
    *,
    loss: str = "cross_entropy",
    name: str | None = None,
    precision: str = "fp32",
) -> Imported:
    """Import a `.pt2` file; parameters and errors as for `import_module`."""
    return import_program(load(path), loss=loss, name=name or Path(path).stem, precision=precision)


def _imported(program: Program, loss: str, name: str, precision: str) -> Imported:
    if loss not in LOSSES:
        raise ModelError(f"there is no loss `{loss}`; choose one of {', '.join(LOSSES)}")
    matchers = (*MATCHERS, *rotary.MATCHERS, mixture.mixture)
    reader = Reader(program=program, handlers=HANDLERS, matchers=matchers)
    predictions = reader.read()
    _sources_of(reader.inputs)
    steps, kept = _with_loss(reader, predictions, loss)
    steps = _live(taken_apart(reader.draft, steps), kept)
    builder = GraphBuilder(
        name=name,
        batch=program.batch,
        tokens_per_sample=_tokens(reader.inputs),
        precision=precision,
    )
    builder.begin_block(BLOCK)
    writer = Writer(builder=builder)
    writer.write(steps)
    in_blocks = cut(builder.build())
    sources = {in_blocks.names[name]: source for name, source in writer.sources.items()}
    return Imported(
        graph=in_blocks.graph,
        parameters=sources,
        values=_values(program, sources),
        precision=precision,
    )


def _for_batch(imported: Imported, batch: int) -> Imported:
    return Imported(
        graph=with_batch(imported.graph, batch),
        parameters=imported.parameters,
        values=imported.values,
        precision=imported.precision,
    )


def _samples(inputs: Any) -> int:
    values = inputs.values() if hasattr(inputs, "values") and not hasattr(inputs, "ndim") else None
    if values is None:
        values = inputs if isinstance(inputs, list | tuple) else [inputs]
    return next(whole_number(x.shape[0]) for x in values if getattr(x, "ndim", 0))


_NAMED = {"token_type": "segments", "decoder": "decoder_tokens", "categor": "categories"}


def _sources_of(inputs: list[Array]) -> None:
    """Say what kind of data each input is; next to a decoder's tokens others are its source."""
    pair = any("decoder" in array.tensor.name for array in inputs)
    for array in inputs:
        tensor = array.tensor
        if not tensor.integer:
            source = "images" if len(array.dims) == 4 else "features"
        else:
            named = [kind for word, kind in _NAMED.items() if word in tensor.name]
            source = named[0] if named else "source_tokens" if pair else "tokens"
        tensor.attributes["source"] = source


def _tokens(inputs: list[Array]) -> int:
    """Tokens of a sample: those of the decoder where there is one."""
    for array in sorted(inputs, key=lambda x: x.tensor.attributes["source"] != "decoder_tokens"):
        for axis in array.tensor.axes:
            if axis.role == "t":
                return axis.size
    return 1


def _with_loss(reader: Reader, logits: Array, loss: str) -> tuple[list[Step], set[int]]:
    """Targets, their loss, its sum and the count; also which tensors are kept."""
    draft = reader.draft
    draft.where = ""
    squeeze = loss == "logistic" and size_of(logits.dims[-1]) == 1 and len(logits.dims) > 1
    lead = logits.dims[:-1] if loss == "cross_entropy" or squeeze else logits.dims
    axes = tuple(axis for group in lead for axis in leaves(group))
    if not axes or axes[0].role != "b" or not all(logits.real(axis) for axis in axes):
        raise ModelError(
            f"the predictions have shape {logits.shape}; `{loss}` expects the batch first"
            + (" and the classes last" if loss == "cross_entropy" else "")
        )
    tensor = Tensor(
        name=draft.name("targets"),
        axes=tuple(Axis(axis.extent) for axis in axes),
        kind="input",
        integer=True,
    )
    rows = tuple(Slot(Token(), (axis,)) for axis in axes)
    targets = Operand(
        tensor,
        tuple(Slot(row.token, (axis,)) for row, axis in zip(rows, tensor.axes, strict=True)),
    )
    if loss == "cross_entropy":
        classes = Slot(Token(single=True, whole=True, label="v"), leaves(logits.dims[-1]))
        tensor.attributes["values"] = size_of(logits.dims[-1])
        pair = any(x.tensor.attributes["source"] == "decoder_tokens" for x in reader.inputs)
        tokens = "decoder_targets" if pair else "targets"
        tensor.attributes["source"] = "classes" if len(axes) == 1 else tokens
        read = Operand(logits.tensor, (*rows, classes))
        extras: tuple[tuple[Token, ...], ...] = (tuple(row.token for row in rows),)
    else:
        tensor.attributes |= {"values": 2, "source": "clicks"}
        read, extras = Operand(logits.tensor, rows), ()
    kind = "cross_entropy" if loss == "cross_entropy" else "logistic_loss"
    losses = draft.make(kind, (read, targets), rows, name="loss", extras=extras, ordered=True)
    total = draft.make("sum", (Operand(losses, rows),), (), name="loss_sum")
    count = draft.make("count_valid", (targets,), (), name="token_count")
    return draft.steps, {id(total), id(count)}


def _live(steps: list[Step], kept: set[int]) -> list[Step]:
    """The steps that the kept tensors need."""
    needed, found = set(kept), []
    for step in reversed(steps):
        if not needed.isdisjoint(id(x) for x in (step.output.tensor, *step.more)):
            found.append(step)
            needed |= {id(operand.tensor) for operand in step.inputs}
    return found[::-1]


def _values(program: Program, sources: dict[str, Source]) -> dict[str, Any] | None:
    tensors = {name.removeprefix(WRAPPED): tensor for name, tensor in program.parameters.values()}
    if not all(has_values(tensors[source.fqn]) for source in sources.values()):
        return None
    return {
        name: source.read(tensors[source.fqn].detach().cpu().float().numpy())
        for name, source in sources.items()
    }
