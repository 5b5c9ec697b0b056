"""The least time that a compiled plan can take on one GPU, actor by actor, and where it goes.

Run `python -m benchmarks.gpu.roofline MODEL... [--device h100-sxm-80gb] [--batch N] [--precision P]
[--seq-len N] [--actors] [--json]` from the root of the repository. A model is one of the zoo or of
`trained_models.py`.

Two plans are set beside each other: one with an actor per op, and one whose ops are fused.

An actor takes at least what its products take at the device's peak, and what its operands take
through the device's memory, each read or written once; the larger of the two is its bound, and the
sum over a step that of the plan, which so says what share of the peak (`mfu`, model FLOPs over the
step's) it could reach at best. `bound` is by the data sheet. `reachable` is by what large kernels
of the catalogue's device reach of it (its efficiencies of products, attention and copies), and
`predicted` is what the planner's costs say, launches included. Products under a causal mask or
within a window count as far as it lets them, in the model FLOPs in full, which is how MFU is
defined everywhere.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.gpu.trained_models import DEVICE, benchmark_model, planned
from millrace.models.errors import ModelError
from millrace.models.labels import parse
from millrace.models.ops import model_flops
from millrace.planner.actors.graph import Actor, ActorGraph, Program, Register
from millrace.planner.cluster import Device
from millrace.planner.compile import compile_plan
from millrace.planner.costs import durations
from millrace.planner.costs.actors import parts_of
from millrace.planner.costs.attention import KINDS as ATTENTION
from millrace.planner.costs.gemm import PLAIN
from millrace.planner.costs.op_batch import OpFirings, firing_of, peak_flops_per_s
from millrace.planner.errors import ClusterError, InfeasibleError, PlanError
from millrace.planner.plan import FUSIONS, Plan

BATCH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineWork:
    """Work of one firing of an actor, and the least time it takes, in seconds.

    `kinds` are those of its ops, `flops` those of their products that a mask lets through,
    `bytes` everything read and written once.
    """

    name: str
    kinds: tuple[str, ...]
    firings: int
    flops: float
    bytes: int
    compute_s: float
    memory_s: float
    reachable_s: float
    predicted_s: float

    @property
    def bound_s(self) -> float:
        """Least seconds by the data sheet: the larger of computing and moving."""
        return max(self.compute_s, self.memory_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRow:
    """The actors of one kind, over a step."""

    kind: str
    actors: int
    firings: int
    flops: float
    bytes: int
    bound_s: float
    reachable_s: float
    predicted_s: float
    memory_bound: float  # the share of `bound_s` in which memory is what limits
    share: float  # of the step's bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """A plan's step: its bounds in seconds, and the share of peak that each would be."""

    model: str
    device: str
    batch: int
    fusion: str
    actors: int
    model_flops: int
    flops: float
    bytes: int
    bound_s: float
    reachable_s: float
    predicted_s: float
    bound_mfu: float
    reachable_mfu: float
    predicted_mfu: float
    kinds: tuple[KindRow, ...]


def works(plan: Plan, compiled: ActorGraph | None = None) -> list[RooflineWork]:
    """Work of every actor of a plan on one device; `compiled` is the plan's actors, if at hand.

    Raises
    ------
    PlanError
        The plan is for several devices.
    ClusterError
        The device has no rate for a precision.
    """
    if plan.ranks != 1:
        raise PlanError(f"the plan has {plan.ranks} ranks; a roofline is of one device")
    compiled = compiled or compile_plan(plan)
    (program,), (durations_ns,) = compiled.programs, durations(compiled, plan.cluster)
    return [
        _work(actor, program, plan.cluster.device, duration_ns)
        for actor, duration_ns in zip(program.actors, durations_ns, strict=True)
    ]


def _work(actor: Actor, program: Program, device: Device, duration_ns: int) -> RooflineWork:
    flops = compute_s = reachable_compute_s = 0.0
    moved = 0
    for firing in ops_of(actor, program):
        moved += int(firing.bytes[0])
        count = float(firing.flops[0]) * _let_through(firing)
        if count:
            flops += count
            alone_s = count / peak_flops_per_s(device, firing.precision)
            compute_s += alone_s
            reachable_compute_s += alone_s / _efficiency(firing, device)
    memory_s = moved / device.memory_bandwidth_bytes_per_s
    return RooflineWork(
        name=actor.name,
        kinds=actor.kinds,
        firings=actor.firings,
        flops=flops,
        bytes=moved,
        compute_s=compute_s,
        memory_s=memory_s,
        reachable_s=max(reachable_compute_s, memory_s / device.memory_efficiency),
        predicted_s=duration_ns / 1e9,
    )


