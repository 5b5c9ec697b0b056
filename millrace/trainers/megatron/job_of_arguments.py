"""Megatron-LM's arguments as a job; `job_values` is the inverse."""

import re
from collections import ChainMap
from collections.abc import Mapping
from math import lcm
from typing import Any

from millrace.models.spec import TrainingSpec
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.frameworks.model_settings import with_capacity
from millrace.planner.search import Pins
from millrace.published.columns import RECOMPUTE_MODULES
from millrace.trainers.job import TrainingJob
from millrace.trainers.megatron.hybrid_layers import given_pattern
from millrace.trainers.megatron.job_values import MEGATRON, usual_modules
from millrace.trainers.megatron.model_reading import read_model
from millrace.trainers.megatron.pipeline_layout import layout_layers
from millrace.trainers.megatron.unplanned_arguments import check_job, unplanned_sentences
from millrace.trainers.trainer import ReadSettings, SettingsError, share_of

DEFAULT_NODE = 8  # devices of a node where nothing says how many
CORE = ("core_attn",)  # the default of --recompute-modules


def read_job(
    values: Mapping[str, Any],
    nodes: int,
    devices_per_node: int,
    header: Mapping[str, str],
) -> ReadSettings:
    """Job of settings.

    Parameters
    ----------
    values : mapping
        By destination, with the defaults of what is not given.
    nodes, devices_per_node : int
        Those of the launcher; 0 where it does not say.
    header : mapping
        Words of the header of an exported file.

    Raises
    ------
    SettingsError
        A setting is missing or contradicts another; names both.
    """
    check_job(values)
    if (hybrid := given_pattern(values)) is not None:
        values = ChainMap({"num_layers": len(hybrid.letters)}, values)  # type: ignore[arg-type]
    degrees = _degrees(values)
    assumed: list[str] = []
    ranks = degrees["tp"] * degrees["cp"]
    if values["num_experts"]:
        etp = values["expert_tensor_parallel_size"] or degrees["tp"]
        ranks = lcm(ranks, values["expert_model_parallel_size"] * etp)
    nodes, per_node = _devices(ranks * degrees["pp"], nodes, devices_per_node, assumed)
    model_devices = degrees["tp"] * degrees["pp"] * degrees["cp"]
    if nodes * per_node % model_devices:
        raise SettingsError(
            f"tensor × pipeline × context parallel is {model_devices}, which does not divide "
            f"{nodes} nodes of {per_node} devices: say how many with --nodes and --gpus-per-node"
        )
    degrees["dp"] = nodes * per_node // model_devices
    model, unplanned = read_model(values, header.get("model", ""), degrees["tp"], assumed)
    factor = values["moe_expert_capacity_factor"]
    if values["num_experts"]:
        model = with_capacity(
            model, None if factor is None else f"{factor:g}", capabilities(MEGATRON)
        )
        _check_experts(values, degrees)
    chunk_layers, chunks = _chunks(values, degrees["pp"])
    pins: dict[str, Any] = dict(degrees)
    pins |= _pipeline_pins(chunks, degrees["pp"])
    pins |= _other_pins(values, degrees, unplanned)
    if not values["micro_batch_size"]:
        raise SettingsError("--micro-batch-size is missing")
    batch = values["global_batch_size"] or values["micro_batch_size"] * degrees["dp"]
    if batch % (values["micro_batch_size"] * degrees["dp"]):
        raise SettingsError(
            f"--global-batch-size {batch}: {degrees['dp']} replicas with microbatches of "
            f"{values['micro_batch_size']} do not divide it"
        )
    recompute_layers = 0
    if values["recompute_method"] == "block":
        recompute_layers = _recomputed_layers(values, chunks * degrees["pp"])
    unplanned += unplanned_sentences(values)
    training = _training(values)
    modules = {*(values["recompute_modules"] or CORE)} & RECOMPUTE_MODULES.keys()
    software = _software(values, degrees)
    if pins["recompute"] == "selective" and modules != {*usual_modules(model, training)}:
        software["recompute_modules"] = " ".join(sorted(modules))
    job = TrainingJob(
        model=model,
        training=training,
        global_batch=batch,
        nodes=nodes,
        devices_per_node=per_node,
        pins=Pins.of(pins),
        framework=header.get("framework", MEGATRON),
        cluster=header.get("cluster", ""),
        chunk_layers=chunk_layers,
        recompute_layers=recompute_layers,
        software=software,
    )
    return ReadSettings(job=job, assumed=tuple(assumed), unplanned=tuple(unplanned))


def _degrees(values: Mapping[str, Any]) -> dict[str, int]:
    degrees = {
        "tp": values["tensor_model_parallel_size"],
        "pp": values["pipeline_model_parallel_size"],
        "cp": values["context_parallel_size"],
    }
    for name, degree in degrees.items():
        if degree < 1:
            raise SettingsError(f"{name} is {degree}: expected at least 1")
    return degrees


