"""Bridge overrides: a job as the overrides of a Megatron-Bridge recipe, and back.

Overrides are `path.of.field=value`, on the command line of the program that runs its recipes. Its
model is Megatron-Core's, so most are destinations of Megatron-LM's arguments by another path.
"""

import ast
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from millrace.models.zoo.catalogue import model_spec
from millrace.trainers.header import header_of, read_header
from millrace.trainers.job import TrainingJob
from millrace.trainers.megatron.argument_table import defaults, kind_of
from millrace.trainers.megatron.command_line import (
    LEFT_TO_THE_SCRIPT,
    MEGATRON_CORE,
    wrapped,
)
from millrace.trainers.megatron.job_of_arguments import read_job
from millrace.trainers.megatron.job_values import MEGATRON, job_values
from millrace.trainers.megatron.layer_patterns import layer_pattern
from millrace.trainers.megatron.model_values import model_values
from millrace.trainers.megatron.unplanned_arguments import check_others
from millrace.trainers.scripts.launched import LaunchedProgram, launches
from millrace.trainers.trainer import (
    ReadSettings,
    SettingsError,
    SettingsSource,
    Trainer,
    WrittenSettings,
    number_text,
)

RECIPES = Path(__file__).with_name("bridge_recipes.json")
PLAIN_RECIPE = "vanilla_gpt_pretrain_config"  # Megatron-LM's defaults, and nothing of a model
RUNNER = "scripts/training/run_recipe.py"

_MODEL = """num_layers hidden_size ffn_hidden_size num_attention_heads num_query_groups kv_channels
    max_position_embeddings position_embedding_type rotary_base rotary_percent rotary_interleaved
    normalization layernorm_epsilon init_method_std qk_layernorm add_bias_linear add_qkv_bias
    softmax_type multi_latent_attention q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim
    v_head_dim rotary_scaling_factor moe_ffn_hidden_size moe_shared_expert_intermediate_size
    moe_router_topk moe_router_num_groups moe_router_group_topk moe_router_topk_scaling_factor
    moe_router_score_function moe_router_pre_softmax moe_apply_probs_on_input moe_grouped_gemm
    moe_token_dispatcher_type moe_flex_dispatcher_backend moe_expert_capacity_factor
    moe_pad_expert_input_to_capacity mtp_num_layers mtp_loss_scaling_factor moe_layer_freq
    window_size window_attn_skip_freq no_rope_freq moe_aux_loss_coeff activation_func_clamp_value
    tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size
    sequence_parallel expert_model_parallel_size expert_tensor_parallel_size
    pipeline_model_parallel_layout recompute_granularity recompute_method recompute_num_layers
    recompute_modules attention_dropout hidden_dropout cross_entropy_loss_fusion cuda_graph_impl"""
