"""Parallel degrees: the roles of a plan's axes (dp, tp, cp, ZeRO), read off its signatures.

Nothing is declared: an axis counts as dp where the products inside the repeated blocks split the
batch label, as cp where they split the sequence, as tp where they split any other. Where ops
disagree a role is None, and all the values that it takes are listed. Experts share axes with the
other products: ep is the product of the axes over which the expert label is split, etp (expert
tensor parallelism) of those over which products of experts split another label of their weights.
"""

from collections.abc import Iterator
from math import prod

from millrace.models.graph import Graph, Op
from millrace.models.labels import BATCH, EXPERT, SEQUENCE, parse
from millrace.models.model_counts import NORMS
from millrace.models.ops import op_kind
from millrace.models.ops.recurrence_ops import RECURRENCES
from millrace.models.recompute import NONE, layers_of
from millrace.planner.plan import OpSignature, Plan, recompute_modes, signature_of
from millrace.planner.ring_attention import RING, RINGS
from millrace.planner.sbp import parse_nd_sbp
from millrace.planner.signatures import split_labels

HYBRID = "3-hybrid"  # ZeRO-3 over a part of the replicas, copies over the others
Value = int | bool | str
Roles = dict[str, Value | None]
DEGREES = ("dp", "tp", "cp")
# Roles and choices of the pipeline by which people tell plans apart.
ROLES = (
    *("dp", "tp", "pp", "cp", "ep", "etp", "zero", "sequence_parallel"),
    *("micro_batch", "schedule", "interleave", "recompute"),
)


def _placed(
    plan: Plan, graph: Graph, blocks: frozenset[str] | None = None
) -> Iterator[tuple[Op, OpSignature]]:
    """Ops that have a signature, each with it, of all blocks or of `blocks`."""
    variant = {
        choice.block: choice.variant
        for chunk in plan.chunks
        for choice in chunk.blocks
        if blocks is None or choice.block in blocks
    }
    for op in graph.ops:
        if op.block in variant:
            yield op, signature_of(plan, variant[op.block], op)


def _unlike(plan: Plan, graph: Graph) -> Iterator[tuple[Op, OpSignature]]:
    """Ops that have a signature, each with it, of one block of each template and variant."""
    first: dict[tuple[str, int], str] = {}
    for chunk in plan.chunks:
        for choice in chunk.blocks:
            first.setdefault((graph.templates[choice.block], choice.variant), choice.block)
    return _placed(plan, graph, frozenset(first.values()))


def label_role(label: str | None) -> str | None:
    """Role that splitting a label gives an axis."""
    if label is None:
        return None
    return {BATCH: "dp", SEQUENCE: "cp", EXPERT: "ep"}.get(label, "tp")


def axis_roles(plan: Plan, graph: Graph) -> tuple[frozenset[str], ...]:
    """Roles that the products and attentions of repeated blocks give each mesh axis.

    Parameters
    ----------
    plan : Plan
        Its signatures are read, of one block of each template and variant.
    graph : Graph
        Its training graph; where no template occurs twice, all blocks count.

    Returns
    -------
    tuple of frozenset of str
        Per mesh axis, outer first, some of dp, cp, ep and tp; empty where no product is split.

    Raises
    ------
    PlanError
        An op has no signature that fits it.
    """
    counted = _counted_blocks(graph)
    roles_by_axis: list[set[str]] = [set() for _ in plan.mesh.axes]
    for op, signature in _unlike(plan, graph):
        if op.block not in counted or not _tells_roles(op):
            continue
        for axis, label in enumerate(split_labels(op.labels, signature)):
            role = label_role(label)
            if role is not None:
                roles_by_axis[axis].add(role)
    return tuple(frozenset(names) for names in roles_by_axis)


def _tells_roles(op: Op) -> bool:
    """True for products whose splits give an axis its role; a recurrence takes all tokens."""
    return bool(op_kind(op.kind).products) and op.kind not in RECURRENCES


def _counted_blocks(graph: Graph) -> set[str]:
    """Blocks whose template occurs more than once; all where none does."""
    times: dict[str, int] = {}
    for block in graph.blocks:
        times[graph.templates[block]] = times.get(graph.templates[block], 0) + 1
    repeated = {block for block in graph.blocks if times[graph.templates[block]] > 1}
    return repeated or set(graph.blocks)


