"""Plain prices: every figure of the search again, one signature and one boxing at a time.

Nothing here is taken from the arrays of the search: shapes are cut by `millrace.planner.sbp`,
durations come from the scalar functions of `millrace.planner.costs`, paths from
`millrace.planner.boxing`.
"""

from collections.abc import Mapping
from math import ceil, prod

from millrace.models.graph import ITEMSIZE, Graph, Op, Phase, Rate, Tensor, scaled
from millrace.models.labels import parse
from millrace.models.ops import op_kind, state_of
from millrace.planner.boxing import BoxingStep, boxing_path, message_bytes
from millrace.planner.cluster import Cluster
from millrace.planner.collectives import (
    ALONE,
    IN_PLACE_BYTES_MIN,
    LOCAL_BOXING,
    TokenCopies,
)
from millrace.planner.costs import collective_duration_ns, op_duration_ns
from millrace.planner.ring_attention import RING, RINGS
from millrace.planner.sbp import NdSbp, local_shape, local_size, parse_nd_sbp
from millrace.planner.search.rank_groups import group_ranks
from millrace.planner.signatures import EXPANSIONS, Signature, sub_signatures

Figures = tuple[int, int, int, int, int]  # in the order of tables.FIGURES
Operand = tuple[tuple[int, ...], str]  # local shape and dtype


def sized(graph: Graph, batch: int) -> dict[str, Tensor]:
    """Tensors of a graph for a microbatch of so many samples."""
    return {
        name: scaled(tensor, graph.batch, batch) for name, tensor in graph.tensors_by_name.items()
    }


