"""`millrace models` and `millrace clusters`: what the catalogues hold, or what is asked for."""

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from millrace.output import Json, answer
from millrace.units import format_rate


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("models")(models)
    app.command("clusters")(clusters)


def models(
    names: Annotated[list[str] | None, typer.Argument(metavar="[MODEL...]")] = None,
    seq_len: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a sample; the model's longest by default.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List models: parameters, training FLOPs of one sample, and what can be pinned."""
    from models.zoo.catalogue import NAMES

    rows = [_model_row(name, seq_len) for name in names or NAMES]
    answer({"rows": rows}, as_json, lambda console: _draw_models(rows, console))


def clusters(
    names: Annotated[list[str] | None, typer.Argument(metavar="[CLUSTER...]")] = None,
    as_json: Json = False,
) -> None:
    """List devices of the catalogue, or describe the clusters that are named."""
    from millrace.api import cluster
    from planner.clusters import device
    from planner.clusters import names as device_names

    if names:
        found = [cluster(name, measured=False) for name in names]
        rows = [_device_row(one.name, one.device) | _network(one) for one in found]
    else:
        rows = [_device_row(name, device(name)) for name in device_names()]
    answer({"rows": rows}, as_json, lambda console: _draw_clusters(rows, console))


def _model_row(name: str, seq_len: int | None) -> dict[str, Any]:
    from models.counting import splits, training_flops
    from models.importers.opening import open_model
    from models.zoo.catalogue import build

    spec = open_model(name, seq_len)
    graph = build(spec, 1)
    found = splits(graph)
    return {
        "name": spec.name,
        "parameters": graph.parameter_count,
        "training_flops": training_flops(graph),
        "pins": _pins(found),
        "blocks": found["blocks"],
        "experts": found["experts"],
        "seq_len": spec.seq_len,
        "family": spec.family,
        "config": spec.config,
    }


def _pins(found: dict[str, int | bool]) -> list[str]:
    """Degrees and choices of `millrace plan` that mean something for the model."""
    known = {
        "dp": found["batch"],
        "tp": found["tensor"],
        "pp": found["blocks"] != 1,
        "cp": found["sequence"],
        "ep": found["experts"],
        "zero": found["batch"],
        "sequence_parallel": found["sequence_parallel"],
    }
    return [name for name, meant in known.items() if meant]


def _pinned(row: dict[str, Any]) -> str:
    """The pins in one cell, with the most that blocks and experts allow."""
    most = {"pp": f"pp≤{row['blocks']}", "ep": f"ep≤{row['experts']}", "sequence_parallel": "sp"}
    return " ".join(most.get(name, name) for name in row["pins"])


def _draw_models(rows: list[dict[str, Any]], console: Console) -> None:
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
        "source": device.source,
    }


def _network(cluster: Any) -> dict[str, Any]:
    return {
        "devices": cluster.devices,
        "devices_per_node": cluster.devices_per_node,
        "nodes": cluster.nodes,
        "cores_per_node": cluster.cores_per_node,
        "intra_node_bytes_per_s": cluster.intra_node.bandwidth_bytes_per_s,
        "inter_node_bytes_per_s": cluster.inter_node.bandwidth_bytes_per_s,
    }


def _draw_clusters(rows: list[dict[str, Any]], console: Console) -> None:
    precisions = [p for p in ("fp32", "tf32", "bf16", "fp8") if any(_peak(r, p) for r in rows)]
    units = "memory in GiB; to it, inside and outside a node in GB/s; peaks in TFLOP/s"
    table = Table(caption=units, caption_justify="left")
    table.add_column("name", no_wrap=True)
    for column in ("memory", "to it", *precisions):
        table.add_column(column, justify="right")
    if "devices" in rows[0]:
        for column in ("devices", "inside", "outside"):
            table.add_column(column, justify="right")
    for row in rows:
        cells = [f"{row['memory_bytes'] / 2**30:.1f}"]
        cells.append(f"{row['memory_bandwidth_bytes_per_s'] / 1e9:,.0f}")
        cells += [f"{_peak(row, p) / 1e12:.4g}" if _peak(row, p) else "" for p in precisions]
        if "devices" in row:
            cells.append(f"{row['devices_per_node']} x {row['nodes']}")
            cells.append(f"{row['intra_node_bytes_per_s'] / 1e9:,.0f}")
            cells.append(f"{row['inter_node_bytes_per_s'] / 1e9:,.1f}")
        table.add_row(row["name"], *cells)
    console.print(table)


def _peak(row: dict[str, Any], precision: str) -> float:
    return float(row["flops_per_s"].get(precision, 0.0))
