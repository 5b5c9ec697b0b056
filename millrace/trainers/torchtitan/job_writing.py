"""Job writing: a Python module with a torchtitan job's configuration, and its launch script."""

import math
from collections.abc import Mapping
from pathlib import Path
from pprint import pformat
from typing import Any

from millrace.trainers.header import header_of
from millrace.trainers.job import TrainingJob
from millrace.trainers.torchtitan.job_settings import (
    CHECKPOINTS,
    DISPATCHERS,
    PRECISIONS,
    compiled,
    settings_of,
    unsaid_of,
)
from millrace.trainers.torchtitan.model_sizes import ROPE_DEFAULTS, sizes_of, unheard
from millrace.trainers.torchtitan.settings_table import NEWEST, TOML, table_of
from millrace.trainers.trainer import WrittenSettings, number_text, with_plain_numbers

MODULE, FUNCTION, POLICY = "millrace_job", "job", "activation_checkpoint"
LEFT_TO_THE_MODULE = (
    "data, tokenizer and checkpoints are no part of a plan: DATASET and HF_ASSETS name the first "
    "two, none is saved, and without a schedule that ends there are 10,000 steps"
)
WORDS = {policy: mode for mode, policy in CHECKPOINTS.items()}
MODEL_MODULE = Path(__file__).with_name("model_module.txt")
LATENT_MODULE = Path(__file__).with_name("latent_module.txt")
# Torchtitan's package, the beginning of its class names, and what parallelizes its model.
MAKES = {
    "plain": ("llama3", "Llama3", "parallelize_llama"),
    "mixed": ("qwen3", "Qwen3", "parallelize_qwen3"),
    "latent": ("deepseek_v3", "DeepSeekV3", "parallelize_deepseekv3"),
}
# What the linear layers of each converter leave alone: the head, which plans compute in 16 bits.
CONVERTED = {
    "Float8LinearConverter": 'filter_fqns=["lm_head"], model_compile_enabled=COMPILED',
    "MXFP8LinearConverter": 'fqns=["layers"], model_compile_enabled=COMPILED',
    "NVFP4LinearConverter": 'fqns=["layers"], model_compile_enabled=COMPILED',
    "Float8GroupedExpertsConverter": "model_compile_enabled=COMPILED",
    "MXFP8GroupedExpertsConverter": "model_compile_enabled=COMPILED",
}


def write(job: TrainingJob) -> WrittenSettings:
    """Files and arguments of a job.

    Parameters
    ----------
    job : TrainingJob
        Of a decoder.

    Raises
    ------
    InfeasibleError
        Torchtitan cannot run it.
    """
    sizes = sizes_of(job.model)
    settings = settings_of(job)
    unsaid = [*unsaid_of(job), *unheard(job.model)]
    converters = _converters(job)
    if "num_experts" in sizes and PRECISIONS[job.model.precision][1] and len(converters) == 1:
        unsaid.append(f"products of experts stay in bf16: it has no {job.model.precision} for them")
    checkpoint = CHECKPOINTS[job.pins.recompute or "none"]
    return WrittenSettings(
        files={
            f"{MODULE}.py": _module_text(job, sizes, settings, converters, checkpoint),
            "launch.sh": _launch_text(job),
        },
        arguments=("--module", MODULE, "--config", FUNCTION, *_overrides(settings, checkpoint)),
        unsaid=(*unsaid, LEFT_TO_THE_MODULE),
        settings={**settings, **_optimizer_settings(job), POLICY: checkpoint},
    )


