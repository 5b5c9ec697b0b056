"""ONNX import: the file read, its nodes lowered in order, a loss added, unread ops removed.

Everything is worked out at a batch of samples that hardly occurs as another size. Where the file
leaves the batch open the import is made a second time at another one, and both must be the same
graph: a model that depends on the batch otherwise than by its size is refused, not misread.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from millrace.models.blocks import cut
from millrace.models.builder import GraphBuilder
from millrace.models.errors import ModelError
from millrace.models.graph import Graph, with_batch
from millrace.models.importers.notes import for_masked_text, left_out, seen_answers
from millrace.models.importers.onnx.folding import FOLDS, folded, shape_part
from millrace.models.importers.onnx.inputs import (
    Inputs,
    describes_sequence,
    fixed_batch,
    prescribed,
)
from millrace.models.importers.onnx.labelling import labels_of_tensor
from millrace.models.importers.onnx.loss import LOSSES, LossOptions, add_loss, pruned
from millrace.models.importers.onnx.lowering import BLOCK, BlockedError, OnnxLowering
from millrace.models.importers.onnx.onnx_file import (
    GraphInput,
    Initializer,
    OnnxNode,
    OnnxSource,
    read_file,
)
from millrace.models.importers.onnx.rules.fused_nodes import read_twice
from millrace.models.importers.onnx.rules.node_rules import RULES
from millrace.models.importers.onnx.values import (
    Array,
    Constant,
    Dim,
    LabelFactor,
    Traced,
    Unknown,
    UnsupportedNodeError,
    Value,
)
from millrace.models.importers.onnx.weights import (
    Role,
    WeightSource,
    matching,
    trained_roles,
    untrained,
)
from millrace.models.importers.predictions import prediction_output
from millrace.models.labels import BATCH, SEQUENCE
from millrace.models.type_inference import check_graph

BATCHES = (13, 11)
"""Batches to import at where the file leaves it open: primes that are rarely the size of a dim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxModel:
    """A model read from a file.

    Attributes
    ----------
    graph : Graph
        The forward graph, with a loss and its targets, for microbatches of one sample (or of the
        batch that the file fixes; `with_batch` gives others).
    parameters : dict
        Every variable of the graph and where its value is found.
    values : dict or None
        Every variable's value; None where the file's weights are not there.
    classes_dim : int or None
        Which dim of the predictions is classes.
    notes : tuple of str
        What the user should know: weights left out, data that the model is not made for.
    """

    graph: Graph
    parameters: dict[str, WeightSource]
    values: dict[str, Array] | None
    classes_dim: int | None = None
    notes: tuple[str, ...] = ()


def import_file(
    path: str | Path,
    *,
    loss: str | None = "cross_entropy",
    name: str | None = None,
    precision: str = "fp32",
    seq_len: int | None = None,
    output: str | int | None = None,
    classes_dim: int | None = None,
    mask_id: int | None = None,
    frozen: Sequence[str] = (),
) -> OnnxModel:
    """Read an ONNX file of opset 17 or newer as a graph to train.

    The first dim of the inputs is the batch, the second of an integer input the sequence. The loss
    is that of one output against an input `targets` (next tokens of a sequence, else classes).
    Inputs of one kind read data of their own. Batch norms take the statistics of the microbatch.
    Ids called a mask, positions or types are those of one whole sequence: ones, 0 to t - 1, zeros.

    Parameters
    ----------
    path : str or Path
        The file; weights kept beside it need not be there.
    loss : str or None
        cross_entropy (of ids) or logistic (one number against 0 or 1); None: by the output's shape.
    name, precision : str, optional
        The graph's; the file's name by default.
    seq_len : int, optional
        Tokens of a sample, where the file leaves that open.
    output : str or int, optional
        Output that holds the predictions; `logits`, or the only floating one, by default.
    classes_dim : int, optional
        Dim of the predictions that is classes. Known by itself for [batch, classes], for
        predictions of every token (the last) and for images (1, as PyTorch's cross_entropy has it).
    mask_id : int, optional
        The id of a hidden token; a model that fills in masked text needs it to be trained.
    frozen : sequence of str, optional
        Weights that are not trained, by their names in the file; `*` stands for anything.

    Raises
    ------
    ModelError
        The file is malformed or too old, sizes are open, or ops are not supported: all are named,
        with the module of each. It has several outputs, predictions whose dim of classes cannot be
        told, or parameters, by the exporter's word, that would become constants.

    Notes
    -----
    The model is the file's. An exporter's optimizer may have folded a batch norm into a
    convolution, merged equal tensors of a model that was never trained, or made a second tensor of
    a table that was tied; `torch.onnx.export(..., optimize=False)` leaves all as it was.
    """
    if loss is not None and loss not in LOSSES:
        raise ModelError(f"there is no loss `{loss}`; choose one of {', '.join(LOSSES)}")
    source = read_file(Path(path))
    constant_inputs = {entry.name for entry in source.inputs if describes_sequence(entry)}
    question = _OnnxRequest(
        path=path,
        source=source,
        roles=trained_roles(source, constant_inputs),
        frozen=matching(source, frozen),
        output=output,
        classes_dim=classes_dim,
        mask_id=mask_id,
        name=Path(path).stem if name is None else name,
        precision=precision,
        loss=loss,
        seq_len=seq_len,
    )
    return _imported(question)


