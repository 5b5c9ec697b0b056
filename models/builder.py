"""GraphBuilder: puts a Graph together op by op, working out shapes, dtypes and rates.

The zoo writes forward graphs with it, `millrace.models.gradients` adds the backward ops to one.
Names: an op is `<block>.<name>`, its first output is named after it, further outputs and variables
add a suffix (`h.0.ln1.mean`, `h.0.attn.q.weight`).
"""

import base64
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from millrace.models.arrays import Array
from millrace.models.errors import ModelError
from millrace.models.graph import Graph, Op, Phase, Rate, Tensor
from millrace.models.labels import (
    BATCH,
    Expression,
    Shape,
    bound_outputs,
    dim_of,
    parse,
    shape_of,
    write,
)
from millrace.models.ops import Attributes, op_kind
from millrace.models.type_inference import output_dtypes, output_rate


class Precision(NamedTuple):
    """Dtype of variables (and of losses, statistics, gradients added up) and of the arithmetic."""

    variable: str
    compute: str


PRECISIONS = {
    "fp64": Precision("float64", "float64"),
    "fp32": Precision("float32", "float32"),
    "tf32": Precision("float32", "float32"),
    "bf16": Precision("float32", "bfloat16"),
    "fp16": Precision("float32", "float16"),
    "fp8": Precision(
        "float32", "bfloat16"
    ),  # linear layers compute in 8 bits: `millrace.models.fp8`
    "mxfp8": Precision("float32", "bfloat16"),
    "mxfp4": Precision("float32", "bfloat16"),  # in 4 bits
    "nvfp4": Precision("float32", "bfloat16"),
}

FLOATING_SOURCES = ("features", "images")
"""Sources of an `input` op that hold numbers; all others hold ids."""

_PHASES = (
    (Phase.BEGIN,),
    (Phase.FORWARD,),
    (Phase.RECOMPUTE, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT),
    (Phase.UPDATE,),
)
_PHASE_ORDER = {phase: order for order, phases in enumerate(_PHASES) for phase in phases}