def respelled(settings: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by the names that the user's release has for them.

    Parameters
    ----------
    settings : mapping
        As written.
    given : mapping
        As read.
    """
    words = dict(settings)
    shards = "parallelism.data_parallel_shard_degree"
    if given.get(shards, -1) == -1:
        del words[shards]  # the devices that are left
    if POLICY in given:
        return words
    mode = WORDS[words.pop(POLICY)]
    words["activation_checkpoint.mode"] = mode
    if mode == "selective":
        words["activation_checkpoint.selective_ac_option"] = "op"
    beside = "compile.enable_async_tensor_parallel"
    words[beside.replace("compile", "parallelism")] = words[beside]
    rows = table_of(TOML).rows
    return {name: value for name, value in words.items() if name in rows}


def _converters(job: TrainingJob) -> list[str]:
    linear = PRECISIONS[job.model.precision][1]
    experts = bool(job.model.config.get("experts"))
    return [name for name in (linear if experts else linear[:1]) if name]


def _overrides(settings: dict[str, Any], checkpoint: str | None) -> list[str]:
    """Settings as the command line takes them; lists of lists it cannot be told."""
    words = []
    for name, value in settings.items():
        if isinstance(value, bool):
            section, _, field = name.rpartition(".")
            words.append(f"--{section}.{field}" if value else f"--{section}.no_{field}")
        elif name != "parallelism.module_fqns_per_model_part":
            words += [f"--{name}", ",".join(value) if isinstance(value, list) else str(value)]
    return [*words, f"{POLICY}:{WORDS[checkpoint]}"]


def _launch_text(job: TrainingJob) -> str:
    nodes = "" if job.nodes == 1 else f" on each of the {job.nodes} nodes, MASTER_ADDR the first"
    uncompiled = (
        ""
        if compiled(job)
        else "\n# The plan is of blocks that are not compiled: with --compile.enable it is shorter."
    )
    return f"""#!/bin/sh
{header_of(job)}
# Starts torchtitan {NEWEST}{nodes}.
# HF_ASSETS is the folder of the tokenizer, DATASET one of torchtitan's data sets.{uncompiled}
export PYTHONPATH="$(dirname "$0"):$PYTHONPATH"
torchrun --nnodes {job.nodes} --nproc-per-node {job.devices_per_node} \\
    --rdzv-backend c10d --rdzv-endpoint "${{MASTER_ADDR:-localhost}}:${{MASTER_PORT:-29500}}" \\
    -m torchtitan.train --module {MODULE} --config {FUNCTION} "$@"
"""


def _module_text(
    job: TrainingJob,
    sizes: dict[str, Any],
    settings: dict[str, Any],
    converters: list[str],
    checkpoint: str | None,
) -> str:
    name, model, parallelize = MAKES[_make(sizes)]
    words = sorted(set(ROPE_DEFAULTS) & set(sizes))
    backend = DISPATCHERS[job.pins.dispatcher or "alltoall"]
    hook = "register_moe_load_balancing_hook" if "num_experts" in sizes else "None"
    quantized = ", ".join(f"{x}.Config({CONVERTED[x]})" for x in converters)
    imports = _imports(name, model, parallelize, converters)
    title = f"{job.model.name} for torchtitan {NEWEST}: --module {MODULE} --config {FUNCTION}"
    return f'''"""{title}."""
{header_of(job)}

{imports}
SIZES = {with_plain_numbers(pformat(sizes, sort_dicts=False, width=96))}
ROPE_WORDS = {tuple(words)!r}
RESIDUAL_STD = SIZES["init_std"] / (2 * SIZES["n_layers"]) ** 0.5
ATTENTION_BACKEND = "flex"
EXPERT_BACKEND, EXPERT_PARALLEL = "{backend}", {settings["parallelism.expert_parallel_degree"]}
COMPILED = {compiled(job)}
CONVERTERS = [{quantized}]
NAME, FLAVOR = "{name}", {job.model.name!r}
MODEL, BLOCK, PARALLELIZE = {model}Model, {model}TransformerBlock, {parallelize}
POST_OPTIMIZER = {hook}


def {FUNCTION}():
    return Trainer.Config(
        model_spec=model_spec(),
        hf_assets_path=os.environ.get("HF_ASSETS", "./assets/hf/{job.model.name}"),
        dataloader=HuggingFaceTextDataLoader.Config(dataset=os.environ.get("DATASET", "c4")),
        loss=CrossEntropyLoss.Config(global_vocab_size=SIZES["vocab_size"]),
        optimizer=default_adamw({_optimizer(job)}),
        lr_scheduler=LRSchedulersContainer.Config({_keywords(settings, "lr_scheduler")}),
        training=TrainingConfig({_keywords(settings, "training")}),
        parallelism=ParallelismConfig({_keywords(settings, "parallelism")}),
        activation_checkpoint={f"{checkpoint}.Config()" if checkpoint else None},
        compile=CompileConfig({_keywords(settings, "compile")}),
    )


{_model_text(sizes)}'''


def _make(sizes: dict[str, Any]) -> str:
    """Key of `MAKES` that a model is built with."""
    if "kv_lora_rank" in sizes:
        return "latent"
    return "mixed" if "num_experts" in sizes or sizes["qk_norm"] else "plain"


def _model_text(sizes: dict[str, Any]) -> str:
    latent = LATENT_MODULE.read_text("utf-8") if "kv_lora_rank" in sizes else ""
    return MODEL_MODULE.read_text("utf-8") + latent


def _optimizer(job: TrainingJob) -> str:
    training = job.training
    betas = f"{number_text(training.beta1)}, {number_text(training.beta2)}"
    return (
        f"lr={number_text(training.learning_rate)}, betas=({betas}), "
        f"eps={number_text(training.epsilon)}, weight_decay={number_text(training.weight_decay)}"
    )


def _optimizer_settings(job: TrainingJob) -> dict[str, Any]:
    training = job.training
    values = {
        "lr": training.learning_rate,
        "betas": [training.beta1, training.beta2],
        "beta1": training.beta1,
        "beta2": training.beta2,
        "eps": training.epsilon,
        "weight_decay": training.weight_decay,
    }
    return {f"optimizer.{name}": value for name, value in values.items()}


def _keywords(settings: dict[str, Any], section: str) -> str:
    """Keyword arguments of a section, one a line."""
    lines = "".join(
        f"\n            {name.partition('.')[2]}={_literal(value)},"
        for name, value in settings.items()
        if name.startswith(f"{section}.")
    )
    return f"{lines}\n        "


def _literal(value: Any) -> str:
    if isinstance(value, float):
        return 'float("inf")' if value == math.inf else number_text(value)
    return repr(value)


def _imports(name: str, model: str, parallelize: str, converters: list[str]) -> str:
    quantization = (
        f"from torchtitan.components.quantization import {', '.join(converters)}\n"
        if converters
        else ""
    )
    latent = (
        "from torchtitan.models.deepseek_v3 import make_mla_attention_config\n"
        if name == "deepseek_v3"
        else ""
    )
    return f"""import math
import os
from functools import partial

import torch.nn as nn

from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import (
    LRSchedulersContainer,
    default_adamw,
    register_moe_load_balancing_hook,
)
{quantization}from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common import ComplexRoPE, CosSinRoPE, Embedding, Linear
from torchtitan.models.common.config_utils import (
    get_attention_config,
    make_ffn_config,
    make_gqa_config,
    make_moe_config,
    make_routed_experts_config,
    make_router_config,
)
from torchtitan.models.common.nn_modules import RMSNorm
from torchtitan.models.common.param_init import skip_param_init
{latent}from torchtitan.models.{name}.model import {model}Model, {model}TransformerBlock
from torchtitan.models.{name}.parallelize import {parallelize}
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer
"""
