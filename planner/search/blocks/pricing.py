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

from models.counting import masters
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
from planner.search.blocks.layouts import alphabets, ends, likeness
from planner.search.blocks.moving import Boxed, Known, Moving, kernel_ns
from planner.search.blocks.space import Net as SpaceNet
from planner.search.blocks.space import OpOptions, Space
from planner.search.blocks.states import (
    Bools,
    Ints,
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
    crossing_partial : bool or array [K]
        Whether a tensor may be partial both where one block makes it and where another reads it
        (partial values do not cross stages), of all rows or row by row.
    starts : sequence, optional
        Per row, the first ranks of its stages.
    known : Known, optional
        Paths and collectives of the same cluster that were looked up before.
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
        crossing_partial: bool | Bools = True,
        starts: Sequence[tuple[int, ...]] = (),
        known: Known | None = None,
        offload: str = ON_DEVICES,
    ) -> None:
        self.space = space
        self.cluster = cluster
        self.sizes = sizes
        self.batch = batch
        self.stretch = stretch
        self.hosts = [host_of(group, cluster) for group in cluster.groups if offload == OPTIMIZER]
        self.masters = masters(space.folded.graph) if self.hosts else frozenset()
        self.tensors = space.folded.graph.tensors_by_name
        self.makers = {name: op for op in space.folded.ops for name in op.outputs}
        self.rows = sizes.shape[1]
        self.crossing_partial = np.broadcast_to(crossing_partial, self.rows)
        self._ends = ends(space)
        self._dims: dict[str, Ints] = {}
        self._sized: dict[object, tuple[Ints, Bools]] = {}
        self.moving = Moving(cluster, sizes, alphabets(space), stretch, known, starts)
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
        found.crossing_partial = self.crossing_partial[rows]
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
        if self.hosts and (op.kind in UPDATES or (op.inputs and op.inputs[0] in self.masters)):
            figures[STEP] += self._copies_ns(one)
        if op.kind in UPDATES:
            kept = 0 if self.hosts else len(state_of(op.kind, op.attributes))
            figures[PERSISTENT] += kept * self.local_bytes(op.outputs[0], made)
        elif op.outputs[0] in self.masters:
            pass  # in host memory
        elif out.rate is Rate.STEP and op.kind != "squared_sum":
            figures[PERSISTENT] += self.local_bytes(op.outputs[0], made)

    def _copies_ns(self, one: OpOptions) -> Ints:
        """What an update or a cast waits for what passes between it and host memory: [O, K]."""
        op, master = one.op, one.op.inputs[0] in self.masters
        update = op.kind in UPDATES
        tensors = master + (len(state_of(op.kind, op.attributes)) if update else 0)
        size = self.local_bytes(op.inputs[0], one.states[0])
        found = state_copies_ns(size, tensors, self.hosts, ways=2 if update else 1)
        stretched: Ints = np.ceil(found * self.stretch).astype(np.int64)
        return stretched

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
        expanded = np.flatnonzero(one.expanded)
        if op.kind in RINGS:
            for axes, options in _rings(one, expanded).items():
                found[options] = self._ring_ns(op, one, axes, np.array(options))
            return found
        for option in expanded.tolist():
            found[option] = self._expanded_ns(op, one, option)
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

    def _ring_ns(self, op: Op, one: OpOptions, axes: tuple[int, ...], options: Ints) -> Ints:
        """The rounds of an op on a ring over these axes: [O, K] of these options."""
        ring, size = RINGS[op.kind], self.sizes[list(axes)].prod(axis=0)
        labels = np.array([base.label or "" for base in one.base])
        cut = [labels[row[options]] for row in one.taken]
        states = [row[options] for row in one.states]
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
            )
            return found

        def sent(at: int, dtype: str) -> Ints:
            local = self._local(dims[at], states[at])[0] * ITEMSIZE[dtype]
            found: Ints = np.round(self.moving.collective_ns(ROTATE, axes, local)).astype(np.int64)
            return found

        own, results = list(range(inputs)), list(range(inputs, len(dims)))
        carried = [inputs + at for at in ring.carried]
        sending, adding, back = np.zeros((3, len(options), self.rows), np.int64)
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
        )
        found: Ints = boxed.duration_ns[0, 0]
        return found

    # -- nets --------------------------------------------------------------------------------

    def _net(self, number: int, net: SpaceNet) -> Net:
        tensor: Tensor = self.tensors[net.tensor]
        step = tensor.rate is Rate.STEP
        sources, targets = self._ends[likeness(tensor)]
        boxed = self.moving.boxed(
            self.dims(net.tensor), ITEMSIZE[tensor.dtype], sources, targets, keeps_source=step
        ).picked(np.searchsorted(sources, net.sources), np.searchsorted(targets, net.targets))
        reachable = boxed.reachable
        if net.tensor in self.masters:  # what lies in host memory is cast as it is stored
            same = np.equal.outer(net.sources, net.targets)
            reachable = reachable & same[:, :, None]
        if net.crossing and not self.crossing_partial.all():
            both = np.logical_and.outer(
                is_partial(net.sources, self.space.axes), is_partial(net.targets, self.space.axes)
            )
            reachable = reachable & (~both[:, :, None] | self.crossing_partial)
        return Net(
            number=number,
            producer=net.producer,
            makes=net.makes,
            uses=net.uses,
            count=net.count,
            step=step,
            reachable=reachable,
            duration_ns=boxed.duration_ns,
            buffer_bytes=self._buffer_bytes(net, boxed),
            held_bytes=self.local_bytes(net.tensor, net.targets),
        )

    def _buffer_bytes(self, net: SpaceNet, boxed: Boxed) -> Ints:
        """Bytes of what boxing makes once a step and no other register has room for: [A, B, K].

        A sum of gradients is reduced into the weight that was gathered, as large as the 16-bit
        gradients of a microbatch; what a weight is gathered through lies where they will be summed
        (`planner.compile.arena.lent_places`).
        """
        if boxed.made_bytes is None or boxed.last_bytes is None:
            return np.zeros(boxed.duration_ns.shape, np.int64)
        maker = self.makers[net.tensor]
        source = self.local_bytes(net.tensor, net.sources)[:, None]
        item = ITEMSIZE[self.tensors[net.tensor].dtype]
        made: Ints
        if maker.kind == "accumulate":
            given = ITEMSIZE[self.tensors[maker.inputs[0]].dtype]
            room = source // item * given if given < item else np.zeros_like(source)
            made = np.where(boxed.last_bytes <= room, 0, boxed.made_bytes)
        elif maker.kind == "cast":
            made = np.where(boxed.last_bytes > 0, np.maximum(boxed.last_bytes - source, 0), 0)
        else:
            made = boxed.last_bytes if maker.kind == "variable" else boxed.made_bytes
        return made


def _rings(one: OpOptions, options: Ints) -> dict[tuple[int, ...], list[int]]:
    """These options by the axes that make their ring."""
    found: dict[tuple[int, ...], list[int]] = {}
    travels = np.array([bool(base.expansion) for base in one.base])[one.taken]
    for option in options.tolist():
        axes = tuple(np.flatnonzero(travels[:, option]).tolist())
        found.setdefault(axes, []).append(option)
    return found


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
