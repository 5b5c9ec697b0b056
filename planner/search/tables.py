"""Tables: every choice that the block program has, and what each costs, as arrays.

A *choice* is an op, or a variable tied to its update, with one row of figures per option. A *net*
is a tensor with its producer and its readers: where the SBP a reader wants is not the one that is
made, boxing is paid, once per (tensor, target SBP) whoever reads it. Figures have five columns
(`FIGURES`): time per microbatch, time per step, bytes that stay, bytes per microbatch in flight,
and apart from the first the time per microbatch of weight gradients, which schedules may defer.
What each is worth is decided later, by a price each.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.graph import Op, Phase, Rate, Tensor
from models.ops import state_of
from planner.errors import InfeasibleError
from planner.memory import UPDATES, boxing_places
from planner.sbp import NdSbp
from planner.search.durations import Durations
from planner.search.folding import Folded, FoldedNet
from planner.signatures import Allowed, Signature, op_signatures, variable_values

FIGURES = ("microbatch_ns", "step_ns", "persistent_bytes", "inflight_bytes", "deferrable_ns")
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Choice:
    """Ops that choose together: per option one signature of each op, and one row of figures.

    Without ops it stands for what lies outside: a tensor that comes in (options are outputs), or
    is wanted outside (options are inputs). `count` says how often the ops occur.
    """

    ops: tuple[Op, ...]
    options: tuple[tuple[Signature, ...], ...]
    figures: Ints  # [options, FIGURES], of one occurrence
    count: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Use:
    """A choice that reads a net: `wants` gives the target that each of its options takes."""

    choice: int
    wants: Ints  # [options]
    holds: bool  # reads in the backward pass what the forward pass made


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Net:
    """A tensor between its producer and its readers, `count` times."""

    tensor: str
    side: str
    producer: int
    sources: tuple[NdSbp, ...]
    makes: Ints  # [options of the producer]: which source
    targets: tuple[NdSbp, ...]
    uses: tuple[Use, ...]
    reachable: NDArray[np.bool_]  # [sources, targets]
    figures: Ints  # [sources, targets, FIGURES]: boxing, once
    held: Ints  # [targets, FIGURES]: kept from the forward to the backward pass, once
    count: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Tables:
    """All choices and nets of one block program on one mesh."""

    axis_sizes: tuple[int, ...]
    choices: tuple[Choice, ...]
    nets: tuple[Net, ...]


def evaluate(tables: Tables, options: tuple[int, ...]) -> Ints:
    """Sum up the figures of a choice of options: each boxing and each kept tensor once."""
    total = np.zeros(len(FIGURES), np.int64)
    for choice, option in zip(tables.choices, options, strict=True):
        total += choice.count * choice.figures[option]
    for net in tables.nets:
        total += net.count * net_figures(net, options)
    return total


def net_figures(net: Net, options: tuple[int, ...]) -> Ints:
    """Figures of one occurrence of a net under a choice of options."""
    source = net.makes[options[net.producer]]
    wanted = {int(use.wants[options[use.choice]]) for use in net.uses}
    kept = {int(use.wants[options[use.choice]]) for use in net.uses if use.holds}
    total = np.zeros(len(FIGURES), np.int64)
    for target in sorted(wanted):
        total += net.figures[source, target]
    for target in sorted(kept):
        total += net.held[target]
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What restricts the signatures.

    Attributes
    ----------
    allowed, otherwise : callable or None
        A filter per op and axis (pins), and the one for ops that it leaves with nothing.
    whole : mapping
        Labels per op kind that may not be split.
    crossing_partial : bool
        Whether a tensor may be partial both where one block makes it and where another reads it
        (partial values do not cross stages).
    made, wanted : mappings
        Known SBPs of tensors that come from outside, and those in which outside wants tensors.
    """

    allowed: Allowed | None = None
    otherwise: Allowed | None = None
    whole: Mapping[str, frozenset[str]] | None = None
    crossing_partial: bool = True
    made: Mapping[str, NdSbp] | None = None
    wanted: Mapping[str, tuple[NdSbp, ...]] | None = None