def _imported(question: "_OnnxRequest") -> OnnxModel:
    """Import at one batch, or at two where the file leaves it open."""
    source, batch = question.source, fixed_batch(question.source)
    read = [_read(question, size) for size in (BATCHES if batch is None else (batch,))]
    graph, variables, dim_of_classes = read[0]
    if batch is None:
        if with_batch(graph, BATCHES[1]) != read[1].graph:
            raise ModelError(
                f"`{question.path}` depends on the batch otherwise than by its size, so no graph "
                f"of one sample's work can be made of it; export it with a fixed batch"
            )
        graph = with_batch(graph, 1)
    graph = for_masked_text(graph, question.mask_id)
    cut_graph = cut(graph)
    parameters = {cut_graph.names[name]: parameter for name, parameter in variables.items()}
    used = question.frozen.union(parameter.initializer for parameter in parameters.values())
    unread = {
        initializer.name: prod(initializer.shape)
        for initializer in source.initializers.values()
        if initializer.trained and initializer.name not in used
    }
    return OnnxModel(
        graph=check_graph(cut_graph.graph),
        parameters=parameters,
        values=_values(source, parameters),
        classes_dim=dim_of_classes,
        notes=(*left_out(unread), *seen_answers(graph)),
    )


def _values(source: OnnxSource, parameters: Mapping[str, WeightSource]) -> dict[str, Array] | None:
    values: dict[str, Array] = {}
    for name, parameter in parameters.items():
        array = source.initializers[parameter.initializer].array
        if array is None:
            return None
        values[name] = parameter.value(array)
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class _OnnxRequest:
    """File to import, and the options of the import."""

    path: str | Path
    source: OnnxSource
    roles: Mapping[str, Role]
    name: str
    precision: str
    loss: str | None
    seq_len: int | None
    output: str | int | None
    classes_dim: int | None
    mask_id: int | None
    frozen: frozenset[str]


class _Read(NamedTuple):
    """Graph, source of each variable's values, and the dim of the output that is classes."""

    graph: Graph
    parameters: dict[str, WeightSource]
    classes_dim: int | None


def _read(question: _OnnxRequest, batch: int) -> _Read:
    """Import at one batch; again where a tensor was cut that is read whole as well."""
    uncut: frozenset[str] = frozenset()
    while True:
        read = _Import(question, batch, uncut).run()
        again = read_twice(read.parameters)
        if not again:
            return read
        uncut |= again


