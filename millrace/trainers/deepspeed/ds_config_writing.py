"""Writing a job in DeepSpeed's words: its JSON, the model's, and a script that trains it."""

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.planner.errors import InfeasibleError
from millrace.planner.frameworks.capabilities import check_pins
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.plan import OPTIMIZER
from millrace.trainers.deepspeed.script_options import ARGUMENTS, AUTO, RECOMPUTING
from millrace.trainers.header import header_of
from millrace.trainers.huggingface_config import FILE, written_config
from millrace.trainers.job import TrainingJob
from millrace.trainers.trainer import WrittenSettings, flattened, with_plain_numbers

NAME, FRAMEWORK, SETTINGS = "deepspeed", "deepspeed", "ds_config.json"
STEPS = 1000  # of a run whose schedule does not end
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
PRECISIONS = ("bf16", "fp16", "tf32", "fp32")
GRADIENTS = "gradient_bytes"  # the word of `TrainingJob.software` that has a setting
ATTENTIONS = {"flash": "sdpa", "unfused": "eager"}
# Model types whose experts DeepSpeed splits over ranks (module_inject/auto_ep_presets, 0.19.8).
SPLIT_EXPERTS = ("mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3")
BACKENDS = {"alltoall": "comm", "deepep": "deepep"}
LAUNCH = """\
#!/bin/bash
{header}
# Needs the packages deepspeed, transformers and accelerate{hosts}.
set -euo pipefail
deepspeed {launcher} \\
    train.py --deepspeed --deepspeed_config {settings} \\
    {arguments}
"""


def written_settings(job: TrainingJob) -> WrittenSettings:
    """Settings of a job as DeepSpeed takes them.

    Raises
    ------
    InfeasibleError
        DeepSpeed cannot run the job, or transformers has no such model; names what stands in its
        way.
    """
    check_pins(capabilities(FRAMEWORK), NAME, job.pins.document)
    _check(job)
    model, unsaid = written_config(job.model, NAME)
    document = _document(job, str(model["model_type"]))
    arguments = _arguments(job)
    launcher = ["--num_nodes", str(job.nodes), "--num_gpus", str(job.devices_per_node)]
    files = {
        SETTINGS: with_plain_numbers(json.dumps(document, indent=2)) + "\n",
        FILE: with_plain_numbers(json.dumps(model, indent=2)) + "\n",
        "train.py": _script(job),
    }
    hosts = ""
    if job.nodes > 1:
        launcher = ["--hostfile", "hostfile", *launcher]
        hosts = ", and your nodes' names in hostfile"
        lines = [f"node-{node} slots={job.devices_per_node}\n" for node in range(job.nodes)]
        files["hostfile"] = "".join(lines)
        unsaid.append("hostfile names the nodes node-0, node-1, …: put your hosts' names there")
    files["launch.sh"] = LAUNCH.format(
        header=header_of(job),
        hosts=hosts,
        launcher=" ".join(launcher),
        settings=SETTINGS,
        arguments=" ".join(arguments[3:]),
    )
    unsaid.append(
        "data, tokenizer, checkpoints and the number of steps are no part of a plan: train.py "
        "draws random tokens, saves none and ends after --steps, until it is changed"
    )
    unsaid += [
        f"DeepSpeed has no setting for {name} {word}"
        for name, word in job.software.items()
        if name != GRADIENTS
    ]
    if int(job.pins.ep or 1) > 1:
        unsaid.append(
            "DeepSpeed 0.19.8 could not split the experts of transformers 5.24 when it was tried "
            "(2026-11): take the release of transformers that your DeepSpeed was made for"
        )
    return WrittenSettings(
        files=files,
        arguments=arguments,
        unsaid=tuple(unsaid),
        settings={**dict(flattened(document)), **_choices(job, document)},
    )


