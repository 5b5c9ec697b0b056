"""Durations: what an op, a boxing or an extra signature takes on one mesh of one cluster."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import gcd, prod

from models.graph import ITEMSIZE, Op, Tensor
from models.labels import parse
from planner.boxing import Step, boxing_path, message_bytes
from planner.cluster import Cluster
from planner.costs import collective_duration_ns, op_duration_ns
from planner.errors import InfeasibleError
from planner.memory import LOCAL
from planner.sbp import NdSbp, local_shape, local_size, parse_nd_sbp
from planner.signatures import EXPANSIONS, Signature, sub_signatures

# Ops without an actor: a variable is a register, `repeat` a way to read it.
FREE = ("variable", "repeat")

ALONE = Fraction(1)

Shape = tuple[int, ...]
Paths = dict[tuple[NdSbp, NdSbp], tuple[Step, ...] | None]
Side = Sequence[tuple[Shape, str, NdSbp]]  # shape of the whole, dtype, sbp of each operand


def core_share(cluster: Cluster, ranks: int, busy: Fraction) -> Fraction:
    """How much longer work takes where ranks share the cores of their node.

    Parameters
    ----------
    cluster : Cluster
        Only where `cores_per_node` is set do ranks share.
    ranks : int
        All ranks of the plan.
    busy : Fraction
        Share of the time in which a rank computes: a pipeline's ramps leave cores to the others.

    Examples
    --------
    >>> from planner.clusters import parse_cluster
    >>> core_share(parse_cluster("local:4", cores=2, memory_bytes=2**33), 4, Fraction(1))
    Fraction(2, 1)
    """
    if cluster.cores_per_node is None:
        return ALONE
    here = min(ranks, cluster.devices_per_node)
    return max(ALONE, here * busy / cluster.cores_per_node)


class Durations:
    """Durations in nanoseconds; equal questions are asked once.

    Parameters
    ----------
    cluster : Cluster
    axis_sizes : tuple of int
        The mesh of one stage; its devices are the cluster's first.
    stretch : Fraction
        By how much sharing cores with other ranks slows a rank down (`core_share`).
    """

    def __init__(
        self, cluster: Cluster, axis_sizes: tuple[int, ...], stretch: Fraction = ALONE
    ) -> None:
        self.cluster = cluster
        self.axis_sizes = axis_sizes
        self.stretch = stretch
        self._kernels: dict[object, int] = {}
        self._paths: dict[Shape, Paths] = {}  # by pattern of divisibility
        self._paths_of: dict[Shape, Paths] = {}
        self._steps: dict[object, int] = {}

    def op_ns(self, op: Op, tensors: Mapping[str, Tensor], signature: Signature) -> int:
        """One firing of an op as a signature lays it out, an extra one with all its parts."""
        if op.kind in FREE:
            return 0
        sides = []
        for names, sbps in ((op.inputs, signature.inputs), (op.outputs, signature.outputs)):
            operands = [tensors[name] for name in names]
            sides.append([(t.shape, t.dtype, s) for t, s in zip(operands, sbps, strict=True)])
        if signature.expansion:
            return self._expanded_ns(op, sides[0], sides[1], signature)
        return self._kernel_ns(op, op.kind, op.labels, sides[0], sides[1])

    def _kernel_ns(self, op: Op, kind: str, labels: str, inputs: Side, outputs: Side) -> int:
        sizes = self.axis_sizes
        read = tuple(local_shape(shape, sbp, sizes) for shape, _, sbp in inputs)
        made = tuple(local_shape(shape, sbp, sizes) for shape, _, sbp in outputs)
        dtypes = tuple(one[1] for one in inputs), tuple(one[1] for one in outputs)
        key = (kind, labels, bool(op.attributes.get("momentum")), read, made, *dtypes)
        if key not in self._kernels:
            duration = op_duration_ns(
                kind, labels, op.attributes, read, made, *dtypes, self.cluster.device
            )
            self._kernels[key] = self._shared(duration)
        return self._kernels[key]

    def _shared(self, duration_ns: int) -> int:
        """Stretch the work of a core by the ranks that share it."""
        return -(-duration_ns * self.stretch.numerator // self.stretch.denominator)

    def _expanded_ns(self, op: Op, inputs: Side, outputs: Side, signature: Signature) -> int:
        """The parts of an extra signature, and the boxing of what they hand on."""
        known = {f"in{i}": (shape, dtype) for i, (shape, dtype, _) in enumerate(inputs)}
        lies: dict[str, NdSbp] = {f"in{i}": sbp for i, (_, _, sbp) in enumerate(inputs)}
        sizes = dict(EXPANSIONS[op.kind, signature.expansion].sizes)
        wide = outputs[0][1]
        paid: set[tuple[str, NdSbp]] = set()
        total = 0
        for part, document in sub_signatures(op.kind, op.labels, signature.document):
            expression = parse(part.labels)
            read: list[tuple[Shape, str, NdSbp]] = []
            for name, operand, text in zip(
                part.inputs, expression.inputs, document.inputs, strict=True
            ):
                shape, dtype = known[name]
                sizes |= {dim[0]: size for dim, size in zip(operand, shape, strict=True)}
                sbp = parse_nd_sbp(text)
                if (name, sbp) not in paid:
                    paid.add((name, sbp))
                    total += self.boxing_ns(lies[name], sbp, shape, dtype)
                read.append((shape, dtype, sbp))
            made: list[tuple[Shape, str, NdSbp]] = []
            for name, operand, text in zip(
                part.outputs, expression.outputs, document.outputs, strict=True
            ):
                known[name] = tuple(sizes[dim[0]] for dim in operand), wide
                lies[name] = parse_nd_sbp(text)
                made.append((*known[name], lies[name]))
            total += self._kernel_ns(op, part.kind, part.labels, read, made)
        return total

    def path(self, source: NdSbp, target: NdSbp, shape: Shape) -> tuple[Step, ...] | None:
        """Steps of a boxing; None where there is none.

        Paths depend on which dims divide by which axes and on nothing else, so the first shape of
        a pattern answers for all.
        """
        paths = self._paths_of.get(shape)
        if paths is None:
            devices = prod(self.axis_sizes)
            pattern = tuple(gcd(size, devices) for size in shape)
            paths = self._paths_of[shape] = self._paths.setdefault(pattern, {})
        if (source, target) not in paths:
            try:
                paths[source, target] = boxing_path(source, target, self.axis_sizes, shape)
            except InfeasibleError:
                paths[source, target] = None
        return paths[source, target]

    def boxing_ns(self, source: NdSbp, target: NdSbp, shape: Shape, dtype: str) -> int:
        """All steps of a boxing, one after the other; the boxing must exist."""
        path = self.path(source, target, shape)
        assert path is not None, "asked only for boxings that exist"
        return sum(self._step_ns(step, shape, dtype) for step in path)

    def _step_ns(self, step: Step, shape: Shape, dtype: str) -> int:
        key = (step, shape, dtype)
        if key not in self._steps:
            if step.kind in LOCAL:
                local = [local_shape(shape, s, self.axis_sizes) for s in (step.before, step.after)]
                duration = self._shared(
                    op_duration_ns(
                        step.kind, "", {}, local[:1], local[1:], (dtype,), (dtype,),
                        self.cluster.device,
                    )
                )  # fmt: skip
            else:
                duration = self.collective_ns(
                    step.kind,
                    step.axes,
                    message_bytes(step, shape, ITEMSIZE[dtype], self.axis_sizes),
                )
            self._steps[key] = duration
        return self._steps[key]

    def collective_ns(self, kind: str, axes: tuple[int, ...], size_bytes: int) -> int:
        """One collective over the mesh axes with these indexes."""
        ranks = group_ranks(self.axis_sizes, axes)
        return collective_duration_ns(kind, size_bytes, len(ranks), self.cluster, ranks)

    def local_bytes(self, tensor: Tensor, sbp: NdSbp) -> int:
        """Bytes of one device's shard."""
        return local_size(tensor.shape, sbp, self.axis_sizes) * ITEMSIZE[tensor.dtype]


def group_ranks(axis_sizes: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """Ranks of the first group that spans these axes, on the first stage."""
    ranks = [0]
    for axis in axes:
        stride = prod(axis_sizes[axis + 1 :])
        ranks = [rank + k * stride for rank in ranks for k in range(axis_sizes[axis])]
    return tuple(ranks)