_TRAIN, _DDP = (
    "micro_batch_size global_batch_size",
    (
        "use_distributed_optimizer overlap_grad_reduce overlap_param_gather "
        "num_distributed_optimizer_instances use_megatron_fsdp"
    ),
)
_OPTIMIZER = (
    "optimizer lr min_lr weight_decay clip_grad sgd_momentum adam_beta1 adam_beta2 adam_eps"
)
_SCHEDULER = "lr_decay_style lr_warmup_iters lr_decay_iters"
# Paths of overrides, with the destination of Megatron-LM's argument that says the same.
PATHS: dict[str, str] = {
    **{f"model.{name}": name for name in _MODEL.split()},
    **{f"train.{name}": name for name in _TRAIN.split()},
    **{f"ddp.{name}": name for name in _DDP.split()},
    **{f"optimizer.{name}": name for name in _OPTIMIZER.split()},
    **{f"scheduler.{name}": name for name in _SCHEDULER.split()},
    "model.num_moe_experts": "num_experts",
    "model.vocab_size": "padded_vocab_size",
    "model.share_embeddings_and_output_weights": "untie_embeddings_and_output_weights",
    "model.virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "model.rope_scaling": "use_rope_scaling",
    "model.rope_scaling_factor": "rope_scaling_factor",
    "model.seq_len_interpolation_factor": "rotary_seq_len_interpolation_factor",
    "model.cp_comm_type": "cp_comm_type",
    "model.gated_linear_unit": "swiglu",
    "model.activation_func": "squared_relu",
    "model.seq_length": "seq_length",
    "dataset.seq_length": "seq_length",
    "tokenizer.vocab_size": "vocab_size",
    "ddp.grad_reduce_in_fp32": "grad_reduce_in_bf16",
    "comm_overlap.tp_comm_overlap": "tp_comm_overlap",
    "model.tp_comm_overlap": "tp_comm_overlap",
    "comm_overlap.overlap_moe_expert_parallel_comm": "overlap_moe_expert_parallel_comm",
    "model.overlap_moe_expert_parallel_comm": "overlap_moe_expert_parallel_comm",
    "mixed_precision": "bf16",
}
_INVERTED = ("model.share_embeddings_and_output_weights", "ddp.grad_reduce_in_fp32")
_SAID_OTHERWISE = ("mixed_precision", "model.activation_func")
# Destinations that a recipe may set and that a job does not always speak of.
RESET = (
    *("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules"),
    *("num_virtual_stages_per_pipeline_rank", "pipeline_model_parallel_layout"),
)
# Lists, of which a single member may go without brackets, and what is meant by none.
_LISTS: dict[str, list[str] | None] = {
    "model.cp_comm_type": ["p2p"],
    "model.recompute_modules": None,
}
# Values of Megatron-LM that Bridge's plain recipe has otherwise.
_PLAIN = {"num_query_groups": None, "bf16": True, "vocab_size": 0}
MIXED = {
    "fp16": "fp16_mixed",
    "bf16": "bf16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """Recipe of Bridge: its model's name in the catalogue, and what it assigns by path."""

    model: str
    values: dict[str, Any]


class RecipeTable(msgspec.Struct, frozen=True, kw_only=True):
    """Recipes of a version, by name."""

    version: str
    source: str
    recipes: dict[str, Recipe]


@cache
def recipe_table() -> RecipeTable:
    """The table of the version that plans are exported to."""
    return msgspec.json.decode(RECIPES.read_bytes(), type=RecipeTable)


def write(job: TrainingJob) -> WrittenSettings:
    """Settings of a job: `launch.sh`, which runs Bridge's plain recipe with overrides.

    Parameters
    ----------
    job : TrainingJob
        With all degrees pinned.

    Raises
    ------
    InfeasibleError
        Megatron-Core has no setting for a choice; names it.
    """
    values, unsaid = job_values(job)
    words = list(_overrides(values, job.model.precision))
    table = recipe_table()
    lines = [
        "#!/bin/bash",
        header_of(job),
        f"# Megatron-Bridge {table.version}: run in its checkout, on every node, with NODE_RANK "
        f"and MASTER_ADDR set.",
        *(f"# Not said: {sentence}" for sentence in unsaid),
        "OVERRIDES=(",
        *(f"    {line}" for line in wrapped(words)),
        ")",
        f"torchrun --nproc-per-node {job.devices_per_node} --nnodes {job.nodes} "
        '--node-rank "${NODE_RANK:-0}" \\',
        '    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}" \\',
        f"    {RUNNER} --recipe {PLAIN_RECIPE} --mode pretrain --dataset mock \\",
        '    "${OVERRIDES[@]}" train.train_iters="${TRAIN_ITERS:-100}" validation.eval_iters=0',
        "",
    ]
    unsaid.append(LEFT_TO_THE_SCRIPT)
    settings = dict(_settings({dest: defaults()[dest] for dest in RESET} | values))
    return WrittenSettings(
        files={"launch.sh": "\n".join(lines)},
        arguments=tuple(words),
        unsaid=tuple(unsaid),
        settings=settings | dict(_spelled(values, job.model.precision)),
    )


def _overrides(values: Mapping[str, Any], precision: str) -> Iterator[str]:
    """Yield overrides that say the values which are not Bridge's plain ones."""
    usual = defaults() | _PLAIN
    said = {dest: value for dest, value in values.items() if value != usual[dest]}
    for path, value in (*_settings(said), *_spelled(values, precision)):
        yield f"{path}={_text(value)}"


def _settings(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield paths and what they are set to, for values by destination."""
    by_dest = {dest: path for path, dest in PATHS.items() if path != "model.seq_length"}
    layers = {"layers": values.get("num_layers", 1)}
    for dest, value in values.items():
        path = by_dest.get(dest)
        if path is None or path in _SAID_OTHERWISE:
            continue
        if dest in ("moe_layer_freq", "window_attn_skip_freq", "no_rope_freq"):
            value = list(layer_pattern(f"--{dest.replace('_', '-')}", value, layers) or ())
        if dest == "window_size" and value is not None:
            value = [int(part) for part in str(value).split(",")]
        if path == "model.cp_comm_type":
            value = value[0]
        if path in _INVERTED:
            value = not value
        yield path, value


def _spelled(values: Mapping[str, Any], precision: str) -> Iterator[tuple[str, Any]]:
    """Yield paths that have other words than Megatron-LM's destinations."""
    if values.get("swiglu"):
        yield "model.activation_func", "silu"
    if values.get("squared_relu"):
        yield "model.activation_func", "squared_relu"
    if precision == "fp16" and not values["accumulate_allreduce_grads_in_fp32"]:
        yield "ddp.grad_reduce_in_fp32", False
    if precision in MIXED:
        yield "mixed_precision", MIXED[precision]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(_text(item) for item in value) + "]"
    if isinstance(value, str) and not value.replace("_", "").isalnum():
        return f'"{value}"'  # a layout has signs that an override's grammar reads otherwise
    if isinstance(value, float):
        return number_text(value)
    return "null" if value is None else str(value)


def recognizes(source: SettingsSource) -> bool:
    """True if a source looks like overrides of a recipe."""
    return "model.tensor_model_parallel_size" in source.text or "run_recipe" in source.text


def read(source: SettingsSource) -> ReadSettings:
    """Job of a command line that runs a recipe with overrides.

    Parameters
    ----------
    source : SettingsSource
        The command line or a script.

    Raises
    ------
    SettingsError
        There is no such recipe or field, or a value cannot be read.
    """
    launch = _launch(source)
    recipe_name = _option(launch.arguments, "--recipe") or PLAIN_RECIPE
    table = recipe_table()
    if recipe_name != PLAIN_RECIPE and recipe_name not in table.recipes:
        close = get_close_matches(recipe_name, [*table.recipes, PLAIN_RECIPE], n=1)
        hint = f"did you mean {close[0]}?" if close else f"those of {table.version} are read"
        raise SettingsError(f"--recipe {recipe_name}: there is no such recipe; {hint}")
    values, header = dict(defaults() | _PLAIN), read_header(source)
    if recipe_name != PLAIN_RECIPE:
        recipe = table.recipes[recipe_name]
        spec = model_spec(recipe.model, precision="bf16")
        values |= model_values(spec, 1)[0]
        values |= {"micro_batch_size": 2, "global_batch_size": 32}
        values |= {"use_distributed_optimizer": True, "overlap_grad_reduce": True}
        values["overlap_param_gather"] = True
        header = {"model": recipe.model, **header}
        for path, value in recipe.values.items():
            _assign(values, path, value)
    ignored: list[str] = []
    given: dict[str, Any] = {}
    for word in launch.arguments:
        path, equals, text = word.partition("=")
        path = path.lstrip("+")
        check_others([path] if path.lstrip("-") not in source.left_out else [])
        if not equals or word.startswith("-") or path in source.left_out:
            continue
        if path in PATHS:
            given[path] = _value(path, text)
            _assign(values, path, given[path])
        else:
            _check_path(path)
            ignored.append(path)
    nodes, per_node = launch.nodes, launch.devices_per_node
    settings = read_job(values, source.nodes or nodes, source.devices_per_node or per_node, header)
    return replace(settings, ignored=tuple(ignored), given=given)


def _launch(source: SettingsSource) -> LaunchedProgram:
    candidates = [program for program in launches(source) if program.arguments]
    if "" in source.files and not candidates:
        words = tuple(shlex.split(source.files[""]))
        candidates = [LaunchedProgram(program="", arguments=words)]
    if not candidates:
        raise SettingsError(f"nothing there starts {RUNNER}: give the script or the command line")
    return max(candidates, key=lambda program: len(program.arguments))


def _option(words: Sequence[str], name: str) -> str | None:
    for position, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option == name:
            return value if equals else (*words[position + 1 :], "")[0]
    return None


def _check_path(path: str) -> None:
    """Refuse a path that is nearly one that is planned, and so likely a slip."""
    close = get_close_matches(path, PATHS, n=1, cutoff=0.92)
    if close:
        raise SettingsError(f"{path}: there is no such field; did you mean {close[0]}?")


def _value(path: str, text: str) -> Any:
    """Value of an override's text."""
    if text.startswith("$"):
        raise SettingsError(
            f"{path}={text}: the script leaves this variable open; give it with --set "
            f"{text.strip('${}')}=VALUE"
        )
    words = {"true": True, "false": False, "null": None, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        if text[:1] == "[":  # names in a list go without quotes
            return [word.strip(" \"'") for word in text.strip("[]").split(",")]
        return text.strip("\"'")


def _assign(values: dict[str, Any], path: str, value: Any) -> None:
    """Set what a path says among the values by destination."""
    dest = PATHS[path]
    usual = defaults()[dest]
    if path == "mixed_precision":
        precision = next((name for name, text in MIXED.items() if text == value), None)
        values |= {"bf16": True, "fp16": False, "fp8": None, "fp4": None}
        if precision is None and "fp8" in str(value):
            precision = "fp8"
        if precision == "fp16":
            values |= {"bf16": False, "fp16": True, "accumulate_allreduce_grads_in_fp32": True}
        if precision in ("fp8", "mxfp8"):
            values |= {
                "fp8": "hybrid",
                "fp8_recipe": "mxfp8" if precision == "mxfp8" else "tensorwise",
            }
        if precision == "nvfp4":
            values["fp4"] = "e2m1"
        return
    if path == "model.activation_func":
        values["squared_relu"] = "squared_relu" in str(value)
        return
    if path == "model.num_query_groups":
        values["group_query_attention"] = (
            value is not None and value != values["num_attention_heads"]
        )
    if path in _INVERTED:
        value = not value
    if path in _LISTS:
        value = [value] if isinstance(value, str) else value or _LISTS[path]
    if path == "model.window_size" and value is not None:
        value = ",".join(str(part) for part in value)
    if path == "model.pipeline_model_parallel_layout" and isinstance(value, list):
        value = "|".join("".join(_letter(part) for part in stage) for stage in value)
    number = kind_of(dest) in ("int", "float")
    if number and not isinstance(value, int | float | type(None)):
        raise SettingsError(f"{path}={value}: expected a number")
    values[dest] = usual if value is None and number else value


def _letter(layer: str) -> str:
    return {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}.get(layer, "?")


MEGATRON_BRIDGE = Trainer(
    name="megatron-bridge",
    frameworks=(MEGATRON,),
    version=recipe_table().version,
    source=recipe_table().source,
    optimizers=("adamw", "sgd", "muon"),
    recognizes=recognizes,
    write=write,
    read=read,
    runs=MEGATRON_CORE.runs,
)
