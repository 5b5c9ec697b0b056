"""Enumerated blocks: every variant of a block that no other beats in all figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from millrace.models.arrays import Bools, Floats, Ints
from millrace.models.graph import ITEMSIZE, Graph, Op, Phase, Rate
from millrace.models.ops import op_kind
from millrace.models.recompute import layers_of, with_recompute
from millrace.planner.boxing import boxing_path
from millrace.planner.costs.bucket_sizes import state_tensors
from millrace.planner.errors import InfeasibleError
from millrace.planner.sbp import NdSbp, local_size
from millrace.planner.search.blocks.block_templates import Folded, FoldedEdge, TensorReader, fold
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.pins import AxisRules, filters, forced_ops
from millrace.planner.search.request import SearchRequest
from millrace.planner.signatures import Signature, variable_values
from tests.planner.op_signatures import op_signatures
from tests.planner.search.plain import PlainPrices, sized

MICROBATCH, STEP, PERSISTENT, INFLIGHT, DEFERRABLE = range(5)
WEIGHT, BETWEEN = 5, 6  # what deferred gradients of weights wait with: from forward, from backward
FIGURES = 7

Value = object  # what an option means to a factor
Weigh = Callable[[tuple[Value, ...]], Ints | None]


@dataclass
class CostFactor:
    """Joint cost of options of several variables: a vector, or None where it cannot be."""

    members: list[tuple[int, list[Value]]]  # variable, and the value of each of its options
    weigh: Weigh


@dataclass
class EnumeratedVariable:
    """Options with their own vectors; `key` names what stays visible outside the block."""

    vectors: Ints  # [options, V]
    key: str = ""
    values: list[Value] = field(default_factory=list)


@dataclass
class Variants:
    """Variants of one template that no other beats, by what they hand over."""

    by_handover: dict[tuple[tuple[str, Value], ...], Ints]  # rows [V, 6]
    names: tuple[str, ...]


def undominated(groups: Ints, values: Ints) -> Ints:
    """Rows that no other of their group is no worse than in every column; of equal ones the first.

    `groups` [R] are numbers, `values` [R, columns] are better the less they are.
    """
    order = np.lexsort((values.sum(axis=1, dtype=np.float64), groups))
    left = order
    kept_rows: list[Ints] = []
    while len(left):
        left_groups = groups[left]
        first = np.flatnonzero(np.diff(left_groups, prepend=-1))
        kept_rows.append(left[first])
        of = np.cumsum(np.diff(left_groups, prepend=-1) != 0) - 1
        leaders = values[left[first]][of]
        worse = np.all(values[left] >= leaders, axis=1)
        left = left[~worse]
    return np.sort(np.concatenate(kept_rows)) if kept_rows else np.zeros(0, np.int64)


def numbered(columns: Sequence[Ints], rows: int) -> Ints:
    """A number per distinct row of these columns."""
    if not columns:
        return np.zeros(rows, np.int64)
    total = np.zeros(rows, np.int64)
    for column in columns:
        total = total * (int(column.max(initial=0)) + 1) + column
        _, total = np.unique(total, return_inverse=True)
    return total


class EnumeratedBlock:
    """All variants of the blocks of one template, on one mesh and microbatch, in one mode."""

    def __init__(self, blocks: "EnumeratedBlocks", template: str) -> None:
        self.blocks = blocks
        graph = blocks.graph
        self.ops = [op for op in blocks.folded.ops if graph.templates[op.block] == template]
        self.count = blocks.folded.counts[self.ops[0].name]
        self.place = {op.name: position for position, op in enumerate(self.ops)}
        self.width = FIGURES + len(self.ops)
        self.variables: list[EnumeratedVariable] = []
        self.factors: list[CostFactor] = []
        self.home: dict[str, tuple[int, list[Signature]]] = {}  # op → variable, signatures
        self.handed: dict[str, int] = {}  # crossing tensor → variable
        edges = [edge for edge in blocks.edges if self._reads(edge)]
        for name in blocks.handed:
            if any(edge.tensor == name for edge in edges) and name not in self._outputs():
                self._add_handed(name)
        for op in self.ops:
            if op.name not in blocks.tied:
                self._add_choice(op)
        for edge in edges:
            self._add_edge(edge)
        if blocks.limited:
            for op in self.ops:
                for name in op.outputs:
                    if blocks.tensors[name].rate is Rate.MICROBATCH:
                        self._add_life(op, name)

    def _outputs(self) -> set[str]:
        return {name for op in self.ops for name in op.outputs}

    def _reads(self, edge: FoldedEdge) -> bool:
        here = {reader.op in self.place for reader in edge.readers}
        assert len(here) == 1, f"{edge.tensor} is read by blocks of two templates"
        return here == {True}

    def _add_handed(self, name: str) -> None:
        values: list[Value] = list(self.blocks.handed[name])
        self.handed[name] = len(self.variables)
        vectors = np.zeros((len(values), self.width), np.int64)
        self.variables.append(EnumeratedVariable(vectors=vectors, key=name, values=values))

    def _add_choice(self, op: Op) -> None:
        blocks = self.blocks
        tied, options = blocks.options(op)
        vectors = np.zeros((len(options), self.width), np.int64)
        for option_number, option in enumerate(options):
            for tied_op, signature in zip(tied, option, strict=True):
                op_figures = blocks.plain.figures(tied_op, signature, blocks.tensors)
                vectors[option_number, : len(op_figures)] += self.count * np.array(op_figures)
        index = len(self.variables)
        self.variables.append(EnumeratedVariable(vectors=vectors))
        for number, tied_op in enumerate(tied):
            self.home[tied_op.name] = index, [option[number] for option in options]
            for name in tied_op.outputs:
                if name in blocks.handed:
                    self._add_handed(name)
                    made_member = self._producer(tied_op, name)
                    self.factors.append(
                        CostFactor(
                            members=[made_member, (self.handed[name], list(blocks.handed[name]))],
                            weigh=lambda v: (
                                np.zeros(self.width, np.int64) if v[0] == v[1] else None
                            ),
                        )
                    )

    def _producer(self, op: Op, name: str) -> tuple[int, list[Value]]:
        index, signatures = self.home[op.name]
        return index, [signature.outputs[op.outputs.index(name)] for signature in signatures]

    def _read(self, reader: TensorReader) -> tuple[int, list[Value]]:
        index, signatures = self.home[reader.op]
        return index, [signature.inputs[reader.index] for signature in signatures]

    def _add_edge(self, edge: FoldedEdge) -> None:
        """Boxing, once per target, and what is kept for the backward pass, likewise."""
        blocks = self.blocks
        readers = [reader for reader in edge.readers if not blocks.updated_in_place(reader)]
        if not readers:
            return
        tensor, maker = blocks.tensors[edge.tensor], blocks.makers[edge.tensor]
        if edge.tensor in self.handed:
            made_member = self.handed[edge.tensor], list(blocks.handed[edge.tensor])
        else:
            made_member = self._producer(maker, edge.tensor)
        passes = [blocks.pass_of(blocks.ops[reader.op].phase) for reader in readers]
        first = None if edge.tensor in blocks.values else blocks.pass_of(maker.phase)
        step, bucketed = tensor.rate is Rate.STEP, edge.tensor in blocks.in_buckets

        def weigh(values: tuple[Value, ...]) -> Ints | None:
            source, *targets = values
            figures = np.zeros(self.width, np.int64)
            for target in dict.fromkeys(targets):
                if edge.crossing and blocks.chunked and partial(source) and partial(target):
                    return None
                try:
                    time = blocks.plain.boxing_ns(
                        source, target, tensor.shape, tensor.dtype, bucketed  # type: ignore[arg-type]
                    )  # fmt: skip
                except InfeasibleError:
                    return None
                figures[STEP if step else MICROBATCH] += time
                figures[PERSISTENT] += blocks.plain.buffer_bytes(
                    source, target, maker, edge.tensor, blocks.tensors  # type: ignore[arg-type]
                )  # fmt: skip
            read = [(t, p) for t, p in zip(targets, passes, strict=True) if p is not None]
            spans = {t: [p for other, p in read if other == t] for t, _ in read}
            # What was made is there until it is boxed, or read as it is, for the last time.
            left = [max(p) if t == source else min(p) for t, p in spans.items()]
            lives = [(t, min(p), max(p)) for t, p in spans.items() if t != source]
            if first is not None:
                for t, made_in, last in [*lives, (source, first, max([first, *left]))]:
                    if made_in < last:
                        column = {(0, 1): INFLIGHT, (0, 2): WEIGHT, (1, 2): BETWEEN}[made_in, last]
                        figures[column] += blocks.plain.local_bytes(tensor, t)  # type: ignore[arg-type]
            return edge.count * figures

        self.factors.append(
            CostFactor(members=[made_member, *map(self._read, readers)], weigh=weigh)
        )

    def _add_life(self, maker: Op, name: str) -> None:
        """Bytes of a tensor, and of what boxing makes of it, at every op of the block."""
        blocks, tensor = self.blocks, self.blocks.tensors[name]
        readers = [
            (position, TensorReader(op=op.name, index=index))
            for position, op in enumerate(self.ops)
            for index, read in enumerate(op.inputs)
            if read == name
        ]
        later = [op.phase.is_backward for op in self.ops]
        at_maker = self.place[maker.name]
        home, repeats = later[at_maker], maker.kind == "repeat"
        inside = all(later[position] == home for position, _ in readers)
        sizes = blocks.plain.sizes

        def weigh(values: tuple[Value, ...]) -> Ints | None:
            source, *targets = values
            figures = np.zeros(self.width, np.int64)

            def lives(sbp: NdSbp, first: int, last: int) -> None:
                size = local_size(tensor.shape, sbp, sizes) * ITEMSIZE[tensor.dtype]
                figures[FIGURES + first : FIGURES + last + 1] += size

            if not repeats and inside:
                lives(
                    source, at_maker, max((position for position, _ in readers), default=at_maker)
                )  # type: ignore[arg-type]
            for section in (False, True):
                wants = list(zip(readers, targets, strict=True))
                others = {t for (position, _), t in wants if later[position] != section}
                ends: dict[NdSbp, int] = {}
                for (position, _), target in wants:
                    if later[position] != section or (target in others and not repeats):
                        continue
                    try:
                        path = boxing_path(source, target, sizes, tensor.shape)  # type: ignore[arg-type]
                    except InfeasibleError:
                        return None
                    for step in path:
                        ends[step.after] = max(position, ends.get(step.after, 0))
                section_ops = [
                    position for position, is_later in enumerate(later) if is_later == section
                ]
                for place, end in ends.items():
                    early = repeats or section != home
                    lives(place, section_ops[0] if early else at_maker, end)
                    if early:  # boxed a block early, besides
                        for position in section_ops:
                            lives(place, position, position)
            return figures

        members = [self._producer(maker, name), *(self._read(reader) for _, reader in readers)]
        self.factors.append(CostFactor(members=members, weigh=weigh))

    # -- going through -----------------------------------------------------------------------

    def least(self, weight: Ints, after: int = -1) -> int:
        """Least cost of the variables after one."""
        return sum(
            int((variable.vectors @ weight).min()) for variable in self.variables[after + 1 :]
        )

    def variants(self, weights: Ints, room: "PlanLimits") -> Variants:
        """Rows of variants that none beats in `weights` [columns, V] of their vectors."""
        columns: dict[tuple[int, int], Ints] = {}
        lasting: dict[str, Ints] = {}
        rows = np.zeros((1, self.width), np.int64)
        for index, variable in enumerate(self.variables):
            options = len(variable.vectors)
            before = np.repeat(np.arange(len(rows)), options)
            option = np.tile(np.arange(options), len(rows))
            rows = rows[before] + variable.vectors[option]
            columns = {key: column[before] for key, column in columns.items()}
            lasting = {key: column[before] for key, column in lasting.items()}
            if variable.key:
                lasting[variable.key] = option
            for number, factor in enumerate(self.factors):
                for member, (of, values) in enumerate(factor.members):
                    if of == index:
                        distinct = list(dict.fromkeys(values))
                        meaning = np.array([distinct.index(value) for value in values])
                        columns[number, member] = meaning[option]
            for number, factor in enumerate(self.factors):
                if max(of for of, _ in factor.members) == index:
                    rows, columns, lasting = self._closed(number, rows, columns, lasting)
            for keep in (room.left(self, index, rows), None):
                if keep is None:
                    groups = numbered([*columns.values(), *lasting.values()], len(rows))
                    keep = undominated(groups, rows @ weights.T)
                rows = rows[keep]
                columns = {key: column[keep] for key, column in columns.items()}
                lasting = {key: column[keep] for key, column in lasting.items()}
        return self._read_off(rows, lasting)

    def _closed(
        self,
        number: int,
        rows: Ints,
        columns: dict[tuple[int, int], Ints],
        lasting: dict[str, Ints],
    ) -> tuple[Ints, dict[tuple[int, int], Ints], dict[str, Ints]]:
        """Add what a factor costs, all of whose members are chosen."""
        factor = self.factors[number]
        member_columns = [columns.pop((number, member)) for member in range(len(factor.members))]
        meanings = [list(dict.fromkeys(values)) for _, values in factor.members]
        places = numbered(member_columns, len(rows))
        _, first = np.unique(places, return_index=True)
        table = np.zeros((len(first), self.width), np.int64)
        legal = np.ones(len(first), np.bool_)
        for combination, row in enumerate(first.tolist()):
            values = tuple(m[int(c[row])] for m, c in zip(meanings, member_columns, strict=True))
            cost = factor.weigh(values)
            if cost is None:
                legal[combination] = False
            else:
                table[combination] = cost
        fine = legal[places]
        rows = (rows + table[places])[fine]
        return (
            rows,
            {key: column[fine] for key, column in columns.items()},
            {key: column[fine] for key, column in lasting.items()},
        )

    def _read_off(self, rows: Ints, lasting: dict[str, Ints]) -> Variants:
        rows_of: dict[tuple[tuple[str, Value], ...], list[Ints]] = {}
        names = tuple(sorted(lasting))
        values = {v.key: v.values for v in self.variables if v.key}
        # Figures of one block are whole: the sum over all blocks, divided and rounded up.
        each = -(-rows[:, :FIGURES] // self.count)
        section = rows[:, FIGURES:].max(axis=1, initial=0)
        for row in range(len(rows)):
            key = tuple((name, values[name][int(lasting[name][row])]) for name in names)
            rows_of.setdefault(key, []).append(np.append(each[row], section[row]))
        return Variants(
            {key: np.array(variant_rows) for key, variant_rows in rows_of.items()}, names
        )


@dataclass
class PlanLimits:
    """Most that a plan may cost and take: partial variants that are beyond it are dropped.

    `time` weighs the vectors of all blocks of a template, `size` (None: no limit) those of `share`
    of them; `others` and `others_bytes` are what all other templates add at least.
    """

    time: Floats
    others: float
    cutoff: float
    size: Ints | None
    others_bytes: int
    limit_bytes: int
    is_one_stage: bool

    def left(self, block: EnumeratedBlock, index: int, rows: Ints) -> Bools:
        """Rows that are within it, whatever variables after `index` do."""
        rest = sum(
            float((variable.vectors @ self.time).min()) for variable in block.variables[index + 1 :]
        )
        keep: Bools = rows @ self.time + rest + self.others <= self.cutoff
        if self.size is not None:
            taken = rows @ self.size + block.least(self.size, index)
            taken = taken + self.others_bytes if self.is_one_stage else taken // block.count
            keep &= taken + rows[:, FIGURES:].max(axis=1, initial=0) <= self.limit_bytes
        return keep


def partial(sbp: Value) -> bool:
    """True if a tensor is partial on any axis."""
    return any(axis_sbp.is_partial for axis_sbp in sbp)  # type: ignore[attr-defined]


class EnumeratedBlocks:
    """Choices of every template's blocks on one mesh and microbatch, in one mode."""

    def __init__(
        self, request: SearchRequest, graph: Graph, mode: str, candidate: Candidate, limited: bool
    ) -> None:
        self.limited = limited
        self.chunked = candidate.pipeline.positions > 1
        self.defers = candidate.pipeline.defers_weight_gradients
        plain_folded = fold(graph)
        forced = forced_ops(graph, plain_folded.counts)
        blocks = graph.blocks if request.pins.recompute is None else layers_of(graph)
        self.graph = with_recompute(graph, dict.fromkeys(blocks, mode))
        self.folded: Folded = fold(self.graph)
        self.in_buckets = state_tensors(self.graph)
        self.edges = [edge for edge in self.folded.edges if edge.readers]
        self.tensors = sized(self.graph, candidate.batch)
        self.ops = {op.name: op for op in self.folded.ops}
        self.makers = {name: op for op in self.folded.ops for name in op.outputs}
        self.values = variable_values(self.graph)
        self.plain = PlainPrices(request.cluster, candidate.sizes)
        rules = AxisRules(
            axes=candidate.axes,
            pins=request.pins,
            forced=forced,
            required=request.required,
            widened=request.model.precision != "fp32",
        )
        self.filters = filters(rules)
        self.tied = self._tied()
        self._options: dict[str, tuple[list[Op], list[tuple[Signature, ...]]]] = {}
        self.handed: dict[str, list[NdSbp]] = {}
        for edge in self.edges:
            if edge.crossing:
                maker = self.makers[edge.tensor]
                output = maker.outputs.index(edge.tensor)
                tied, options = self.options(self.ops[self.tied.get(maker.name, maker.name)])
                number = tied.index(maker)
                states = {option[number].outputs[output] for option in options}
                self.handed[edge.tensor] = sorted(states, key=str)

    def _tied(self) -> dict[str, str]:
        """Op that each tied op chooses with: a clone's op, the variable of an update or norm."""
        chooser_of: dict[str, str] = {}
        variables = {op.outputs[0]: op.name for op in self.folded.ops if op.kind == "variable"}
        updates = [op for op in self.folded.ops if op_kind(op.kind).updates]
        for op in self.folded.ops:
            if op.phase == Phase.RECOMPUTE:
                chooser_of[op.name] = op.name.removesuffix(".recompute")
            for update in updates:
                if op is update or (op.kind == "squared_sum" and op.inputs[0] == update.inputs[1]):
                    chooser_of[op.name] = variables[update.inputs[0]]
        return chooser_of

    def _signatures(self, op: Op) -> list[tuple[Signature, bool]]:
        signatures: dict[object, tuple[Signature, bool]] = {}
        for number, allowed in enumerate(self.filters):
            for signature in op_signatures(
                op, self.tensors, self.plain.sizes, values=self.values, allowed=allowed
            ):
                signatures.setdefault(
                    (signature.inputs, signature.outputs, signature.expansion),
                    (signature, number == 0),
                )
        return list(signatures.values())

    def options(self, op: Op) -> tuple[list[Op], list[tuple[Signature, ...]]]:
        """An op with those that choose with it, and what they may do together."""
        if op.name not in self._options:
            others = [other for other in self.folded.ops if self.tied.get(other.name) == op.name]
            choices: list[tuple[tuple[Signature, ...], bool]] = []
            for first, primary in self._signatures(op):
                ways = [
                    [first]
                    if other.phase == Phase.RECOMPUTE
                    else [
                        signature
                        for signature, _ in self._signatures(other)
                        if agrees(other, signature, first)
                    ]
                    for other in others
                ]
                choices += [((first, *rest), primary) for rest in product(*ways)]
            if any(primary for _, primary in choices):
                choices = [choice for choice in choices if choice[1]]
            self._options[op.name] = ([op, *others], [option for option, _ in choices])
        return self._options[op.name]

    def pass_of(self, phase: Phase) -> int | None:
        """Number of a pass: forward, input gradients, deferred weight gradients; else None."""
        if phase == Phase.FORWARD:
            return 0
        return 1 + (self.defers and phase == Phase.BACKWARD_WEIGHT) if phase.is_backward else None

    def updated_in_place(self, reader: TensorReader) -> bool:
        """True for the variable under its own update: nothing is boxed."""
        op = self.ops[reader.op]
        return op_kind(op.kind).updates and reader.index == 0 and op.name in self.tied


def agrees(op: Op, signature: Signature, variable: Signature) -> bool:
    """True if an update, or the norm of a gradient, finds things as the variable is stored."""
    storage = variable.outputs[0]
    wanted = signature.inputs[:1] if op.kind == "squared_sum" else signature.inputs[:2]
    return all(operand == storage for operand in wanted)