class TableBuilder:
    """Enumerates the legal options of every op and costs them; then the nets between them.

    Parameters
    ----------
    folded : Folded
    durations : Durations
        Of the mesh and cluster to plan for.
    rules : Rules, optional

    Attributes
    ----------
    choices : list of Choice
        Known at once: enough for a bound that leaves boxing out.

    Raises
    ------
    InfeasibleError
        An op has no legal signature; names it.
    """

    def __init__(self, folded: Folded, durations: Durations, rules: Rules | None = None) -> None:
        self.folded = folded
        self.durations = durations
        self.rules = rules or Rules()
        self.tensors = folded.graph.tensors_by_name
        self.choices: list[Choice] = []
        self._values = variable_values(folded.graph)
        self._phases = {name: op.phase for op in folded.graph.ops for name in op.outputs}
        self._made: dict[str, tuple[int, list[NdSbp]]] = {}  # tensor → choice, sbp per option
        self._read: dict[tuple[str, int], tuple[int, list[NdSbp]]] = {}  # likewise per reading
        self._priced: dict[object, tuple[NDArray[np.bool_], Ints]] = {}
        tied = self._tied()
        for op in folded.ops:
            if op.name not in tied:
                self._add((op, *(one for one in folded.ops if tied.get(one.name) == op.name)))

    def tables(self) -> Tables:
        """Return the choices with all nets between them, boxing costed."""
        nets = tuple(net for one in self.folded.nets if (net := self._net(one)))
        return Tables(axis_sizes=self.durations.axis_sizes, choices=tuple(self.choices), nets=nets)

    def _tied(self) -> dict[str, str]:
        """Update and squared sum of each variable, by the variable's op: they share its storage."""
        variables = {op.outputs[0]: op.name for op in self.folded.ops if op.kind == "variable"}
        found: dict[str, str] = {}
        gradients: dict[str, str] = {}
        for op in self.folded.ops:
            if op.kind in UPDATES and op.inputs[0] in variables:
                found[op.name] = variables[op.inputs[0]]
                gradients[op.inputs[1]] = variables[op.inputs[0]]
        for op in self.folded.ops:
            if op.kind == "squared_sum" and op.inputs[0] in gradients:
                found[op.name] = gradients[op.inputs[0]]
        return found

    def _signatures(self, op: Op) -> tuple[Signature, ...]:
        sizes = self.durations.axis_sizes
        for allowed in dict.fromkeys((self.rules.allowed, self.rules.otherwise)):
            found = op_signatures(
                op,
                self.tensors,
                sizes,
                values=self._values,
                whole=self.rules.whole,
                allowed=allowed,
            )
            if found:
                return found
        shapes = [self.tensors[name].shape for name in (*op.inputs, *op.outputs)]
        raise InfeasibleError(
            f"op `{op.name}` ({op.labels}, shapes {shapes}) has no legal signature on a mesh of "
            f"{sizes}: no label that it may split divides; change the degrees, the micro batch or "
            f"the pins"
        )

    def _add(self, ops: tuple[Op, ...]) -> None:
        """Add the choice of one op, or of a variable with its update and squared sum."""
        options: list[tuple[Signature, ...]] = [(one,) for one in self._signatures(ops[0])]
        for op in ops[1:]:
            mine = self._signatures(op)
            gradient = 0 if op.kind == "squared_sum" else 1
            options = [
                (*option, one)
                for option in options
                for one in mine
                if one.inputs[gradient] == option[0].outputs[0]
                and (op.kind == "squared_sum" or one.inputs[0] == option[0].outputs[0])
            ]
        figures = np.array([self._figures(ops, option) for option in options], np.int64)
        index = len(self.choices)
        self.choices.append(
            Choice(
                ops=ops,
                options=tuple(options),
                figures=figures,
                count=self.folded.counts[ops[0].name],
            )
        )
        for at, op in enumerate(ops):
            for number, name in enumerate(op.outputs):
                self._made[name] = index, [option[at].outputs[number] for option in options]
            for number in range(len(op.inputs)):
                self._read[op.name, number] = (
                    index,
                    [option[at].inputs[number] for option in options],
                )

    def _figures(self, ops: tuple[Op, ...], option: tuple[Signature, ...]) -> list[int]:
        row = [0] * len(FIGURES)
        for op, one in zip(ops, option, strict=True):
            duration = self.durations.op_ns(op, self.tensors, one)
            out = self.tensors[op.outputs[0]]
            often = out.rate is Rate.MICROBATCH or op.kind == "accumulate"
            later = op.phase is Phase.BACKWARD_WEIGHT
            row[(4 if later else 0) if often else 1] += duration
            local = self.durations.local_bytes(out, one.outputs[0])
            if op.kind in UPDATES:
                row[2] += local * len(state_of(op.kind, op.attributes))
            elif out.rate is Rate.STEP and op.kind != "squared_sum":
                row[2] += local
        return row

    def _net(self, net: FoldedNet) -> Net | None:
        wanted = {} if self.rules.wanted is None else self.rules.wanted
        uses: list[tuple[int, list[NdSbp], bool]] = []
        backward = {Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT}
        for reader in net.readers:
            choice, sbps = self._read[reader.op, reader.index]
            op = next(o for o in self.choices[choice].ops if o.name == reader.op)
            if len(self.choices[choice].ops) > 1 and reader.index == 0 and op.kind in UPDATES:
                continue  # the variable under its own update: tied, not boxed
            holds = self._phases[net.tensor] is Phase.FORWARD and op.phase in backward
            use = choice, sbps, holds and net.tensor not in self._values
            if use not in uses:
                uses.append(use)
        for sbp in wanted.get(net.tensor, ()):
            uses.append((self._outside(reads=(sbp,)), [sbp], False))
        return self._finished_net(net, uses) if uses else None

    def _outside(self, *, reads: tuple[NdSbp, ...] = (), makes: tuple[NdSbp, ...] = ()) -> int:
        options = [Signature(inputs=(sbp,), outputs=(), labels=()) for sbp in reads]
        options += [Signature(inputs=(), outputs=(sbp,), labels=()) for sbp in makes]
        self.choices.append(
            Choice(
                ops=(),
                options=tuple((one,) for one in options),
                figures=np.zeros((len(options), len(FIGURES)), np.int64),
                count=1,
            )
        )
        return len(self.choices) - 1

    def _finished_net(self, net: FoldedNet, uses: list[tuple[int, list[NdSbp], bool]]) -> Net:
        targets = tuple(dict.fromkeys(sbp for _, sbps, _ in uses for sbp in sbps))
        if net.tensor in self._made:
            producer, outputs = self._made[net.tensor]
        else:
            known = (self.rules.made or {}).get(net.tensor)
            outputs = [known] if known else list(targets)
            producer = self._outside(makes=tuple(outputs))
            self._made[net.tensor] = producer, outputs
        sources = tuple(dict.fromkeys(outputs))
        at = {sbp: index for index, sbp in enumerate(targets)}
        kept = frozenset(at[sbp] for _, sbps, holds in uses if holds for sbp in sbps)
        reachable, figures = self._boxing(self.tensors[net.tensor], sources, targets, kept)
        if net.crossing and not self.rules.crossing_partial:
            partial = [
                np.array([any(s.is_partial for s in x) for x in y]) for y in (sources, targets)
            ]
            reachable = reachable & ~np.logical_and.outer(*partial)
        held = np.zeros((len(targets), len(FIGURES)), np.int64)
        for index, sbp in enumerate(targets):
            held[index, 3] = self.durations.local_bytes(self.tensors[net.tensor], sbp)
        where = {sbp: index for index, sbp in enumerate(sources)}
        return Net(
            tensor=net.tensor,
            side=net.side,
            producer=producer,
            sources=sources,
            makes=np.array([where[sbp] for sbp in outputs], np.int64),
            targets=targets,
            uses=tuple(
                Use(choice=c, wants=np.array([at[sbp] for sbp in sbps], np.int64), holds=holds)
                for c, sbps, holds in uses
            ),
            reachable=reachable,
            figures=figures,
            held=held,
            count=net.count,
        )

    def _boxing(
        self,
        tensor: Tensor,
        sources: tuple[NdSbp, ...],
        targets: tuple[NdSbp, ...],
        kept: frozenset[int],
    ) -> tuple[NDArray[np.bool_], Ints]:
        """Figures of every boxing; targets in `kept` have their bytes counted as held already.

        What a collective reads and writes has a place of its own while the step lasts.
        """
        key = (tensor.shape, tensor.dtype, tensor.rate, sources, targets, kept)
        if key in self._priced:
            return self._priced[key]
        reachable = np.zeros((len(sources), len(targets)), np.bool_)
        figures = np.zeros((len(sources), len(targets), len(FIGURES)), np.int64)
        step = tensor.rate is Rate.STEP
        for i, source in enumerate(sources):
            for j, target in enumerate(targets):
                path = self.durations.path(source, target, tensor.shape)
                if path is None:
                    continue
                reachable[i, j] = True
                if not path:
                    continue
                duration = self.durations.boxing_ns(source, target, tensor.shape, tensor.dtype)
                figures[i, j, 1 if step else 0] = duration
                places = boxing_places(path, keeps_source=step, keeps_target=j in kept)
                figures[i, j, 2] = sum(self.durations.local_bytes(tensor, s) for s in places)
        self._priced[key] = reachable, figures
        return reachable, figures