class PlainPrices:
    """Prices on one mesh; `stretch` says by how much sharing cores slows local work down."""

    def __init__(self, cluster: Cluster, sizes: tuple[int, ...], stretch: float = 1.0) -> None:
        self.cluster = cluster
        self.sizes = sizes
        self.stretch = stretch
        self._steps: dict[object, int] = {}

    def kernel_ns(
        self,
        kind: str,
        labels: str,
        attributes: Mapping[str, int | float | str | bool],
        inputs: list[Operand],
        outputs: list[Operand],
    ) -> int:
        """Nanoseconds of one firing on local operands."""
        alone_ns = op_duration_ns(
            kind,
            labels,
            attributes,
            [shape for shape, _ in inputs],
            [shape for shape, _ in outputs],
            [dtype for _, dtype in inputs],
            [dtype for _, dtype in outputs],
            self.cluster.device,
            self.cluster.software,
        )
        return ceil(alone_ns * self.stretch)

    def local(self, shape: tuple[int, ...], dtype: str, sbp: NdSbp) -> Operand:
        """Shape and dtype of one device's shard."""
        return local_shape(shape, sbp, self.sizes), dtype

    def local_bytes(self, tensor: Tensor, sbp: NdSbp) -> int:
        """Bytes of one device's shard."""
        return local_size(tensor.shape, sbp, self.sizes) * ITEMSIZE[tensor.dtype]

    # -- boxing ------------------------------------------------------------------------------

    def step_ns(
        self,
        step: BoxingStep,
        shape: tuple[int, ...],
        dtype: str,
        bucketed: bool = False,
        copies: TokenCopies = ALONE,
    ) -> int:
        """Nanoseconds of one step of a boxing, of a tensor that holds every token so often."""
        key = step, shape, dtype, bucketed, copies
        if key not in self._steps:
            if step.kind in LOCAL_BOXING:
                before, after = (self.local(shape, dtype, s) for s in (step.before, step.after))
                self._steps[key] = self.kernel_ns(step.kind, "", {}, [before], [after])
            else:
                ranks = group_ranks(self.sizes, step.axes)
                size = message_bytes(step, shape, ITEMSIZE[dtype], self.sizes)
                self._steps[key] = collective_duration_ns(
                    step.kind,
                    size,
                    len(ranks),
                    self.cluster,
                    ranks,
                    bucketed=bucketed,
                    copies=copies,
                )
        return self._steps[key]

    def boxing_ns(
        self,
        source: NdSbp,
        target: NdSbp,
        shape: tuple[int, ...],
        dtype: str,
        bucketed: bool = False,
    ) -> int:
        """Nanoseconds of a whole boxing; raises InfeasibleError where there is none."""
        path = boxing_path(source, target, self.sizes, shape)
        return sum(self.step_ns(step, shape, dtype, bucketed) for step in path)

    def buffer_bytes(
        self, source: NdSbp, target: NdSbp, op: Op, name: str, tensors: Mapping[str, Tensor]
    ) -> int:
        """Bytes that a boxing of what comes once a step adds to those that stay on a device."""
        tensor = tensors[name]
        path = boxing_path(source, target, self.sizes, tensor.shape)
        if tensor.rate is not Rate.STEP or not path:
            return 0
        step_bytes = [self.local_bytes(tensor, step.after) for step in path]
        if op.kind == "accumulate":
            # The gathered weight has room for what the sum of its gradients is reduced to, or the
            # sum itself.
            given, before = tensors[op.inputs[0]].dtype, self.local_bytes(tensor, source)
            given_bytes = before // ITEMSIZE[tensor.dtype] * ITEMSIZE[given]
            lent = ITEMSIZE[given] < ITEMSIZE[tensor.dtype] and step_bytes[-1] <= given_bytes
            lent = lent or before == step_bytes[-1] > IN_PLACE_BYTES_MIN
            return 0 if lent else sum(step_bytes)
        if op.kind == "cast":
            # The sum of gradients has room for the parts of a weight.
            return max(step_bytes[-1] - self.local_bytes(tensor, source), 0)
        return step_bytes[-1] if op.kind == "variable" else sum(step_bytes)

    # -- ops ---------------------------------------------------------------------------------

    def duration_ns(self, op: Op, signature: Signature, tensors: Mapping[str, Tensor]) -> int:
        """Nanoseconds of one firing of an op under a signature."""
        if op.kind in ("variable", "repeat"):  # registers, without an actor
            return 0
        if signature.expansion == RING:
            return self._ring_ns(op, signature, tensors)
        if signature.expansion:
            return self._expanded_ns(op, signature, tensors)
        inputs, outputs = (
            [
                self.local(tensors[name].shape, tensors[name].dtype, sbp)
                for name, sbp in zip(names, sbps, strict=True)
            ]
            for names, sbps in ((op.inputs, signature.inputs), (op.outputs, signature.outputs))
        )
        return self.kernel_ns(op.kind, op.labels, op.attributes, inputs, outputs)

    def _expanded_ns(self, op: Op, signature: Signature, tensors: Mapping[str, Tensor]) -> int:
        """Nanoseconds of an extra signature's primitive ops; what they hand over is boxed once."""
        operands = {
            f"in{number}": (tensors[name].shape, tensors[name].dtype, signature.inputs[number])
            for number, name in enumerate(op.inputs)
        }
        wide = tensors[op.outputs[0]].dtype
        labels = dict(EXPANSIONS[op.kind, signature.expansion].sizes)
        boxed: set[tuple[str, NdSbp]] = set()
        total = 0
        for part, document in sub_signatures(op.kind, op.labels, signature.document):
            expression = parse(part.labels)
            inputs = []
            for name, operand, text in zip(
                part.inputs, expression.inputs, document.inputs, strict=True
            ):
                shape, dtype, lies = operands[name]
                labels |= {dim[0]: size for dim, size in zip(operand, shape, strict=True)}
                wanted = parse_nd_sbp(text)
                if (name, wanted) not in boxed:
                    boxed.add((name, wanted))
                    total += self.boxing_ns(lies, wanted, shape, dtype)
                inputs.append(self.local(shape, dtype, wanted))
            outputs = []
            for name, operand, text in zip(
                part.outputs, expression.outputs, document.outputs, strict=True
            ):
                shape = tuple(labels[dim[0]] for dim in operand)
                operands[name] = shape, wide, parse_nd_sbp(text)
                outputs.append(self.local(*operands[name]))
            total += self.kernel_ns(part.kind, part.labels, op.attributes, inputs, outputs)
        return total

    def _ring_ns(self, op: Op, signature: Signature, tensors: Mapping[str, Tensor]) -> int:
        """Nanoseconds of rounds: each takes the longer of its work and what travels meanwhile."""
        ring = RINGS[op.kind]
        axes = ring.axes(signature.inputs)
        size = prod(self.sizes[axis] for axis in axes)
        ranks = group_ranks(self.sizes, axes)
        inputs = [
            self.local(tensors[name].shape, tensors[name].dtype, sbp)
            for name, sbp in zip(op.inputs, signature.inputs, strict=True)
        ]
        wide = ring.dtypes([tensors[name].dtype for name in op.outputs])
        outputs = [
            self.local(tensors[name].shape, dtype, sbp)
            for name, dtype, sbp in zip(op.outputs, wide, signature.outputs, strict=True)
        ]
        carried = [outputs[position] for position in ring.carried]
        first = self.kernel_ns(op.kind, op.labels, op.attributes, inputs, outputs)
        later = self.kernel_ns(
            ring.later, ring.labels(op.labels), op.attributes, [*inputs, *carried], outputs
        )

        def sent_ns(operands: list[Operand]) -> int:
            sizes = [prod(shape) * ITEMSIZE[dtype] for shape, dtype in operands]
            return sum(
                collective_duration_ns("rotate", n, size, self.cluster, ranks) for n in sizes
            )

        blocks = sent_ns([inputs[position] for position in ring.travelling])
        back = [outputs[position] for position in ring.returning]
        sums = sent_ns(back)
        adding = sum(
            self.kernel_ns("add", ring.adding(op.labels, position), {}, [shard, shard], [shard])
            for position, shard in zip(ring.returning, back, strict=True)
        )
        total = max(first, blocks)
        for number in range(1, size):
            sending = blocks if number < size - 1 else 0
            total += max(later, sending + sums) + adding
        return total + sums

    def figures(self, op: Op, signature: Signature, tensors: Mapping[str, Tensor]) -> Figures:
        """Figures of an op by itself, as `millrace.planner.search.blocks.cost_tables` has them."""
        microbatch = step = stays = deferrable = 0
        out = tensors[op.outputs[0]]
        time = self.duration_ns(op, signature, tensors)
        if out.rate is not Rate.MICROBATCH and op.kind != "accumulate":
            step = time
        elif op.phase is Phase.BACKWARD_WEIGHT:
            deferrable = time
        else:
            microbatch = time
        here = self.local_bytes(out, signature.outputs[0])
        if op_kind(op.kind).updates:
            stays = len(state_of(op.kind, op.attributes)) * here
        elif out.rate is Rate.STEP and op.kind != "squared_sum":
            stays = here
        return microbatch, step, stays, 0, deferrable
