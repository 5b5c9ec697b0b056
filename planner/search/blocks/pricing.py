"""Pricing: what every option and every boxing of a space costs, on many rows at once.

A row is a mesh (sizes of its axes) and a microbatch; `tables.py` says what the figures are. Shapes:
O options, A sources, B targets, N axes, K rows, F figures.
"""

from collections.abc import Sequence
from copy import copy
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from models.graph import ITEMSIZE, Op, Phase, Rate, Tensor
from models.labels import bind, parse
from models.ops import op_kind, state_of
from planner.cluster import Cluster
from planner.costs import precision_of
from planner.costs.host import host_of, state_copies_ns
from planner.memory import UPDATES
from planner.plan import ON_DEVICES, OPTIMIZER
from planner.rings import RINGS, ROTATE, ring_ns
from planner.sbp import parse_nd_sbp
from planner.search.blocks.moving import Moving, kernel_ns
from planner.search.blocks.space import Net as SpaceNet
from planner.search.blocks.space import OpOptions, Space
from planner.search.blocks.states import (
    WHOLE,
    Bools,
    Ints,
    digits,
    divisible,
    is_partial,
    number_of,
    shards,
)
from planner.search.blocks.tables import (
    DEFERRABLE,
    FIGURES,
    MICROBATCH,
    PERSISTENT,
    STEP,
    Choice,
    Net,
    Tables,
)
from planner.signatures import EXPANSIONS, split_labels, sub_signatures

# Ops without an actor: a variable is a register, `repeat` a way to read it.
FREE = ("variable", "repeat")