def ops_of(actor: Actor, program: Program) -> Iterator[OpFirings]:
    """Yield the ops that an actor computes in one firing; in a fused one they share its traffic."""
    if not actor.parts:
        shapes_and_dtypes = _shapes_and_dtypes(*program.operands(actor))
        yield firing_of(actor.kind, actor.labels, actor.attributes, *shapes_and_dtypes)
        return
    for part, inputs, outputs, share in parts_of(actor, program):
        yield firing_of(
            part.kind, part.labels, part.attributes, *_shapes_and_dtypes(inputs, outputs), share
        )


def _shapes_and_dtypes(
    inputs: Sequence[Register], outputs: Sequence[Register]
) -> tuple[list[Any], list[Any], list[str], list[str]]:
    """Shapes and dtypes, as costs take them."""
    return (
        [register.shape for register in inputs],
        [register.shape for register in outputs],
        [register.dtype for register in inputs],
        [register.dtype for register in outputs],
    )


def _let_through(firing: OpFirings) -> float:
    """Share of an attention's scores that its mask and window leave; 1 of all else."""
    if firing.kind not in ATTENTION or not firing.attributes.get("causal"):
        return 1.0
    queries, keys, *_ = parse(firing.labels).operands
    rows, columns = (float(np.max(firing.size(dims[1]))) for dims in (queries, keys))
    reach = min(float(firing.attributes.get("window", 0)) or columns, columns)
    # Each of the first `reach` queries sees one key more than the one before it.
    return (reach * (reach + 1) / 2 + (rows - reach) * reach) / (rows * columns)


def _efficiency(firing: OpFirings, device: Device) -> float:
    """Share of its peak that a large kernel of this kind reaches."""
    if firing.kind in ATTENTION:
        return device.attention_efficiency
    if firing.precision in PLAIN and device.plain_efficiency is not None:
        return device.plain_efficiency
    return device.matmul_efficiency


def roofline(plan: Plan) -> Roofline:
    """Roofline of a plan on one device: its actors summed up by kind."""
    actor_works = works(plan)
    flops = model_flops(plan.graph) * plan.microbatches
    peak = peak_flops_per_s(plan.cluster.device, plan.model.precision)

    def total(what: str) -> float:
        return sum(getattr(work, what) * work.firings for work in actor_works)

    bound_s, reachable_s, predicted_s = map(total, ("bound_s", "reachable_s", "predicted_s"))
    return Roofline(
        model=plan.model.name,
        device=plan.cluster.device.name,
        batch=plan.global_batch,
        fusion=plan.fusion,
        actors=len(actor_works),
        model_flops=flops,
        flops=total("flops"),
        bytes=int(total("bytes")),
        bound_s=bound_s,
        reachable_s=reachable_s,
        predicted_s=predicted_s,
        bound_mfu=flops / (peak * bound_s),
        reachable_mfu=flops / (peak * reachable_s),
        predicted_mfu=flops / (peak * predicted_s),
        kinds=tuple(_by_kind(actor_works, bound_s)),
    )


def kind_of(work: RooflineWork) -> str:
    """Kinds of the ops that an actor computes, each once.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> kind_of(SimpleNamespace(kinds=("matmul", "add", "add")))
    'matmul+add'
    """
    return "+".join(dict.fromkeys(work.kinds))