def roles(plan: Plan, graph: Graph) -> Roles:
    """Degrees of a plan (dp, tp, pp, cp, ep, etp), zero, sequence_parallel, ring and recompute.

    Parameters
    ----------
    plan : Plan
        Gives signatures, sizes of the mesh axes and the number of stages.
    graph : Graph
        Its training graph.

    Returns
    -------
    dict
        None where ops disagree; of recompute, where the repeated blocks do. Degrees are numbers of
        devices, pp of stages. zero is a level from 0 to 3 or `HYBRID`; sequence_parallel and ring
        are bools; recompute is a mode.

    Raises
    ------
    PlanError
        An op has no signature that fits it.
    """
    return {
        name: values[0] if len(values) == 1 else None
        for name, values in role_values(plan, graph).items()
    }


def mixed_roles(plan: Plan, graph: Graph) -> dict[str, list[Value]]:
    """Roles on which ops or blocks disagree, each with all the values that it takes.

    Parameters
    ----------
    plan : Plan
        Gives signatures, sizes of the mesh axes and the number of stages.
    graph : Graph
        Its training graph.
    """
    return {name: values for name, values in role_values(plan, graph).items() if len(values) > 1}


def role_values(plan: Plan, graph: Graph) -> dict[str, list[Value]]:
    """Values that each role takes, ascending; one where all ops and blocks agree.

    Parameters
    ----------
    plan : Plan
        Gives signatures, sizes of the mesh axes and the number of stages.
    graph : Graph
        Its training graph.
    """
    per_axis = axis_roles(plan, graph)
    sizes = plan.mesh.sizes
    others = [names - {"ep"} or names for names in per_axis]

    def axes(role: str) -> list[int]:
        return [a for a, names in enumerate(others) if role in names and sizes[a] > 1]

    degrees = _degree_values(plan, graph, others)
    return {
        "dp": [*degrees["dp"]],
        "tp": [*degrees["tp"]],
        "pp": [plan.stages],
        "cp": [*degrees["cp"]],
        "ep": [prod(size for size, names in zip(sizes, per_axis, strict=True) if "ep" in names)],
        "etp": [*_expert_tensor_degrees(plan, graph)],
        "zero": _zero(plan, graph, sorted({*axes("dp"), *axes("cp")})),
        "sequence_parallel": _sequence_parallel(plan, graph, axes("tp")),
        "ring": _ring(plan, graph, axes("cp")),
        "recompute": _recompute(plan, graph),
    }


