"""Settings of torchtitan that say a job, by dotted name, or why it has no words for it."""

from collections.abc import Mapping
from typing import Any

from millrace.planner.errors import InfeasibleError
from millrace.planner.parallel_degrees import HYBRID
from millrace.planner.plan import ON_DEVICES
from millrace.trainers.job import TrainingJob
from millrace.trainers.torchtitan.pipeline_stages import module_names
from millrace.trainers.torchtitan.settings_table import SCHEDULES, SINGLE

PRECISIONS = {  # the dtype of computation, and what is converted
    "fp32": ("float32", ()),
    "bf16": ("bfloat16", ()),
    "fp8": ("bfloat16", ("Float8LinearConverter", "Float8GroupedExpertsConverter")),
    "mxfp8": ("bfloat16", ("MXFP8LinearConverter", "MXFP8GroupedExpertsConverter")),
    "nvfp4": ("bfloat16", ("NVFP4LinearConverter", "")),
}
CHECKPOINTS = {"none": None, "selective": "SelectiveAC", "full": "FullAC"}
DISPATCHERS = {"alltoall": "standard", "deepep": "deepep", "hybridep": "hybridep"}
NEVER_CLIPPED = "inf"
UNHEARD_SOFTWARE = {  # words of `TrainingJob.software`, and what torchtitan does
    ("overlap", "0"): "collectives are issued ahead of what needs them, and hide behind products",
    ("captured", "layers"): "a step is captured in one CUDA graph or not at all; here it is not",
    ("gradient_bytes", "2"): "gradients are summed in float32",
    ("shard_group", ""): "storage is split over all replicas, or in groups as --zero 3-hybrid has",
    ("cp_comm", "a2a"): "over context-parallel ranks keys and values are gathered",
}
STEPS = 10000  # torchtitan's default


def settings_of(job: TrainingJob) -> dict[str, Any]:
    """Settings that say a job, by dotted name, in the order in which they are written.

    Parameters
    ----------
    job : TrainingJob
        Its model is looked at by `sizes_of`.

    Raises
    ------
    InfeasibleError
        Torchtitan would refuse to start it, or has no such choice.
    """
    _check_runnable(job)
    pins, dp = job.pins, job.pins.dp or 1
    micro_batch = pins.micro_batch or 1
    pipelined = (pins.pp or 1) > 1
    training = job.training
    settings: dict[str, Any] = {
        "training.local_batch_size": job.global_batch // dp if pipelined else micro_batch,
        "training.global_batch_size": job.global_batch,
        "training.seq_len": job.model.seq_len,
        "training.max_norm": training.clip_norm or float(NEVER_CLIPPED),
        "training.steps": training.decay_steps or STEPS,
        "training.mixed_precision_param": PRECISIONS[job.model.precision][0],
        "training.enable_cpu_offload": pins.offload not in (None, ON_DEVICES),
        "training.disable_cuda_graphs": job.software.get("captured") != "step",
        "lr_scheduler.warmup_steps": training.warmup_steps,
        "lr_scheduler.decay_type": "cosine",
        "lr_scheduler.decay_ratio": None if training.decay_steps else 0.0,
        "lr_scheduler.min_lr_factor": training.final_fraction,
        "compile.enable": compiled(job),
        "compile.enable_async_tensor_parallel": job.software.get("tensor_overlap") == "1",
    }
    return settings | _parallelism(job)


def compiled(job: TrainingJob) -> bool:
    """True if blocks and loss of a job are compiled.

    Parameters
    ----------
    job : TrainingJob
        Its software is read.
    """
    return job.software.get("compiled") == "1"