class _Import:
    """One pass over a file at one batch."""

    def __init__(self, question: _OnnxRequest, batch: int, uncut: frozenset[str]) -> None:
        self.source, self.question = question.source, question
        self.batch = LabelFactor(BATCH, batch)
        self.inputs = Inputs(question.source, question.seq_len)
        self.builder = GraphBuilder(
            name=question.name,
            batch=batch,
            tokens_per_sample=self.inputs.seq_len or 1,
            precision=question.precision,
        )
        self.builder.begin_block(BLOCK)
        self.low = OnnxLowering(
            self.builder, question.source, question.roles, uncut, question.frozen
        )

    def run(self) -> _Read:
        """Read the whole file; return the graph, its parameters and the dim of classes."""
        for entry in self.source.inputs:
            self.low.values[entry.name] = self._input(entry)
        for initializer in self.source.initializers.values():
            self.low.values[initializer.name] = self._initializer(initializer)
        for node in self.source.nodes:
            self._lower(node)
        name = self._predictions(self.question.output)
        output = self.low.values[name]
        if isinstance(output, Unknown):
            raise ModelError(self._complaint(output))
        assert isinstance(output, Traced), "chosen among such"
        self._check_trained(name)
        asked = LossOptions(
            kind=self.question.loss,
            classes_dim=self.question.classes_dim,
            targets=self.inputs.targets,
            tokens=any(not entry.floating for entry in self.inputs.data),
        )
        dim_of_classes = add_loss(self.low, asked, output)
        graph = pruned(self.builder.build())
        read = {op.outputs[0] for op in graph.ops if op.kind == "variable"}
        parameters = {
            name: parameter for name, parameter in self.low.parameters.items() if name in read
        }
        return _Read(graph, parameters, dim_of_classes)

    def _predictions(self, asked: str | int | None) -> str:
        """Name of the output to take the loss of, among those of numbers or not understood."""
        outputs = {name: self.low.values.get(name) for name in self.source.outputs}
        names = [
            name
            for name, value in outputs.items()
            if isinstance(value, Unknown) or (isinstance(value, Traced) and not value.ids)
        ]
        if not names and asked is None:
            raise ModelError(
                f"output `{self.source.outputs[0]}` depends on no floating data; the loss needs "
                f"the model's predictions"
            )
        if isinstance(asked, int):
            asked = names[asked] if asked < len(names) else str(asked)
        return prediction_output(names, asked, "file", "export")

    def _check_trained(self, output: str) -> None:
        """Refuse parameters that would become constants."""
        question = self.question
        lost = untrained(self.source, question.roles, output, question.frozen)
        if lost:
            shown = ", ".join(f"`{name}`" for name in lost[:4])
            more = f" and {len(lost) - 4} more" if len(lost) > 4 else ""
            raise ModelError(
                f"`{self.builder.name}`: the output depends on {shown}{more} by a computation of "
                f"constants alone, so they would not be trained; to take them as they are, name "
                f"them in frozen="
            )

    def _complaint(self, output: Unknown) -> str:
        listed = sorted(output.problems)
        return (
            f"`{self.builder.name}` cannot be imported, {len(listed)} "
            f"{'node is' if len(listed) == 1 else 'nodes are'} not supported: {'; '.join(listed)}"
        )

    def _lower(self, node: OnnxNode) -> None:
        low = self.low
        for value, name in zip(self._output_values(node), node.outputs, strict=False):
            if name:
                low.name_value(name, value)
        for name in node.outputs:
            if name and name not in low.values:
                low.values[name] = Unknown(
                    problems=frozenset((f"{node.title} makes a further output `{name}`",))
                )

    def _output_values(self, node: OnnxNode) -> tuple[Value, ...]:
        """Return the values of a node's outputs."""
        try:
            folded_outputs = self._folded_outputs(node)
            if folded_outputs is not None:
                return tuple(Constant(array=array) for array in folded_outputs)
            rule = RULES.get(node.kind)
            if rule is None:
                if node.kind in (*FOLDS, "Erf") and self._blocked(node):
                    raise BlockedError(frozenset())
                raise UnsupportedNodeError("is not supported")
            outputs = rule(self.low, node)
            return outputs if isinstance(outputs, tuple) else (outputs,)
        except BlockedError as blocked:
            return self._unknown(node, blocked.problems)
        except UnsupportedNodeError as error:
            return self._unknown(node, frozenset((f"{node.title} {error}",)))
        except (IndexError, KeyError, TypeError, ValueError, ArithmeticError) as error:
            # The file is not ours: what a rule did not foresee is refused with the node's name.
            if isinstance(error, ModelError):
                raise
            raise ModelError(f"{node.title} is malformed: {error}") from None

    def _unknown(self, node: OnnxNode, problems: frozenset[str]) -> tuple[Value, ...]:
        """Outputs of a node that stand for its problems and those of all its inputs."""
        for name in node.inputs:
            value = self.low.values.get(name)
            if isinstance(value, Unknown):
                problems |= value.problems
        return (Unknown(problems=problems),) * max(1, len(node.outputs))

    def _blocked(self, node: OnnxNode) -> bool:
        return any(isinstance(self.low.values.get(name), Unknown) for name in node.inputs)

    def _folded_outputs(self, node: OnnxNode) -> tuple[Array, ...] | None:
        """Fold a node whose inputs are known, or that reads a shape only."""
        values = [self.low.values.get(name) if name else None for name in node.inputs]
        first = values[0] if values else None
        if node.kind in ("Shape", "Size") and isinstance(first, Traced):
            if node.kind == "Size":
                return (np.asarray(int(np.prod(first.shape)), "int64"),)
            return (shape_part(node, first.shape),)
        if node.kind not in FOLDS and node.kind in RULES:
            return None
        if any(isinstance(value, (Traced, Unknown)) for value in values):
            return None
        if any(name and value is None for name, value in zip(node.inputs, values, strict=True)):
            raise ModelError(f"{node.title} reads a tensor before any node makes it")
        return folded(node, [v.array if isinstance(v, Constant) else None for v in values])

    def _initializer(self, initializer: Initializer) -> Value:
        if initializer.name in self.low.roles:
            return self.low.parameter(initializer.name)
        if initializer.array is None:
            problem = f"constant `{initializer.name}` lies in a file that is not there"
            return Unknown(problems=frozenset((problem,)))
        return Constant(array=initializer.array)

    def _input(self, entry: GraphInput) -> Value:
        shape = self.inputs.shape(entry, self.batch.size)
        prescribed_values = prescribed(entry, shape)
        if prescribed_values is not None:
            return Constant(array=prescribed_values)
        dims: list[Dim] = [(self.batch,)]
        for axis, size in enumerate(shape[1:], 1):
            sequence = axis == 1 and self.inputs.has_sequence(entry)
            dims.append((LabelFactor(SEQUENCE, size) if sequence else self.low.fresh(size),))
        operand = tuple(dims)
        source = self.inputs.source_of(entry)
        if not entry.floating and not source.values:
            problem = f"input `{entry.name}` of ids looks no rows up in a table"
            return Unknown(problems=frozenset((problem,)))
        tensor = self.builder.input(
            self.low.unique(_plain(entry.name)),
            labels_of_tensor(operand),
            shape,
            source=source.name,
            values=source.values,
            floating=entry.floating,
        )
        return Traced(tensor=tensor, operand=operand, dims=operand, ids=not entry.floating)


def _plain(name: str) -> str:
    """Name of letters, digits, dots and underscores."""
    return re.sub(r"[^A-Za-z0-9_.]+", ".", name).strip(".") or "unnamed"
