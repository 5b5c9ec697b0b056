"""Catalogues on the command line: `millrace models` and `millrace clusters`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.commands.options import completion
from millrace.output import Json, answer, say
from millrace.units import format_rate, format_seconds

if TYPE_CHECKING:
    from rich.console import Console


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("models")(models)
    app.command("clusters")(clusters)


def models(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL...]",
            help="Only these; all by default.",
            autocompletion=completion.models,
        ),
    ] = None,
    seq_len: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a sample; the model's longest by default.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List models: parameters, training FLOPs, what can be pinned."""
    from millrace.models.zoo.catalogue import NAMES

    rows = [_model_row(name, seq_len) for name in names or NAMES]
    answer({"rows": rows}, as_json, lambda console: _draw_models(rows, console))


def clusters(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CLUSTER...]",
            help="Describe these, level by level.",
            autocompletion=completion.devices,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List devices and fabrics, or describe clusters.

    A device's name stands for its reference system.
    """
    from millrace.api.clusters import cluster
    from millrace.planner.clusters import device, reference_node
    from millrace.planner.clusters import names as device_names
    from millrace.planner.clusters.fabrics import fabrics

    if names:
        asked_clusters = [
            reference_node(name)
            if ":" not in name and not name.endswith(".toml")
            else cluster(name, measured=False)
            for name in names
        ]
        rows = [
            _device_row(asked_cluster.name, asked_cluster.device) | _network(asked_cluster)
            for asked_cluster in asked_clusters
        ]
        answer({"rows": rows}, as_json, lambda console: _draw_clusters(rows, console))
        return
    rows = [_device_row(name, device(name)) for name in device_names()]
    fabric_rows = [_fabric_row(fabric) for fabric in fabrics().values()]

    def draw(console: "Console") -> None:
        _draw_clusters(rows, console)
        _draw_fabrics(fabric_rows, console)

    answer({"rows": rows, "fabrics": fabric_rows}, as_json, draw)


def _model_row(name: str, seq_len: int | None) -> dict[str, Any]:
    from millrace.importing import open_checked
    from millrace.models.model_counts import parallelism_limits, training_flops
    from millrace.models.zoo.catalogue import beyond_positions, build

    spec = open_checked(name, seq_len, told=say)
    if stretched := beyond_positions(spec):
        say(stretched)
    graph = build(spec, 1)
    limits = parallelism_limits(graph)
    return {
        "name": spec.name,
        "parameters": graph.parameter_count,
        "training_flops": training_flops(graph),
        "pins": _pins(limits),
        "blocks": limits["blocks"],
        "experts": limits["experts"],
        "seq_len": spec.seq_len,
        "family": spec.family,
        "config": spec.config,
    }


def _pins(limits: dict[str, int | bool]) -> list[str]:
    """Degrees and choices of `millrace plan` that mean something for the model."""
    meaningful = {
        "dp": limits["batch"],
        "tp": limits["tensor"],
        "pp": limits["blocks"] != 1,
        "cp": limits["sequence"],
        "ep": limits["experts"],
        "zero": limits["batch"],
        "sequence_parallel": limits["sequence_parallel"],
    }
    return [name for name, meant in meaningful.items() if meant]


def _pinned(row: dict[str, Any]) -> str:
    """Pins of a model in one cell, with the most that blocks and experts allow."""
    most = {"pp": f"pp≤{row['blocks']}", "ep": f"ep≤{row['experts']}", "sequence_parallel": "sp"}
    return " ".join(most.get(name, name) for name in row["pins"])


def _draw_models(rows: list[dict[str, Any]], console: "Console") -> None:
    from rich.table import Table

    table = Table(
        caption="training FLOPs of one sample; sp: sequence_parallel", caption_justify="left"
    )
    table.add_column("model", no_wrap=True)
    for column in ("parameters", "seq_len", "training FLOPs"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("can be pinned")
    for row in rows:
        table.add_row(
            row["name"],
            f"{row['parameters']:,}",
            str(row["seq_len"]),
            format_rate(row["training_flops"], "FLOP").removesuffix("/s"),
            _pinned(row),
        )
    console.print(table)


def _device_row(name: str, device: Any) -> dict[str, Any]:
    return {
        "name": name,
        "device": device.name,
        "memory_bytes": device.memory_bytes,
        "flops_per_s": device.flops_per_s,
        "memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s,
        "price_usd_per_hour": device.price_usd_per_hour,
        "power_watts": device.power_watts,
        "source": device.source,
        "assumed": list(device.assumed),
    }


def _network(cluster: Any) -> dict[str, Any]:
    from msgspec.structs import asdict

    return {
        "devices": cluster.devices,
        "devices_per_node": cluster.devices_per_node,
        "nodes": cluster.nodes,
        "cores_per_node": cluster.cores_per_node,
        "intra_node_bytes_per_s": cluster.intra_node.bandwidth_bytes_per_s,
        "inter_node_bytes_per_s": cluster.inter_node.bandwidth_bytes_per_s,
        "levels": [_level_row(level) for level in cluster.levels],
        "software": asdict(cluster.software),
        "groups": [
            _device_row(group.device.name, group.device)
            | {
                "devices_per_node": group.devices_per_node,
                "nodes": group.nodes,
                "torus": list(group.torus.dims) if group.torus else None,
                "levels": [_level_row(level) for level in group.levels],
                "inter_node_bytes_per_s": group.inter_node.bandwidth_bytes_per_s,
            }
            for group in cluster.groups
        ],
    }


def _level_row(level: Any) -> dict[str, Any]:
    return {
        "name": level.name,
        "devices": level.devices,
        "bytes_per_s": level.link.bandwidth_bytes_per_s,
        "latency_ns": level.link.latency_ns,
        "reduces": level.link.reduces,
        "source": level.link.source,
    }


def _fabric_row(fabric: Any) -> dict[str, Any]:
    return {
        "name": fabric.name,
        "family": fabric.family,
        "bytes_per_s": fabric.bandwidth_bytes_per_s,
        "reached": fabric.reached,
        "latency_ns": fabric.latency_ns,
        "inside": fabric.inside,
        "ports": fabric.ports,
        "reduces": str(fabric.reduces),
        "source": fabric.source,
    }


def _draw_fabrics(rows: list[dict[str, Any]], console: "Console") -> None:
    from rich.table import Table

    table = Table(
        title="fabrics",
        title_justify="left",
        caption_justify="left",
        caption="GB/s of a port and direction; reduces: its switches add up (SHARP), asked: "
        "where a cluster file says so (8xndr+sharp)",
    )
    for column in ("name", "GB/s", "reached", "latency", "ports", "reduces", "what"):
        table.add_column(column, justify="left" if column in ("name", "what") else "right")
    for row in rows:
        table.add_row(
            row["name"],
            f"{row['bytes_per_s'] / 1e9:g}",
            f"{row['reached']:.0%}",
            format_seconds(row["latency_ns"] / 1e9),
            "inside" if row["inside"] else str(row["ports"] or "a device"),
            "" if row["reduces"] == "never" else row["reduces"],
            row["source"],
        )
    console.print(table)


def _draw_clusters(rows: list[dict[str, Any]], console: "Console") -> None:
    from rich.table import Table

    lines = _by_kind(rows)
    precisions = [p for p in ("fp32", "tf32", "bf16", "fp8") if any(_peak(r, p) for r in lines)]
    units = "memory in GiB; to it in GB/s; peaks in TFLOP/s; $ an hour on demand"
    table = Table(caption=units, caption_justify="left")
    table.add_column("name", no_wrap=True)
    for column in ("memory", "to it", *precisions, "W", "$"):
        table.add_column(column, justify="right")
    if "devices" in rows[0]:
        table.add_column("devices", justify="right", no_wrap=True)
    for row in lines:
        cells = [f"{row['memory_bytes'] / 2**30:.1f}"]
        cells.append(f"{row['memory_bandwidth_bytes_per_s'] / 1e9:,.0f}")
        cells += [f"{_peak(row, p) / 1e12:.4g}" if _peak(row, p) else "" for p in precisions]
        cells.append(f"{row['power_watts']:.0f}" if row["power_watts"] else "")
        cells.append(f"{row['price_usd_per_hour']:.2f}" if row["price_usd_per_hour"] else "")
        if "devices_per_node" in row:
            cells.append(f"{row['devices_per_node']} x {row['nodes']}")
        table.add_row(row["name"], *cells)
    console.print(table)
    for row in rows:
        if "groups" in row:
            _draw_levels(row, console)


def _by_kind(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines of a table: one for each cluster, or for each of its kinds of device."""
    return [
        line
        for row in rows
        for line in (row["groups"] if len(row.get("groups", ())) > 1 else [row])
    ]


