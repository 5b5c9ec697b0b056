"""The job that torchtitan's settings describe, and what of them a plan has no place for."""

from collections.abc import Mapping
from typing import Any

from millrace.models.errors import ModelError
from millrace.models.importers.opening import open_model
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.planner.parallel_degrees import HYBRID
from millrace.planner.search import Pins
from millrace.trainers.header import read_header
from millrace.trainers.job import TrainingJob, warmup_within
from millrace.trainers.model_names import name_of, stated
from millrace.trainers.torchtitan.given_settings import GivenSettings, given_settings
from millrace.trainers.torchtitan.job_settings import DISPATCHERS, STEPS
from millrace.trainers.torchtitan.model_sizes import config_of
from millrace.trainers.torchtitan.older_settings import REPLICATE, SHARD, split_points
from millrace.trainers.torchtitan.pipeline_stages import (
    divided,
    layers_of_names,
    layers_of_points,
)
from millrace.trainers.torchtitan.remarks import assumed_of, ignored_of, unplanned_of
from millrace.trainers.torchtitan.settings_table import SCHEDULES, SINGLE, TOML
from millrace.trainers.trainer import ReadSettings, SettingsError, SettingsSource

FRAMEWORK = "torchtitan"
NODE_DEVICES = 8  # of a node that the settings do not speak of: that of every GPU server of note
DEGREES = {
    "tp": "parallelism.tensor_parallel_degree",
    "pp": "parallelism.pipeline_parallel_degree",
    "cp": "parallelism.context_parallel_degree",
    "ep": "parallelism.expert_parallel_degree",
}
ASYNC = "enable_async_tensor_parallel"


def read(source: SettingsSource) -> ReadSettings:
    """Job of settings.

    Parameters
    ----------
    source : SettingsSource
        A TOML file, a Python module, a command line or a script, or what belongs together of them.

    Raises
    ------
    SettingsError
        What cannot be understood, with the setting's name.
    """
    given = given_settings(source)
    header = read_header(source)
    degrees = {name: _count(given, setting) for name, setting in DEGREES.items()}
    nodes, per_node = _devices(given, source, degrees)
    copies, shards = _data_parallel(given, degrees, nodes * per_node)
    dp = copies * shards
    micro_batch, global_batch = _batches(given, dp, pipelined=degrees["pp"] > 1)
    model = _model(given, source, header.get("model", ""))
    config: Mapping[str, Any] = model.config
    chunk_layers, pipeline = _pipeline(given, config["layers"], degrees["pp"])
    recompute, recompute_layers = _recompute(given, chunk_layers or (config["layers"],))
    pinned: dict[str, Any] = {name: degrees[name] for name in ("tp", "pp", "cp")}
    pinned |= {"dp": dp, "micro_batch": micro_batch, "recompute": recompute, **pipeline}
    if dp * degrees["cp"] > 1:
        pinned["zero"] = _zero(given, copies, shards * degrees["cp"], degrees["pp"])
    pinned |= _axis_choices(given, degrees, experts=bool(config.get("experts")))
    even = len(set(chunk_layers)) == 1
    job = TrainingJob(
        model=model,
        training=_training(given),
        global_batch=global_batch,
        nodes=nodes,
        devices_per_node=per_node,
        pins=Pins.of(pinned),
        framework=header.get("framework") or FRAMEWORK,
        cluster=header.get("cluster", ""),
        chunk_layers=() if even else tuple(chunk_layers),
        recompute_layers=recompute_layers,
        software=_software(given),
    )
    return ReadSettings(
        job=job,
        assumed=tuple(assumed_of(given, nodes, per_node)),
        ignored=tuple(ignored_of(given)),
        unplanned=tuple(unplanned_of(given, job, copies)),
        unread=tuple(given.unread),
        given=_usual(given) | given.values,
    )


def _model(given: GivenSettings, source: SettingsSource, name: str) -> ModelSpec:
    """Model of the sizes of a flavour, or the one that the user names."""
    seq_len, precision = _count(given, "training.seq_len"), _precision(given)
    if zoo_name := source.values.get("model", given.zoo_name):
        try:
            return open_model(zoo_name, seq_len, precision)
        except ModelError as error:
            raise SettingsError(str(error)) from None
    config = config_of(given.sizes)
    return ModelSpec(
        name=name or name_of("decoder", config),
        family="decoder",
        config=stated("decoder", config),
        seq_len=seq_len,
        precision=precision,
    )


def _usual(given: GivenSettings) -> dict[str, Any]:
    """Defaults that an export may say otherwise, or has other words for."""
    usual = {} if given.table.version == TOML else {"activation_checkpoint": "SelectiveAC"}
    decays = given.get("lr_scheduler.decay_ratio") != 0
    decay = "lr_scheduler.decay_type"
    return usual | ({decay: given.get(decay)} if decays else {})