def plan_roles(plan: Plan, graph: Graph) -> dict[str, list[Value]]:
    """Values of the roles that tell plans apart, in the order of `ROLES`.

    Parameters
    ----------
    plan : Plan
        Its signatures and its pipeline are read.
    graph : Graph
        Its training graph, of any batch and without recomputation.
    """
    values = role_values(plan, graph)
    pipelined: dict[str, list[Value]] = {
        "micro_batch": sorted({plan.batch // int(degree) for degree in values["dp"]}),
        "schedule": [plan.schedule],
        "interleave": [plan.interleave],
    }
    every = values | pipelined
    return {name: every[name] for name in ROLES}


def _degree_values(plan: Plan, graph: Graph, others: list[frozenset[str]]) -> dict[str, list[int]]:
    """Degrees that products have, by role; an axis of one role counts for all of them."""
    sizes = plan.mesh.sizes
    clear = [next(iter(names)) if len(names) == 1 else None for names in others]
    if all(len(names) < 2 for names in others):
        rows = {tuple(clear)}
    else:
        counted = _counted_blocks(graph)
        rows = {
            tuple(
                name or label_role(label)
                for name, label in zip(clear, split_labels(op.labels, signature), strict=True)
            )
            for op, signature in _unlike(plan, graph)
            if op.block in counted and _tells_roles(op)
        }
    return {
        role: sorted(
            {
                prod(size for size, name in zip(sizes, row, strict=True) if name == role)
                for row in rows
            }
        )
        for role in DEGREES
    }


def _expert_tensor_degrees(plan: Plan, graph: Graph) -> list[int]:
    """Numbers of devices over which products split the weights of one expert; 1 without experts."""
    counted = _counted_blocks(graph)
    degrees = {
        prod(
            size
            for size, label in zip(plan.mesh.sizes, split_labels(op.labels, signature), strict=True)
            if label_role(label) == "tp"
        )
        for op, signature in _unlike(plan, graph)
        if op.block in counted
        and op_kind(op.kind).products
        and EXPERT in parse(op.labels).splittable
    }
    return sorted(degrees or {1})


def _recompute(plan: Plan, graph: Graph) -> list[Value]:
    """Recompute modes of the repeated blocks; where none is, of the layers."""
    modes, layers = recompute_modes(plan), layers_of(graph)
    return sorted({modes.get(block, NONE) for block in _counted_blocks(graph).intersection(layers)})


def _zero(plan: Plan, graph: Graph, axes: list[int]) -> list[Value]:
    """Levels of the repeated blocks' weights that products read (small ones may not divide).

    A frozen weight has neither gradient nor state: it is gathered as it is read, or of no level.
    Hybrid where weights are gathered over some of the axes and whole along the others. Where the
    repeated blocks have no weight that tells, those of all blocks do.
    """
    by_axis: dict[int, set[int]] = {}
    repeated = list(_storage_levels(plan, graph, axes, _counted_blocks(graph)))
    for axis, level in repeated or _storage_levels(plan, graph, axes, set(graph.blocks)):
        by_axis.setdefault(axis, set()).add(level)
    all_levels = set[int]().union(*by_axis.values())
    if all_levels == {0, 3} and all(len(levels) == 1 for levels in by_axis.values()):
        return [HYBRID]
    return sorted(all_levels or {0})


def _storage_levels(
    plan: Plan, graph: Graph, axes: list[int], counted: set[str]
) -> Iterator[tuple[int, int]]:
    """Each of the axes along which a weight has copies, and the level of its storage there.

    An axis along which products read it split (an expert's) is the model's to split.
    """
    split: dict[str, dict[str, frozenset[int]]] = {"variable": {}, "repeat": {}, "accumulate": {}}
    source: dict[str, str] = {}
    read_split: dict[str, frozenset[int]] = {}

    def along(text: str) -> frozenset[int]:
        sbp = parse_nd_sbp(text)
        return frozenset(axis for axis in axes if sbp[axis].is_split)

    frozen: set[str] = set()
    for op, signature in _unlike(plan, graph):
        if op.block not in counted:
            continue
        if op.kind == "variable" and not op.trains:
            frozen.update(op.outputs)
        if op_kind(op.kind).products:
            for name, text in zip(op.inputs, signature.inputs, strict=True):
                variable = source.get(name, name)
                read_split[variable] = read_split.get(variable, frozenset()) | along(text)
        if op.kind in split:
            split[op.kind][op.outputs[0]] = along(signature.outputs[0])
        if op_kind(op.kind).moves:
            source[op.outputs[0]] = source.get(op.inputs[0], op.inputs[0])
    for name, gathered in split["repeat"].items():
        variable = source[name]
        if variable not in read_split or variable not in split["variable"]:
            continue
        summed = split["accumulate"].get(f"{name}.accumulate", frozenset())
        for axis in frozenset(axes) - read_split[variable]:
            if variable in frozen and axis not in gathered:
                continue
            if axis not in split["variable"][variable]:
                yield axis, 0
            else:
                yield axis, 3 if axis in gathered else 2 if axis in summed else 1


def _sequence_parallel(plan: Plan, graph: Graph, axes: list[int]) -> list[Value]:
    """True if norms split the sequence over the tp axes, where there are any."""
    splits = {
        split_labels(op.labels, signature)[axis] == SEQUENCE
        for op, signature in _unlike(plan, graph)
        if op.kind in NORMS
        for axis in axes
    }
    return sorted(splits or {False})


def _ring(plan: Plan, graph: Graph, axes: list[int]) -> list[Value]:
    """True if keys and values of attention travel round the cp axes, where there are any."""
    expansions = {
        signature.expansion == RING
        for op, signature in _unlike(plan, graph)
        if op.kind in RINGS and axes
    }
    return sorted(expansions or {False})
