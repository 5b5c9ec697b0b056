"""Unplanned arguments: those that change speed or memory and have no place in a plan, or a job."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from millrace.trainers.megatron.argument_table import defaults, option_of
from millrace.trainers.trainer import SettingsError

# Destinations whose meaning a plan has anyway, or whose other values are said.
USUAL = (
    *("overlap_param_gather", "moe_grouped_gemm", "cross_entropy_loss_fusion", "bf16"),
    *("cross_entropy_fusion_impl", "moe_permute_fusion", "moe_router_fusion", "use_flash_attn"),
    *("deprecated_use_mcore_models", "moe_pad_expert_input_to_capacity", "add_position_embedding"),
    *("masked_softmax_fusion", "accumulate_allreduce_grads_in_fp32", "deepspeed"),
)
# Jobs that are none of a plan's.
_OTHER_JOBS = {
    "heterogeneous_layers_config_path": "layers of several sizes",
    "heterogeneous_layers_config_encoded_json": "layers of several sizes",
    "perform_rl_step": "reinforcement learning",
}
# What a plan has in place of what is given, by destination: said where a value is not its default.
_OTHERWISE = {
    "cpu_offloading_num_layers": "activations in host memory",
    "fine_grained_activation_offloading": "activations in host memory",
    "use_megatron_fsdp": "its FSDP, planned as its distributed optimizer",
    "use_torch_fsdp2": "PyTorch's FSDP, planned as its distributed optimizer",
    "hierarchical_context_parallel_sizes": "context parallel groups in two levels",
    "moe_shared_expert_overlap": "the shared expert beside the exchange of tokens",
    "defer_embedding_wgrad_compute": "the embedding's gradient at the end",
    "delay_wgrad_compute": "gradients of weights later",
    "tensor_parallel_num_weight_shards": "weights that are gathered before use",
    "distribute_saved_activations": "saved activations split among tensor parallel ranks",
    "rampup_batch_size": "a batch that grows, planned at its full size",
    "step_batch_size_schedule": "a batch that changes, planned at its full size",
    "fp32_residual_connection": "sums of layers in float32, planned in the model's precision",
    "first_last_layers_bf16": "layers at both ends in bfloat16, planned as the others",
    "fp8_param_gather": "weights gathered in 8 bits, planned in 16",
    "moe_layer_recompute": "layers of experts recomputed, planned as --recompute-granularity says",
    "freeze_all_layers": "weights that do not change, planned as trained",
    "noop_layers": "layers that do nothing, planned as the others",
    "recompute_activation": "activation functions that are recomputed, planned as kept",
    "swap_attention": "activations in host memory",
    "embed_layernorm": "a norm after the embedding, planned without",
    "use_tp_pp_dp_mapping": "ranks of a pipeline next to each other, planned as usual",
    "microbatch_group_size_per_vp_stage": "another order of microbatches, planned as usual",
    "overlap_p2p_comm": "stages that wait for what they send, planned beside computation",
    "gradient_accumulation_fusion": "gradients summed by another kernel, planned in the product's",
    **dict.fromkeys(
        ("bias_gelu_fusion", "bias_swiglu_fusion", "bias_dropout_fusion", "apply_rope_fusion"),
        "kernels that are not fused, planned as fused",
    ),
}
_OPTIMIZER_STATES = {
    "adaptive_muon": "and multiplies matrices in its step",
    "lion": "and has one state fewer of 4 bytes a parameter",
    "soap": "and has more state, which it multiplies",
}
_DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
_STATES = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
# Ranks of latent attention (`q-lora-rank`) are no adapters.
_OTHERS = re.compile(
    r"(?<![a-z])(?<!\b[a-z]-)(?<!kv-)(?<!-[qo]-)(q?lora|peft|adapters?|mamba|vit|vision)(?![a-z])"
)


def check_others(names: Sequence[str]) -> None:
    """Refuse adapters and Mamba layers of forks, whose training is another.

    Parameters
    ----------
    names : sequence of str
        Arguments that no release of Megatron-LM has.
    """
    if others := [name for name in names if _OTHERS.search(name.lower().replace("_", "-"))]:
        without = " ".join(f"--ignore {name.lstrip('-')}" for name in others)
        raise SettingsError(
            f"{' '.join(others)}: another kind of training (adapters, Mamba layers, images), which "
            f"plans do not have; to plan the rest as if it were not there, add {without}"
        )


def check_job(values: Mapping[str, Any]) -> None:
    """Refuse arguments of a job that is none of a plan's.

    Parameters
    ----------
    values : mapping
        By destination, with the defaults of what is not given.
    """
    for dest, meaning in _OTHER_JOBS.items():
        if values.get(dest):
            raise SettingsError(
                f"{option_of(dest)}: {meaning}, which plans do not have; to plan the rest as if it "
                f"were not there, add --ignore {option_of(dest).lstrip('-')}"
            )


def unplanned_sentences(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences about arguments that change speed or memory and have no place in a plan.

    Parameters
    ----------
    values : mapping
        By destination, with the defaults of what is not given.
    """
    for dest, meaning in _OTHERWISE.items():
        if dest in values and values[dest] != defaults()[dest]:
            yield f"{option_of(dest)}: {meaning}"
    optimizer = values["optimizer"]
    if optimizer in _OPTIMIZER_STATES:
        yield (
            f"--optimizer {optimizer}: planned as AdamW; it keeps other state "
            f"{_OPTIMIZER_STATES[optimizer]}"
        )
    if optimizer in ("muon", "dist_muon"):
        yield from _of_muon(values)
    if values.get("use_precision_aware_optimizer"):
        spared = sum(4 - _DTYPE_BYTES[values.get(dest) or "fp32"] for dest in _STATES)
        if spared:
            yield (
                f"--use-precision-aware-optimizer: gradients and state of {spared} bytes a "
                f"parameter fewer, planned in float32"
            )
    fraction = values.get("optimizer_offload_fraction", 1.0)
    if values["optimizer_cpu_offload"] and 0 < fraction < 1:
        yield (
            f"--optimizer-offload-fraction {fraction:g}: planned with all of the optimizer's state "
            f"in host memory"
        )


def _of_muon(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences about Muon's settings that are planned otherwise."""
    if values["optimizer"] == "dist_muon":
        yield (
            "--optimizer dist_muon: planned with matrices multiplied by every rank that holds a "
            "part of them, where Megatron-LM deals them to its data parallel ranks"
        )
    if values["tensor_model_parallel_size"] > 1 and values["muon_tp_mode"] != "duplicated":
        yield (
            f"--muon-tp-mode {values['muon_tp_mode']}: planned as duplicated, with matrices "
            f"gathered over tensor parallel ranks"
        )
    if values["muon_scalar_optimizer"] != "adam":
        yield f"--muon-scalar-optimizer {values['muon_scalar_optimizer']}: planned as AdamW"