class GraphBuilder:
    """A graph under construction.

    Parameters
    ----------
    name : str
        The graph's name.
    batch : int
        Samples of a microbatch.
    tokens_per_sample : int
        Tokens that one sample counts for.
    precision : str
        fp64, fp32, tf32, bf16, fp16, fp8, mxfp8, mxfp4 or nvfp4.

    Examples
    --------
    >>> builder = GraphBuilder(name="line", batch=4, tokens_per_sample=1)
    >>> builder.begin_block("fit")
    >>> x = builder.input("x", "b k", (4, 3), source="features")
    >>> w = builder.parameter("weight", "k n", (3, 2))
    >>> builder.apply("matmul", "y", (x, w), "b k, k n -> b n")
    'fit.y'
    """

    def __init__(
        self, *, name: str, batch: int, tokens_per_sample: int, precision: str = "fp32"
    ) -> None:
        if batch <= 0:
            raise ModelError(f"batch is {batch}: a microbatch holds at least one sample")
        if precision not in PRECISIONS:
            choices = ", ".join(PRECISIONS)
            raise ModelError(f"there is no precision `{precision}`; choose one of {choices}")
        self.name = name
        self.batch = batch
        self.tokens_per_sample = tokens_per_sample
        self.precision = PRECISIONS[precision]
        self.tensors: dict[str, Tensor] = {}
        self._ops: list[Op] = []
        self._templates: dict[str, str] = {}
        self._block = ""

    @classmethod
    def extending(cls, graph: Graph) -> "GraphBuilder":
        """Start from the ops of `graph`; what is added names its own block and phase."""
        builder = cls(name=graph.name, batch=graph.batch, tokens_per_sample=graph.tokens_per_sample)
        builder.tensors = dict(graph.tensors_by_name)
        builder._ops = list(graph.ops)
        builder._templates = {block: graph.templates[block] for block in graph.blocks}
        return builder

    def adopt(self, op: Op, outputs: Sequence[Tensor]) -> None:
        """Take over an op of another graph, with the tensors that it makes."""
        for name in op.inputs:
            self._input_tensor(name, op.name)
        self._ops.append(op)
        self.tensors.update((tensor.name, tensor) for tensor in outputs)

    def maker_kind(self, tensor: str) -> str:
        """Kind of the op that makes `tensor`; empty where none does."""
        return next((op.kind for op in reversed(self._ops) if tensor in op.outputs), "")

    def begin_block(self, name: str, template: str | None = None) -> None:
        """Let what follows lie in block `name`; blocks are listed in the order they begin."""
        if name in self._templates:
            raise ModelError(f"graph `{self.name}` begins block `{name}` twice")
        self._templates[name] = name if template is None else template
        self._block = name

    def input(
        self,
        name: str,
        dims: str,
        shape: Shape,
        *,
        source: str,
        values: int = 0,
        channels_last: bool = False,
        floating: bool | None = None,
        attributes: Attributes | None = None,
    ) -> str:
        """Add a batch of the data and return its tensor.

        `source` is one of `FLOATING_SOURCES` (brought to the arithmetic's dtype), or else names
        int32 ids below `values` (tokens, targets, classes, categories, clicks, ...); `floating`
        says so of a source that no data holds. Images are channels, rows and columns, or with
        `channels_last` rows, columns and channels.
        """
        floating = source in FLOATING_SOURCES if floating is None else floating
        full = self.full_name(name)
        dtype = self.precision.variable if floating else "int32"
        attributes = {"source": source, "values": values, **(attributes or {})}
        if channels_last:
            attributes = {**attributes, "channels_last": True}
        self.emit(
            "input", full, (), f"-> {dims}", shapes=(shape,), dtype=dtype, attributes=attributes
        )
        return self._computable(full, dims) if floating else full

    def variable(
        self,
        name: str,
        dims: str,
        shape: Shape,
        *,
        init: str = "normal",
        std: float = 0.02,
        decay: bool = True,
        frozen: bool = False,
    ) -> str:
        """Add a trainable tensor and return what arithmetic reads of it, once a step.

        `init` is normal (with deviation `std`), zeros or ones; `decay` says whether weight decay
        applies. In a 16-bit precision the variable is float32 and a `cast` follows it. A `frozen`
        one is not trained: it has no gradient and no optimizer state, and it is kept in the dtype
        of the arithmetic.
        """
        full = self.full_name(name)
        attributes: Attributes = {
            "init": init,
            "std": std if init == "normal" else 0.0,
            "decay": decay,
        }
        if frozen:
            attributes = {**attributes, "frozen": True}
        self.emit(
            "variable",
            full,
            (),
            f"-> {dims}",
            shapes=(shape,),
            dtype=self.precision.compute if frozen else self.precision.variable,
            attributes=attributes,
        )
        return full if frozen else self._computable(full, dims)

    def constant(self, name: str, dims: str, values: Array) -> str:
        """Add values that are part of the model and not trained; return them for a microbatch."""
        raw = np.ascontiguousarray(values, np.dtype(self.precision.variable).newbyteorder("<"))
        data = base64.b64encode(zlib.compress(raw.tobytes())).decode()
        full = self.full_name(name)
        self.emit(
            "constant",
            full,
            (),
            f"-> {dims}",
            shapes=(raw.shape,),
            dtype=self.precision.variable,
            attributes={"value": 0.0, "data": data},
        )
        return self.repeat(self._computable(full, dims), name, dims)

    def repeat(self, tensor: str, name: str, dims: str) -> str:
        """Bring a tensor made once a step to every microbatch; one such op per use."""
        return self.emit(
            "repeat", self.full_name(f"{name}.repeat"), (tensor,), f"{dims} -> {dims}"
        )[0]

    def parameter(
        self,
        name: str,
        dims: str,
        shape: Shape,
        *,
        init: str = "normal",
        std: float = 0.02,
        decay: bool = True,
        frozen: bool = False,
    ) -> str:
        """Add a variable that is used once, in this block, and return its repeated value."""
        variable = self.variable(name, dims, shape, init=init, std=std, decay=decay, frozen=frozen)
        return self.repeat(variable, name, dims)

    def apply(
        self,
        kind: str,
        name: str,
        inputs: Sequence[str],
        labels: str,
        *,
        shapes: Sequence[Shape] = (),
        attributes: Attributes | None = None,
    ) -> str:
        """Add an op to the current block and return its first output.

        `shapes` are those of the outputs, needed only where the inputs do not give them.
        """
        return self.emit(
            kind, self.full_name(name), inputs, labels, shapes=shapes, attributes=attributes
        )[0]

    def emit(
        self,
        kind: str,
        name: str,
        inputs: Sequence[str],
        labels: str,
        *,
        shapes: Sequence[Shape] = (),
        dtype: str | None = None,
        attributes: Attributes | None = None,
        block: str | None = None,
        phase: Phase | None = None,
    ) -> tuple[str, ...]:
        """Add an op under its full name and return its outputs.

        Raises
        ------
        ModelError
            An input does not exist, shapes do not fit the labels, or rates do not meet.
        """
        expression = parse(labels)
        read = [self._input_tensor(tensor, name) for tensor in inputs]
        rate = output_rate(kind, name, [tensor.rate for tensor in read])
        names = self._output_names(kind, name, expression)
        made_shapes = bound_outputs(
            expression,
            [tensor.shape for tensor in read],
            shapes,
            op=name,
            tensors=(*inputs, *names),
        )
        dtypes = output_dtypes(kind, len(names), [tensor.dtype for tensor in read])
        if dtype is not None or dtypes is None:
            dtypes = (dtype or self.precision.variable,) * len(names)
        outputs = zip(names, expression.outputs, made_shapes, dtypes, strict=True)
        for output, operand, shape, output_dtype in outputs:
            if output in self.tensors:
                raise ModelError(f"op `{name}`: tensor `{output}` exists already; rename the op")
            self.tensors[output] = Tensor(
                name=output,
                shape=shape,
                dtype=output_dtype,
                rate=rate,
                batch_dim=dim_of(operand, BATCH) if rate is Rate.MICROBATCH else None,
            )
        op = Op(
            name=name,
            kind=kind,
            inputs=tuple(inputs),
            outputs=names,
            labels=labels,
            block=self._block if block is None else block,
            phase=phase or (Phase.BEGIN if rate is Rate.STEP else Phase.FORWARD),
            attributes=dict(attributes or {}),
        )
        self._ops.append(op)
        return names

    def build(self) -> Graph:
        """Return the validated graph, its ops ordered by phase and else as they were added."""
        return Graph(
            name=self.name,
            batch=self.batch,
            tokens_per_sample=self.tokens_per_sample,
            ops=tuple(sorted(self._ops, key=lambda op: _PHASE_ORDER[op.phase])),
            tensors=tuple(self.tensors.values()),
            blocks=tuple(self._templates),
            templates=dict(self._templates),
        ).validate()

    def full_name(self, name: str) -> str:
        """Return `name` as an op of the current block has it: `<block>.<name>`."""
        if not self._block:
            raise ModelError(f"op `{name}` lies in no block; call begin_block first")
        return f"{self._block}.{name}"

    def _input_tensor(self, tensor: str, op: str) -> Tensor:
        try:
            return self.tensors[tensor]
        except KeyError:
            raise ModelError(f"op `{op}` reads `{tensor}`, which no op before it makes") from None

    def _output_names(self, kind: str, name: str, expression: Expression) -> tuple[str, ...]:
        extra = op_kind(kind).extra_outputs
        if len(expression.outputs) != 1 + len(extra):
            raise ModelError(
                f"op `{name}`: `{kind}` has {1 + len(extra)} outputs, its labels "
                f"`{expression.text}` name {len(expression.outputs)}"
            )
        return (name, *(f"{name}.{suffix}" for suffix in extra))

    def _computable(self, tensor: str, dims: str) -> str:
        if self.precision.compute == self.precision.variable:
            return tensor
        labels = f"{dims} -> {dims}"
        return self.emit("cast", f"{tensor}.cast", (tensor,), labels, dtype=self.precision.compute)[
            0
        ]