def _partial(states: tuple[NdSbp, ...]) -> NDArray[np.bool_]:
    return np.array([any(one.is_partial for one in state) for state in states], np.bool_)


def compact(tables: Tables, keep: list[Ints]) -> Tables:
    """The same tables with only some options of each choice, and only the states they reach."""
    choices = tuple(
        Choice(
            ops=choice.ops,
            options=tuple(choice.options[i] for i in kept),
            figures=choice.figures[kept],
            count=choice.count,
        )
        for choice, kept in zip(tables.choices, keep, strict=True)
    )
    nets = []
    for net in tables.nets:
        rows, makes = np.unique(net.makes[keep[net.producer]], return_inverse=True)
        wants = [use.wants[keep[use.choice]] for use in net.uses]
        columns = np.unique(np.concatenate(wants))
        nets.append(
            Net(
                tensor=net.tensor,
                side=net.side,
                producer=net.producer,
                sources=tuple(net.sources[a] for a in rows),
                makes=makes.astype(np.int64),
                targets=tuple(net.targets[b] for b in columns),
                uses=tuple(
                    Use(choice=use.choice, wants=np.searchsorted(columns, want), holds=use.holds)
                    for use, want in zip(net.uses, wants, strict=True)
                ),
                reachable=net.reachable[np.ix_(rows, columns)],
                figures=net.figures[np.ix_(rows, columns)],
                held=net.held[columns],
                count=net.count,
            )
        )
    return Tables(axis_sizes=tables.axis_sizes, choices=choices, nets=tuple(nets))


def reachable_options(tables: Tables) -> list[Ints]:
    """Options that some options of every neighbour can be boxed to or from."""
    keep = [np.ones(len(choice.options), np.bool_) for choice in tables.choices]
    changed = True
    while changed:
        changed = False
        for net in tables.nets:
            for use in net.uses:
                made, wanted = keep[net.producer], keep[use.choice]
                if use.choice == net.producer:  # what an option makes is what it reads
                    own = net.reachable[net.makes, use.wants]
                    changed |= bool((made & ~own).any())
                    made &= own
                    continue
                sources = np.isin(np.arange(len(net.sources)), net.makes[made])
                targets = np.isin(np.arange(len(net.targets)), use.wants[wanted])
                from_here = np.any(net.reachable & targets, axis=1)[net.makes]
                to_here = np.any(net.reachable & sources[:, None], axis=0)[use.wants]
                for mask, good in ((made, from_here), (wanted, to_here)):
                    if (mask & ~good).any():
                        mask &= good
                        changed = True
    return [np.flatnonzero(mask) for mask in keep]
