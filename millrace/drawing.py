"""Drawing of a plan in text: stages, mesh axes, the SBP of one block, memory, and differences.

Shapes of the tables: one row per stage, or per mesh axis (`millrace/tables/`); one row per op, one
column for its inputs and one for its outputs.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from millrace.figures import dispatcher, has_experts, layout_bytes, reserve_bytes
from millrace.memory_reserve import does_not_fit_probability
from millrace.models.graph import Phase
from millrace.models.zoo.catalogue import unit_of
from millrace.planner.cluster import Software
from millrace.planner.frameworks.experts import overlaps
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.frameworks.model_settings import DROPLESS, capacity_of
from millrace.planner.parallel_degrees import plan_roles
from millrace.planner.plan import FUSED, ON_DEVICES, Plan, Variant
from millrace.planner.search.report.alternatives import SAME
from millrace.published.step_time_range import plan_range
from millrace.tables.alternatives import alternatives_table
from millrace.tables.stages import axis_table, rank_table, stage_table
from millrace.units import byte_unit, format_bytes, format_percent, format_seconds

# Kinds of memory beside what a plan lays out share one column, so that the table fits a screen.
BESIDE = ("context", "resident", "slack", "workspace")


Fused = Mapping[str, Sequence[Sequence[str]]]
"""Ops that are one actor, by template of block (`planner/compile/listing.py`)."""


def draw_plan(
    plan: Plan,
    console: Console,
    *,
    detailed: bool = True,
    ranks: bool = False,
    fused: Fused | None = None,
) -> None:
    """Print a plan: decisions, stages, mesh axes, the SBP of its repeated block, figures, proof.

    Parameters
    ----------
    plan : Plan
        Its figures and evidence are printed where it has them.
    console : Console
        The console to print on.
    detailed : bool
        Print the mesh axes, the SBP of the repeated block and the memory of every stage too, not
        that of the fullest alone.
    ranks : bool
        Print a table of all ranks too.
    fused : mapping, optional
        Groups of ops that are one actor, by template of block; those of the repeated block are
        printed.
    """
    console.print(headline(plan), markup=False, soft_wrap=True)
    console.print(question_text(plan), markup=False, soft_wrap=True)
    console.print(stage_table(plan))
    template = repeated_template(plan)
    if detailed and plan.mesh.axes:
        console.print(axis_table(plan))
    if ranks:
        console.print(rank_table(plan))
    if detailed:
        console.print(sbp_table(plan, template))
    if fused:
        console.print(fused_table(template, fused.get(template, ())))
    draw_memory(plan, console, every_stage=detailed)
    if alternatives := alternatives_table(plan):
        console.print(alternatives)
    if plan.prediction:
        step_time = format_seconds(plan.prediction.step_time_s)
        console.print(f"predicted step time {step_time}", markup=False)
        _, comparison = plan_range(plan, plan.prediction.step_time_s)
        console.print(f"  {comparison}", markup=False, soft_wrap=True)
    if plan.evidence is not None:
        evidence = plan.evidence
        if evidence.simplicity_loss >= SAME:
            console.print(
                f"  the fastest plan saves {format_percent(evidence.simplicity_loss)}, and is not "
                f"as simple: --simpler-within 0 asks for it",
                markup=False,
                soft_wrap=True,
            )
        console.print(
            f"objective {format_seconds(evidence.objective_s)}, "
            f"bound {format_seconds(evidence.bound_s)}, gap {format_percent(evidence.gap)}; "
            f"{evidence.candidates} candidates, {evidence.pruned} pruned",
            markup=False,
        )


def headline(plan: Plan) -> str:
    """Decisions of a plan in one line."""
    axes = " × ".join(f"{axis.name} {axis.size}" for axis in plan.mesh.axes) or "one device"
    loops = f", {plan.interleave} chunks a stage" if plan.interleave > 1 else ""
    stages = "1 stage" if plan.stages == 1 else f"{plan.stages} stages, {plan.schedule}{loops}"
    host = "" if plan.offload == ON_DEVICES else "; optimizer state in host memory"
    fused = "; ops fused" if plan.fusion == FUSED else ""
    mesh = f"{plan.model.name} on {plan.cluster.name}: mesh {axes}"
    return f"{mesh}, {stages}; {microbatches_text(plan)}{host}{fused}"


def question_text(plan: Plan) -> str:
    """Framework, precision and sizes that a plan was made for, and how its experts are reached."""
    spec, software = plan.model, plan.cluster.software
    by = "" if software.name == Software().name else f"by {software.name}, "
    unit = unit_of(spec)
    length = f", sequences of {spec.seq_len:,} {unit}s" if spec.seq_len > 1 else ""
    samples = "1 sample" if plan.global_batch == 1 else f"{plan.global_batch:,} samples"
    experts = ""
    if has_experts(plan):
        beside = "beside products" if overlaps(software) else "by itself"
        unequal = ", unequally" if software.load.deviation else ""
        sent = f"{dispatcher(plan)}, {beside}{unequal}"
        experts = f"; tokens to experts by {sent}{_dropped_text(plan)}"
    modules = spec.config.get("mtp_layers", 0)
    further = f", multi-token prediction of depth {modules}" if modules else ""
    return f"{by}{spec.precision}{length}, {samples} a step{further}{experts}"


def _dropped_text(plan: Plan) -> str:
    """Places of experts where they are pinned, or are not as the model's configuration has them."""
    capacity = capacity_of(plan.model, capabilities(plan.cluster.software.name))
    if capacity == DROPLESS:
        return ", none dropped"
    if "capacity_factor" in plan.pins:
        return f", with places for {capacity} times an even share"
    return ""