def _parallelism(job: TrainingJob) -> dict[str, Any]:
    pins = job.pins
    copies = replicas(job)
    settings: dict[str, Any] = {
        "data_parallel_replicate_degree": copies,
        "data_parallel_shard_degree": (pins.dp or 1) // copies,
        "fsdp_reshard_after_forward": "never" if str(pins.zero) == "2" else "always",
        "tensor_parallel_degree": pins.tp or 1,
        "enable_sequence_parallel": pins.sequence_parallel is not False,
        "context_parallel_degree": pins.cp or 1,
        "expert_parallel_degree": pins.ep or 1,
        "pipeline_parallel_degree": pins.pp or 1,
    }
    if (pins.pp or 1) > 1:
        names = {ours: theirs for theirs, ours in SCHEDULES.items()}
        settings |= {
            "pipeline_parallel_schedule": names[pins.schedule or "1f1b"],
            "pipeline_parallel_microbatch_size": pins.micro_batch or 1,
            "module_fqns_per_model_part": module_names(chunk_layers(job)),
        }
    return {f"parallelism.{name}": value for name, value in settings.items()}


def chunk_layers(job: TrainingJob) -> tuple[int, ...]:
    """Layers of every chunk of a job's pipeline, those of an even division written out.

    Parameters
    ----------
    job : TrainingJob
        One that `settings_of` takes.
    """
    if job.chunk_layers:
        return job.chunk_layers
    chunks = (job.pins.pp or 1) * (job.pins.interleave or 1)
    config: Mapping[str, Any] = job.model.config
    return (int(config["layers"]) // chunks,) * chunks


def replicas(job: TrainingJob) -> int:
    """Number of copies of the weights among a job's data-parallel ranks.

    Storage is split over as many replicas as a node holds, where a plan has both.

    Parameters
    ----------
    job : TrainingJob
        Its degrees and ZeRO are read.
    """
    dp = job.pins.dp or 1
    if str(job.pins.zero) == "0":
        return dp
    if job.pins.zero != HYBRID:
        return 1
    return hybrid_copies(dp, (job.pins.tp or 1) * (job.pins.cp or 1), job.devices_per_node)


def hybrid_copies(dp: int, inside: int, per_node: int) -> int:
    """Number of copies of the weights in hybrid ZeRO.

    Parameters
    ----------
    dp, inside : int
        Data-parallel ranks, and the devices of one.
    per_node : int
        Devices of a node.
    """
    every = [size for size in range(2, dp) if dp % size == 0]
    within = [size for size in every if dp // size * inside <= per_node]
    return next(iter(within or every), 1)


def _check_runnable(job: TrainingJob) -> None:
    """Refuse what torchtitan has no choice for, then what it would refuse when it starts."""
    faults = [*_missing_choices(job), *_refused(job)]
    if faults:
        raise InfeasibleError(f"torchtitan cannot run this job: {'; '.join(faults)}")


def _missing_choices(job: TrainingJob) -> list[str]:
    pins, faults = job.pins, []
    if job.model.precision not in PRECISIONS:
        faults.append(f"it trains in {', '.join(PRECISIONS)}, not in {job.model.precision}")
    if job.training.optimizer != "adamw":
        faults.append(f"it has Adam, AdamW and Muon, no {job.training.optimizer}")
    if job.training.attention != "flash":
        faults.append("its attention is one kernel, and keeps no probabilities")
    if str(pins.zero) == "1":
        faults.append(
            "it splits storage as ZeRO-2 and 3 do, or not at all: --zero 2, or 0 for copies"
        )
    if str(pins.zero) == "0" and (pins.cp or 1) > 1:
        faults.append("over context-parallel ranks it always splits storage: --zero 3 or 3-hybrid")
    if (pins.pp or 1) > 1 and (pins.schedule or "1f1b") not in SCHEDULES.values():
        faults.append(f"it has no schedule {pins.schedule}")
    if pins.dispatcher not in (None, *DISPATCHERS):
        faults.append(f"it sends tokens by {', '.join(DISPATCHERS)}, not by {pins.dispatcher}")
    if job.software.get("tensor_overlap") == "1" and not compiled(job):
        faults.append("products hide collectives of tensor parallelism in compiled blocks alone")
    if job.software.get("captured") == "step" and ((pins.pp or 1) > 1 or (pins.ep or 1) > 1):
        faults.append("no step of a pipeline or of expert parallelism is captured")
    if job.recompute_layers:
        faults.append("it recomputes all layers alike, not the first of every chunk")
    return faults


def _refused(job: TrainingJob) -> list[str]:
    """Faults that its own checks would name, in the order in which they come."""
    pins, faults = job.pins, list[str]()
    config: Mapping[str, Any] = job.model.config
    dp, tp, pp, cp, ep = (getattr(pins, name) or 1 for name in ("dp", "tp", "pp", "cp", "ep"))
    micro_batch = pins.micro_batch or 1
    if dp * tp * pp * cp != job.devices:
        faults.append(f"dp × tp × pp × cp is {dp * tp * pp * cp}, on {job.devices} devices")
    if job.global_batch % (dp * micro_batch):
        faults.append(f"{job.global_batch} samples are no multiple of {dp} × {micro_batch}")
    parts = tp * (2 * cp if cp > 1 else 1)
    if pins.sequence_parallel is not False and job.model.seq_len % parts:
        faults.append(f"a sequence of {job.model.seq_len} does not divide by {parts}")
    for name in ("heads", "kv_heads"):
        if int(config.get(name, tp)) % tp:
            faults.append(f"{config[name]} {name} do not divide by tp {tp}")
    shared = dp // replicas(job) * cp * tp
    if ep > 1 and shared % ep:
        faults.append(f"ep {ep} does not divide the {shared} ranks that share a copy")
    if pins.etp is not None and pins.etp != (tp if ep == 1 else 1):
        faults.append("experts are split over tp where ep is 1, and else not: etp is not free")
    if pp > 1:
        faults += _pipeline_faults(job, job.global_batch // (dp * micro_batch))
    return faults


def _pipeline_faults(job: TrainingJob, microbatches: int) -> list[str]:
    """Faults by torch.distributed.pipelining.schedules and by the pipeline's division."""
    pins, faults = job.pins, list[str]()
    config: Mapping[str, Any] = job.model.config
    pp, chunks = pins.pp or 1, (pins.pp or 1) * (pins.interleave or 1)
    if config.get("tied"):
        faults.append("a head that shares the token table cannot be in another stage")
    if not job.chunk_layers and int(config["layers"]) % chunks:
        faults.append(f"{config['layers']} layers do not fill {chunks} chunks evenly")
    if job.chunk_layers and len(job.chunk_layers) != chunks:
        faults.append(f"{len(job.chunk_layers)} chunks have layers, of {chunks}")
    names = {ours: theirs for theirs, ours in SCHEDULES.items()}
    name = names.get(pins.schedule or "1f1b", "")
    least = pp if name in SINGLE else chunks if name == "DualPipeV" else 1
    if microbatches < least:
        faults.append(f"{pins.schedule} needs {least} microbatches, not {microbatches}")
    if name == "Interleaved1F1B" and microbatches % max(1, microbatches // pp):
        faults.append(f"{microbatches} microbatches are no rounds of {pp} stages")
    return faults


def unsaid_of(job: TrainingJob) -> list[str]:
    """Sentences about what of a job torchtitan cannot be told, and does otherwise.

    Parameters
    ----------
    job : TrainingJob
        One that `settings_of` takes.
    """
    pins, sentences = job.pins, []
    if pins.ring and (pins.cp or 1) > 1:
        sentences.append("keys and values are gathered over the cp ranks, not sent round a ring")
    if pins.expert_overlap:
        sentences.append(
            "0.3.0 does not hide the exchange of tokens behind another microbatch (0.2.2 did, with "
            "the schedule DualPipeV)"
        )
    if pins.offload not in (None, ON_DEVICES):
        sentences.append(
            "with the optimizer's state it moves parameters and gradients to the host's memory"
        )
    sentences += [
        sentence
        for (name, word), sentence in UNHEARD_SOFTWARE.items()
        if (stated := job.software.get(name, "")) and word in ("", stated)
    ]
    if not job.training.clip_norm:
        sentences.append("it always computes the norm of the gradients; here nothing is clipped")
    return sentences