def _devices(model_devices: int, nodes: int, per_node: int, assumed: list[str]) -> tuple[int, int]:
    """Nodes and devices of one; the least that the degrees take where nothing says."""
    if not per_node:
        per_node = min(DEFAULT_NODE, model_devices) if not nodes else DEFAULT_NODE
        assumed.append(f"nodes have {per_node} devices, since no launcher says (--gpus-per-node)")
    if not nodes:
        nodes = -(-model_devices // per_node)
        assumed.append(f"{nodes} nodes, the least that the degrees take (--nodes)")
    return nodes, per_node


def _check_experts(values: Mapping[str, Any], degrees: Mapping[str, int]) -> None:
    ranks = degrees["tp"] * degrees["cp"] * degrees["dp"]
    ep = values["expert_model_parallel_size"]
    etp = values["expert_tensor_parallel_size"] or degrees["tp"]
    if ranks % (ep * etp):
        raise SettingsError(
            f"--expert-model-parallel-size {ep}: with {etp} expert-tensor-parallel ranks each they "
            f"do not divide the {ranks} ranks of a stage; say how many nodes there are with --nodes"
        )


def _chunks(values: Mapping[str, Any], pp: int) -> tuple[tuple[int, ...], int]:
    """Layers of every chunk, none where they are even, and the chunks of a stage."""
    layers, hybrid = values["num_layers"], given_pattern(values)
    if hybrid is not None and len(hybrid.chunks) > 1:
        counts = hybrid.chunks
        if len(counts) % pp:
            raise SettingsError(
                f"--hybrid-layer-pattern has {len(counts)} chunks (`|` is between them), which are "
                f"no multiple of {pp} stages"
            )
        return () if len(set(counts)) == 1 else counts, len(counts) // pp
    if values["pipeline_model_parallel_layout"]:
        counts = layout_layers(values["pipeline_model_parallel_layout"])
        if len(counts) % pp or sum(counts) != layers:
            raise SettingsError(
                f"--pipeline-model-parallel-layout has {len(counts)} chunks with {sum(counts)} "
                f"layers in all, for {pp} stages and {layers} layers"
            )
        return () if len(set(counts)) == 1 else counts, len(counts) // pp
    if listed := values.get("num_layer_list"):
        counts = tuple(int(count) for count in re.findall(r"[0-9]{1,6}", listed))
        if len(counts) != pp or sum(counts) != layers:
            raise SettingsError(f"--num-layer-list {listed}: {pp} stages have {layers} layers")
        return counts, 1
    first, last = (values[f"decoder_{end}_pipeline_num_layers"] for end in ("first", "last"))
    if values.get("standalone_embedding_stage"):
        first = 0
    ends = [end for end in (first, last) if end is not None]
    spared = [bool(values[f"account_for_{end}_in_pipeline_split"]) for end in ("embedding", "loss")]
    inner, rest = pp - len(ends), layers - sum(ends) if ends else layers + sum(spared)
    each = rest // inner if inner > 0 else 0
    chunks = values["num_virtual_stages_per_pipeline_rank"] or 1
    if in_chunk := values["num_layers_per_virtual_pipeline_stage"]:
        chunks = max(each // in_chunk, 1)
        each = chunks * in_chunk
    if pp == 1:
        return (), 1
    if rest < 0 or rest != inner * each or any(stage % chunks for stage in (*ends, each)):
        raise SettingsError(
            f"--num-layers {layers}: Megatron-LM does not divide {rest} layers over {inner} stages "
            f"of {chunks} chunks; give --pipeline-model-parallel-layout, or the sizes of the ends "
            f"with --decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers"
        )
    stages = [each] * pp
    stages[0] = each if first is None else first
    stages[-1] = each if last is None else last
    in_chunks = [stage // chunks for stage in stages] * chunks
    if not ends:
        in_chunks[0] -= spared[0]
        in_chunks[-1] -= spared[1]
    return () if len(set(in_chunks)) == 1 else tuple(in_chunks), chunks


def _pipeline_pins(chunks: int, pp: int) -> dict[str, Any]:
    if pp == 1:
        return {}
    return {"interleave": chunks, "schedule": "interleaved-1f1b" if chunks > 1 else "1f1b"}


def _other_pins(
    values: Mapping[str, Any], degrees: Mapping[str, int], unplanned: list[str]
) -> dict[str, Any]:
    pins: dict[str, Any] = {"micro_batch": values["micro_batch_size"]}
    pins["recompute"] = _recompute(values, unplanned)
    if degrees["dp"] * degrees["cp"] > 1:
        split = values["use_distributed_optimizer"] or values["use_megatron_fsdp"]
        stage = values.get("zero_stage")
        split = split or values["use_torch_fsdp2"] or values["optimizer"] == "dist_muon"
        pins["zero"] = int(bool(split) if stage is None else stage)
    if degrees["tp"] > 1:
        pins["sequence_parallel"] = bool(values["sequence_parallel"])
    if degrees["cp"] > 1:
        pins["ring"] = "p2p" in values["cp_comm_type"][0]
    if values["optimizer_cpu_offload"] and values.get("optimizer_offload_fraction", 1):
        pins["offload"] = "optimizer"
    if values["num_experts"]:
        kind = values["moe_token_dispatcher_type"]
        if values["moe_enable_deepep"]:
            kind = "deepep"
        pins |= {
            "ep": values["expert_model_parallel_size"],
            "dispatcher": values["moe_flex_dispatcher_backend"] if kind == "flex" else kind,
            "expert_overlap": bool(values["overlap_moe_expert_parallel_comm"]),
        }
        if degrees["tp"] > 1:
            pins["etp"] = values["expert_tensor_parallel_size"] or degrees["tp"]
    return pins


def _recompute(values: Mapping[str, Any], unplanned: list[str]) -> str:
    granularity = values["recompute_granularity"]
    if values["recompute_activations"]:
        granularity = "selective"
    if granularity != "selective":
        grouped = granularity == "full" and values["recompute_method"] == "uniform"
        if grouped and (values["recompute_num_layers"] or 1) > 1:
            unplanned.append(
                f"--recompute-num-layers {values['recompute_num_layers']}: groups of layers are "
                f"recomputed together, planned layer by layer"
            )
        return granularity or "none"
    modules = values["recompute_modules"] or CORE
    if others := [module for module in modules if module not in RECOMPUTE_MODULES]:
        unplanned.append(f"--recompute-modules {' '.join(others)}: kept in the plan")
    return "selective" if len(others) < len(modules) else "none"


def _recomputed_layers(values: Mapping[str, Any], chunks: int) -> int:
    """Recomputed layers of a chunk; 0 where these are all."""
    layers = values["recompute_num_layers"] or 0
    return 0 if layers * chunks >= values["num_layers"] else layers


def _software(values: Mapping[str, Any], degrees: Mapping[str, int]) -> dict[str, str]:
    words: dict[str, str] = {}
    if degrees["tp"] > 1 and values["sequence_parallel"] and not values["tp_comm_overlap"]:
        words["tensor_overlap"] = "0"
    if degrees["dp"] * degrees["cp"] > 1 and not values["overlap_grad_reduce"]:
        words["overlap"] = "0"
    half = values["fp16"] and not values["accumulate_allreduce_grads_in_fp32"]
    if half or values["grad_reduce_in_bf16"]:
        words["gradient_bytes"] = "2"
    if (copies := values["num_distributed_optimizer_instances"]) > 1:
        words["shard_group"] = str(degrees["dp"] * degrees["cp"] // copies)
    if degrees["cp"] > 1 and values["cp_comm_type"][0] not in ("p2p", "all_gather"):
        words["cp_comm"] = values["cp_comm_type"][0]
    captured = {"full_iteration": "step", "local": "layers", "transformer_engine": "layers"}
    if captured_by := captured.get(values["cuda_graph_impl"]):
        words["captured"] = captured_by
    return words


# Others are planned as AdamW, which is said where they differ.
OPTIMIZERS = {"sgd": "sgd", "muon": "muon", "dist_muon": "muon"}


def _training(values: Mapping[str, Any]) -> TrainingSpec:
    """Optimizer and schedule; rates that the settings leave open are the defaults."""
    usual = TrainingSpec()
    rate = _rate(values, "lr", usual.learning_rate) or usual.learning_rate
    least = _rate(values, "min_lr", 0.0)
    optimizer = OPTIMIZERS.get(values["optimizer"], "adamw")
    steps = _rate(values, "lr_decay_iters", 0)
    decays = _rate(values, "lr_decay_style", "linear") == "cosine" and steps > 0
    return TrainingSpec(
        optimizer=optimizer,
        learning_rate=rate,
        warmup_steps=_rate(values, "lr_warmup_iters", 0),
        decay_steps=steps if decays else 0,
        final_fraction=share_of(least, rate),
        beta1=_rate(values, "adam_beta1", usual.beta1),
        beta2=_rate(values, "adam_beta2", usual.beta2),
        epsilon=_rate(values, "adam_eps", usual.epsilon),
        weight_decay=_rate(values, "weight_decay", usual.weight_decay),
        momentum=_rate(values, f"{optimizer}_momentum", 0.0) if optimizer != "adamw" else 0.0,
        clip_norm=_rate(values, "clip_grad", usual.clip_norm),
        attention="unfused" if _attends_unfused(values) else "flash",
    )


def _attends_unfused(values: Mapping[str, Any]) -> bool:
    """True if attention writes its scores: asked for, or Megatron's own, which knows no other."""
    return values["transformer_impl"] == "local" or values["attention_backend"] in (
        "unfused",
        "local",
    )


def _rate(values: Mapping[str, Any], dest: str, usual: Any) -> Any:
    """Value that no plan depends on; the usual one where it is none or cannot be read."""
    try:
        value = values[dest]
    except SettingsError:
        return usual
    return usual if value is None else value
