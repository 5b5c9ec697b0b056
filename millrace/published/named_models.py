"""Named models: rows that name a model of the zoo and pin its plan, as recipes of today print them.

`question` rewrites a row in the columns of language models (`columns.py`) and takes the model by
its name from the zoo. What a row leaves blank and its source's recipe says is in `RECIPES`: facts
of the source, none of them fitted. A run that ended for want of memory has no step time; it is
predicted well where its plan does not fit.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec
from msgspec.structs import replace as changed

from millrace.models.errors import ModelError
from millrace.models.model_counts import training_flops
from millrace.models.ops import op_flops
from millrace.models.spec import Config, ModelSpec, Setting
from millrace.models.training import OPTIMIZERS
from millrace.models.zoo.catalogue import (
    ALIASES,
    FAMILIES,
    NAMES,
    build,
    canonical_name,
    model_spec,
)
from millrace.planner.errors import ClusterError, InfeasibleError, PlanError
from millrace.planner.frameworks.framework_memory import ParameterBytes
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.frameworks.model_settings import with_capacity, with_mtp_layers
from millrace.planner.search import Pins
from millrace.published import language
from millrace.published.columns import RECOMPUTE_MODULES
from millrace.published.memory_of_row import keeping
from millrace.published.question import InexpressibleError, Question
from millrace.published.reading import COLUMNS, Row, TableFormat, choice, number, whole_number

OUT_OF_MEMORY = "OOM"  # the begin of `quality`

# Names of the sources for devices that the catalogue calls otherwise.
DEVICES = {"tpu7x": "tpu-v7x-ironwood", "ironwood": "tpu-v7x-ironwood"}

# Trainers of the sources, by the begin of `source_file`; all others print runs of Megatron-Core.
MEGATRON, FSDP, XLA = "megatron-core", "pytorch-fsdp", "jax-xla"
TRAINERS = {"NVIDIA-NeMo/Automodel": FSDP, "pytorch/torchtitan": FSDP, "AI-Hypercomputer": XLA}

# Megatron's recipes split optimizer state (`use_distributed_optimizer: true` in NVIDIA/Megatron-LM,
# examples/moe_recipes, and NVIDIA-NeMo/Megatron-Bridge, recipes), FSDP and MaxText all storage.
STORAGE = {MEGATRON: "1", FSDP: "3", XLA: "3"}

# With `use_precision_aware_optimizer` both moments take 2 bytes beside weights of 4.
NARROW_MOMENTS = ParameterBytes(state_bytes=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRecipe:
    """Recipe of a source for a model, both by the begins of their names: what rows leave blank.

    Attributes
    ----------
    source, model : str
        Begins of `source_file` and of `model`.
    columns : mapping
        Columns of language models, for what the row leaves blank.
    mtp_layers : int
        Modules that predict further tokens.
    parameters : ParameterBytes, optional
        What is kept of a parameter, where not the framework's usual.
    notes : tuple of str
        What the recipe does and no plan says.
    """

    source: str
    model: str
    columns: Mapping[str, str] = field(default_factory=dict)
    mtp_layers: int = 0
    parameters: ParameterBytes | None = None
    notes: tuple[str, ...] = ()


# Read 2026-11: the recipes of the sources at their newest commits. The first that fits counts.
RECIPES = (
    PublishedRecipe(  # src/megatron/bridge/recipes/moonlight/h100/moonlight_16b.py
        source="NVIDIA-NeMo/Megatron-Bridge",
        model="moonlight",
        columns={
            "dispatcher": "alltoall",
            "gradient_bytes": "2",
            "tensor_overlap": "0",
            "loss": "fused",
        },
        parameters=changed(NARROW_MOMENTS, gradient_bytes=2),
    ),
    PublishedRecipe(  # src/megatron/bridge/perf_recipes/nemotronh/h100, graphs of attn and mamba
        source="NVIDIA-NeMo/Megatron-Bridge",
        model="nemotron-3",
        columns={"dispatcher": "deepep", "captured": "layers", "gradient_bytes": "2"},
        parameters=ParameterBytes(gradient_bytes=2),
    ),
    PublishedRecipe(  # NVIDIA/benchmarks/gpt_oss_20b/implementations/nemo, with config_common_cg.sh
        source="mlcommons/training_results",
        model="gpt-oss",
        columns={"dispatcher": "hybridep", "captured": "step", "loss": "fused"},
    ),
    PublishedRecipe(  # examples/moe_recipes
        source="NVIDIA/Megatron-LM",
        model="deepseek-v4",
        mtp_layers=1,
        parameters=NARROW_MOMENTS,
    ),
    PublishedRecipe(  # examples/deepseek-v4/run_deepseek_v4_flash.sh
        source="AMD-AGI/Primus", model="deepseek-v4", mtp_layers=1
    ),
    PublishedRecipe(  # examples/llm_benchmark/nemotron, `activation_checkpointing: true`
        source="NVIDIA-NeMo/Automodel",
        model="nemotron-3-ultra",
        columns={"recompute": "full", "dispatcher": "deepep"},
    ),
    PublishedRecipe(  # training/ironwood/gemma4-31b, `remat_policy=custom`, out_proj, mlpwo
        source="AI-Hypercomputer",
        model="gemma4-31b",
        columns={"recompute": "full"},
        notes=("outputs of attention and feed-forward parts recomputed, not kept",),
    ),
    PublishedRecipe(  # training/ironwood/gemma4-*, `remat_policy=full`
        source="AI-Hypercomputer", model="gemma4", columns={"recompute": "full"}
    ),
)
PASSES = 3  # forward, and two products for each of it backward

NO_RECIPE = PublishedRecipe(source="", model="")

ADAPTERS = ("lora", "peft")  # kinds of fine-tuning whose rank no column has


def question(row: Row) -> tuple[Question, Pins]:
    """Question that a row asks, and what it pins.

    Raises
    ------
    InexpressibleError
        Says what the zoo or the planner has no words for.
    """
    try:
        asked, stated = model(row), _language_row(row)
        training = language.training(stated)
        if optimizer := choice(row, "optimizer", OPTIMIZERS):
            training = changed(training, optimizer=optimizer)
        # What a framework keeps is asked for where no peak is printed too: it says what fits.
        memory = keeping(stated | {"peak_mem_gb": "1"})
        if memory is not None and (parameters := _recipe(row).parameters) is not None:
            habit = changed(memory.framework, parameters=parameters)
            memory = replace(memory, framework=habit)
        pins = language.pins(stated)
        if stated["experts"] and (pins.tp or 1) > 1:  # NVIDIA's recipes of experts split none
            pins = replace(pins, etp=whole_number(row, "etp", 1))
        pins.check()
        cluster = language.cluster(stated)
    except (ModelError, ClusterError, PlanError, InfeasibleError) as error:
        raise InexpressibleError(str(error)) from None
    return Question(
        model=asked,
        training=training,
        cluster=cluster,
        global_batch=whole_number(row, "gbs"),
        keeping=memory,
    ), pins


def measured_s(row: Row) -> float:
    """Seconds of a step; 0 for a run that ended for want of memory.

    Where a source prints TFLOP/s alone it follows from the FLOPs that trainers report them by.
    """
    if row["quality"].startswith(OUT_OF_MEMORY):
        return 0.0
    if row["step_time_s"]:
        return number(row, "step_time_s")
    devices, batch = whole_number(row, "count"), whole_number(row, "gbs")
    if row["tokens_per_s_per_gpu"]:
        return batch * whole_number(row, "seq") / (number(row, "tokens_per_s_per_gpu") * devices)
    if not row["tflops_per_gpu"]:
        raise InexpressibleError(
            "step_time_s, tokens_per_s_per_gpu and tflops_per_gpu are blank: expected one of them"
        )
    try:
        flops = batch * reported_flops(model(row))
    except ModelError as error:
        raise InexpressibleError(str(error)) from None
    return flops / (number(row, "tflops_per_gpu") * 1e12 * devices)


def peak_bytes(row: Row) -> float | None:
    """Peak of allocated memory that a row prints, in bytes; None where it prints none."""
    return number(row, "peak_mem_gb") * 1e9 if row["peak_mem_gb"] else None


def framework_name(row: Row) -> str:
    """Framework of a row: the trainer of its source."""
    begins = (name for begin, name in TRAINERS.items() if row["source_file"].startswith(begin))
    return next(begins, MEGATRON)


def approximations(row: Row) -> list[str]:
    """Differences between the row and its question, each in a few words."""
    differences = language.approximations(_language_row(row))
    differences += [f"recompute of {module} left out" for module in _modules(row)[1]]
    differences += [f"{words} left out" for words in row["left_out"].split("; ") if words]
    if not row["step_time_s"] and not row["tokens_per_s_per_gpu"] and row["tflops_per_gpu"]:
        differences.append("step time from TFLOP/s")
    if _further(row) and not model(row).config.get("mtp_layers", 0):
        differences.append("module for the token after the next left out")
    return [*differences, *_recipe(row).notes]


def model(row: Row) -> ModelSpec:
    """Model of a row, from the zoo; `(16 layers)` behind its name cuts it short.

    Raises
    ------
    ModelError
        The zoo has none of that name, or it cannot be built at this length.
    InexpressibleError
        The run trains adapters, whose rank no column has.
    """
    if any(kind in row["kind"].lower() for kind in ADAPTERS):
        raise InexpressibleError(f"kind is `{row['kind']}`: the rank of the adapters is not told")
    name, _, shortened = row["model"].partition(" (")
    precision = language.precision_of(row)
    spec = model_spec(zoo_name(name), whole_number(row, "seq"), precision)
    if layers := re.match(r"(\d{1,4}) layers", shortened):
        spec = changed(spec, config=_cut(spec.config, int(layers[1])))
    if spec.config.get("experts", 0):
        spec = with_capacity(spec, "1", capabilities(framework_name(row)))
    deeper = with_mtp_layers(spec, _further(row) or None)
    return deeper if _can_be_built(deeper) else spec


def reported_flops(spec: ModelSpec) -> int:
    """FLOPs of a training step on one sample, as Megatron-LM reports a speed by them.

    Of attention without a window they are half of what a graph counts: its causal mask leaves half
    (`num_floating_point_operations`, megatron/training/training.py, read 2026-11).

    Parameters
    ----------
    spec : ModelSpec
        A language model, with its sequence length.
    """
    forward = build(spec, 1)
    shapes = {tensor.name: tensor.shape for tensor in forward.tensors}
    masked = 0
    for op in forward.ops:
        if op.kind == "attention" and not op.attributes.get("window"):
            inputs, outputs = (
                [shapes[name] for name in names] for names in (op.inputs, op.outputs)
            )
            masked += op_flops(op.kind, op.labels, inputs, outputs, op=op.name)
    return training_flops(forward) - PASSES * masked // 2


def zoo_name(name: str) -> str:
    """Name of the zoo for a published one, which may have its sizes behind it.

    Raises
    ------
    ModelError
        The zoo has no such model; offers close ones.

    Examples
    --------
    >>> zoo_name("nemotron-3-nano-30b-a3b"), zoo_name("gpt-oss-20b")
    ('nemotron-3-nano', 'gpt-oss-20b')
    """
    plain = name.lower()
    sizes = r"(-a?[\d.]+[bmt])+"
    begins = (
        begin for begin in (*NAMES, *ALIASES) if re.fullmatch(re.escape(begin) + sizes, plain)
    )
    exact = plain in NAMES or plain in ALIASES
    return canonical_name(plain if exact else max(begins, key=len, default=plain))


def _cut(config: Config, layers: int) -> Config:
    """Configuration of a model's first layers alone."""
    depth = config["layers"]

    def cut(name: str, setting: Setting) -> Setting:
        if isinstance(setting, tuple) and name.endswith("_layers"):
            return tuple(layer for layer in setting if layer < layers)
        if isinstance(setting, str | tuple) and len(setting) == depth:
            return setting[:layers]
        return setting

    shorter: Config = {
        name: {part: cut(part, size) for part, size in setting.items()}
        if isinstance(setting, dict)
        else cut(name, setting)
        for name, setting in config.items()
    }
    return shorter | {"layers": layers}


