"""Memory rows: functional tests of Megatron-LM, a column an argument, with the memory measured.

The reader of Megatron's settings makes a job of them. A table has no column for every argument:
those that it leaves out and memory depends on are in `arguments.json`, by test. The rank that logs
is the last one, with stages one of the last stage.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace as changed

from millrace.models.errors import ModelError
from millrace.models.training.unfused_attention import FLASH
from millrace.planner.cluster import generation
from millrace.planner.errors import ClusterError, InfeasibleError, PlanError
from millrace.planner.frameworks.capabilities import GATHERING
from millrace.planner.frameworks.framework_memory import FrameworkMemory, LossKernel, memory_of_run
from millrace.planner.frameworks.framework_tables import framework_memory
from millrace.planner.frameworks.peak_memory import MemoryHabit
from millrace.planner.frameworks.resident_memory import Workspaces
from millrace.planner.search import Pins
from millrace.published import language
from millrace.published.question import InexpressibleError, Question
from millrace.published.reading import COLUMNS, Row, TableFormat, whole_number
from millrace.trainers.job import TrainingJob
from millrace.trainers.megatron.given_arguments import GivenArguments
from millrace.trainers.megatron.job_of_arguments import read_job
from millrace.trainers.megatron.job_values import MEGATRON
from millrace.trainers.trainer import ReadSettings

ARGUMENTS = Path(__file__).with_name("arguments.json")
DEVICES = 8  # of the nodes that tests run on, where neither the row nor the test's name says it
ONE_NODE = "_1node", 4  # end of the names of tests on one node of GB200, and its devices
# Families whose models the reader of settings has no words for, by the begin of a test's name.
OTHER_MODELS = {"t5": "an encoder and a decoder of different lengths"}
# Words of the vocabulary of pretrain_bert.py's tokenizer, `BertWordPieceLowerCase` (read 2026-11).
BERT, BERT_WORDS = "bert", 30522
LAST = -1  # stage of the rank that logs
SHARDED = "optim_grads_params"  # Megatron's word for ZeRO-3


class FunctionalTests(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of tests that the table has no column for: the usual ones, and by test."""

    source: str
    usual: dict[str, Any]
    tests: dict[str, dict[str, Any]]


@cache
def functional_tests() -> FunctionalTests:
    """Arguments of all tests, from the package."""
    return msgspec.json.decode(ARGUMENTS.read_bytes(), type=FunctionalTests)


def question(row: Row) -> tuple[Question, Pins]:
    """Question that a row asks, and what it pins.

    Raises
    ------
    InexpressibleError
        Says what the reader of settings or the planner has no words for.
    """
    if other := OTHER_MODELS.get(row["test"].partition("/")[0]):
        raise InexpressibleError(f"test is `{row['test']}`: {other}, which no settings are read as")
    try:
        values = arguments(row)
        job = _job(row, values)
        job.pins.check()
        cluster = language.cluster(_language_row(row, job))
        gathers = job.pins.dispatcher == GATHERING
        cluster = changed(cluster, software=changed(cluster.software, gathers=gathers))
        return Question(
            model=job.model,
            training=job.training,
            cluster=cluster,
            global_batch=job.global_batch,
            keeping=_habit(row, values, job),
            chunk_layers=job.chunk_layers or _even_layers(job),
        ), job.pins
    except (ModelError, ClusterError, PlanError, InfeasibleError) as error:
        raise InexpressibleError(str(error)) from None


def measured_s(row: Row) -> float | None:
    """None: steps of a few milliseconds say nothing about longer ones."""
    return None


def peak_bytes(row: Row) -> float | None:
    """Peak of allocated memory, in bytes."""
    return float(whole_number(row, "mem_max_bytes"))


def approximations(row: Row) -> list[str]:
    """Differences between the row and its question."""
    try:
        read = _read(row, arguments(row))
    except PlanError as error:
        raise InexpressibleError(str(error)) from None
    assumed = [] if row["gpus"] else [f"{_devices(row)} devices, as such tests have"]
    return [*read.unplanned, *assumed]


def framework_name(row: Row) -> str:
    """Framework of a row: all are Megatron-Core's."""
    return MEGATRON


def arguments(row: Row) -> GivenArguments:
    """Arguments of a row: those of its columns, and those that its test has besides.

    Raises
    ------
    SettingsError
        An argument is written in a way that cannot be read.
    """
    given = GivenArguments()
    tests = functional_tests()
    further = tests.usual | tests.tests.get(row["test"], {})
    columns = {name: row[name] for name in ARGUMENT_COLUMNS if row.get(name)}
    for name, value in (further | columns).items():
        if value is not None and name != WORKSPACE:
            given.add_pair(f"--{name}", _words(value))
    return given


