"""Collectives on a torus: along its dims one after the other, or along all of them at once."""

from millrace.planner.costs.group_topology import Grid, TorusLine

CostLines = tuple[tuple[int, float], ...]  # (fixed_ns, ns_per_byte) of each algorithm


def _rate(line: TorusLine, grid: Grid) -> float:
    """Bytes per ns that one member sends along a line: both ways round a ring, else one.

    Groups that lie between the members of a strided one use the same links at the same time.
    """
    return (2 if line.ring else 1) * grid.bytes_per_ns / line.stride


def _steps_ns(line: TorusLine, grid: Grid) -> int:
    """Latency of a message that visits every member of a line, both ways at once."""
    steps = line.size // 2 if line.ring else line.size - 1
    return steps * line.stride * grid.latency_ns


def gather_pieces(members: int, grid: Grid) -> CostLines:
    """Lines of an all_gather or a reduce_scatter, per byte of the whole message.

    Notes
    -----
    A member receives all but its own part. Dims one after the other keep only one dim's links busy;
    with the message cut in as many parts as there are dims, each in another order of them, all are:
    Jain and Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus
    interconnects", 2010.
    """
    if not grid.lines:
        return (
            (_scattered_ns(members, grid), (members - 1) / members * grid.hops / grid.bytes_per_ns),
        )
    fixed = sum(_steps_ns(line, grid) for line in grid.lines)
    part, slope = 1.0, 0.0
    for line in sorted(grid.lines, key=lambda line: -_rate(line, grid)):
        slope += part * (line.size - 1) / line.size / _rate(line, grid)
        part /= line.size
    together = (members - 1) / members / sum(_rate(line, grid) for line in grid.lines)
    return (fixed, slope), (fixed, together)


def exchange_pieces(members: int, grid: Grid) -> CostLines:
    """Lines of an all_to_all, per byte of one member's part.

    The busiest link carries an eighth of a ring's members' bytes, a quarter of a line's.
    """
    if not grid.lines:
        return ((_scattered_ns(members, grid), (members - 1) * grid.hops / 4 / grid.bytes_per_ns),)
    fixed = sum(_steps_ns(line, grid) for line in grid.lines)
    slope = max(
        line.size * line.stride / (8 if line.ring else 4) / grid.bytes_per_ns for line in grid.lines
    )
    return ((fixed, slope),)


def spread_pieces(members: int, grid: Grid) -> CostLines:
    """Lines of a broadcast, or of one transfer between two members.

    Groups that lie between the members send at the same time, over the same links.
    """
    if not grid.lines:
        return ((_scattered_ns(members, grid), 1 / grid.bytes_per_ns),)
    fixed = sum(_steps_ns(line, grid) for line in grid.lines)
    shared = max(line.stride / (2 if line.ring else 1) for line in grid.lines)
    return ((fixed, max(shared, 1.0) / grid.bytes_per_ns),)


def rotation_pieces(grid: Grid) -> CostLines:
    """Lines of one transfer of every member to the next one, all at once."""
    shared = max((line.stride / (2 if line.ring else 1) for line in grid.lines), default=grid.hops)
    return ((grid.hops * grid.latency_ns, max(shared, 1.0) / grid.bytes_per_ns),)


def _scattered_ns(members: int, grid: Grid) -> int:
    return (members - 1) * grid.hops * grid.latency_ns