class Pricing:
    """The figures of one space on K rows.

    Parameters
    ----------
    space : Space
    cluster : Cluster
    sizes : array [N, K]
    batch : array [K]
        Samples of a microbatch.
    stretch : float
        By how much sharing cores slows a rank down.
    crossing_partial : bool
        Whether a tensor may be partial both where one block makes it and where another reads it
        (partial values do not cross stages).
    starts : sequence, optional
        Per row, the first ranks of its stages.
    offload : str
        Where optimizer state lies, as in a Plan.
    """

    def __init__(
        self,
        space: Space,
        cluster: Cluster,
        sizes: Ints,
        batch: Ints,
        *,
        stretch: float = 1.0,
        crossing_partial: bool = True,
        starts: Sequence[tuple[int, ...]] = (),
        offload: str = ON_DEVICES,
    ) -> None:
        self.space = space
        self.cluster = cluster
        self.sizes = sizes
        self.batch = batch
        self.stretch = stretch
        self.crossing_partial = crossing_partial
        self.hosts = [host_of(group, cluster) for group in cluster.groups if offload == OPTIMIZER]
        self.tensors = space.folded.graph.tensors_by_name
        self.rows = sizes.shape[1]
        self._dims: dict[str, Ints] = {}
        self._sized: dict[object, tuple[Ints, Bools]] = {}
        self.moving = Moving(cluster, sizes, _alphabets(space), stretch, starts=starts)
        self.figures: list[Ints] = []  # per choice [F, O, K], of one occurrence
        self.legal: list[Bools] = []  # per choice [O, K]
        for choice in space.choices:
            figures = np.zeros((len(FIGURES), choice.size, self.rows), np.int64)
            fits = np.ones((choice.size, self.rows), np.bool_)
            for one in choice.ops:
                fits &= self._fits(one)
            primary = fits & choice.ops[0].primary[:, None]
            fits = np.where(primary.any(axis=0), primary, fits)
            for one in choice.ops:
                self._add(figures, one)
            self.figures.append(figures)
            self.legal.append(fits)

    def take(self, rows: Ints) -> "Pricing":
        """The same for some of the rows; op figures are not computed again."""
        found = copy(self)
        found.sizes, found.batch = self.sizes[:, rows], self.batch[rows]
        found.rows = len(rows)
        found.figures = [figures[:, :, rows] for figures in self.figures]
        found.legal = [legal[:, rows] for legal in self.legal]
        found._dims, found._sized = {}, {}
        found.moving = Moving(
            self.cluster,
            found.sizes,
            self.moving.alphabets,
            self.stretch,
            self.moving.known,
            [self.moving.starts[row] for row in rows],
        )
        return found

    def tables(self) -> Tables:
        """Choices and nets of all rows."""
        choices = tuple(
            Choice(figures=figures, legal=legal, options=np.arange(len(legal)), count=one.count)
            for figures, legal, one in zip(
                self.figures, self.legal, self.space.choices, strict=True
            )
        )
        return Tables(
            choices=choices,
            nets=tuple(self._net(at, net) for at, net in enumerate(self.space.nets)),
        )

    # -- shapes ------------------------------------------------------------------------------

    def dims(self, name: str) -> Ints:
        """Dims of a tensor on every row: [D, K]."""
        if name not in self._dims:
            tensor = self.tensors[name]
            table = np.repeat(np.array(tensor.shape, np.int64).reshape(-1, 1), self.rows, axis=1)
            if tensor.batch_dim is not None:
                graph = self.space.folded.graph
                table[tensor.batch_dim] = table[tensor.batch_dim] // graph.batch * self.batch
            self._dims[name] = table
        return self._dims[name]

    def _local(self, dims: Ints, states: Ints) -> tuple[Ints, Bools]:
        """Elements of a shard and whether the state divides: [O, K] each."""
        unique, back = np.unique(states, return_inverse=True)
        key = dims.tobytes(), unique.tobytes()
        if key not in self._sized:
            cut = shards(unique, self.sizes)
            size = dims.prod(axis=0)[None, :] // cut
            self._sized[key] = size, divisible(unique, dims, self.sizes)
        size, fits = self._sized[key]
        return size[back], fits[back]

    def local_bytes(self, name: str, states: Ints) -> Ints:
        """Bytes of one device's shard: [O, K]."""
        return self._local(self.dims(name), states)[0] * ITEMSIZE[self.tensors[name].dtype]

    def _fits(self, one: OpOptions) -> Bools:
        fits = np.ones((one.states.shape[1], self.rows), np.bool_)
        for name, states in zip((*one.op.inputs, *one.op.outputs), one.states, strict=True):
            fits &= self._local(self.dims(name), states)[1]
        return fits

    # -- ops ---------------------------------------------------------------------------------

    def _add(self, figures: Ints, one: OpOptions) -> None:
        """Add the figures of one op of a choice."""
        op = one.op
        out = self.tensors[op.outputs[0]]
        often = out.rate is Rate.MICROBATCH or op.kind == "accumulate"
        later = op.phase is Phase.BACKWARD_WEIGHT
        column = (DEFERRABLE if later else MICROBATCH) if often else STEP
        figures[column] += self._duration_ns(one)
        made = one.states[len(op.inputs)]
        if op.kind in UPDATES:
            kept = len(state_of(op.kind, op.attributes))
            size = self.local_bytes(op.outputs[0], made)
            if self.hosts and kept:
                copies = state_copies_ns(size, kept, self.hosts)
                figures[STEP] += np.ceil(copies * self.stretch).astype(np.int64)
            else:
                figures[PERSISTENT] += kept * size
        elif out.rate is Rate.STEP and op.kind != "squared_sum":
            figures[PERSISTENT] += self.local_bytes(op.outputs[0], made)

    def _duration_ns(self, one: OpOptions) -> Ints:
        op = one.op
        if op.kind in FREE:
            return np.zeros((one.states.shape[1], self.rows), np.int64)
        names = (*op.inputs, *op.outputs)
        labels = np.array([base.label or "" for base in one.base])
        dims = [self.dims(name) for name in names]
        dtypes = [self.tensors[name].dtype for name in names]
        split_on = [labels[row] for row in one.taken]
        found = self._kernel_ns(op, op.kind, op.labels, dims, dtypes, list(one.states), split_on)
        price = self._ring_ns if op.kind in RINGS else self._expanded_ns
        for option in np.flatnonzero(one.expanded).tolist():
            found[option] = price(op, one, option)
        return found

    def _kernel_ns(
        self,
        op: Op,
        kind: str,
        labels: str,
        dims: list[Ints],
        dtypes: list[str],
        states: list[Ints],
        split_on: list[NDArray[np.str_]],
        rounds: Ints | int = 1,
    ) -> Ints:
        """Duration of a kernel on every row: [O, K]; `split_on` [O] per axis is the label cut.

        It does one of so many `rounds` [K] of the work.
        """
        row = op_kind(kind)
        inputs = len(parse(labels).inputs)
        sizes = [self._local(d, s)[0] for d, s in zip(dims, states, strict=True)]
        item = [ITEMSIZE[dtype] for dtype in dtypes]
        first = sizes[inputs]
        moved = np.zeros_like(first)
        for at, size in enumerate(sizes):
            gathered = at < inputs and at in row.gathered
            moved += item[at] * (np.minimum(size, first) if gathered else size)
        if row.reads_output:
            moved += item[inputs] * first
        moved += 2 * len(state_of(kind, op.attributes)) * item[inputs] * first
        flops = self._flops(kind, labels, dims, split_on) // rounds
        found = kernel_ns(
            self.cluster,
            kind,
            labels,
            op.attributes,
            flops,
            moved,
            precision_of(kind, dtypes[:inputs]) if row.products else "fp32",
            int(dims[0][-1, 0]) if len(dims[0]) else None,
        )
        if self.stretch == 1.0:
            return found
        stretched: Ints = np.ceil(found * self.stretch).astype(np.int64)
        return stretched

    def _flops(
        self,
        kind: str,
        labels: str,
        dims: list[Ints],
        split_on: list[NDArray[np.str_]],
    ) -> Ints:
        """FLOPs of one device: [O, K]."""
        products = op_kind(kind).products
        options = len(split_on[0]) if split_on else 1
        total = np.zeros((options, self.rows), np.int64)
        if not products:
            return total
        columns, back = np.unique(np.concatenate(dims), axis=1, return_inverse=True)
        ends = np.cumsum([len(one) for one in dims])[:-1]
        points = np.array(
            [
                _points(kind, labels, tuple(tuple(one.tolist()) for one in np.split(column, ends)))
                for column in columns.T
            ],
            np.int64,
        )[back.ravel()]
        operands = parse(labels).operands
        for number, pair in enumerate(products):
            inside = [label for at in pair for dim in operands[at] for label in dim]
            cut = np.ones((options, self.rows), np.int64)
            for axis, mine in enumerate(split_on):
                cut *= np.where(np.isin(mine, inside)[:, None], self.sizes[axis][None, :], 1)
            total += 2 * points[:, number] // cut
        return total

    def _expanded_ns(self, op: Op, one: OpOptions, option: int) -> Ints:
        """The parts of an extra signature, and the boxing of what they hand on: [K]."""
        signature = one.signature(option)
        known: dict[str, tuple[Ints, str]] = {}
        lies: dict[str, int] = {}
        for at, name in enumerate(op.inputs):
            known[f"in{at}"] = self.dims(name), self.tensors[name].dtype
            lies[f"in{at}"] = int(one.states[at, option])
        wide = self.tensors[op.outputs[0]].dtype
        sizes: dict[str, Ints] = {
            label: np.full(self.rows, size)
            for label, size in EXPANSIONS[op.kind, signature.expansion].sizes.items()
        }
        paid: set[tuple[str, int]] = set()
        total = np.zeros(self.rows, np.int64)
        for part, document in sub_signatures(op.kind, op.labels, signature.document):
            expression = parse(part.labels)
            dims: list[Ints] = []
            dtypes: list[str] = []
            states: list[Ints] = []
            for name, operand, text in zip(
                part.inputs, expression.inputs, document.inputs, strict=True
            ):
                shape, dtype = known[name]
                sizes |= {dim[0]: size for dim, size in zip(operand, shape, strict=True)}
                state = number_of(parse_nd_sbp(text))
                if (name, state) not in paid:
                    paid.add((name, state))
                    total += self._moved_ns(shape, dtype, lies[name], state)
                dims.append(shape)
                dtypes.append(dtype)
                states.append(np.array([state]))
            for name, operand, text in zip(
                part.outputs, expression.outputs, document.outputs, strict=True
            ):
                shape = np.array([sizes[dim[0]] for dim in operand]).reshape(-1, self.rows)
                known[name] = shape, wide
                lies[name] = number_of(parse_nd_sbp(text))
                dims.append(shape)
                dtypes.append(wide)
                states.append(np.array([lies[name]]))
            cut = [np.array([label or ""]) for label in split_labels(part.labels, document)]
            total += self._kernel_ns(op, part.kind, part.labels, dims, dtypes, states, cut)[0]
        return total

    def _ring_ns(self, op: Op, one: OpOptions, option: int) -> Ints:
        """The rounds of an op on a ring: [K]."""
        ring, signature = RINGS[op.kind], one.signature(option)
        axes = ring.axes(signature.inputs)
        size = self.sizes[list(axes)].prod(axis=0)
        cut = [np.array([one.base[at].label or ""]) for at in one.taken[:, option]]
        states = [row[option : option + 1] for row in one.states]
        inputs = len(op.inputs)
        dims = [self.dims(name) for name in (*op.inputs, *op.outputs)]
        given = [self.tensors[name].dtype for name in op.inputs]
        made = list(ring.dtypes([self.tensors[name].dtype for name in op.outputs]))

        def work(kind: str, labels: str, operands: list[int], share: Ints | int) -> Ints:
            """A kernel on these operands of the op, outputs numbered after inputs."""
            dtypes = [*given, *made]
            found: Ints = self._kernel_ns(
                op,
                kind,
                labels,
                [dims[at] for at in operands],
                [dtypes[at] for at in operands],
                [states[at] for at in operands],
                cut,
                share,
            )[0]
            return found

        def sent(at: int, dtype: str) -> Ints:
            local = self._local(dims[at], states[at])[0][0] * ITEMSIZE[dtype]
            found: Ints = np.round(self.moving.collective_ns(ROTATE, axes, local)).astype(np.int64)
            return found

        own, results = list(range(inputs)), list(range(inputs, len(dims)))
        carried = [inputs + at for at in ring.carried]
        sending, adding, back = np.zeros((3, self.rows), np.int64)
        for at in ring.travelling:
            sending += sent(at, given[at])
        for at in ring.returning:
            total = inputs + at
            adding += work("add", ring.adding(op.labels, at), [total] * 3, 1)
            back += sent(total, made[at])
        found: Ints = ring_ns(
            size,
            work(op.kind, op.labels, [*own, *results], size),
            work(ring.later, ring.labels(op.labels), [*own, *carried, *results], size),
            sending,
            adding,
            back,
        )
        return found

    def _moved_ns(self, dims: Ints, dtype: str, source: int, target: int) -> Ints:
        boxed = self.moving.boxed(
            dims,
            ITEMSIZE[dtype],
            np.array([source]),
            np.array([target]),
            keeps_source=False,
            kept=np.zeros(1, np.bool_),
        )
        found: Ints = boxed.duration_ns[0, 0]
        return found

    # -- nets --------------------------------------------------------------------------------

    def _net(self, number: int, net: SpaceNet) -> Net:
        tensor: Tensor = self.tensors[net.tensor]
        step = tensor.rate is Rate.STEP
        kept = np.zeros(len(net.targets), np.bool_)
        for use in net.uses:
            if use.holds:
                kept[use.wants] = True
        boxed = self.moving.boxed(
            self.dims(net.tensor),
            ITEMSIZE[tensor.dtype],
            net.sources,
            net.targets,
            keeps_source=step,
            kept=kept,
        )
        reachable = boxed.reachable
        if net.crossing and not self.crossing_partial:
            both = np.logical_and.outer(
                is_partial(net.sources, self.space.axes), is_partial(net.targets, self.space.axes)
            )
            reachable = reachable & ~both[:, :, None]
        return Net(
            number=number,
            producer=net.producer,
            makes=net.makes,
            uses=net.uses,
            count=net.count,
            step=step,
            reachable=reachable,
            duration_ns=boxed.duration_ns,
            buffer_bytes=boxed.buffer_bytes,
            held_bytes=self.local_bytes(net.tensor, net.targets),
        )