def respelled(settings: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by the names that the user's files have for them: options where JSON says `auto`.

    Parameters
    ----------
    settings : mapping
        As written.
    given : mapping
        As read.
    """
    words = dict(settings)
    stated = [name for name in BATCH if name in given]
    for name in BATCH if len(stated) > 1 else ():
        if name not in given:
            del words[name]  # it follows from the two others
    for name in [name for name in words if given.get(name) == AUTO]:
        value = words.pop(name)
        if (row := ARGUMENTS.get(tuple(name.split(".")))) is not None:
            words[f"--{row[0]}"] = value if value is not False else None
    if "--recompute" not in given:
        mode = words.pop("--recompute")
        switches = [f"--{name}" for name in RECOMPUTING if f"--{name}" in given]
        if switches or "pipeline.activation_checkpoint_interval" not in words:
            words[(*switches, f"--{RECOMPUTING[0]}")[0]] = True if mode == "full" else None
    return words


def _choices(job: TrainingJob, document: dict[str, Any]) -> dict[str, Any]:
    """Options of the script, and settings of sections that a job may not have."""
    layers = ",".join(map(str, job.chunk_layers)) if int(job.pins.pp or 1) > 1 else ""
    absent = {name: None for name in ("pipeline", "expert_parallel") if name not in document}
    if job.pins.offload != OPTIMIZER:
        absent["zero_optimization.offload_optimizer"] = None
    return {
        "--recompute": job.pins.recompute or "none",
        "--stage-layers": layers or None,
        "model of the program": "PipelineModule" if "pipeline" in document else "one module",
        **absent,
    }


def _check(job: TrainingJob) -> None:
    """Refuse what DeepSpeed's record does not forbid and the script does not run."""
    pins = job.pins
    if job.model.precision not in PRECISIONS:
        raise InfeasibleError(
            f"DeepSpeed computes in {', '.join(PRECISIONS)} here, the plan in "
            f"{job.model.precision}: plan with --precision bf16"
        )
    if job.recompute_layers:
        raise InfeasibleError(
            f"the script recomputes all layers or none, the plan the first {job.recompute_layers} "
            f"of every chunk: pin --recompute full or none"
        )
    if int(pins.interleave or 1) > 1:
        raise InfeasibleError(
            f"--interleave {pins.interleave}: a stage has one chunk in DeepSpeed: leave it out"
        )
    if int(pins.etp or 1) > 1:
        raise InfeasibleError(f"--etp {pins.etp}: DeepSpeed splits no expert: pin --etp 1")
    if pins.dispatcher not in (None, *BACKENDS):
        raise InfeasibleError(
            f"--dispatcher {pins.dispatcher}: DeepSpeed has {' and '.join(BACKENDS)}: choose one"
        )
    _check_length(job.model)


def _check_length(model: ModelSpec) -> None:
    positions = model.config.get("positions")
    if model.family == "gpt" and isinstance(positions, int) and model.seq_len > positions:
        raise InfeasibleError(
            f"`{model.name}` has {positions} positions, sequences {model.seq_len} tokens: plan "
            f"with --seq-len {positions}"
        )


def _document(job: TrainingJob, model_type: str) -> dict[str, Any]:
    """DeepSpeed's JSON."""
    pins, training, precision = job.pins, job.training, job.model.precision
    micro_batch = int(pins.micro_batch or 1)
    accumulation, rest = divmod(job.global_batch, int(pins.dp or 1) * micro_batch)
    if rest:
        raise InfeasibleError(
            f"{job.global_batch} samples a step are no multiple of "
            f"{int(pins.dp or 1) * micro_batch}, the samples of one microbatch on {pins.dp} "
            f"replicas"
        )
    document: dict[str, Any] = {
        "train_batch_size": job.global_batch,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": training.clip_norm,
        "steps_per_print": 10,
    }
    if precision in ("bf16", "fp16"):
        document[precision] = {"enabled": True}
    if width := job.software.get(GRADIENTS):
        narrow = precision if precision in ("bf16", "fp16") else "fp16"
        document["communication_data_type"] = narrow if width == "2" else "fp32"
    document["zero_optimization"] = {"stage": int(pins.zero or 0)}
    if pins.offload == OPTIMIZER:
        document["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    document |= _optimizer(training)
    if int(pins.pp or 1) > 1:
        document["pipeline"] = {
            "stages": pins.pp,
            "activation_checkpoint_interval": int(pins.recompute == "full"),
        }
    if int(pins.ep or 1) > 1:
        document["expert_parallel"] = _experts(job, model_type)
    return document


def _optimizer(training: TrainingSpec) -> dict[str, Any]:
    """Optimizer and schedule."""
    rate = training.learning_rate
    parameters: dict[str, Any] = {"lr": rate, "weight_decay": training.weight_decay}
    if training.optimizer == "adamw":
        kind = "AdamW"
        parameters |= {"betas": [training.beta1, training.beta2], "eps": training.epsilon}
    else:
        kind = "SGD"
        parameters["momentum"] = training.momentum
    document: dict[str, Any] = {"optimizer": {"type": kind, "params": parameters}}
    if kind == "SGD":
        document["zero_allow_untested_optimizer"] = True
    warmup = {"warmup_num_steps": max(1, training.warmup_steps), "warmup_type": "linear"}
    if training.decay_steps:
        cosine = {"total_num_steps": training.decay_steps, "cos_min_ratio": training.final_fraction}
        document["scheduler"] = {"type": "WarmupCosineLR", "params": cosine | warmup}
    elif training.warmup_steps:
        rising = {"warmup_min_lr": 0.0, "warmup_max_lr": rate} | warmup
        document["scheduler"] = {"type": "WarmupLR", "params": rising}
    return document


def _experts(job: TrainingJob, model_type: str) -> dict[str, Any]:
    """Section that splits experts over data-parallel ranks."""
    pins = job.pins
    if model_type not in SPLIT_EXPERTS:
        raise InfeasibleError(
            f"--ep {pins.ep}: DeepSpeed splits the experts of {', '.join(SPLIT_EXPERTS)}, not of a "
            f"{model_type}: pin --ep 1"
        )
    if int(pins.pp or 1) > 1:
        raise InfeasibleError(
            f"--ep {pins.ep} beside --pp {pins.pp}: the pipeline's script splits no experts: pin "
            f"one of the two to 1"
        )
    section: dict[str, Any] = {
        "enabled": True,
        "autoep_size": pins.ep,
        "preset_model": model_type,
        "comm_backend": BACKENDS[pins.dispatcher or "alltoall"],
    }
    if section["comm_backend"] == "deepep":
        section["comm_max_tokens_per_rank"] = int(pins.micro_batch or 1) * job.model.seq_len
    return section


def _arguments(job: TrainingJob) -> tuple[str, ...]:
    """Words of the script's command line."""
    words = [
        *("--deepspeed", "--deepspeed_config", SETTINGS, "--model-config", FILE),
        *("--seq-len", str(job.model.seq_len)),
        *("--attention", ATTENTIONS[job.training.attention]),
        *("--recompute", job.pins.recompute or "none"),
        *("--steps", str(job.training.decay_steps or STEPS)),
    ]
    if job.model.precision == "tf32":
        words.append("--tf32")
    if int(job.pins.pp or 1) > 1 and job.chunk_layers:
        words += ["--stage-layers", ",".join(map(str, job.chunk_layers))]
    return tuple(words)


def _script(job: TrainingJob) -> str:
    """Text of the program that trains the model."""
    name = "pipeline_script.txt" if int(job.pins.pp or 1) > 1 else "train_script.txt"
    return (resources.files("millrace.trainers.deepspeed") / name).read_text("utf-8")
