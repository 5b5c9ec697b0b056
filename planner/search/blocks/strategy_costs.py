"""Strategy costs: figures of every option and every boxing of a space, on many rows at once.

A row is a mesh (sizes of its axes) and a microbatch; `cost_tables.py` says what the figures are.
Shapes: O options, A sources, B targets, N axes, K rows, F figures.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from millrace.models.arrays import Bools, Ints
from millrace.models.graph import ITEMSIZE, Op, Phase, Rate, Tensor
from millrace.models.labels import BATCH, EXPERT, parse
from millrace.models.model_counts import master_weights
from millrace.models.ops import op_kind, state_of
from millrace.models.training.optimizer_updates import DIRECTIONS
from millrace.planner.cluster import Cluster
from millrace.planner.collectives import ALONE, ROTATE
from millrace.planner.costs import OpFirings
from millrace.planner.costs.bucket_sizes import padded_ops, state_tensors
from millrace.planner.costs.expert_routing import ALIKE, copies_of_tokens
from millrace.planner.costs.host_transfers import host_of, state_copies_ns
from millrace.planner.costs.launch_overhead import hidden_share
from millrace.planner.costs.op_batch import DRAWN, precision_of
from millrace.planner.fusion import Share, shares_of_graph
from millrace.planner.plan import FUSED, ON_DEVICES, OPTIMIZER, UNFUSED
from millrace.planner.ring_attention import RINGS, ring_ns
from millrace.planner.sbp import parse_nd_sbp
from millrace.planner.search.blocks.boxing_costs import BoxingCache, BoxingCosts, kernel_ns
from millrace.planner.search.blocks.cost_tables import (
    DEFERRABLE,
    FIGURES,
    MICROBATCH,
    PERSISTENT,
    STEP,
    CostTables,
    EdgeCosts,
    NodeCosts,
    with_hidden,
)
from millrace.planner.search.blocks.sbp_codes import (
    FIRST_DIM,
    digits,
    divisible,
    gathers,
    is_partial,
    number_of,
    padded_sizes,
)
from millrace.planner.search.blocks.strategies import (
    OpStrategies,
    ReshardingEdge,
    StrategyNode,
    StrategySpace,
)
from millrace.planner.search.blocks.tensor_states import alphabets, ends, label_sizes_of, likeness
from millrace.planner.signatures import EXPANSIONS, sub_signatures

Boxing = dict[str, Any]  # the arrays of an edge, as in `cost_tables.EdgeCosts`
# Once a step and not stored: a number, or the directions of Muon, of one layer at a time.
NOT_STORED = ("squared_sum", *DIRECTIONS)
SHORT_NS = 100_000  # no data moves in this much of a transfer: waiting in its lane, and latency


class StrategyCosts:
    """Figures of one space on K rows.

    Parameters
    ----------
    space : StrategySpace
    cluster : Cluster
    sizes : array [N, K]
    batch : array [K]
        Samples of a microbatch.
    stretch : float
        By how much sharing cores slows a rank down.
    crossing_partial : bool or array [K]
        True if a tensor may be partial both where one block makes it and where another reads it
        (partial values do not cross stages), of all rows or row by row.
    starts : sequence, optional
        Per row, the first ranks of its stages.
    cache : BoxingCache, optional
        Paths and collectives of the same cluster that were looked up before.
    offload : str
        Where optimizer state lies, as in a Plan.
    fusion : str
        Whether ops are fused, as in a Plan: priced as if nothing were boxed inside a group.
    gathers_again : bool
        True if what is gathered of an activation is gathered again in the backward pass, not held.
    alike : StrategyCosts, optional
        The same rows where blocks recompute otherwise: what is no clone is not priced again.
    """

    def __init__(
        self,
        space: StrategySpace,
        cluster: Cluster,
        sizes: Ints,
        batch: Ints,
        *,
        stretch: float = 1.0,
        crossing_partial: bool | Bools = True,
        starts: Sequence[tuple[int, ...]] = (),
        cache: BoxingCache | None = None,
        offload: str = ON_DEVICES,
        fusion: str = UNFUSED,
        gathers_again: bool = False,
        alike: "StrategyCosts | None" = None,
    ) -> None:
        self.space = space
        self.cluster = cluster
        self.sizes = sizes
        self.batch = batch
        self.stretch = stretch
        self.gathers_again = gathers_again
        self.hosts = [host_of(group, cluster) for group in cluster.groups if offload == OPTIMIZER]
        self.masters = master_weights(space.folded.graph) if self.hosts else frozenset()
        self.tensors = space.folded.graph.tensors_by_name
        self.in_buckets = state_tensors(space.folded.graph)
        self._padded = padded_ops(space.folded.graph, cluster.software)
        self.copies = copies_of_tokens(space.folded.graph)
        self.makers = {name: op for op in space.folded.ops for name in op.outputs}
        self.rows = sizes.shape[1]
        self.crossing_partial = np.broadcast_to(crossing_partial, self.rows)
        graph = space.folded.graph
        self._shares = shares_of_graph(graph) if fusion == FUSED else {}
        self._ends = ends(space)
        self._dims: dict[str, Ints] = {}
        self._sized: dict[object, tuple[Ints, Bools]] = {}
        self._durations: dict[object, Ints] = {}  # computed once for ops that are alike
        self.batches = np.unique(batch, return_index=True, return_inverse=True)[1:]
        self.boxing = BoxingCosts(cluster, sizes, alphabets(space), stretch, cache, starts)
        self.figures: list[Ints] = []  # per choice [F, O, K], of one occurrence
        self.legal: list[Bools] = []  # per choice [O, K]
        priced = {} if alike is None else alike._by_op()
        for choice in space.choices:
            before = priced.get(choice.ops[0].op.name)
            same = before and choice.follows(before[0])
            figures, fits = before[1:] if before and same else self._priced(choice.originals)
            for clone in choice.clones:
                self._add(figures, clone)
            self.figures.append(figures)
            self.legal.append(fits)
        self._sized, self._durations = {}, {}

    def _priced(self, ops: Sequence[OpStrategies]) -> tuple[Ints, Bools]:
        """Figures of ops that choose together, and which of their options divide."""
        options = len(ops[0].primary)
        figures = np.zeros((len(FIGURES), options, self.rows), np.int64)
        fits = np.ones((options, self.rows), np.bool_)
        for op_options in ops:
            fits &= self._fits(op_options)
            self._add(figures, op_options)
        primary = fits & ops[0].primary[:, None]
        if self._padded.issuperset(op_options.op.name for op_options in ops):
            primary = np.where(primary.any(axis=0), primary, ops[0].primary[:, None])
        return figures, np.where(primary.any(axis=0), primary, fits)

    def _by_op(self) -> dict[str, tuple[StrategyNode, Ints, Bools]]:
        """Choices with their figures and what divides, by the op that chooses."""
        rows = zip(self.space.choices, self.figures, self.legal, strict=True)
        return {choice.ops[0].op.name: (choice, figures, fits) for choice, figures, fits in rows}

    def take(self, rows: Ints) -> "StrategyCosts":
        """Costs of some of the rows; op figures are not computed again."""
        taken = copy(self)
        taken.sizes, taken.batch = self.sizes[:, rows], self.batch[rows]
        taken.rows = len(rows)
        taken.crossing_partial = self.crossing_partial[rows]
        taken.figures = [figures[:, :, rows] for figures in self.figures]
        taken.legal = [legal[:, rows] for legal in self.legal]
        taken._dims, taken._sized, taken._durations = {}, {}, {}
        taken.batches = np.unique(taken.batch, return_index=True, return_inverse=True)[1:]
        boxing, starts = self.boxing, [self.boxing.starts[row] for row in rows]
        taken.boxing = BoxingCosts(
            self.cluster, taken.sizes, boxing.alphabets, self.stretch, boxing.cache, starts
        )
        return taken

    def tables(self) -> CostTables:
        """Choices and edges of all rows."""
        rows = zip(self.figures, self.legal, self.space.choices, self.space.homes, strict=True)
        choices = tuple(
            NodeCosts(
                figures=figures,
                legal=legal,
                options=np.arange(len(legal)),
                count=space_choice.count,
                template=home,
            )
            for figures, legal, space_choice, home in rows
        )
        alike: dict[object, Boxing] = {}
        edges = tuple(self._edge(place, edge, alike) for place, edge in enumerate(self.space.edges))
        sent = [(n, e.tensor) for n, e in enumerate(self.space.edges) if e.tensor in self.copies]
        exchanges = {n: self.makers[tensor].kind not in ALIKE for n, tensor in sent}
        tables = CostTables(choices=choices, edges=edges)
        return with_hidden(tables, exchanges, self.cluster.software)

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
        """Elements of a shard, and mask of the states that divide: [O, K] each."""
        unique, back = self.boxing.cache.distinct(states)
        key = dims.tobytes(), unique.tobytes()
        if key not in self._sized:
            size = padded_sizes(unique, dims, self.sizes)
            self._sized[key] = size, divisible(unique, dims, self.sizes)
        size, fits = self._sized[key]
        return size[back], fits[back]

    def local_bytes(self, name: str, states: Ints) -> Ints:
        """Bytes of one device's shard: [O, K]."""
        return self._local(self.dims(name), states)[0] * ITEMSIZE[self.tensors[name].dtype]

    def _fits(self, op_options: OpStrategies) -> Bools:
        fits = np.ones((op_options.states.shape[1], self.rows), np.bool_)
        for name, states in zip(
            (*op_options.op.inputs, *op_options.op.outputs), op_options.states, strict=True
        ):
            fits &= self._local(self.dims(name), states)[1]
        return fits

    # -- ops ---------------------------------------------------------------------------------

    def _add(self, figures: Ints, op_options: OpStrategies) -> None:
        """Add the figures of one op of a choice."""
        op = op_options.op
        out = self.tensors[op.outputs[0]]
        often = out.rate is Rate.MICROBATCH or op.kind == "accumulate"
        deferrable = op.phase is Phase.BACKWARD_WEIGHT
        column = (DEFERRABLE if deferrable else MICROBATCH) if often else STEP
        figures[column] += self._duration_ns(op_options)
        made_states = op_options.states[len(op.inputs)]
        row = op_kind(op.kind)
        cast = op.inputs and op.inputs[0] in self.masters
        if self.hosts and (row.updates or row.state or cast):
            figures[STEP] += self._copies_ns(op_options)
        if not self.hosts and (names := state_of(op.kind, op.attributes)):
            figures[PERSISTENT] += len(names) * self.local_bytes(op.inputs[0], op_options.states[0])
        if row.updates or op.outputs[0] in self.masters or op.kind in NOT_STORED:
            return  # it lies in its variable, in host memory, or there is one layer's at a time
        if out.rate is Rate.STEP:
            figures[PERSISTENT] += self.local_bytes(op.outputs[0], made_states)

    def _copies_ns(self, op_options: OpStrategies) -> Ints:
        """Nanoseconds that an update or a cast waits for its traffic with host memory: [O, K]."""
        op, master = op_options.op, op_options.op.inputs[0] in self.masters
        states = state_of(op.kind, op.attributes)
        update = op_kind(op.kind).updates or bool(states)
        tensors = master + len(states)
        size = self.local_bytes(op.inputs[0], op_options.states[0])
        copy_ns = state_copies_ns(size, tensors, self.hosts, ways=2 if update else 1)
        stretched: Ints = np.ceil(copy_ns * self.stretch).astype(np.int64)
        return stretched

    def _duration_ns(self, op_options: OpStrategies) -> Ints:
        op = op_options.op
        if not op_kind(op.kind).actor:
            return np.zeros((op_options.states.shape[1], self.rows), np.int64)
        tensors = [self.tensors[name] for name in (*op.inputs, *op.outputs)]
        key = (
            (op.kind, op.labels, tuple(op.attributes.items())),
            tuple((tensor.shape, tensor.batch_dim, tensor.dtype) for tensor in tensors),
            (id(op_options.base), op_options.base_indices.tobytes(), op_options.states.tobytes()),
            self._shares.get(op.name),
        )
        if key not in self._durations:
            self._durations[key] = self._distinct_ns(op_options)
        return self._durations[key]

    def _distinct_ns(self, op_options: OpStrategies) -> Ints:
        """Nanoseconds of every option of an op: [O, K]."""
        op = op_options.op
        names = (*op.inputs, *op.outputs)
        dims = [self.dims(name) for name in names]
        dtypes = [self.tensors[name].dtype for name in names]
        share = self._shares.get(op.name)
        durations = self._kernel_ns(
            op, op.kind, op.labels, dims, dtypes, list(op_options.states), share
        )
        expanded = np.flatnonzero(op_options.expanded)
        if op.kind in RINGS:
            for axes, options in op_options.rings(expanded).items():
                durations[options] = self._ring_ns(op, op_options, axes, np.array(options))
        elif len(expanded):
            durations[expanded] = self._expanded_ns(op, op_options, expanded)
        return durations

    def _kernel_ns(
        self,
        op: Op,
        kind: str,
        labels: str,
        dims: list[Ints],
        dtypes: list[str],
        states: list[Ints],
        share: Share | None = None,
    ) -> Ints:
        """Nanoseconds of a kernel on every row: [O, K]."""
        row = op_kind(kind)
        inputs = len(parse(labels).inputs)
        sizes = [self._local(d, s)[0] for d, s in zip(dims, states, strict=True)]
        item = [ITEMSIZE[dtype] for dtype in dtypes]
        if share is not None:
            item = [*share.inputs, *share.outputs]
        first = sizes[inputs]
        moved = np.zeros_like(first)
        for operand, size in enumerate(sizes):
            gathered = operand < inputs and operand in row.gathered
            moved += item[operand] * (np.minimum(size, first) if gathered else size)
        if row.reads_output:
            moved += item[inputs] * first
        like = item[inputs] * first if row.updates else item[0] * sizes[0]
        moved += 2 * len(state_of(kind, op.attributes)) * like
        by_shape = bool(self.cluster.device.shapes) or EXPERT in parse(labels).labels
        spans = self._spans(labels, dims, states) if row.multiplies or by_shape else {}
        durations = kernel_ns(
            self.cluster,
            OpFirings(
                kind,
                labels,
                op.attributes,
                spans if row.multiplies else {},
                moved,
                precision_of(kind, dtypes[:inputs], op.attributes),
                share is not None and share.follows,
                self._spans(labels, dims, states).get(BATCH, 0) if kind == DRAWN else 0,
                spans,
                0 if share is None else share.beside * first,
            ),
        )
        if self.stretch == 1.0:
            return durations
        stretched: Ints = np.ceil(durations * self.stretch).astype(np.int64)
        return stretched

    def _spans(self, labels: str, dims: list[Ints], states: list[Ints]) -> dict[str, Ints]:
        """Size of every label on one device: [O or 1, K] each."""
        first, back = self.batches  # dims differ by the microbatch alone
        columns = [tuple(map(tuple, operand_dims[:, first].T.tolist())) for operand_dims in dims]
        label_sizes = np.array(
            [label_sizes_of(labels, shapes) for shapes in zip(*columns, strict=True)]
        )[back]
        expression = parse(labels)
        outermost: dict[str, tuple[int, int]] = {}
        for index, operand in enumerate(expression.operands):
            for dim, inside in enumerate(operand):
                outermost.setdefault(inside[0], (index, dim))
        spans = {}
        for number, label in enumerate(expression.labels):
            size = label_sizes[None, :, number]
            if label in outermost:
                index, dim = outermost[label]
                for axis, axis_digits in enumerate(digits(states[index], len(self.sizes))):
                    cut = axis_digits == FIRST_DIM + dim
                    if cut.any():
                        size = size // np.where(cut[:, None], self.sizes[axis], 1)
            spans[label] = size
        return spans

    def _expanded_ns(self, op: Op, op_options: OpStrategies, options: Ints) -> Ints:
        """Nanoseconds of an extra signature's parts and of the boxing between them: [O, K]."""
        signatures = [op_options.signature(option) for option in options.tolist()]
        expansion = EXPANSIONS[op.kind, signatures[0].expansion]
        parts = [sub_signatures(op.kind, op.labels, each.document) for each in signatures]
        dims_and_dtypes = {
            f"in{index}": (self.dims(name), self.tensors[name].dtype)
            for index, name in enumerate(op.inputs)
        }
        lies = {f"in{index}": op_options.states[index, options] for index in range(len(op.inputs))}
        wide = self.tensors[op.outputs[0]].dtype
        sizes = {label: np.full(self.rows, size) for label, size in expansion.sizes.items()}
        paid: dict[str, list[Ints]] = {}
        total = np.zeros((len(options), self.rows), np.int64)
        for alike in zip(*parts, strict=True):
            part = alike[0][0]
            expression = parse(part.labels)
            texts = zip(*((*how.inputs, *how.outputs) for _, how in alike), strict=True)
            states = [np.array([number_of(parse_nd_sbp(text)) for text in row]) for row in texts]
            read, made_states = states[: len(part.inputs)], states[len(part.inputs) :]
            for name, operand, state in zip(part.inputs, expression.inputs, read, strict=True):
                shape, dtype = dims_and_dtypes[name]
                sizes |= {dim[0]: size for dim, size in zip(operand, shape, strict=True)}
                fresh = np.ones(len(options), np.bool_)
                for before in paid.setdefault(name, []):
                    fresh &= before != state
                paid[name].append(state)
                moved = self._moved_ns(shape, dtype, lies[name], state)
                total += np.where(fresh[:, None], moved, 0)
            for name, operand, state in zip(
                part.outputs, expression.outputs, made_states, strict=True
            ):
                shape = np.array([sizes[dim[0]] for dim in operand]).reshape(-1, self.rows)
                dims_and_dtypes[name] = shape, wide
                lies[name] = state
            operands = [dims_and_dtypes[name] for name in (*part.inputs, *part.outputs)]
            total += self._kernel_ns(
                op,
                part.kind,
                part.labels,
                [shape for shape, _ in operands],
                [dtype for _, dtype in operands],
                states,
            )
        return total

    def _ring_ns(
        self, op: Op, op_options: OpStrategies, axes: tuple[int, ...], options: Ints
    ) -> Ints:
        """Nanoseconds of the rounds of an op on a ring over these axes: [O, K] of these options."""
        ring, size = RINGS[op.kind], self.sizes[list(axes)].prod(axis=0)
        states = [row[options] for row in op_options.states]
        inputs = len(op.inputs)
        dims = [self.dims(name) for name in (*op.inputs, *op.outputs)]
        given = [self.tensors[name].dtype for name in op.inputs]
        made_dtypes = list(ring.dtypes([self.tensors[name].dtype for name in op.outputs]))

        def work(kind: str, labels: str, operands: list[int]) -> Ints:
            """Nanoseconds of a kernel on these operands, outputs numbered after inputs."""
            dtypes = [*given, *made_dtypes]
            durations: Ints = self._kernel_ns(
                op,
                kind,
                labels,
                [dims[operand] for operand in operands],
                [dtypes[operand] for operand in operands],
                [states[operand] for operand in operands],
            )
            return durations

        def sent(operand: int, dtype: str) -> Ints:
            local = self._local(dims[operand], states[operand])[0] * ITEMSIZE[dtype]
            hop_ns: Ints = np.round(self.boxing.collective_ns(ROTATE, axes, local)).astype(np.int64)
            return hop_ns

        input_numbers, output_numbers = list(range(inputs)), list(range(inputs, len(dims)))
        carried = [inputs + output for output in ring.carried]
        sending, adding, back = np.zeros((3, len(options), self.rows), np.int64)
        for travelling_input in ring.travelling:
            sending += sent(travelling_input, given[travelling_input])
        for output in ring.returning:
            total = inputs + output
            adding += work("add", ring.adding(op.labels, output), [total] * 3)
            back += sent(total, made_dtypes[output])
        durations: Ints = ring_ns(
            size,
            work(op.kind, op.labels, [*input_numbers, *output_numbers]),
            work(ring.later, ring.labels(op.labels), [*input_numbers, *carried, *output_numbers]),
            sending,
            adding,
            back,
        )
        return durations

    def _moved_ns(self, dims: Ints, dtype: str, sources: Ints, targets: Ints) -> Ints:
        """Nanoseconds of boxing each source to the target at the same place: [O, K]."""
        (before, source_places), (after, target_places) = map(
            self.boxing.cache.distinct, (sources, targets)
        )
        boxed = self.boxing.boxed(dims, ITEMSIZE[dtype], before, after, keeps_source=False)
        durations: Ints = boxed.duration_ns[source_places, target_places]
        return durations

    def _edge(self, number: int, edge: ReshardingEdge, alike: dict[object, Boxing]) -> EdgeCosts:
        """One edge; those that are boxed alike share their arrays."""
        tensor: Tensor = self.tensors[edge.tensor]
        maker = self.makers[edge.tensor]
        maker_key = maker.kind, tuple(self.tensors[name].dtype for name in maker.inputs[:1])
        hides = self._hides(maker, tensor)
        states = edge.sources.tobytes(), edge.targets.tobytes()
        named = edge.tensor in self.masters, edge.tensor in self.in_buckets
        copies = self.copies.get(edge.tensor, ALONE)
        key = likeness(tensor), edge.crossing, named, copies, maker_key, states, hides
        if key not in alike:
            alike[key] = self._boxing(edge, tensor)
        return EdgeCosts(
            number=number,
            producer=edge.producer,
            source_of=edge.source_of,
            uses=edge.uses,
            count=edge.count,
            figure=STEP if tensor.rate is Rate.STEP else MICROBATCH,
            template=self.space.homes[edge.uses[0].choice],
            **alike[key],
        )

    def _boxing(self, edge: ReshardingEdge, tensor: Tensor) -> Boxing:
        """Arrays of an edge's boxing: which there is, its durations and buffers, what is held."""
        sources, targets = self._ends[likeness(tensor)]
        source_places, target_places = (
            np.searchsorted(sources, edge.sources),
            np.searchsorted(targets, edge.targets),
        )
        work = self.dims(edge.tensor), ITEMSIZE[tensor.dtype], sources, targets
        step, bucketed = tensor.rate is Rate.STEP, edge.tensor in self.in_buckets
        copies = self.copies.get(edge.tensor, ALONE)
        all_boxed = self.boxing.boxed(*work, keeps_source=step, bucketed=bucketed, copies=copies)
        boxed = all_boxed.picked(source_places, target_places)
        reachable = boxed.reachable
        if edge.tensor in self.masters:  # what lies in host memory is cast as it is stored
            reachable = reachable & np.equal.outer(edge.sources, edge.targets)[:, :, None]
        if edge.crossing and not self.crossing_partial.all():
            both = np.logical_and.outer(
                is_partial(edge.sources, self.space.axes), is_partial(edge.targets, self.space.axes)
            )
            reachable = reachable & (~both[:, :, None] | self.crossing_partial)
        maker, source = self.makers[edge.tensor], self.local_bytes(edge.tensor, edge.sources)
        given = ITEMSIZE[self.tensors[maker.inputs[0]].dtype if maker.inputs else tensor.dtype]
        buffers = boxed.buffer_bytes(maker.kind, source, source // ITEMSIZE[tensor.dtype] * given)
        took = boxed.duration_ns
        if self._hides(maker, tensor):
            hidden = hidden_share(self.cluster) * np.maximum(took - SHORT_NS, 0)
            took = took - hidden.astype(np.int64)
        return {
            "reachable": reachable,
            "duration_ns": took,
            "buffer_bytes": buffers,
            "made_bytes": source,
            "held_bytes": self._held_bytes(edge, source),
        }

    def _held_bytes(self, edge: ReshardingEdge, source: Ints) -> Ints:
        """Bytes [B, K] that are held of a tensor for each target, at the least of its sources."""
        target_bytes = self.local_bytes(edge.tensor, edge.targets)
        again = gathers(edge.sources, edge.targets, self.space.axes) & self.gathers_again
        least: Ints = np.where(again[:, :, None], source[:, None], target_bytes).min(axis=0)
        return least

    def _hides(self, maker: Op, tensor: Tensor) -> bool:
        """True if boxing can run beside computation: of weights, but for the first block's."""
        weight = maker.kind == "repeat" or maker.phase is Phase.BACKWARD_WEIGHT
        first = maker.block == self.space.folded.graph.blocks[0]
        return (weight or tensor.rate is Rate.STEP) and not first