def microbatches_text(plan: Plan) -> str:
    """Number of microbatches, samples of one on a rank (`--micro-batch`) and over all ranks."""
    pieces = "1 microbatch" if plan.microbatches == 1 else f"{plan.microbatches} microbatches"
    rank_samples = plan_roles(plan, plan.graph)["micro_batch"]
    text = "/".join(map(str, rank_samples))
    samples = "1 sample" if text == "1" else f"{text} samples"
    together = "" if rank_samples == [plan.batch] else f" ({plan.batch} over all)"
    return f"{pieces} of {samples} a rank{together}"


def memory_text(plan: Plan, needed_bytes: int) -> str:
    """Memory of the fullest device in words, and what our compiler lays out of the plan.

    Parameters
    ----------
    plan : Plan
        The plan.
    needed_bytes : int
        What the fullest device holds by the account of the plan's framework.
    """
    laid_out = layout_bytes(plan)
    beside = "" if laid_out is None else f" (Millrace lays out {format_bytes(laid_out)})"
    return f"{format_bytes(needed_bytes)}{beside}"


def filled(plan: Plan, needed_bytes: int) -> str:
    """Memory of the fullest device in words, and what of a device may be filled.

    Parameters
    ----------
    plan : Plan
        Its cluster and memory limit say what is left free, by a reserve or by the limit; kinds of
        device that are mixed have a reserve each, which is not said.
    needed_bytes : int
        What the fullest device holds.
    """
    needed = memory_text(plan, needed_bytes)
    if not reserve_bytes(plan) or plan.cluster.others:
        return f"at most {needed} on a device"
    room = format_bytes(plan.memory_limit_bytes)
    memory = format_bytes(plan.cluster.device.memory_bytes)
    text = f"at most {needed} on a device that may use {room} of its {memory}"
    share = does_not_fit_probability(plan.cluster, needed_bytes)
    if share is None:
        return text
    return f"{text}; does not fit with a probability of {format_percent(share)}"


def sbp_table(plan: Plan, template: str) -> Table:
    """Table of one block's forward ops with the SBP of their inputs and outputs.

    Parameters
    ----------
    plan : Plan
        A plan that has a block of the template.
    template : str
        Name of the template; its first block is shown.
    """
    block, _ = _first_block(plan, template)
    table = Table(
        title=f"SBP of block `{block}` over ({', '.join(plan.mesh.names)}), forward",
        title_justify="left",
    )
    for column in ("op", "kind", "inputs", "outputs"):
        table.add_column(column)
    for row in sbp_rows(plan, template):
        cells = (row["op"], row["kind"], " ".join(row["inputs"]), " ".join(row["outputs"]))
        table.add_row(*map(Text, cells))
    return table


def sbp_rows(plan: Plan, template: str) -> list[dict[str, Any]]:
    """Rows `op`, `kind`, `inputs` and `outputs` of one block's forward ops, with their SBP.

    Variables are in it, for their storage; backward and update ops are in the plan's file.

    Parameters
    ----------
    plan : Plan
        A plan that has a block of the template.
    template : str
        Name of the template; its first block is shown.
    """
    block, variant = _first_block(plan, template)
    rows = []
    for op in plan.graph.ops:
        name = op.name.removeprefix(f"{block}.")
        shown = op.phase is Phase.FORWARD or op.kind == "variable"
        signature = variant.signatures.get(name)
        if op.block != block or not shown or op.kind == "repeat" or signature is None:
            continue
        kind = op.kind + (f" ({signature.expansion})" if signature.expansion else "")
        sides = {"inputs": list(signature.inputs), "outputs": list(signature.outputs)}
        rows.append({"op": name, "kind": kind, **sides})
    return rows


def _first_block(plan: Plan, template: str) -> tuple[str, Variant]:
    """Name of the first block of a template, and the variant that it runs as."""
    return next(
        (choice.block, plan.variants[choice.variant])
        for chunk in plan.chunks
        for choice in chunk.blocks
        if plan.variants[choice.variant].template == template
    )


