"""Remarks on settings that were read: defaults, what a plan leaves out, what changes its speed."""

import re
from collections.abc import Iterator

from millrace.planner.parallel_degrees import HYBRID
from millrace.trainers.job import TrainingJob
from millrace.trainers.torchtitan.given_settings import GivenSettings
from millrace.trainers.torchtitan.job_settings import replicas
from millrace.trainers.torchtitan.older_settings import releases
from millrace.trainers.torchtitan.settings_table import PLANNED

MATTERING = ("training.local_batch_size", "training.seq_len")
PIPELINED = (
    "parallelism.pipeline_parallel_schedule",
    "parallelism.pipeline_parallel_microbatch_size",
)
QUANTIZING = re.compile("float8|mx|nvfp4", re.I)
NORMS = ("rmsnorm", "compiled_rmsnorm", "fused_rmsnorm")
UNPLANNED_PARALLELISM = (
    *("spmd_backend", "context_parallel_load_balancer", "context_parallel_ptrr_mask_key"),
    *("enable_compiled_autograd", "pipeline_parallel_split_mode"),
)


def assumed_of(given: GivenSettings, nodes: int, per_node: int) -> Iterator[str]:
    """Sentences about defaults that were taken and matter for speed.

    Parameters
    ----------
    given : GivenSettings
        What is set.
    nodes, per_node : int
        Devices that were taken.
    """
    yield from releases(given.table.rows, given.stated)
    pipelined = given.get("parallelism.pipeline_parallel_degree") > 1
    for name in (*MATTERING, *(PIPELINED if pipelined else ())):
        if name not in given.values:
            yield f"{name} is {given.get(name)}, torchtitan's default"
    mode = "activation_checkpoint"
    if not any(name.partition(".")[0] == mode for name in given.values):
        yield f"{mode} is selective, torchtitan's default"
    if given.launch is None or not given.launch.devices_per_node:
        yield f"{nodes} nodes of {per_node} devices each, as no launcher says otherwise"


def ignored_of(given: GivenSettings) -> list[str]:
    """Names of settings that have no place in a plan.

    Parameters
    ----------
    given : GivenSettings
        What is set.
    """
    return sorted(
        name
        for name in given.values
        if not name.startswith(PLANNED) or name.rpartition(".")[2] in UNPLANNED_PARALLELISM
    )


def unplanned_of(given: GivenSettings, job: TrainingJob, copies: int) -> Iterator[str]:
    """Sentences about settings that change speed or memory and have no place in a plan.

    Parameters
    ----------
    given : GivenSettings
        What is set.
    job : TrainingJob
        As it was read.
    copies : int
        Copies of the weights.
    """
    pins = job.pins
    dp, local = pins.dp or 1, given.get("training.local_batch_size")
    fills = job.global_batch // (dp * local)
    if (pins.pp or 1) > 1 and fills > 1:
        yield (
            f"the pipeline is filled and emptied {fills} times a step (training.global_batch_size "
            f"over local batches of {local}); a plan fills it once"
        )
    if pins.zero == HYBRID:
        if copies != replicas(job):
            yield f"storage is split in {copies} groups; a plan's would be {replicas(job)}"
        if given.get("parallelism.fsdp_reshard_after_forward") == "never":
            yield "fsdp_reshard_after_forward never: weights stay gathered between passes"
    if given.get("parallelism.disable_loss_parallel"):
        yield "parallelism.disable_loss_parallel: logits are gathered over the tp ranks"
    if given.classes.get("loss") == "ChunkedLossWrapper":
        yield "ChunkedLossWrapper: logits are made in parts, which takes less memory than predicted"
    if given.get("training.dtype") == "bfloat16":
        yield "training.dtype bfloat16: weights and optimizer states take 2 bytes each, not 4"
    if (norm := given.get("model.norm_type") or "rmsnorm") not in NORMS:
        yield f"model.norm_type {norm}: planned with RMS norms"
    named = (*given.converters, *(given.get("model.converters") or []))
    if others := [name for name in named if not QUANTIZING.search(name)]:
        yield f"converters {', '.join(others)}: a plan has the model as it is without"
    yield from _optimizer_remarks(given)
    yield from _checkpoint_remarks(given)


def _optimizer_remarks(given: GivenSettings) -> Iterator[str]:
    if (name := given.get("optimizer.name") or "AdamW") not in ("AdamW", "Adam"):
        yield f"optimizer.name {name}: planned as AdamW"
    if given.get("optimizer.implementation") != "fused":
        yield f"optimizer.implementation {given.get('optimizer.implementation')}, not fused"
    if given.get("optimizer.early_step_in_backward"):
        yield "optimizer.early_step_in_backward: weights are updated during the backward pass"
    if given.get("training.enable_cpu_offload"):
        yield "training.enable_cpu_offload moves parameters and gradients too, not states alone"


def _checkpoint_remarks(given: GivenSettings) -> Iterator[str]:
    if given.values.get("activation_checkpoint") == "MemoryBudgetAC":
        yield "MemoryBudgetAC: what is recomputed the compiler decides; read as selective"
    mode = given.get("activation_checkpoint.mode")
    option = str(given.get("activation_checkpoint.selective_ac_option"))
    if mode == "memory_budget":
        yield "activation_checkpoint.mode memory_budget: the compiler decides; read as selective"
    if mode == "selective" and option.isdigit() and int(option) > 1:
        yield f"one layer in {option} is recomputed; a plan has the first ones of every chunk"
