"""Strategies: all choices there are for one kind of mesh, whatever the sizes of its axes.

A *choice* is an op, or a variable tied to its update, or an op tied to its clones; its *options*
are signatures. A *edge* is a tensor with its producer and its readers: where the SBP a reader wants
is not the one that is made, boxing is paid, once per (tensor, target SBP) whoever reads it. All of
this follows from labels and the roles of the axes, so that one space serves every mesh with as many
axes of the same roles, and every microbatch; which options divide is decided row by row in
`strategy_costs.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from millrace.models.arrays import Bools, Ints
from millrace.models.graph import ITEMSIZE, Op, Phase
from millrace.models.ops import op_kind
from millrace.planner.errors import InfeasibleError
from millrace.planner.sbp import Sbp
from millrace.planner.search.blocks.block_templates import Folded, FoldedEdge
from millrace.planner.search.blocks.sbp_codes import MAX, SUM, digit, digits, numbers
from millrace.planner.signatures import (
    Allowed,
    AxisSignature,
    Signature,
    axis_signatures,
    joined,
    variable_values,
)

# Passes are numbered: forward, gradients of inputs, gradients of weights.
PASSES = {
    Phase.FORWARD: 0,
    Phase.RECOMPUTE: 1,
    Phase.BACKWARD_INPUT: 1,
    Phase.BACKWARD_WEIGHT: 2,
}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OpStrategies:
    """Options of one op: O of them, on N axes.

    Attributes
    ----------
    base : tuple of AxisSignature
        Signatures that the op may have on one axis.
    base_indices : array [N, O]
        Which of `base` each option takes on each axis.
    states : array [operands, O]
        States of every operand, inputs first.
    primary : array [O]
        False: only where no primary option divides.
    """

    op: Op
    base: tuple[AxisSignature, ...]
    base_indices: Ints
    states: Ints
    primary: Bools

    def picked(self, options: Ints) -> "OpStrategies":
        """The op with these options only, in this order."""
        return OpStrategies(
            op=self.op,
            base=self.base,
            base_indices=self.base_indices[:, options],
            states=self.states[:, options],
            primary=self.primary[options],
        )

    def signature(self, option: int) -> Signature:
        """Signature of one option."""
        signature = joined(
            tuple(self.base[index] for index in self.base_indices[:, option]),
            len(self.op.inputs),
            len(self.op.outputs),
        )
        assert signature is not None, "enumerated, so it exists"
        return signature

    @property
    def expanded(self) -> Bools:
        """Mask of the options that are extra signatures: [O]."""
        extra = np.array([bool(axis_signature.expansion) for axis_signature in self.base])
        expanded: Bools = np.any(extra[self.base_indices], axis=0)
        return expanded

    def rings(self, options: Ints) -> dict[tuple[int, ...], list[int]]:
        """Places of these options, by the axes that make their ring."""
        options_by_axes: dict[tuple[int, ...], list[int]] = {}
        travels = np.array([bool(base.expansion) for base in self.base])[self.base_indices]
        for option in options.tolist():
            axes = tuple(np.flatnonzero(travels[:, option]).tolist())
            options_by_axes.setdefault(axes, []).append(option)
        return options_by_axes

    def same(self, other: "OpStrategies") -> bool:
        """True if these are another's options, of an op of the same name."""
        return (
            self.op.name == other.op.name
            and self.base == other.base
            and np.array_equal(self.base_indices, other.base_indices)
            and np.array_equal(self.states, other.states)
            and np.array_equal(self.primary, other.primary)
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StrategyNode:
    """Ops that choose together; option o of every op is taken at once. Occurs `count` times."""

    ops: tuple[OpStrategies, ...]
    count: int

    @property
    def size(self) -> int:
        """Number of options."""
        return int(self.ops[0].states.shape[1])

    @property
    def originals(self) -> tuple[OpStrategies, ...]:
        """Ops that are not clones."""
        return tuple(
            op_options for op_options in self.ops if op_options.op.phase != Phase.RECOMPUTE
        )

    @property
    def clones(self) -> tuple[OpStrategies, ...]:
        """Ops that recompute what another makes."""
        return tuple(
            op_options for op_options in self.ops if op_options.op.phase == Phase.RECOMPUTE
        )

    def follows(self, other: "StrategyNode") -> bool:
        """True if this choice is another, which has no clones, with clones added."""
        originals = self.originals
        return len(originals) == len(other.ops) and all(
            map(OpStrategies.same, originals, other.ops)
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class EdgeUse:
    """A choice that reads an edge: `target_of` gives the target of each of its options."""

    choice: int
    target_of: Ints  # [options]
    holds: bool  # reads in the backward pass what the forward pass made
    passes: frozenset[int] = frozenset()  # those in which it reads, as `PASSES` numbers them

    def same(self, other: "EdgeUse") -> bool:
        """True if another use boxes and holds the same, whichever passes read it."""
        choice_and_holds = self.choice, self.holds
        return choice_and_holds == (other.choice, other.holds) and np.array_equal(
            self.target_of, other.target_of
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ReshardingEdge:
    """A tensor between its producer and its readers, `count` times.

    `sources` and `targets` are states; `source_of` gives the source of each option of the producer.
    """

    tensor: str
    side: str
    producer: int
    sources: Ints
    source_of: Ints  # [options of the producer]
    targets: Ints
    uses: tuple[EdgeUse, ...]
    count: int
    crossing: bool
    producer_pass: int | None  # the pass that makes it, as `PASSES` numbers them
    outlives_pass: bool  # kept for the next: an activation, or its gradient
    lifetime: int  # of what is held: one of `millrace.planner.schedules.counting.LIFETIMES`

    @property
    def forward(self) -> bool:
        """True if the forward pass makes the tensor."""
        return self.producer_pass == 0

    @property
    def deferred(self) -> bool:
        """True if the tensor is made in the backward pass and read by gradients of weights."""
        return self.lifetime == 2


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StrategySpace:
    """All choices and edges for meshes of `axes` axes."""

    folded: Folded
    axes: int
    choices: tuple[StrategyNode, ...]
    edges: tuple[ReshardingEdge, ...]
    values: frozenset[str]

    @property
    def templates(self) -> tuple[str, ...]:
        """Templates of the model's blocks, each once, in their order."""
        graph = self.folded.graph
        return tuple(dict.fromkeys(graph.templates[block] for block in graph.blocks))

    @property
    def homes(self) -> tuple[int, ...]:
        """Place of every choice's template among `templates`."""
        places = {template: place for place, template in enumerate(self.templates)}
        templates = self.folded.graph.templates
        return tuple(places[templates[choice.ops[0].op.block]] for choice in self.choices)

    @property
    def block_counts(self) -> Ints:
        """Number of blocks of every template [T]."""
        counts = np.zeros(len(self.templates), np.int64)
        for home, choice in zip(self.homes, self.choices, strict=True):
            counts[home] = max(counts[home], choice.count)
        return counts


def build_space(
    folded: Folded,
    axes: int,
    allowed: Allowed | None = None,
    otherwise: Allowed | None = None,
) -> StrategySpace:
    """Space of the options of every op, and of the edges between them.

    Parameters
    ----------
    folded : Folded
        Graph with equal blocks taken once, in one mode of recomputation.
    axes : int
        Axes of the mesh; 0: one device.
    allowed, otherwise : callable, optional
        A filter per op and axis (pins), and the one to fall back to: its options are not primary,
        so they count only where no primary one divides. None lets every signature pass, as a
        fallback too.

    Raises
    ------
    InfeasibleError
        The filters leave an op with nothing; names it.
    """
    builder = _Builder(folded, axes, allowed, otherwise)
    tied = _tied(folded)
    for op in folded.ops:
        if op.name not in tied:
            builder.add(
                op, [tied_op for tied_op in folded.ops if tied.get(tied_op.name) == op.name]
            )
    edges = tuple(edge for folded_edge in folded.edges if (edge := builder.edge(folded_edge)))
    return StrategySpace(
        folded=folded,
        axes=axes,
        choices=tuple(builder.choices),
        edges=edges,
        values=builder.values,
    )


def _tied(folded: Folded) -> dict[str, str]:
    """Ops that choose with another: updates and casts with their variable's op, clones with theirs.

    A variable is cast as it is stored: to box what is cast moves fewer bytes, and keeps fewer.
    """
    variables = {op.outputs[0]: op.name for op in folded.ops if op.kind == "variable"}
    leader_by_op: dict[str, str] = {}
    gradients: dict[str, str] = {}
    for op in folded.ops:
        row = op_kind(op.kind)
        if row.state and not row.updates:
            variable = variables[str(op.attributes["variable"])]
            leader_by_op[op.name] = gradients[op.inputs[0]] = variable
        if op.phase == Phase.RECOMPUTE:
            leader_by_op[op.name] = op.name.removesuffix(".recompute")
        if op_kind(op.kind).updates and op.inputs[0] in variables:
            leader_by_op[op.name] = variables[op.inputs[0]]
            gradients[op.inputs[1]] = variables[op.inputs[0]]
        if op.kind == "cast" and op.inputs[0] in variables and _narrows(folded, op):
            leader_by_op[op.name] = variables[op.inputs[0]]
    for op in folded.ops:
        if op.kind == "squared_sum" and op.inputs[0] in gradients:
            leader_by_op[op.name] = gradients[op.inputs[0]]
    return leader_by_op


def _narrows(folded: Folded, op: Op) -> bool:
    """True if an op's output takes fewer bytes than its input."""
    before, after = (
        folded.graph.tensors_by_name[names[0]].dtype for names in (op.inputs, op.outputs)
    )
    return ITEMSIZE[after] < ITEMSIZE[before]


class _Builder:
    """A space while it is put together."""

    def __init__(
        self, folded: Folded, axes: int, allowed: Allowed | None, otherwise: Allowed | None
    ) -> None:
        self.folded = folded
        self.axes = axes
        self.filters = tuple(dict.fromkeys((allowed, otherwise)))
        self.tensors = folded.graph.tensors_by_name
        self.values = variable_values(folded.graph)
        self.choices: list[StrategyNode] = []
        self._phases = {name: op.phase for op in folded.graph.ops for name in op.outputs}
        self._producers: dict[str, tuple[int, Ints]] = {}  # tensor → choice, state per option
        self._read: dict[tuple[str, int], tuple[int, Ints, Op]] = {}

    def add(self, op: Op, tied: Sequence[Op]) -> None:
        """Add the choice of one op and those that follow it."""
        options = [self._options(op)]
        for other in tied:
            if other.phase == Phase.RECOMPUTE:
                first = options[0]
                options.append(
                    OpStrategies(
                        op=other,
                        base=first.base,
                        base_indices=first.base_indices,
                        states=first.states,
                        primary=first.primary,
                    )
                )
                continue
            tied_options = self._options(other)
            storage = options[0].states[-1]
            fits = np.ones((len(storage), tied_options.states.shape[1]), np.bool_)
            for operand in (0, 1) if op_kind(other.kind).updates else (0,):
                fits &= storage[:, None] == tied_options.states[operand][None, :]
            before, now = np.nonzero(fits)
            options = [
                *(op_options.picked(before) for op_options in options),
                tied_options.picked(now),
            ]
        if not options[0].states.shape[1]:
            raise InfeasibleError(
                f"op `{op.name}` ({op.labels}) has no legal signature under these pins: change "
                f"the pins"
            )
        index = len(self.choices)
        self.choices.append(StrategyNode(ops=tuple(options), count=self.folded.counts[op.name]))
        for op_options in options:
            inputs = len(op_options.op.inputs)
            for number, name in enumerate(op_options.op.outputs):
                self._producers[name] = index, op_options.states[inputs + number]
            for number in range(inputs):
                self._read[op_options.op.name, number] = (
                    index,
                    op_options.states[number],
                    op_options.op,
                )

    def _options(self, op: Op) -> OpStrategies:
        ids = [i for i, name in enumerate(op.inputs) if self.tensors[name].dtype.startswith("int")]
        if op_kind(op.kind).linear != "joint" or op.outputs[0] in self.values:
            ids += [i for i, name in enumerate(op.inputs) if name in self.values]
        base = _signatures(op.kind, op.labels, tuple(ids))
        allowed_by_filter = tuple(
            tuple(
                tuple(
                    n
                    for n, signature in enumerate(base)
                    if allowed is None or allowed(op, axis, signature)
                )
                for axis in range(self.axes)
            )
            for allowed in self.filters[: None if self.axes else 1]
        )
        taken, states, primary = _combined(op.kind, op.labels, tuple(ids), allowed_by_filter)
        return OpStrategies(op=op, base=base, base_indices=taken, states=states, primary=primary)

    def edge(self, edge: FoldedEdge) -> ReshardingEdge | None:
        """Edge of a tensor; None where nobody needs it boxed."""
        readings: list[tuple[int, Ints, bool, frozenset[int]]] = []
        weights = False
        for reader in edge.readers:
            choice, states, op = self._read[reader.op, reader.index]
            weights |= op.phase == Phase.BACKWARD_WEIGHT
            if choice == self._producers[edge.tensor][0] and (
                op.kind == "cast" or op_kind(op.kind).updates
            ):
                continue  # the variable under its own update or cast: tied, not boxed
            kept_for_backward = self._phases[edge.tensor] == Phase.FORWARD and op.phase.is_backward
            passes = frozenset({PASSES[op.phase]} if op.phase in PASSES else ())
            readings.append(
                (choice, states, kept_for_backward and edge.tensor not in self.values, passes)
            )
        if not readings:
            return None
        producer, made_states = self._producers[edge.tensor]
        made_later = self._phases[edge.tensor] in (Phase.BACKWARD_INPUT, Phase.RECOMPUTE)
        sources, makes = np.unique(made_states, return_inverse=True)
        targets = np.unique(np.concatenate([states for _, states, *_ in readings]))
        uses: list[EdgeUse] = []
        for choice, states, holds, passes in readings:
            use = EdgeUse(
                choice=choice,
                target_of=np.searchsorted(targets, states),
                holds=holds,
                passes=passes,
            )
            for index, other in enumerate(uses):
                if use.same(other):
                    uses[index] = replace(other, passes=other.passes | passes)
                    break
            else:
                uses.append(use)
        return ReshardingEdge(
            tensor=edge.tensor,
            side=edge.side,
            producer=producer,
            sources=sources,
            source_of=makes.astype(np.int64),
            targets=targets,
            uses=tuple(uses),
            count=edge.count,
            crossing=edge.crossing,
            producer_pass=PASSES.get(self._phases[edge.tensor]),
            outlives_pass=edge.tensor not in self.values,
            lifetime=(1 + made_later) if weights else 0,
        )


# Many ops are alike, and all are enumerated again for every mode of recomputation.


@lru_cache(maxsize=1024)
def _signatures(kind: str, labels: str, ids: tuple[int, ...]) -> tuple[AxisSignature, ...]:
    return axis_signatures(kind, labels, ids)


@lru_cache(maxsize=1024)
def _combined(
    kind: str,
    labels: str,
    ids: tuple[int, ...],
    allowed_by_filter: tuple[tuple[tuple[int, ...], ...], ...],
) -> tuple[Ints, Ints, Bools]:
    """Signatures that options take on each axis, their states, and the mask of primary options.

    `allowed_by_filter` gives, for each filter and axis, the signatures that it leaves. Options of
    mixed partial values are left out, and those that say the same as an option before.
    """
    base = _signatures(kind, labels, ids)
    axes = len(allowed_by_filter[0])
    grids = [
        np.array([axis_grid.ravel() for axis_grid in np.meshgrid(*lists, indexing="ij")], np.int64)
        if axes
        else np.zeros((0, 1), np.int64)
        for lists in allowed_by_filter
    ]
    taken = np.concatenate(grids, axis=1)
    primary = np.arange(taken.shape[1]) < grids[0].shape[1]
    per_base = [
        np.array([digit(sbp) for sbp in row]) for row in zip(*map(_operands, base), strict=True)
    ]
    states = np.array([numbers(list(row[taken])) for row in per_base], np.int64)
    if not axes:
        states = np.zeros((len(per_base), 1), np.int64)
    fine = np.ones(states.shape[1], np.bool_)
    for row in states:
        by_axis = digits(row, axes)
        fine &= ~((by_axis == SUM).any(axis=0) & (by_axis == MAX).any(axis=0))
    extra = np.array([bool(signature.expansion) for signature in base])
    marked = np.vstack([states, extra[taken].any(axis=0) if axes else np.zeros(1)])
    _, first = np.unique(marked, axis=1, return_index=True)
    keep = np.sort(first)
    keep = keep[fine[keep]]
    return taken[:, keep], states[:, keep], primary[keep]


def _operands(signature: AxisSignature) -> tuple[Sbp, ...]:
    return (*signature.inputs, *signature.outputs)