def fused_table(template: str, groups: Sequence[Sequence[str]]) -> Table:
    """Table of ops that one kernel computes, a row for every such actor of a block.

    Parameters
    ----------
    template : str
        Name of the block's template, for the title.
    groups : sequence of sequence of str
        Names of the ops of each actor.
    """
    table = Table(title=f"ops of a block `{template}` that are one actor", title_justify="left")
    table.add_column("ops")
    for group in groups:
        table.add_row(Text(" + ".join(group)))
    return table


def repeated_template(plan: Plan) -> str:
    """Template that most blocks of the plan are of, the one worth drawing."""
    counts: dict[str, int] = {}
    for chunk in plan.chunks:
        for choice in chunk.blocks:
            template = plan.variants[choice.variant].template
            counts[template] = counts.get(template, 0) + 1
    return max(counts, key=lambda template: (counts[template], template))


def draw_memory(plan: Plan, console: Console, *, every_stage: bool = True) -> None:
    """Print memory by kind, per stage, where the plan's figures hold it.

    Parameters
    ----------
    plan : Plan
        With `memory_by_kind` in its figures, bytes of one device per stage.
    console : Console
        The console to print on.
    every_stage : bool
        Print a row for every stage; else for the fullest alone.
    """
    prediction = plan.prediction
    if prediction is None or not prediction.memory_by_kind:
        return
    by_stage = [_with_runtime(stage) for stage in prediction.memory_by_kind]
    kinds = sorted({kind for stage in by_stage for kind in stage})
    sums = [sum(stage.values()) for stage in by_stage]
    unit, scale = byte_unit(max(sums))
    title = f"memory of one device, {unit} by kind"
    table = Table(title=title, title_justify="left", collapse_padding=True)
    table.add_column("stage")
    for kind in [*kinds, "sum"]:
        table.add_column(kind, justify="right")
    for stage, amounts in enumerate(by_stage):
        if not every_stage and stage != sums.index(max(sums)):
            continue
        sizes = [*(amounts.get(kind, 0) for kind in kinds), sums[stage]]
        table.add_row(str(stage), *(f"{size / scale:.2f}" for size in sizes))
    console.print(table)
    if on_host := prediction.host_memory_bytes_max:
        console.print(f"at most {format_bytes(on_host)} of a device in host memory", markup=False)
        if remedy := next((row["remedy"] for row in _alternatives(plan) if "remedy" in row), ""):
            console.print(f"optimizer state fits on the devices {remedy}", markup=False)


def _alternatives(plan: Plan) -> Sequence[Mapping[str, Any]]:
    return () if plan.evidence is None else plan.evidence.alternatives


def _with_runtime(amounts: dict[str, int]) -> dict[str, int]:
    """Bytes by kind, with the kinds that no plan lays out added up under `runtime`."""
    bytes_by_name: dict[str, int] = {}
    for kind, size in amounts.items():
        name = "runtime" if kind in BESIDE else kind
        bytes_by_name[name] = bytes_by_name.get(name, 0) + size
    return bytes_by_name


def changes(before: Plan, after: Plan) -> list[dict[str, Any]]:
    """Differences between two plans, a row for every value.

    Parameters
    ----------
    before : Plan
        The first plan.
    after : Plan
        The second plan.

    Returns
    -------
    list of dict
        `path` in the document, and the values `before` and `after`, None where there is none.
    """
    left, right = msgspec.to_builtins(before), msgspec.to_builtins(after)
    return [
        {"path": path, "before": old, "after": new} for path, old, new in _differences(left, right)
    ]


def draw_changes(differences: list[dict[str, Any]], console: Console) -> None:
    """Print the differences between two plans.

    Parameters
    ----------
    differences : list of dict
        As `changes` returns them.
    console : Console
        The console to print on.
    """
    if not differences:
        console.print("the plans are equal")
        return
    table = Table()
    for column in ("what", "before", "after"):
        table.add_column(column, overflow="fold")
    for row in differences:
        table.add_row(Text(row["path"]), Text(_short(row["before"])), Text(_short(row["after"])))
    console.print(table)


def _differences(left: Any, right: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield path and both values wherever two JSON values, walked side by side, differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in [*left, *(key for key in right if key not in left)]:
            inner = f"{path}.{key}" if path else key
            yield from _differences(left.get(key), right.get(key), inner)
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for position, (old, new) in enumerate(zip(left, right, strict=True)):
            yield from _differences(old, new, f"{path}[{position}]")
    elif left != right:
        yield path, left, right


def _short(value: Any) -> str:
    """JSON text of a value, cut to at most 60 characters."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "..."