def _further(row: Row) -> int:
    """Modules that predict further tokens in a row's run."""
    return int("m" in row["layout"]) or _recipe(row).mtp_layers


def _can_be_built(spec: ModelSpec) -> bool:
    family = FAMILIES[spec.family]
    try:
        family.check(spec, msgspec.convert(spec.config, family.config))
    except ModelError:
        return False
    return True


def _recipe(row: Row) -> PublishedRecipe:
    fitting = (
        recipe
        for recipe in RECIPES
        if row["source_file"].startswith(recipe.source) and row["model"].startswith(recipe.model)
    )
    return next(fitting, NO_RECIPE)


def _modules(row: Row) -> tuple[list[str], list[str]]:
    """Modules that a row recomputes: those that a plan has words for, and the others."""
    _, _, listed = row["recompute"].partition(":")
    modules = [module for module in re.findall(r"\w+", listed) if module != "none"]
    planned = [module for module in modules if module in RECOMPUTE_MODULES]
    return planned, [module for module in modules if module not in RECOMPUTE_MODULES]


def _recompute(row: Row) -> Row:
    """Columns of recomputation; blank where the row says nothing of it."""
    mode, colon, _ = row["recompute"].partition(":")
    modules, _ = _modules(row)
    if colon and not modules:
        mode = "none"
    return {"recompute": mode, "recompute_modules": " ".join(modules)}