# The first of NVIDIA's containers in the tests' docker/.ngc_version.dev whose PyTorch is later than
# February 2026 (that of 26.02 is not).
FIRST_OF_2026 = "26.04"
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
# Of `apply_determinism_env`, megatron/training/determinism.py, read 2026-11.
DETERMINISTIC = ":4096:8"
WORKSPACE_WORDS = re.compile(r":(\d{1,6}):(\d{1,4})")
ARGUMENT_COLUMNS = COLUMNS[TableFormat.TESTS][COLUMNS[TableFormat.TESTS].index("num-layers") :]


def _words(value: Any) -> Any:
    """Value of an argument; what stands in brackets is a list of words."""
    text = str(value)
    listed = text.startswith("[") and text.endswith("]")
    return text[1:-1].replace(",", " ").split() if listed else value


def _read(row: Row, values: GivenArguments) -> ReadSettings:
    return read_job(values, 1, _devices(row), {})


def _job(row: Row, values: GivenArguments) -> TrainingJob:
    """Job of a row; that of a BERT as pretrain_bert.py makes its model of the same arguments."""
    job = _read(row, values).job
    if row["test"].partition("/")[0] != BERT:
        return job
    sizes = {name: job.model.config[name] for name in ("layers", "hidden", "heads", "ffn_hidden")}
    further = functional_tests().tests.get(row["test"], {})
    step = values["make_vocab_size_divisible_by"] * values["tensor_model_parallel_size"]
    sizes |= {
        "vocab": -(-BERT_WORDS // step) * step,
        "positions": values["max_position_embeddings"],
        "next_sentence": not further.get("bert-no-binary-head"),
        "pre_norms": True,
        "embedding_norm": False,
        "activation": "gelu",
        "epsilon": 1e-5,
    }
    model = changed(job.model, name=BERT, family=BERT, config=sizes)
    return replace(job, model=model)


def _devices(row: Row) -> int:
    """Devices of a row."""
    if row["gpus"]:
        return whole_number(row, "gpus")
    end, devices = ONE_NODE
    degrees = ("tensor-model-parallel-size", "pipeline-model-parallel-size")
    least = whole_number(row, degrees[0], 1) * whole_number(row, degrees[1], 1)
    experts = whole_number(row, "expert-model-parallel-size", 1)
    return max(devices if row["test"].endswith(end) else DEVICES, least, experts)


def _language_row(row: Row, job: TrainingJob) -> Row:
    """Row in the columns of language models that say what its devices and software are."""
    stated: Row = dict.fromkeys(COLUMNS[TableFormat.LANGUAGE], "")
    stated |= {
        "framework": MEGATRON,
        "gpu": row["platform"],
        "gpus": str(job.devices),
        "gpus_per_node": str(min(job.devices, DEVICES)),
        "precision": job.model.precision,
        "experts": str(job.model.config.get("experts") or ""),
        "ep": row["expert-model-parallel-size"],
        **job.software,
    }
    return stated


def _habit(row: Row, values: Mapping[str, Any], job: TrainingJob) -> MemoryHabit:
    """Memory habit of a test: Megatron's, with the test's own settings."""
    pins = job.pins
    kernel = {"te": LossKernel.FUSED, "native": LossKernel.COMPILED}
    fused = values["cross_entropy_loss_fusion"] and kernel[values["cross_entropy_fusion_impl"]]
    memory = memory_of_run(
        framework_memory(MEGATRON),
        precision=job.model.precision,
        tp=pins.tp or 1,
        pp=pins.pp or 1,
        loss=fused or "",
    )
    sharded = values["use_megatron_fsdp"] and values["data_parallel_sharding_strategy"] == SHARDED
    zero = 3 if sharded or values["use_torch_fsdp2"] else int(pins.zero or 0)
    return MemoryHabit(
        framework=changed(
            _as_tested(memory, row, values),
            byte_multiples=(*memory.byte_multiples, *_byte_multiples(row, values, job)),
        ),
        zero=zero,
        copies=values["num_distributed_optimizer_instances"],
        gathers_again=bool(pins.sequence_parallel) or (pins.cp or 1) > 1,
        stage=LAST,
    )


def _even_layers(job: TrainingJob) -> tuple[int, ...]:
    """Layers of every chunk where they are even; the search may deal them out otherwise."""
    chunks = (job.pins.pp or 1) * (job.pins.interleave or 1)
    return (int(job.model.config["layers"]) // chunks,) * chunks  # type: ignore[arg-type]


def _as_tested(memory: FrameworkMemory, row: Row, values: Mapping[str, Any]) -> FrameworkMemory:
    """Memory of a framework with what a test keeps of a parameter, and with its libraries."""
    stored = memory.parameters
    if values["grad_reduce_in_bf16"]:
        stored = changed(stored, gradient_bytes=2)
    elif values["fp16"] and not values["accumulate_allreduce_grads_in_fp32"]:
        # Copies of gradients in float32 stay until the next step (`Float16OptimizerWithFloat16
        # Params._copy_model_grads_to_main_grads`, core/optimizer/optimizer.py, read 2026-11).
        stored = changed(stored, gradient_bytes=2, state_bytes=stored.state_bytes + 4)
    local = values["transformer_impl"] == "local"
    tests = functional_tests()
    said = (tests.usual | tests.tests.get(row["test"], {})).get(WORKSPACE) or ""
    if values["deterministic_mode"]:
        said = said or DETERMINISTIC
    sizes = [int(size) * int(count) * 2**10 for size, count in WORKSPACE_WORDS.findall(said)]
    later = row.get("container", "") >= FIRST_OF_2026
    scores = 0
    if local and values["attention_backend"] != "flash":
        # Scores of a layer, which all layers share (`matmul_input_buffer`,
        # core/transformer/dot_product_attention.py, read 2026-11).
        heads = values["num_attention_heads"] // values["tensor_model_parallel_size"]
        scores = 2 * values["micro_batch_size"] * heads * values["seq_length"] ** 2
    return changed(
        memory,
        parameters=stored,
        workspaces=Workspaces(
            engine=not local,
            grouped=bool(values["moe_grouped_gemm"]),
            cublas_bytes=sum(sizes),
            since_2026=later,
            fused_permutation=bool(values["moe_permute_fusion"]),
        ),
        placeholders=bool(values["gradient_accumulation_fusion"]) and not local,
        deferred=_deferred(values),
        # `AllGatherPipeline.reset` keeps them since May 2026 (pull request 4717, core/distributed/
        # fsdp/src/megatron_fsdp/param_and_grad_buffer.py).
        gathered_outside=bool(values["use_megatron_fsdp"]) and later,
        bucket_bytes=scores,
    )


# What is offloaded of a module is what its gradients need: what it reads, and probabilities of
# attention (core/pipeline_parallel/fine_grained_activation_offload.py, read 2026-11).
OFFLOADED = {
    "attn_norm": ("residual",),
    "mlp_norm": ("residual",),
    "qkv_linear": ("ln1",),
    "core_attn": ("masked_softmax", "v"),
    "attn_proj": ("core",),
    "expert_fc1": ("dispatch",),
    "moe_act": ("gate", "up"),
}

# Dropout keeps a mask of a byte of what it thins, and of the probabilities of attention its result
# too, which their product reads (Korthikanti et al., 2022, section 4.1).
HIDDEN_DROPOUT, SCORES_DROPOUT = ("residual", 1.5), ("masked_softmax", 2.5)
# Flash attention's result has its microbatch first, and is kept beside its copy in the model's
# order, which the next product reads (`FlashAttention.forward`,
# pytorch/attention/dot_product_attention/backends.py of Transformer Engine, read 2026-11).
RESULT_TWICE = ("attention", 2.0)


def _byte_multiples(
    row: Row, values: Mapping[str, Any], job: TrainingJob
) -> Iterator[tuple[str, float]]:
    """Yield ops beside whose results a test keeps more, and how many times their bytes in all."""
    modules = values["offload_modules"] if values["fine_grained_activation_offloading"] else None
    for module in modules or ():
        yield from ((name, 0.0) for name in OFFLOADED.get(module, ()))
    if values["hidden_dropout"]:
        yield HIDDEN_DROPOUT
    if job.training.attention == FLASH:
        alone = (job.pins.micro_batch or 1) == 1 or (job.pins.cp or 1) > 1
        if not alone and _is_flash(row, values):
            yield RESULT_TWICE
    elif values["attention_dropout"]:
        yield SCORES_DROPOUT


def _deferred(values: Mapping[str, Any]) -> int:
    """Microbatches whose gradients of logits are kept for the end of the step; 0 limits none."""
    if not values["defer_embedding_wgrad_compute"]:
        return 0
    return values["wgrad_deferral_limit"] or int(values["global_batch_size"])


def _is_flash(row: Row, values: Mapping[str, Any]) -> bool:
    """True if Transformer Engine takes flash attention's own kernels, not cuDNN's.

    Before Hopper it does; on Blackwell it does where no bit may differ and dropout thins the
    probabilities (`get_attention_backend`, pytorch/attention/dot_product_attention/utils.py, and
    `nvte_get_fused_attn_backend`, common/fused_attn/fused_attn.cpp, read 2026-11).
    """
    if values["attention_backend"] in ("flash", "fused"):
        return bool(values["attention_backend"] == "flash")
    era = generation(row["platform"])
    if era == "blackwell":
        return bool(values["deterministic_mode"] and values["attention_dropout"])
    return era != "hopper"
