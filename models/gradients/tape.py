"""Tape: the view of the forward graph that gradient rules read, and the builder they add ops to.

What a rule makes for an activation is a `backward_input` op, what it makes for a weight a
`backward_weight` op of its own, so that a schedule can move the second.
"""

from collections.abc import Callable

from millrace.models.builder import GraphBuilder
from millrace.models.graph import Op, Phase, Rate
from millrace.models.labels import Operand, bind, parse, shape_of, write
from millrace.models.ops import Attributes
from millrace.models.ops.pointwise_ops import FLAT

UNIT_GRADIENT = "<one>"  # the gradient of the loss by itself: a constant that no op makes

LOSS_SCALED = "loss_scaled"
"""Attribute of an op that takes UNIT_GRADIENT in a graph with float16: its output is multiplied by
the loss scale of the step. Every gradient follows from one such op, hence is scaled once.

Micikevicius et al., "Mixed precision training" (2018), section 3.2: else small gradients vanish.
"""

Gradients = tuple[str | None, ...]
"""Gradient of every input of the op; None where none is wanted."""


class Tape:
    """Facts about the forward graph that gradient rules need, and the builder they add ops to.

    Parameters
    ----------
    builder : GraphBuilder
        Holds the forward ops already.
    ops : sequence of Op
        The forward ops in topological order.
    """

    def __init__(self, builder: GraphBuilder, ops: tuple[Op, ...]) -> None:
        self.builder = builder
        self._producer = {name: op for op in ops for name in op.outputs}
        self._readers: dict[str, list[Op]] = {}
        for op in ops:
            for name in dict.fromkeys(op.inputs):
                self._readers.setdefault(name, []).append(op)
        self._handed_on = {
            name for op in ops for name in op.inputs if self._producer[name].block != op.block
        }
        self._trained: set[str] = set()  # depends on a variable that is trained
        self._data: set[str] = set()  # depends on an input
        self._scaled = any(tensor.dtype == "float16" for tensor in builder.tensors.values())
        for op in ops:
            slopes = op.kind not in FLAT
            if op.trains or (slopes and not self._trained.isdisjoint(op.inputs)):
                # What is counted or chosen (int32) has no slope.
                outputs = (builder.tensors[name] for name in op.outputs)
                self._trained.update(t.name for t in outputs if not t.dtype.startswith("int"))
            if op.kind == "input" or not self._data.isdisjoint(op.inputs):
                self._data.update(op.outputs)

    def requires_grad(self, tensor: str) -> bool:
        """True if `tensor` needs a gradient: it depends on a variable that is trained."""
        return tensor in self._trained

    def readers(self, tensor: str) -> tuple[Op, ...]:
        """Forward ops that read `tensor`."""
        return tuple(self._readers.get(tensor, ()))

    def is_block_local(self, tensor: str) -> bool:
        """True if only ops of its own block read `tensor`."""
        return tensor not in self._handed_on

    def phase(self, tensor: str) -> Phase:
        """Phase of the ops that make the gradient of `tensor`."""
        if self.builder.tensors[tensor].rate is Rate.STEP:
            return Phase.UPDATE
        return Phase.BACKWARD_INPUT if tensor in self._data else Phase.BACKWARD_WEIGHT

    def emit(
        self,
        op: Op,
        index: int,
        kind: str,
        inputs: tuple[str, ...],
        labels: str,
        *,
        suffix: str = "",
        dtype: str | None = None,
        attributes: Attributes | None = None,
        like: int | None = None,
    ) -> tuple[str, ...]:
        """Add the op that makes the gradient of input `index` of `op`, in the block of `op`.

        `suffix` is its name behind that of `op`, for ops that make several inputs' gradients;
        `attributes` are those of `op` where none are given. `like` is the input that the first
        output is shaped as, where that is another than the one whose gradient it serves.
        """
        if UNIT_GRADIENT in inputs:
            ones = self.ones(op.outputs[0], parse(op.labels).outputs[0], op)
            inputs = tuple(ones if name == UNIT_GRADIENT else name for name in inputs)
        target = self.builder.tensors[op.inputs[index]]
        shape = target.shape if like is None else self.builder.tensors[op.inputs[like]].shape
        expression = parse(labels)
        read = [self.builder.tensors[name].shape for name in inputs]
        if len(expression.outputs) == 1:
            sizes = bind(expression, read, (shape,), op=op.name, tensors=inputs)
        else:
            first = zip(expression.outputs[0], shape, strict=True)
            label_sizes = {dim[0]: size for dim, size in first if len(dim) == 1}
            sizes = bind(expression, read, (), label_sizes, op=op.name, tensors=inputs)
        return self.builder.emit(
            kind,
            f"{op.name}.{suffix or self._suffix(op, index)}",
            inputs,
            labels,
            shapes=tuple(shape_of(operand, sizes) for operand in expression.outputs),
            dtype=dtype,
            attributes=op.attributes if attributes is None else attributes,
            block=op.block,
            phase=self.phase(target.name),
        )

    def total(self, name: str, parts: list[tuple[Op, int, str]]) -> str | None:
        """Add up the gradients that the readers of a tensor gave it, the earliest reader last.

        The sum lies in the block of the earliest reader, or for a tensor made once a step in that
        of its producer.
        """
        if not parts:
            return None
        op, index, gradient = parts[-1]
        if len(parts) == 1:
            return gradient
        # Here no other operand gives a group's sizes, and one label for the dim is enough.
        operand = tuple(dim[:1] for dim in parse(op.labels).inputs[index])
        owner, suffix = op, "grad_sum" if index == 0 else f"grad_sum.{index}"
        if self.builder.tensors[name].rate is Rate.STEP:
            owner, suffix = self._producer[name], "grad_sum"
        inputs = tuple(part for _, _, part in reversed(parts))
        if UNIT_GRADIENT in inputs:
            ones = self.ones(name, operand, owner)
            inputs = tuple(ones if part == UNIT_GRADIENT else part for part in inputs)
        return self.builder.emit(
            "add",
            f"{owner.name}.{suffix}",
            inputs,
            write((operand,) * len(parts), (operand,)),
            block=owner.block,
            phase=self.phase(name),
        )[0]

    def ones(self, tensor: str, operand: Operand, owner: Op) -> str:
        """Add a tensor of ones like `tensor`, or return the one that is there."""
        name = f"{owner.name}.grad_ones"
        if name in self.builder.tensors:
            return name
        like = self.builder.tensors[tensor]
        return self.builder.emit(
            "fill",
            name,
            (),
            write((), (operand,)),
            shapes=(like.shape,),
            dtype=like.dtype,
            attributes=self.loss_scaled({"value": 1.0}),
            block=owner.block,
            phase=Phase.BACKWARD_INPUT,
        )[0]

    def loss_scaled(self, attributes: Attributes) -> Attributes:
        """Return the attributes of an op with which a chain of gradients begins."""
        return {**attributes, LOSS_SCALED: True} if self._scaled else attributes

    def _suffix(self, op: Op, index: int) -> str:
        phase = self.phase(op.inputs[index])
        alike = [n for n in op.inputs if self.requires_grad(n) and self.phase(n) is phase]
        base = "grad_input" if phase is Phase.BACKWARD_INPUT else "grad_weight"
        return base if len(alike) == 1 else f"{base}.{index}"


Rule = Callable[[Tape, Op, str], Gradients]
"""Gradients of an op's inputs, made from the tape, the op and its first output's gradient."""
