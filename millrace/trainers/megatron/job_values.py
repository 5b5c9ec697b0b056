"""Job values: a job as Megatron-Core's settings, by destinations of Megatron-LM's arguments."""

from typing import Any

import msgspec

from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.training.unfused_attention import FLASH
from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.planner.errors import InfeasibleError
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.frameworks.model_settings import DROPLESS, capacity_of
from millrace.published.framework_of_row import settings
from millrace.trainers.job import TrainingJob
from millrace.trainers.megatron.hybrid_layers import PATTERN, hybrid_values
from millrace.trainers.megatron.model_values import DECODER, model_values
from millrace.trainers.megatron.pipeline_layout import layout_text

MEGATRON = "megatron-core"
FLEX = ("deepep", "hybridep")
# Settings in whose place a hybrid pattern is.
BY_PATTERN = (
    *("pipeline_model_parallel_layout", "num_virtual_stages_per_pipeline_rank", "moe_layer_freq"),
)


def job_values(job: TrainingJob) -> tuple[dict[str, Any], list[str]]:
    """Settings of a job, by destination, and sentences about what they leave out.

    Parameters
    ----------
    job : TrainingJob
        With all degrees pinned.

    Raises
    ------
    InfeasibleError
        Megatron-LM has no setting for a choice; names it.
    """
    pins, training = job.pins, job.training
    values, unsaid = model_values(job.model, pins.tp or 1)
    values |= _degrees(job)
    values |= _recomputation(job, unsaid)
    values |= _expert_values(job)
    values |= {
        "micro_batch_size": pins.micro_batch or 1,
        "global_batch_size": job.global_batch,
        "attention_backend": "auto" if training.attention == "flash" else "unfused",
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "cross_entropy_loss_fusion": True,
    }
    values |= _layer_kinds(job)
    if PATTERN in values:
        values = {name: value for name, value in values.items() if name not in BY_PATTERN}
    return values | _optimizer(job, unsaid), unsaid


