"""Stages, mesh axes and ranks as tables: a line for each, whatever the number of devices.

Ranks are numbered stage after stage, row-major over the mesh.
"""

from math import floor

from rich.table import Table

from millrace.planner.parallel_degrees import axis_roles
from millrace.planner.plan import Plan
from millrace.tables.ranges import rank_ranges, recomputed_layers, stage_layers
from millrace.units import format_bytes, format_percent


def stage_table(plan: Plan) -> Table:
    """Table of stages: ranks, layers, and what is known of recomputation, memory and busy time.

    Busy is the share of a step in which the stage's devices compute, by the simulator.
    """
    prediction = plan.prediction
    by_kind = prediction.memory_by_kind if prediction else []
    busy = prediction.busy_by_stage if prediction else []
    recomputed = [recomputed_layers(plan, stage) for stage in range(plan.stages)]
    table = Table(title="stages", title_justify="left", collapse_padding=True)
    for column in ("stage", "ranks", "layers"):
        table.add_column(column)
    if plan.cluster.others:
        table.add_column("device")
    if any(recomputed):
        table.add_column("recompute")
    if len(by_kind) == plan.stages:
        table.add_column("memory", justify="right")
    if len(busy) == plan.stages:
        table.add_column("busy", justify="right")
    for stage in range(plan.stages):
        ranks = range(stage * plan.mesh.devices, (stage + 1) * plan.mesh.devices)
        cells = [str(stage), rank_ranges(ranks), stage_layers(plan, stage)]
        cells += [_devices(plan, ranks)] if plan.cluster.others else []
        cells += [recomputed[stage]] if any(recomputed) else []
        if len(by_kind) == plan.stages:
            cells.append(_filled(plan, ranks, sum(by_kind[stage].values())))
        if len(busy) == plan.stages:
            cells.append(format_percent(busy[stage]))
        table.add_row(*cells)
    return table


def axis_table(plan: Plan) -> Table:
    """Table of mesh axes, outer first: what each is for, and which ranks its first group joins."""
    table = Table(title="mesh axes", title_justify="left")
    for column in ("axis", "size", "for", "first of its groups"):
        table.add_column(column)
    inner = plan.mesh.devices
    for axis, roles in zip(plan.mesh.axes, axis_roles(plan, plan.graph), strict=True):
        inner //= axis.size
        group = range(0, axis.size * inner, inner)
        table.add_row(axis.name, str(axis.size), " ".join(sorted(roles)), rank_ranges(group))
    return table


def rank_table(plan: Plan) -> Table:
    """Table of all ranks: node, stage, and coordinate on each mesh axis."""
    table = Table(title="ranks", title_justify="left")
    for column in ("rank", "node", "stage", *plan.mesh.names):
        table.add_column(column)
    for rank in range(plan.ranks):
        stage, device = divmod(rank, plan.mesh.devices)
        coordinate = []
        for size in reversed(plan.mesh.sizes):
            device, index = divmod(device, size)
            coordinate.append(str(index))
        table.add_row(str(rank), str(node_of(plan, rank)), str(stage), *coordinate[::-1])
    return table


def node_of(plan: Plan, rank: int) -> int:
    """Number of the node on which a rank lies, counted through all groups of nodes."""
    before = nodes = 0
    for group in plan.cluster.groups:
        if rank < before + group.devices:
            return nodes + (rank - before) // group.devices_per_node
        before, nodes = before + group.devices, nodes + group.nodes
    raise IndexError(f"rank {rank} lies on no node of `{plan.cluster.name}`")


def _devices(plan: Plan, ranks: range) -> str:
    """Kinds of device of a stage's ranks, the first rank's first."""
    names = dict.fromkeys(plan.cluster.device_of(rank).name for rank in (ranks[0], ranks[-1]))
    return ", ".join(names)


def _filled(plan: Plan, ranks: range, size: int) -> str:
    """Bytes of a device, and their share of the smallest memory among the stage's devices."""
    room = min(plan.cluster.device_of(rank).memory_bytes for rank in (ranks[0], ranks[-1]))
    return f"{format_bytes(size)} {floor(100 * size / room)} %"