def _by_kind(actor_works: Iterable[RooflineWork], bound_s: float) -> list[KindRow]:
    """Rows by kind, the longest first."""
    kinds: dict[str, list[RooflineWork]] = {}
    for work in actor_works:
        kinds.setdefault(kind_of(work), []).append(work)
    rows = []
    for kind, those in kinds.items():
        took_s = sum(work.bound_s * work.firings for work in those)
        moving_s = sum(
            work.memory_s * work.firings for work in those if work.memory_s >= work.compute_s
        )
        rows.append(
            KindRow(
                kind=kind,
                actors=len(those),
                firings=sum(work.firings for work in those),
                flops=sum(work.flops * work.firings for work in those),
                bytes=sum(work.bytes * work.firings for work in those),
                bound_s=took_s,
                reachable_s=sum(work.reachable_s * work.firings for work in those),
                predicted_s=sum(work.predicted_s * work.firings for work in those),
                memory_bound=moving_s / took_s if took_s else 1.0,
                share=took_s / bound_s,
            )
        )
    return sorted(rows, key=lambda row: (-row.bound_s, row.kind))


def print_table(plan_roofline: Roofline, console: Console) -> None:
    """Print the rows of a plan and their sum."""
    title = (
        f"{plan_roofline.model}, batch {plan_roofline.batch}, on {plan_roofline.device}, "
        f"fusion {plan_roofline.fusion}"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("kind", overflow="fold")
    names = ("actors", "GFLOP", "GB", "bound ms", "share", "by memory", "reachable ms")
    for name in (*names, "predicted ms"):
        table.add_column(name, justify="right")
    for row in plan_roofline.kinds:
        table.add_row(
            row.kind,
            f"{row.actors:,}",
            f"{row.flops / 1e9:,.1f}",
            f"{row.bytes / 1e9:,.3f}",
            f"{row.bound_s * 1e3:,.3f}",
            f"{row.share:.1%}",
            f"{row.memory_bound:.0%}",
            f"{row.reachable_s * 1e3:,.3f}",
            f"{row.predicted_s * 1e3:,.3f}",
        )
    table.add_section()
    sums = (plan_roofline.bound_s, plan_roofline.reachable_s, plan_roofline.predicted_s)
    bound, reachable, predicted = (f"{seconds * 1e3:,.3f}" for seconds in sums)
    table.add_row(
        "a step",
        f"{plan_roofline.actors:,}",
        f"{plan_roofline.flops / 1e9:,.1f}",
        f"{plan_roofline.bytes / 1e9:,.3f}",
        *(bound, "100.0%", "", reachable, predicted),
    )
    shares = (plan_roofline.bound_mfu, plan_roofline.reachable_mfu, plan_roofline.predicted_mfu)
    bound, reachable, predicted = (f"{share:.1%}" for share in shares)
    table.add_row("share of peak (MFU)", "", "", "", bound, "", "", reachable, predicted)
    console.print(table)


def plans(model: str, batch: int, device: str, precision: str, seq_len: int | None) -> list[Plan]:
    """Plans that are set beside each other: every op alone, and fused."""
    spec = benchmark_model(model, precision, seq_len)
    return [planned(spec, batch, device, fusion) for fusion in FUSIONS]


def main(arguments: list[str] | None = None) -> int:
    """Print a table per plan, or one JSON document; return the exit code."""
    asked = argparse.ArgumentParser(prog="benchmarks.gpu.roofline", description=__doc__)
    asked.add_argument("models", nargs="+", metavar="MODEL")
    asked.add_argument("--device", default=DEVICE)
    asked.add_argument("--batch", type=int, default=BATCH, help="samples of a step")
    asked.add_argument("--precision", default="bf16")
    asked.add_argument("--seq-len", type=int)
    asked.add_argument("--actors", action="store_true", help="in JSON every actor too")
    asked.add_argument("--json", action="store_true")
    options = asked.parse_args(arguments)
    rows, console = [], Console(width=150)
    for model in options.models:
        try:
            asked_for = (options.batch, options.device, options.precision, options.seq_len)
            for plan in plans(model, *asked_for):
                plan_roofline = roofline(plan)
                row = asdict(plan_roofline)
                if options.actors:
                    row["each"] = [asdict(work) | {"bound_s": work.bound_s} for work in works(plan)]
                rows.append(row)
                if not options.json:
                    print_table(plan_roofline, console)
        except (ClusterError, InfeasibleError, ModelError, PlanError) as error:
            print(f"benchmarks.gpu.roofline: {error}", file=sys.stderr)
            return 1 if isinstance(error, InfeasibleError) else 2
    if options.json:
        print(json.dumps({"rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