def _language_row(row: Row) -> Row:
    """Row in the columns of language models; the sizes of its model stay in the zoo."""
    trainer, experts = framework_name(row), model(row).config.get("experts", 0)
    devices = whole_number(row, "count")
    replicas = devices // (
        whole_number(row, "tp", 1) * whole_number(row, "pp", 1) * whole_number(row, "cp", 1)
    )
    split = row["fsdp"] not in ("", "1")
    stated: Row = dict.fromkeys(COLUMNS[TableFormat.LANGUAGE], "")
    stated |= {name: row[name] for name in ("tp", "pp", "cp", "ep", "model", "precision")}
    stated |= {
        "framework": trainer,
        "seq_len": row["seq"],
        "gpu": _device(row["gpu"]),
        "gpus": row["count"],
        "interleave": row["vp"],
        "micro_batch": row["mbs"],
        "global_batch": row["gbs"],
        "experts": str(experts or ""),
        "uneven_layers": "1" if row["layout"] else "",
        **{name: row[name] for name in ("dispatcher", "routing", "captured", "expert_overlap")},
        "peak_mem_gb": row["peak_mem_gb"],
        "zero": "3" if split else STORAGE[trainer],
        "shard_group": row["fsdp"] if split and row["fsdp"] != str(replicas) else "",
        "sequence_parallel": "1" if trainer == MEGATRON else "",
        **_recompute(row),
    }
    if trainer == XLA and not row["mbs"]:  # MaxText sums no gradients over microbatches
        stated["micro_batch"] = str(whole_number(row, "gbs") // replicas)
    usual = {"dispatcher": "alltoall", "expert_overlap": "0"} if experts else {}
    for name, word in {**usual, **_recipe(row).columns}.items():
        stated[name] = stated[name] or word
    return stated


def _device(text: str) -> str:
    """Name of the catalogue for a device as sources print it: `TPU7x (Ironwood chip)`."""
    name = text.partition(" ")[0].lower()
    return DEVICES.get(name, name)