def dense(
    builder: GraphBuilder,
    name: str,
    x: str,
    labels: str,
    sizes: dict[str, int],
    *,
    std: float = 0.02,
    bias: bool = True,
    frozen: bool = False,
) -> str:
    """Output of an added matrix product with a new weight, and a bias over the weight's own dims.

    Parameters
    ----------
    builder : GraphBuilder
        Gets the ops and variables, in its current block.
    name : str
        Name within the block; the variables are `<name>.weight` and `<name>.bias`.
    x : str
        The tensor multiplied, the first operand of `labels`; each of its dims has one label there.
    labels : str
        Index expression of x, weight and output: for example `b t k, k h d -> b t h d`.
    sizes : dict of str to int
        Sizes of the labels that `x` does not have.
    std : float
        Standard deviation of the weight's normal initial values.
    bias : bool
        Add a bias over the output's dims that the weight has; it starts at zero and does not decay.
        False: the product is the output.
    frozen : bool
        The weight is not trained; it has no bias then.

    Returns
    -------
    str
        The tensor called `<block>.<name>`; with a bias the product is `<block>.<name>.matmul`.

    Raises
    ------
    ModelError
        Labels break the grammar, a size does not fit them, or no block is begun.
    """
    expression = parse(labels)
    (x_operand, weight_operand), (out,) = expression.inputs, expression.outputs
    x_sizes = {dim[0]: size for dim, size in zip(x_operand, builder.tensors[x].shape, strict=True)}
    label_sizes = x_sizes | sizes
    weight = builder.parameter(
        f"{name}.weight",
        _dims(weight_operand),
        shape_of(weight_operand, label_sizes),
        std=std,
        frozen=frozen,
    )
    if frozen or not bias:
        return builder.apply("matmul", name, (x, weight), labels)
    product = builder.apply("matmul", f"{name}.matmul", (x, weight), labels)
    bias_operand = tuple(dim for dim in out if dim in weight_operand)
    added = builder.parameter(
        f"{name}.bias",
        _dims(bias_operand),
        shape_of(bias_operand, label_sizes),
        init="zeros",
        decay=False,
    )
    return builder.apply("add", name, (product, added), write((out, bias_operand), (out,)))


def dropout(builder: GraphBuilder, name: str, x: str, dims: str, rate: float) -> str:
    """Name of `x` after dropout; where `rate` is 0, `x` itself, and nothing is added.

    The op's own name goes with it: forward and backward draw the same bits from it.

    Parameters
    ----------
    builder : GraphBuilder
        Gets the op, in its current block.
    name : str
        Name of the op within the block.
    x : str
        Tensor of a microbatch, of any shape.
    dims : str
        Labels of `x`, for example `b t d`.
    rate : float
        Share of the elements that are dropped.

    Raises
    ------
    ModelError
        `dims` do not fit the shape of `x`, or no block is begun.
    """
    if not rate:
        return x
    full = builder.full_name(name)
    attributes: Attributes = {"rate": rate, "op": full}
    return builder.apply("dropout", name, (x,), f"{dims} -> {dims}", attributes=attributes)


def _dims(operand: tuple[tuple[str, ...], ...]) -> str:
    return write((), (operand,)).removeprefix(" -> ")