def _count(given: GivenSettings, name: str) -> int:
    value = given.get(name)
    if not isinstance(value, int) or value < 1:
        raise SettingsError(f"{name} is {value!r}: expected 1 or more")
    return value


def _devices(
    given: GivenSettings, source: SettingsSource, degrees: Mapping[str, int]
) -> tuple[int, int]:
    """Nodes, and devices of one."""
    launch = given.launch
    nodes = source.nodes or (launch.nodes if launch else 0)
    per_node = source.devices_per_node or (launch.devices_per_node if launch else 0)
    if per_node and not nodes:
        nodes = 1
    shards, copies = given.get(SHARD), given.get(REPLICATE)
    inside = degrees["tp"] * degrees["pp"] * degrees["cp"] * copies
    left = SHARD if shards < 1 else REPLICATE
    if min(shards, copies) < 1 and not (nodes and per_node):
        raise SettingsError(
            f"{left} is left to the number of devices, and no launcher says how many: give "
            f"--nodes and --gpus-per-node"
        )
    if not (nodes and per_node):
        devices = inside * shards
        per_node = per_node or (devices // nodes if nodes else min(NODE_DEVICES, devices))
        nodes = nodes or max(1, devices // per_node)
    return nodes, per_node


def _data_parallel(
    given: GivenSettings, degrees: Mapping[str, int], devices: int
) -> tuple[int, int]:
    """Copies of the weights, and ranks of data that share one."""
    copies, shards = given.get(REPLICATE), given.get(SHARD)
    inside = degrees["tp"] * degrees["pp"] * degrees["cp"]
    if shards < 1:
        shards = devices // (max(copies, 1) * inside)
    if copies < 1:
        copies = devices // (shards * inside)
    if copies * shards * inside != devices:
        raise SettingsError(
            f"{REPLICATE} × {SHARD.rpartition('.')[2]} × tensor × pipeline × context parallel "
            f"degree is {copies * shards * inside}, on {devices} devices: --nodes and "
            f"--gpus-per-node say how many there are"
        )
    return copies, shards


def _batches(given: GivenSettings, dp: int, *, pipelined: bool) -> tuple[int, int]:
    """Samples of a microbatch of a replica, and of a step.

    The local batch is one accumulation of gradients; only a pipeline divides it further.
    """
    local = _count(given, "training.local_batch_size")
    total = given.get("training.global_batch_size")
    total = local * dp if total < 0 else total
    if total < 1 or total % (local * dp):
        raise SettingsError(
            f"training.global_batch_size {total} is no multiple of training.local_batch_size "
            f"{local} × {dp} data-parallel ranks"
        )
    if not pipelined:
        return local, total
    micro_batch = _count(given, "parallelism.pipeline_parallel_microbatch_size")
    if local % micro_batch:
        raise SettingsError(
            f"training.local_batch_size {local} is no multiple of "
            f"parallelism.pipeline_parallel_microbatch_size {micro_batch}"
        )
    return micro_batch, total


def _pipeline(
    given: GivenSettings, layers: int, stages: int
) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Layers of every chunk, and the pins of the pipeline; nothing of one stage."""
    if stages == 1:
        return (), {}
    word = str(given.get("parallelism.pipeline_parallel_schedule"))
    names = {name.lower(): name for name in SCHEDULES}
    if word.lower() not in names or given.get("parallelism.pipeline_parallel_schedule_csv"):
        raise SettingsError(
            f"parallelism.pipeline_parallel_schedule {word}: plans have {', '.join(SCHEDULES)}"
        )
    name = names[word.lower()]
    parts = given.get("parallelism.module_fqns_per_model_part")
    if parts:
        counts = layers_of_names(parts)
    elif points := split_points(given.values):
        counts = layers_of_points(points, layers)
    else:
        degrees = {
            name: given.get(name) for name in given.table.rows if name.startswith("parallelism.")
        }
        counts = divided(layers, degrees, 1 if name in SINGLE else 2)
    if sum(counts) != layers:
        raise SettingsError(
            f"parallelism.module_fqns_per_model_part names {sum(counts)} of {layers} layers"
        )
    if len(counts) % stages or (name in SINGLE and len(counts) != stages):
        raise SettingsError(
            f"parallelism.pipeline_parallel_schedule {word}: {len(counts)} chunks on {stages} ranks"
        )
    return tuple(counts), {"schedule": SCHEDULES[name], "interleave": len(counts) // stages}


def _recompute(given: GivenSettings, counts: tuple[int, ...]) -> tuple[str, int]:
    """Mode of recomputation, and of how many layers of a chunk; 0 for all of them."""
    policy = given.values.get("activation_checkpoint", "SelectiveAC")
    if "activation_checkpoint.mode" not in given.table.rows:
        return {"FullAC": "full", None: "none"}.get(policy, "selective"), 0
    mode = given.get("activation_checkpoint.mode")
    option = str(given.get("activation_checkpoint.selective_ac_option"))
    if mode == "selective" and option.isdigit() and int(option) > 0:
        return "full", 0 if int(option) == 1 else max(1, max(counts) // int(option))
    return {"memory_budget": "selective"}.get(mode, mode), 0


def _zero(given: GivenSettings, copies: int, shards: int, stages: int) -> int | str:
    """ZeRO of the data-parallel and context-parallel ranks."""
    if shards == 1:
        return 0
    policy = given.get("parallelism.fsdp_reshard_after_forward")
    gathered_again = policy == "always" or (policy == "default" and stages == 1)
    if copies > 1:
        return HYBRID
    return 3 if gathered_again else 2


def _axis_choices(
    given: GivenSettings, degrees: Mapping[str, int], *, experts: bool
) -> dict[str, Any]:
    """Pins that have a meaning where a degree is above one, or where there are experts."""
    pinned: dict[str, Any] = {}
    if degrees["tp"] > 1:
        stated = given.get("parallelism.enable_sequence_parallel")
        pinned["sequence_parallel"] = stated is not False
    if degrees["cp"] > 1:
        method = given.get("parallelism.context_parallel_rotate_method")
        pinned["ring"] = method == "alltoall"
    if given.get("training.enable_cpu_offload"):
        pinned["offload"] = "optimizer"
    if not experts:
        return pinned
    backend = given.get("parallelism.expert_parallel_comm_backend") or given.expert_backend
    names = {theirs: ours for ours, theirs in DISPATCHERS.items()}
    if backend not in names:
        raise SettingsError(f"moe_comm_backend {backend}: plans have {', '.join(names)}")
    pinned |= {"ep": degrees["ep"], "dispatcher": names[backend], "expert_overlap": False}
    if given.get("parallelism.pipeline_parallel_expert_parallel_overlap") and degrees["ep"] > 1:
        schedule = str(given.get("parallelism.pipeline_parallel_schedule"))
        pinned["expert_overlap"] = degrees["pp"] > 1 and schedule.lower() == "dualpipev"
    if degrees["tp"] > 1:
        stated = given.get("parallelism.expert_tensor_parallel_degree") or 1
        pinned["etp"] = degrees["tp"] if degrees["ep"] == 1 else stated
    return pinned


def _software(given: GivenSettings) -> dict[str, str]:
    """Words on how the software is set, as `TrainingJob.software` has them."""
    words = {}
    if given.get("compile.enable") and "model" in (given.get("compile.components") or []):
        words["compiled"] = "1"
    if any(given.get(f"{section}.{ASYNC}") for section in ("compile", "parallelism")):
        words["tensor_overlap"] = "1"
    if given.get("training.disable_cuda_graphs") is False:
        words["captured"] = "step"
    if given.get("training.mixed_precision_reduce") == "bfloat16":
        words["gradient_bytes"] = "2"
    return words


def _precision(given: GivenSettings) -> str:
    words = " ".join((*given.converters, *(given.get("model.converters") or []))).lower()
    for part, precision in (("nvfp4", "nvfp4"), ("mx", "mxfp8"), ("float8", "fp8")):
        if part in words:
            return precision
    stored = given.get("training.dtype") == "bfloat16"
    computed = given.get("training.mixed_precision_param") == "bfloat16"
    return "bf16" if stored or computed else "fp32"


def _training(given: GivenSettings) -> TrainingSpec:
    """Optimizer and its schedule; what a kind of decay is, a plan does not say."""
    betas = given.values.get("optimizer.betas") or (
        given.get("optimizer.beta1") or 0.9,
        given.get("optimizer.beta2") or 0.95,
    )
    ratio = given.get("lr_scheduler.decay_ratio")
    steps = given.get("lr_scheduler.total_steps") or given.get("training.steps") or STEPS
    decay_steps = 0 if ratio == 0 else steps
    clip = float(given.get("training.max_norm"))
    rate, decay = given.get("optimizer.lr"), given.get("optimizer.weight_decay")
    return TrainingSpec(
        learning_rate=float(8e-4 if rate is None else rate),
        warmup_steps=warmup_within(given.get("lr_scheduler.warmup_steps"), decay_steps),
        decay_steps=decay_steps,
        final_fraction=float(given.get("lr_scheduler.min_lr_factor")),
        beta1=float(betas[0]),
        beta2=float(betas[1]),
        epsilon=float(given.get("optimizer.eps") or 1e-8),
        weight_decay=float(0.1 if decay is None else decay),
        clip_norm=0.0 if clip == float("inf") else clip,
    )