@lru_cache(maxsize=4096)
def _points(kind: str, labels: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Points of every product of a kind on whole operands of these shapes."""
    expression = parse(labels)
    inputs = len(expression.inputs)
    sizes = bind(expression, shapes[:inputs], shapes[inputs:])
    found = []
    for pair in op_kind(kind).products:
        points = {label for at in pair for dim in expression.operands[at] for label in dim}
        found.append(prod(sizes[label] for label in points))
    return tuple(found)


def _alphabets(space: Space) -> dict[int, tuple[tuple[int, ...], ...]]:
    """Per number of dims, the digits that tensors of the space take on each axis, and B."""
    tensors = space.folded.graph.tensors_by_name
    found: dict[int, list[set[int]]] = {}

    def note(ndim: int, states: Ints) -> None:
        sets = found.setdefault(ndim, [{WHOLE} for _ in range(space.axes)])
        for axis, row in enumerate(digits(states, space.axes)):
            sets[axis].update(row.tolist())

    def note_parts(one: OpOptions, option: int) -> None:
        """What the parts of an extra signature read and make."""
        for operand, states in enumerate(one.states):
            name = (*one.op.inputs, *one.op.outputs)[operand]
            note(len(tensors[name].shape), states[option : option + 1])
        document = one.signature(option).document
        for part, signature in sub_signatures(one.op.kind, one.op.labels, document):
            operands = parse(part.labels).operands
            texts = (*signature.inputs, *signature.outputs)
            for operand_labels, text in zip(operands, texts, strict=True):
                note(len(operand_labels), np.array([number_of(parse_nd_sbp(text))]))

    for net in space.nets:
        ndim = len(tensors[net.tensor].shape)
        note(ndim, net.sources)
        note(ndim, net.targets)
    for choice in space.choices:
        for one in choice.ops:
            if one.op.kind not in RINGS:
                for option in np.flatnonzero(one.expanded).tolist():
                    note_parts(one, option)
    return {ndim: tuple(tuple(sorted(one)) for one in sets) for ndim, sets in found.items()}
