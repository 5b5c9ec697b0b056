"""Reading a job from DeepSpeed's JSON, the model's, and the command that starts it."""

import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from millrace.models.errors import ModelError
from millrace.models.importers.huggingface import config_spec
from millrace.models.importers.huggingface.keys import Keys
from millrace.models.importers.opening import open_model
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.planner.errors import PlanError
from millrace.planner.parallel_degrees import HYBRID
from millrace.planner.plan import OPTIMIZER
from millrace.planner.search import Pins
from millrace.trainers.deepspeed.ds_config_writing import (
    ATTENTIONS,
    BACKENDS,
    BATCH,
    FRAMEWORK,
    GRADIENTS,
)
from millrace.trainers.deepspeed.ds_names import names_table
from millrace.trainers.deepspeed.given_texts import MARKS, PLAIN, GivenTexts, given_texts, is_job
from millrace.trainers.deepspeed.partial_training import adapter_rank, partly_trained
from millrace.trainers.deepspeed.script_options import (
    AUTO,
    LENGTHS,
    MODELS,
    NO,
    PIPELINES,
    RECOMPUTING,
    count_of,
    is_on,
    without_auto,
)
from millrace.trainers.header import read_header
from millrace.trainers.huggingface_config import with_even_share
from millrace.trainers.job import TrainingJob, warmup_within
from millrace.trainers.model_names import known_name
from millrace.trainers.trainer import ReadSettings, SettingsError, SettingsSource, flattened

MEGATRON = re.compile(r"--tensor-model-parallel-size|--num-attention-heads|pretrain_\w+\.py")
NAMED = re.compile(r"--deepspeed[-_]config[\s=]+\S+\.json")
HOST = re.compile(r"^\S+\s+slots=([0-9]{1,4})\s*$", re.M)
DEGREE_MAX = 1_000_000
HALVES = ("fp16", "float16", "half", "torch.float16")
FSDP = "pytorch-fsdp"
LOADED = {"bfloat16": "bf16", "float16": "fp16", "bf16": "bf16", "fp16": "fp16"}
QUANTIZED = ("zero_quantized_weights", "zero_quantized_gradients")


def recognizes(source: SettingsSource) -> bool:
    """True if a text is DeepSpeed's JSON, or a command names it, and none starts Megatron."""
    if MEGATRON.search(source.text):
        return False
    return any(f'"{mark}"' in source.text for mark in MARKS) or bool(NAMED.search(source.text))


def read_settings(source: SettingsSource) -> ReadSettings:
    """Job of a DeepSpeed configuration and the command that starts it.

    Raises
    ------
    SettingsError
        A setting is misspelt, missing or out of range, or nothing says which model is trained;
        names the setting and the fix.
    """
    try:
        texts = given_texts(source)
        if texts.document is PLAIN and not is_job(source):
            raise SettingsError(
                "there is no DeepSpeed configuration: give its JSON beside the command that starts "
                "it"
            )
        return _read(texts, source)
    except ModelError as error:
        raise SettingsError(str(error)) from None


