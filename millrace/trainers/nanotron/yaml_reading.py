"""Reading a job from nanotron's YAML, and from the command that starts it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from millrace.models.errors import ModelError
from millrace.models.importers.huggingface.keys import Keys
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.decoder.config import DecoderConfig
from millrace.planner.errors import PlanError
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.search import Pins
from millrace.trainers.header import read_header
from millrace.trainers.job import TrainingJob
from millrace.trainers.nanotron.model_configs import FLASH, RINGS, STD, decoder_of
from millrace.trainers.nanotron.setting_names import unread_names
from millrace.trainers.nanotron.stage_layers import stage_layers
from millrace.trainers.nanotron.yaml_writing import DTYPES, ENGINES, NAME, OVERLAP
from millrace.trainers.scripts.launched import launches
from millrace.trainers.trainer import (
    ReadSettings,
    SettingsError,
    SettingsSource,
    flattened,
    share_of,
)
from millrace.trainers.yaml_text import read_yaml

SECTIONS = ("parallelism", "model", "tokens")  # that every configuration has, and no other YAML
PLANNED = (*SECTIONS, "optimizer")
DEGREE_MAX = 1_000_000
UNUSED = ("bos_token_id", "eos_token_id", "pad_token_id", "pretraining_tp", "use_cache")


def recognizes(source: SettingsSource) -> bool:
    """True if a YAML has the sections of a nanotron configuration."""
    return any(
        all(f"\n{name}:" in f"\n{text}" for name in SECTIONS) for text in source.files.values()
    )


def read_settings(source: SettingsSource) -> ReadSettings:
    """Job of a nanotron configuration.

    Raises
    ------
    SettingsError
        A setting is misspelt, missing or out of range; names it and the fix.
    """
    name, text = next(
        (
            (name, text)
            for name, text in source.files.items()
            if all(f"\n{section}:" in f"\n{text}" for section in SECTIONS)
        ),
        ("", ""),
    )
    where = f"`{name}`" if name else "the configuration"
    document = read_yaml(text, where)
    unread = unread_names(document, where, source.left_out)
    try:
        return replace(_read(document, where, source), unread=unread)
    except ModelError as error:
        raise SettingsError(str(error)) from None


def _read(document: Mapping[str, Any], where: str, source: SettingsSource) -> ReadSettings:
    sections = {
        name: Keys(values=document.get(name) or {}, where=f"{where}, `{name}`") for name in PLANNED
    }
    for name, keys in sections.items():
        if not isinstance(keys.values, dict):
            raise SettingsError(f"{where}: `{name}` is no mapping")
    tokens, header = sections["tokens"], read_header(source)
    assumed, unplanned = list[str](), list[str]()
    config = _decoder(sections["model"])
    pins = _pins(sections, config, assumed)
    if pins.tp and config.vocab % pins.tp:
        config = msgspec.structs.replace(config, vocab=-(-config.vocab // pins.tp) * pins.tp)
    model = ModelSpec(
        name=header.get("model") or _run_name(document, where),
        family="decoder",
        config=_set_fields(config),
        seq_len=tokens.integer("sequence_length"),
        precision=_precision(sections["model"]),
    )
    unplanned += _unplanned(sections, config, pins)
    nodes, per_node = _devices(source, pins)
    return ReadSettings(
        job=TrainingJob(
            model=model,
            training=_training(sections["optimizer"], assumed),
            global_batch=int(pins.dp or 1)
            * int(pins.micro_batch or 1)
            * tokens.integer("batch_accumulation_per_replica"),
            nodes=nodes,
            devices_per_node=per_node,
            pins=pins,
            framework=header.get("framework", NAME),
            cluster=header.get("cluster", ""),
            software=_software(sections["parallelism"], pins),
        ),
        assumed=tuple(assumed),
        ignored=tuple(_ignored(document)),
        unplanned=tuple(unplanned),
        given=dict(flattened(document)),
    )


def _run_name(document: Mapping[str, Any], where: str) -> str:
    general = Keys(values=document, where=where).section("general")
    return general.text("run", "model", null="model") or "model"


def _decoder(keys: Keys) -> DecoderConfig:
    """Model as it is built: its vocabulary padded as far as `make_vocab_size_divisible_by` says."""
    settings = keys.section("model_config")
    if not settings.values:
        raise keys.error("model_config", "expected the sizes of a Llama or a Qwen2")
    std = keys.section("init_method").number("std", STD, null=STD, most=1e3) or STD
    capacity = float(capabilities(NAME).dropless)
    config = decoder_of(settings.values, settings.where, std=std, capacity=capacity)
    multiple = keys.integer("make_vocab_size_divisible_by", 1)
    return msgspec.structs.replace(config, vocab=-(-config.vocab // multiple) * multiple)


def _set_fields(config: DecoderConfig) -> dict[str, Any]:
    """Fields of a decoder that are not as a decoder has them by default."""
    plain = {field.name: field.default for field in msgspec.structs.fields(config)}
    values = msgspec.structs.asdict(config)
    return {name: value for name, value in values.items() if value != plain[name]}


def _precision(keys: Keys) -> str:
    by_dtype = {dtype: precision for precision, dtype in DTYPES.items()}
    return keys.choice("dtype", by_dtype, "bfloat16", null="bfloat16")


def _pins(sections: Mapping[str, Keys], config: DecoderConfig, assumed: list[str]) -> Pins:
    """Choices that the settings state."""
    keys, tokens, optimizer = (sections[x] for x in ("parallelism", "tokens", "optimizer"))
    degrees = {name: keys.integer(name, most=DEGREE_MAX) for name in ("dp", "tp", "pp")}
    degrees["cp"] = keys.integer("context_parallel_size", 1, most=DEGREE_MAX)
    pinned: dict[str, Any] = {
        **degrees,
        "micro_batch": tokens.integer("micro_batch_size"),
        "recompute": "full" if keys.flag("recompute_layer", False) else "none",
    }
    if degrees["dp"] * degrees["cp"] > 1:
        pinned["zero"] = optimizer.integer("zero_stage", 0, least=0, most=1)
        if degrees["dp"] == 1:
            pinned["zero"] = 0
    if degrees["pp"] > 1:
        if not keys.has("pp_engine"):
            assumed.append("pp_engine is left out: all forward passes first, then all backward")
        pinned["schedule"] = keys.choice("pp_engine", ENGINES, "afab", null="afab")
        pinned["interleave"] = 1
    if degrees["tp"] > 1:
        if not keys.has("tp_mode"):
            assumed.append("tp_mode is left out: ALL_REDUCE, without sequence parallelism")
        mode = keys.text("tp_mode", "ALL_REDUCE", null="ALL_REDUCE").upper()
        modes = {"ALL_REDUCE": False, "REDUCE_SCATTER": True}
        if mode not in modes:
            raise keys.error("tp_mode", f"expected one of {', '.join(modes)}")
        pinned["sequence_parallel"] = modes[mode]
    if degrees["cp"] > 1:
        pinned["ring"] = RINGS.get(_attention(sections["model"]), False)
    if config.experts:
        pinned |= {
            "ep": keys.integer("expert_parallel_size", 1, most=DEGREE_MAX),
            "dispatcher": "alltoall",
            "expert_overlap": False,
        }
        if degrees["tp"] > 1:
            pinned["etp"] = 1
    pins = Pins.of(pinned)
    try:
        pins.check()
    except PlanError as error:
        raise SettingsError(f"{keys.where}: {error}") from None
    return pins


def _software(keys: Keys, pins: Pins) -> dict[str, str]:
    """Words of `TrainingJob.software`: tensor-parallel collectives that move beside no product."""
    beside = keys.flag("tp_linear_async_communication", False, null=False)
    return {OVERLAP: "0"} if pins.sequence_parallel and not beside else {}


def _attention(model: Keys) -> str:
    return model.section("model_config").text("_attn_implementation", FLASH, null=FLASH)


def _training(keys: Keys, assumed: list[str]) -> TrainingSpec:
    """Optimizer and its schedule."""
    if not keys.values:
        assumed.append("there is no `optimizer`: AdamW, as plans have it")
        return TrainingSpec()
    factory = keys.section("optimizer_factory") if keys.has("optimizer_factory") else keys
    schedule = keys.section("learning_rate_scheduler")
    rate = schedule.number("learning_rate", 1e-3)
    lowest = schedule.number("min_decay_lr", rate, null=rate)
    warmup = schedule.integer("lr_warmup_steps", 0, least=0)
    plain = TrainingSpec()
    fields: dict[str, Any] = {
        "optimizer": factory.text("name", "adamW", null="adamW").lower(),
        "learning_rate": rate,
        "warmup_steps": warmup,
        "weight_decay": keys.number("weight_decay", plain.weight_decay),
        "clip_norm": keys.number("clip_grad", 0.0, null=0.0),
    }
    if fields["optimizer"] not in ("adamw", "sgd"):
        raise factory.error("name", "expected adamW or sgd")
    if fields["optimizer"] == "adamw":
        fields |= {
            "beta1": factory.number("adam_beta1", plain.beta1, most=1.0),
            "beta2": factory.number("adam_beta2", plain.beta2, most=1.0),
            "epsilon": factory.number("adam_eps", plain.epsilon),
        }
    if lowest < rate and schedule.has("lr_decay_steps"):
        fields["decay_steps"] = warmup + schedule.integer("lr_decay_steps")
        fields["final_fraction"] = share_of(lowest, rate)
    return TrainingSpec(**fields)


def _devices(source: SettingsSource, pins: Pins) -> tuple[int, int]:
    """Nodes and devices of each: of the launcher's words, or of the degrees."""
    world = int(pins.dp or 1) * int(pins.tp or 1) * int(pins.pp or 1) * int(pins.cp or 1)
    launched = next((x for x in launches(source) if x.devices_per_node), None)
    per_node = source.devices_per_node or (launched.devices_per_node if launched else 0)
    nodes = source.nodes or (launched.nodes if launched else 0)
    if not per_node:
        per_node = world // nodes if nodes and world % nodes == 0 else min(8, world)
    if not nodes:
        nodes = max(1, world // per_node)
    if nodes * per_node != world:
        raise SettingsError(
            f"dp × tp × pp × context_parallel_size is {world}, on {nodes} nodes of {per_node} "
            f"devices: expected {nodes * per_node}; set the degrees, or --nodes"
        )
    return nodes, per_node


def _unplanned(sections: Mapping[str, Keys], config: DecoderConfig, pins: Pins) -> Iterator[str]:
    """Sentences about settings that change speed or memory and have no place in a plan."""
    keys, model = sections["parallelism"], sections["model"]
    if pins.tp and pins.tp > 1:
        if not keys.flag("tp_linear_async_communication", False, null=False):
            yield (
                "tp_linear_async_communication is off: tensor-parallel collectives move beside no "
                "product, in predictions as in nanotron's published runs they do"
            )
        if not keys.flag("tp_recompute_allgather", True):
            yield "tp_recompute_allgather is off: what is gathered forward is kept, not counted"
    if not sections["optimizer"].flag("accumulate_grad_in_fp32", True) and (
        _precision(model) != "fp32"
    ):
        yield "accumulate_grad_in_fp32 is off: plans sum gradients, and keep weights, in float32"
    if int(pins.pp or 1) > 1:
        dealt = stage_layers(config, int(pins.pp or 1))
        if len(set(dealt)) > 1:
            yield (
                f"nanotron deals out layers by their matrices, {', '.join(map(str, dealt))} to the "
                f"stages; plans have equal numbers but for the first and the last stage"
            )
    settings = model.section("model_config")
    if settings.flag("z_loss_enabled", False):
        yield "z_loss_enabled: the loss has a term that plans do not count"
    if settings.flag("_use_doc_masking", False):
        yield "_use_doc_masking: attention within documents, plans count whole sequences"
    if int(pins.ep or 1) > 1:
        yield "expert_parallel_size above 1: nanotron exchanges no tokens (nn/moe.py), a plan does"


def _ignored(document: Mapping[str, Any]) -> Iterator[str]:
    """Settings that have no place in a plan, by name."""
    for name, value in document.items():
        if name not in PLANNED and value is not None:
            yield name
    settings = (document.get("model") or {}).get("model_config") or {}
    if isinstance(settings, dict):
        yield from (f"model.model_config.{name}" for name in UNUSED if name in settings)