def _layer_kinds(job: TrainingJob) -> dict[str, Any]:
    """Settings of layers that differ in kind; a hybrid pattern says the chunks of a pipeline."""
    if job.model.family != DECODER:
        return {}
    config, pins = msgspec.convert(job.model.config, DecoderConfig), job.pins
    chunks = (pins.pp or 1) * (pins.interleave or 1)
    even = (config.layers // chunks,) * chunks if chunks > 1 else ()
    return hybrid_values(config, job.chunk_layers or even)


def _degrees(job: TrainingJob) -> dict[str, Any]:
    pins = job.pins
    tp, pp, cp, replicas = pins.tp or 1, pins.pp or 1, pins.cp or 1, pins.dp or 1
    values: dict[str, Any] = {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "context_parallel_size": cp,
        "sequence_parallel": tp > 1 and pins.sequence_parallel is not False,
    }
    values["tp_comm_overlap"] = (
        values["sequence_parallel"] and job.software.get("tensor_overlap") != "0"
    )
    if cp > 1:
        exchange = job.software.get("cp_comm") or ("p2p" if pins.ring else "all_gather")
        values["cp_comm_type"] = [exchange]
    if pp > 1:
        values |= _pipeline(job)
    if replicas * cp > 1:
        beside = job.software.get("overlap") != "0"
        split = str(pins.zero or 0) != "0"
        if str(pins.zero or 0) not in ("0", "1"):
            raise InfeasibleError(
                f"zero {pins.zero}: Megatron-LM's distributed optimizer is level 1; what its FSDP "
                f"does is another code path, which nothing here predicts"
            )
        values |= {
            "use_distributed_optimizer": split,
            "overlap_grad_reduce": beside,
            "overlap_param_gather": beside and split,
        }
        group = int(job.software.get("shard_group", "0").replace("all", "0"))
        if split and 0 < group < replicas * cp:
            values["num_distributed_optimizer_instances"] = replicas * cp // group
    return values


def _pipeline(job: TrainingJob) -> dict[str, Any]:
    pins = job.pins
    schedules = capabilities(MEGATRON).schedules
    if pins.schedule is not None and pins.schedule not in (*schedules, "gpipe"):
        raise InfeasibleError(
            f"schedule {pins.schedule}: Megatron-LM has {' and '.join(schedules)}"
        )
    chunks = pins.interleave or 1
    if job.chunk_layers:
        further = int(job.model.config.get("mtp_layers", 0))  # type: ignore[arg-type]
        return {"pipeline_model_parallel_layout": layout_text(job.chunk_layers, further)}
    return {"num_virtual_stages_per_pipeline_rank": chunks} if chunks > 1 else {}


def _recomputation(job: TrainingJob, unsaid: list[str]) -> dict[str, Any]:
    mode = job.pins.recompute
    if mode in (None, "none"):
        return {}
    if mode == "full":
        method = "block" if job.recompute_layers else "uniform"
        return {
            "recompute_granularity": "full",
            "recompute_method": method,
            "recompute_num_layers": job.recompute_layers or 1,
        }
    words = job.software.get("recompute_modules", "")
    modules = words.split() or usual_modules(job.model, job.training)
    if not settings(job.framework).selective.again:
        unsaid.append(
            f"selective recomputation: the plan makes all again but what products made, "
            f"Megatron-LM {', '.join(modules)}"
        )
    return {"recompute_granularity": "selective", "recompute_modules": modules}


def usual_modules(model: ModelSpec, training: TrainingSpec) -> list[str]:
    """Modules that a plan for Megatron-Core makes again in selective recomputation.

    Parameters
    ----------
    model, training : ModelSpec, TrainingSpec
        Whether there are experts, and which attention.
    """
    if not model.config.get("experts"):
        return ["core_attn"]
    modules = [] if training.attention == FLASH else ["core_attn"]
    return [
        *modules,
        "layernorm",
        "moe_act",
        *(["mla_up_proj"] if model.config.get("kv_lora") else []),
    ]


def _expert_values(job: TrainingJob) -> dict[str, Any]:
    if job.model.family != DECODER or not job.model.config.get("experts"):
        return {}
    pins = job.pins
    dispatcher = pins.dispatcher or "alltoall"
    values: dict[str, Any] = {
        "expert_model_parallel_size": pins.ep or 1,
        "expert_tensor_parallel_size": pins.etp or pins.tp or 1,
        "moe_token_dispatcher_type": "flex" if dispatcher in FLEX else dispatcher,
        "overlap_moe_expert_parallel_comm": bool(pins.expert_overlap) and (pins.ep or 1) > 1,
    }
    if dispatcher in FLEX:
        values["moe_flex_dispatcher_backend"] = dispatcher
    capacity = capacity_of(job.model, capabilities(MEGATRON))
    if capacity != DROPLESS:
        factor = msgspec.convert(job.model.config, DecoderConfig).capacity_factor
        values |= {
            "moe_expert_capacity_factor": factor or float(job.model.config["experts"]),  # type: ignore[arg-type]
            "moe_pad_expert_input_to_capacity": True,
        }
    return values


def _optimizer(job: TrainingJob, unsaid: list[str]) -> dict[str, Any]:
    training = job.training
    values: dict[str, Any] = {
        "optimizer": "adam" if training.optimizer == "adamw" else training.optimizer,
        "lr": training.learning_rate,
        "min_lr": training.learning_rate * training.final_fraction,
        "lr_decay_style": "cosine" if training.decay_steps else "constant",
        "weight_decay": training.weight_decay,
        "clip_grad": training.clip_norm,
    }
    if training.warmup_steps:
        values["lr_warmup_iters"] = training.warmup_steps
    if training.decay_steps:
        values["lr_decay_iters"] = training.decay_steps
    if training.optimizer == "sgd":
        values["sgd_momentum"] = training.momentum
    else:
        if training.optimizer == "muon":
            values |= _muon_values(job, unsaid)
        values |= {
            "adam_beta1": training.beta1,
            "adam_beta2": training.beta2,
            "adam_eps": training.epsilon,
        }
    if job.pins.offload == "optimizer":
        values |= {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True}
    narrow = job.software.get("gradient_bytes") == "2"
    if job.model.precision == "fp16":
        values["accumulate_allreduce_grads_in_fp32"] = not narrow
    elif narrow:
        values["grad_reduce_in_bf16"] = True
    return values


def _muon_values(job: TrainingJob, unsaid: list[str]) -> dict[str, Any]:
    """Settings of Muon; Megatron-LM has it beside whole optimizers, or deals matrices to ranks."""
    values: dict[str, Any] = {
        "muon_momentum": job.training.momentum,
        "muon_nesterov": True,
        "muon_extra_scale_factor": 0.2,
        "muon_tp_mode": "duplicated",
    }
    if job.pins.zero:
        values |= {"optimizer": "dist_muon", "use_distributed_optimizer": False}
        unsaid.append(
            "its dist_muon deals whole matrices to data parallel ranks, where the plan splits each "
            "and gathers it for Muon's products"
        )
    return values