def _read(texts: GivenTexts, source: SettingsSource) -> ReadSettings:
    assumed, header = list(texts.assumed), read_header(source)
    document = without_auto(texts.document, texts.options, assumed)
    keys = Keys(values=document, where=texts.where)
    precision = _precision(keys, texts, assumed)
    model = _model(texts, source, precision, header.get("model", ""), assumed)
    autotp = keys.section("tensor_parallel").integer("autotp_size", 1, null=1, least=0)
    others = {
        "tp": texts.degrees.get("tp") or autotp or 1,
        "pp": _stages(keys, texts.options),
        "cp": texts.degrees.get("cp") or keys.integer("sequence_parallel_size", 1, most=DEGREE_MAX),
    }
    batch = {name: keys.integer(name, null=0, default=0) for name in BATCH}
    nodes, per_node = _devices(texts, source, batch, prod(others.values()))
    if nodes * per_node % prod(others.values()):
        raise SettingsError(
            f"{texts.where}: {nodes} nodes of {per_node} devices are no multiple of "
            f"{prod(others.values())}, its other degrees: set --nodes or the degrees"
        )
    degrees = {"dp": nodes * per_node // prod(others.values()), **others}
    micro_batch, global_batch = _batches(keys, batch, degrees["dp"])
    pins = _pins(keys, texts, degrees, micro_batch, _expert_pins(keys, model, degrees), assumed)
    return ReadSettings(
        job=TrainingJob(
            model=model,
            training=_training(keys, texts.options, assumed),
            global_batch=global_batch,
            nodes=nodes,
            devices_per_node=per_node,
            pins=pins,
            framework=header.get("framework", FRAMEWORK if texts.sharding is None else FSDP),
            cluster=header.get("cluster", ""),
            chunk_layers=_chunk_layers(texts.options, degrees["pp"]),
            software=_software(keys, texts.options),
        ),
        assumed=tuple(assumed),
        ignored=(*texts.ignored, *_ignored(texts.document), *texts.arguments.ignored),
        unplanned=(*partly_trained(texts.options), *_unplanned(keys, degrees), *_left(texts)),
        unread=texts.arguments.unread,
        given=dict(flattened(texts.document))
        | {f"--{name}": value for name, value in texts.options.items()},
    )


def _precision(keys: Keys, texts: GivenTexts, assumed: list[str]) -> str:
    half = "bf16" if "bf16" in keys.values else "bfloat16"
    if keys.section(half).flag("enabled", False, null=False):
        return "bf16"
    if keys.section("fp16").flag("enabled", False, null=False):
        return "fp16"
    autocast = keys.section("torch_autocast")
    if autocast.flag("enabled", False, null=False):
        return (
            "fp16"
            if "16" in autocast.text("dtype", "") and "b" not in autocast.text("dtype", "")
            else "bf16"
        )
    dtype = texts.options.get("torch-dtype", texts.options.get("dtype", "")).removeprefix("torch.")
    if dtype in LOADED:
        assumed.append(f"weights are loaded in {dtype}, and computed with in it")
        return LOADED[dtype]
    precision = "tf32" if is_on(texts.options, "tf32") else "fp32"
    for name in (half, "fp16"):
        section = texts.document.get(name)
        if isinstance(section, dict) and section.get("enabled") == AUTO:
            assumed.append(f"{name}.enabled is auto, and there is no --{name}: {precision}")
            break
    return precision


def _model(
    texts: GivenTexts, source: SettingsSource, precision: str, name: str, assumed: list[str]
) -> ModelSpec:
    """Model of a config.json, or the one that the user names; with the length of a sequence."""
    options = texts.options
    length = next((count_of(options, option) for option in LENGTHS if options.get(option)), None)
    if texts.model:
        spec = config_spec(texts.model, Path("config.json"), seq_len=length, precision=precision)
        spec = replace(spec, name=name or str(texts.model.get("_name_or_path") or "model"))
    elif "model" in source.values:
        spec = open_model(source.values["model"], length, precision)
    else:
        path = next((options[option] for option in MODELS if options.get(option)), "")
        if not (zoo_name := known_name(path)):
            of = f" of {path}" if path else ""
            raise SettingsError(
                f"the settings do not say what the model is: give the config.json{of} beside them, "
                f"or --set model=NAME with a name of `millrace models`"
            )
        spec = open_model(zoo_name, length, precision)
        assumed.append(f"{path} is {zoo_name} of `millrace models`, by its name")
    if length is None:
        assumed.append(
            f"nothing says how long sequences are: {spec.seq_len:,} tokens, the longest of the "
            f"model"
        )
    return with_even_share(spec)


def _stages(keys: Keys, options: Mapping[str, str]) -> int:
    for name in PIPELINES:
        if options.get(name):
            return count_of(options, name)
    stages = keys.section("pipeline").values.get("stages", 1)
    return 1 if stages == "auto" else keys.section("pipeline").integer("stages", 1, null=1)


def _software(keys: Keys, options: Mapping[str, str]) -> dict[str, str]:
    """Words of `TrainingJob.software`: bytes of a gradient's element in a sum, compiled blocks."""
    bytes_by_type = {"fp16": "2", "bf16": "2", "fp32": "4", "": ""}
    width = keys.choice("communication_data_type", bytes_by_type, "", null="")
    words = {GRADIENTS: width} if width else {}
    return words | ({"compiled": "1"} if is_on(options, "torch-compile") else {})


def _chunk_layers(options: Mapping[str, str], stages: int) -> tuple[int, ...]:
    text = options.get("stage-layers", "")
    if not text or stages == 1:
        return ()
    if not re.fullmatch(r"[0-9]{1,6}(,[0-9]{1,6})*", text) or text.count(",") != stages - 1:
        raise SettingsError(f"--stage-layers is `{text}`: expected {stages} numbers of layers")
    return tuple(map(int, text.split(",")))


def _devices(
    texts: GivenTexts, source: SettingsSource, batch: Mapping[str, int], others: int
) -> tuple[int, int]:
    """Nodes and devices of each, as the launcher, its hostfile or the batch says."""
    hosts = [int(slots) for text in source.files.values() for slots in HOST.findall(text)]
    nodes = source.nodes or (texts.launch.nodes if texts.launch else 0) or texts.nodes
    per_node = source.devices_per_node or (texts.launch.devices_per_node if texts.launch else 0)
    per_node = per_node or (hosts[0] if hosts else 0) or texts.devices // (nodes or 1)
    nodes = nodes or len(hosts)
    total, micro_batch, accumulation = (batch[name] for name in BATCH)
    if not per_node and total and micro_batch and accumulation:
        world = total // (micro_batch * accumulation) * others
        per_node = world // nodes if nodes else min(8, world)
        nodes = nodes or world // max(per_node, 1)
    if not per_node:
        raise SettingsError(
            f"{texts.where} does not say on how many devices it runs: give the launcher's "
            f"command, such as deepspeed's with --num_nodes and --num_gpus, or --nodes and "
            f"--gpus-per-node"
        )
    return nodes or 1, per_node


def _batches(keys: Keys, batch: Mapping[str, int], replicas: int) -> tuple[int, int]:
    """Samples of a microbatch and of a step, worked out as DeepSpeed works them out."""
    total, micro_batch, accumulation = (batch[name] for name in BATCH)
    if not total and not micro_batch:
        raise SettingsError(
            f"{keys.where} says neither train_batch_size nor train_micro_batch_size_per_gpu: set "
            f"one of them"
        )
    if not total:
        accumulation = accumulation or 1
        total = micro_batch * accumulation * replicas
    elif not micro_batch:
        accumulation = accumulation or 1
        micro_batch = total // (replicas * accumulation)
    else:
        accumulation = accumulation or total // (micro_batch * replicas)
    if total != micro_batch * accumulation * replicas or not micro_batch:
        raise SettingsError(
            f"{keys.where}: train_batch_size {total} is not {micro_batch} samples of a microbatch "
            f"× {accumulation} steps of accumulation × {replicas} replicas"
        )
    return micro_batch, total


def _pins(
    keys: Keys,
    texts: GivenTexts,
    degrees: Mapping[str, int],
    micro_batch: int,
    experts: Mapping[str, Any],
    assumed: list[str],
) -> Pins:
    """Choices that the settings state."""
    pinned: dict[str, Any] = {**degrees, "micro_batch": micro_batch, **experts}
    pinned["recompute"] = _recompute(keys, texts, degrees["pp"], assumed)
    zero = keys.section("zero_optimization")
    if degrees["dp"] * degrees["cp"] > 1:
        pinned["zero"] = _zero(zero, texts, degrees["dp"])
    if degrees["pp"] > 1:
        pinned |= {"schedule": "1f1b", "interleave": 1}
    if degrees["tp"] > 1:
        pinned["sequence_parallel"] = False
    if degrees["cp"] > 1:
        pinned["ring"] = False
    device = zero.section("offload_optimizer").text("device", "none", null="none")
    offload = texts.sharding is not None and texts.sharding.offload
    if device != "none" or offload or zero.flag("cpu_offload", False, null=False):
        pinned["offload"] = OPTIMIZER
    pins = Pins.of(pinned)
    try:
        pins.check()
    except PlanError as error:
        raise SettingsError(f"{texts.where}: {error}") from None
    return pins


def _zero(zero: Keys, texts: GivenTexts, replicas: int) -> int | str:
    """ZeRO of DeepSpeed's section, or of fully sharded data parallelism."""
    if texts.sharding is None:
        stage = zero.integer("stage", 0, least=0, most=3)
        group = zero.integer("mics_shard_size", 0, least=-1, null=0)
        return HYBRID if stage == 3 and 1 < group < replicas else stage
    copies = texts.degrees.get("dp_replicate", 1)
    if texts.sharding.zero and 1 < copies < replicas:
        return HYBRID
    return 0 if copies == replicas else texts.sharding.zero


def _expert_pins(keys: Keys, model: ModelSpec, degrees: Mapping[str, int]) -> dict[str, Any]:
    """Choices for experts; none where the model has none."""
    if not model.config.get("experts"):
        return {}
    section = keys.section("expert_parallel")
    by_backend = {backend: dispatcher for dispatcher, backend in BACKENDS.items()}
    on = section.flag("enabled", False, null=False)
    pinned: dict[str, Any] = {
        "ep": section.integer("autoep_size", 1) if on else 1,
        "dispatcher": section.choice("comm_backend", by_backend, "comm", null="comm"),
        "expert_overlap": False,
    }
    return pinned | ({"etp": 1} if degrees["tp"] > 1 else {})


def _recompute(keys: Keys, texts: GivenTexts, stages: int, assumed: list[str]) -> str:
    options = texts.options
    if "recompute" in options:
        if options["recompute"] not in ("none", "full"):
            raise SettingsError(f"--recompute is `{options['recompute']}`: expected none or full")
        return options["recompute"]
    stated = [options[name] for name in RECOMPUTING if name in options]
    if texts.sharding is not None and texts.sharding.recompute:
        return "full"
    if stated:
        return "none" if all(text.lower() in NO for text in stated) else "full"
    if stages > 1:
        section = keys.section("pipeline")
        return "full" if section.integer("activation_checkpoint_interval", 0, least=0) else "none"
    assumed.append("nothing says that layers are recomputed: none (transformers' default)")
    return "none"


def _training(keys: Keys, options: Mapping[str, str], assumed: list[str]) -> TrainingSpec:
    """Optimizer, its schedule, and the form of attention."""
    attention = options.get("attention", options.get("attn-implementation", ATTENTIONS["flash"]))
    plain = TrainingSpec()
    section, schedule = keys.section("optimizer"), keys.section("scheduler")
    usual = options.get("optim", "AdamW")
    if not section.values:
        assumed.append("there is no `optimizer`: AdamW, as the script is taken to make it")
    parameters, kind = section.section("params"), section.text("type", usual).lower()
    fields: dict[str, Any] = {
        "optimizer": "sgd" if kind.endswith("sgd") else "adamw",
        "learning_rate": parameters.number("lr", plain.learning_rate),
        "weight_decay": parameters.number("weight_decay", 0.0 if section.values else 0.1),
        "clip_norm": keys.number("gradient_clipping", 1.0, null=0.0),
        "attention": "unfused" if attention == "eager" else "flash",
        "lora_rank": adapter_rank(options),
    }
    if fields["optimizer"] == "sgd":
        fields["momentum"] = parameters.number("momentum", 0.0, most=1.0)
    elif betas := parameters.values.get("betas"):
        if not isinstance(betas, list) or len(betas) != 2:
            raise parameters.error("betas", "expected two numbers")
        pair = Keys(values={"beta1": betas[0], "beta2": betas[1]}, where=parameters.where)
        fields |= {name: pair.number(name, most=1.0) for name in ("beta1", "beta2")}
    elif section.values:
        fields |= {"beta1": 0.9, "beta2": 0.999}  # DeepSpeed's, PyTorch's and transformers'
    if "eps" in parameters.values:
        fields["epsilon"] = parameters.number("eps")
    rising = schedule.section("params")
    warmup = rising.integer("warmup_num_steps", 1000, least=0) if schedule.values else 0
    fields["warmup_steps"] = warmup if warmup > 1 else 0
    if schedule.text("type", "") == "WarmupCosineLR":
        fields["decay_steps"] = rising.integer("total_num_steps")
        fields["warmup_steps"] = warmup_within(fields["warmup_steps"], fields["decay_steps"])
        fields["final_fraction"] = rising.number("cos_min_ratio", 1e-4, most=1.0)
    return TrainingSpec(**fields)


def _unplanned(keys: Keys, degrees: Mapping[str, int]) -> Iterator[str]:
    """Sentences about settings that change speed or memory and have no place in a plan."""
    zero = keys.section("zero_optimization")
    for name in QUANTIZED:
        if zero.flag(name, False, null=False):
            yield f"{name}: what is gathered or reduced has fewer bits, a plan counts them all"
    if (ranks := zero.integer("zero_hpz_partition_size", 1, least=0)) > 1:
        yield (
            f"zero_hpz_partition_size: groups of {ranks} ranks hold the weights once more, for the "
            f"backward pass; plans gather them from all ranks"
        )
    if zero.section("offload_param").text("device", "none", null="none") != "none":
        yield "offload_param: weights lie in host memory, in plans on the devices"
    if zero.section("offload_optimizer").text("device", "none", null="none") == "nvme":
        yield "offload_optimizer to nvme: planned as host memory"
    table = names_table()
    for path, section in (("", keys), ("zero_optimization", zero)):
        for name in table.removed[path]:
            if name in section.values:
                yield f"{name}: DeepSpeed {table.version} has it no longer, and refuses it"
    kind = keys.section("optimizer").text("type", "AdamW")
    if kind.lower() not in ("adam", "adamw", "fusedadam", "sgd", "torch_adam"):
        yield f"optimizer {kind}: planned as AdamW"
    if degrees["cp"] > 1:
        yield "sequence_parallel_size: Ulysses exchanges heads, a plan gathers keys and values"
    if keys.section("compile").flag("deepcompile", False, null=False):
        yield "compile.deepcompile: plans take kernels as they are without it"
    if keys.section("activation_checkpointing").flag("cpu_checkpointing", False, null=False):
        yield "activation_checkpointing.cpu_checkpointing: activations stay on devices in plans"


def _left(texts: GivenTexts) -> Iterator[str]:
    """Sentences about files that nothing was read in, and what sharding moves to the host."""
    for name in texts.unseen:
        yield f"{name}: nothing in this file was read"
    if texts.sharding is None:
        return
    if texts.sharding.offload:
        yield "fsdp offloads parameters and gradients too; a plan the optimizer's states alone"
    if texts.sharding.gathered:
        yield "hybrid_shard_zero2: weights stay gathered between passes"


def _ignored(document: Mapping[str, Any]) -> Iterator[str]:
    """Settings that have no place in a plan, by name."""
    planned = (
        *(*BATCH, "bf16", "bfloat16", "fp16", "gradient_clipping", "zero_optimization"),
        *("optimizer", "scheduler", "pipeline", "expert_parallel", "tensor_parallel"),
        *("sequence_parallel_size", "torch_autocast", "zero_allow_untested_optimizer"),
        "communication_data_type",
    )
    yield from (name for name in document if name in names_table().names and name not in planned)
    zero = document.get("zero_optimization")
    used: tuple[str, ...] = (
        "stage",
        "offload_optimizer",
        "offload_param",
        "cpu_offload",
        "mics_shard_size",
    )
    if isinstance(zero, dict):
        used = (*used, *QUANTIZED, "zero_hpz_partition_size")
        yield from (f"zero_optimization.{name}" for name in zero if name not in used)