def _draw_levels(row: dict[str, Any], console: "Console") -> None:
    """Print the levels of a cluster: nodes of each kind first, then the network."""
    from rich.table import Table

    table = Table(title=f"{row['name']}, from inner to outer", title_justify="left")
    for column in ("level", "devices", "GB/s", "latency", "link"):
        table.add_column(column, justify="left" if column in ("level", "link") else "right")
    inside = len(row["groups"][0]["levels"])
    several = len(row["groups"]) > 1
    lines = [
        (f"{group['device']} {_kind(level, group)}" if several else _kind(level, group), level)
        for group in row["groups"]
        for level in group["levels"]
    ]
    lines += [(level["name"], level) for level in row["levels"][inside:]]
    for name, level in lines:
        table.add_row(
            name,
            f"{level['devices']:,}",
            f"{level['bytes_per_s'] / 1e9:,.1f}",
            format_seconds(level["latency_ns"] / 1e9),
            level["source"] + (", reduced by its switches" if level["reduces"] else ""),
        )
    console.print(table)
    if (software := row["software"])["source"] or software["name"] != "none":
        console.print(
            f"software {software['name']}: {format_seconds(software['host_ns'] / 1e9)} of host a "
            f"launch, overlap {software['overlap']:g}, fusion {software['fusion']:g}, buckets of "
            f"{software['bucket_bytes'] / 2**20:g} MiB"
        )


def _kind(level: dict[str, Any], group: dict[str, Any]) -> str:
    """Name of a level, of a torus with its dims."""
    if level["name"] != "torus":
        return str(level["name"])
    return f"torus {' x '.join(map(str, group['torus']))}"


def _peak(row: dict[str, Any], precision: str) -> float:
    return float(row["flops_per_s"].get(precision, 0.0))
