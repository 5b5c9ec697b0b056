"""Given texts: DeepSpeed's JSON, the model's, YAML and the command that starts it, each as it is.

A job that has no JSON of DeepSpeed's is one of transformers' Trainer or accelerate, whose settings
are told in DeepSpeed's words here: what they have in common is read once.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from millrace.models.documents import decode_json
from millrace.models.importers.huggingface.config_reading import strict_json
from millrace.trainers.deepspeed.ds_names import check_names
from millrace.trainers.deepspeed.script_options import AUTO, NO, options_of
from millrace.trainers.deepspeed.sharding import Sharding, sharding_of
from millrace.trainers.deepspeed.trainer_arguments import (
    ACCELERATE,
    TrainerArguments,
    looks_familiar,
    trainer_arguments,
)
from millrace.trainers.scripts.launched import (
    LaunchedProgram,
    launches,
    main_launch,
    script_runs,
)
from millrace.trainers.trainer import SettingsError, SettingsSource
from millrace.trainers.yaml_text import read_yaml

MARKS = ("train_micro_batch_size_per_gpu", "train_batch_size", "zero_optimization")
YAML = (".yaml", ".yml")
STAGE_IN_NAME = re.compile(r"(?:zero|z|stage)[-_ ]?(?:stage)?[-_ ]?([0-3])", re.I)
CHECKED = {"enabled": AUTO}
# transformers' Trainer without DeepSpeed, in its words: every value comes of an argument.
PLAIN: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": AUTO,
    "gradient_accumulation_steps": AUTO,
    "gradient_clipping": AUTO,
    "bf16": CHECKED,
    "fp16": CHECKED,
    "optimizer": {
        "params": {"lr": AUTO, "betas": AUTO, "eps": AUTO, "weight_decay": AUTO},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenTexts:
    """Texts of a source, each for what it is.

    `where` names the one that says the batch, `sharding` is None where DeepSpeed shares storage,
    `devices` the number in all, `unseen` files that nothing was read in.
    """

    where: str
    document: Mapping[str, Any]
    model: Mapping[str, Any]
    launch: LaunchedProgram | None
    arguments: TrainerArguments
    ignored: tuple[str, ...]
    sharding: Sharding | None
    nodes: int
    devices: int
    unseen: tuple[str, ...]
    assumed: tuple[str, ...]
    degrees: Mapping[str, int]

    @property
    def options(self) -> Mapping[str, str]:
        """Arguments by transformers' names."""
        return self.arguments.options


def given_texts(source: SettingsSource) -> GivenTexts:
    """Texts of a source.

    Parameters
    ----------
    source : SettingsSource
        JSON, YAML and scripts that belong together, or some of them.

    Raises
    ------
    SettingsError
        One is malformed, or a file that another needs is missing.
    """
    objects, mappings = _documents(source)
    launch = main_launch(launches(source))
    cluster = next((m for m in mappings.values() if ACCELERATE in m), {})
    words = _accelerate_words(source)
    job: dict[str, Any] = {}
    for mapping in mappings.values():
        if ACCELERATE not in mapping:
            job |= mapping
    typed = _typed(launch.arguments) if launch else {}
    _check_given(source, launch, typed, words)
    if "mixed-precision" not in typed:
        typed |= _precision(words.get("mixed-precision") or cluster.get("mixed_precision"))
    arguments = trainer_arguments(job, typed, source.left_out)
    name, document, assumed = _ds_document(objects, arguments, cluster, words)
    model = next((values for values in objects.values() if "model_type" in values), {})
    ignored = tuple(check_names(document, name)) if document else ()
    machines = _number(words.get("num-machines") or cluster.get("num_machines"))
    fsdp_file = arguments.options.get("fsdp-config", "")
    section = objects.get(PurePosixPath(fsdp_file).name, {})
    used = [model, section, objects.get(name.strip("`")), cluster, *mappings.values()]
    return GivenTexts(
        where=name,
        document=document or PLAIN,
        model=model,
        launch=launch,
        arguments=arguments,
        ignored=ignored,
        sharding=None if document else _sharding(arguments, section, cluster),
        nodes=machines,
        devices=_number(words.get("num-processes") or cluster.get("num_processes")),
        unseen=tuple(n for n, values in objects.items() if not any(values is u for u in used)),
        assumed=(*arguments.assumed, *assumed),
        degrees=_degrees(arguments, cluster),
    )


def is_job(source: SettingsSource) -> bool:
    """True if a source has arguments of transformers' Trainer, or YAML of its kin.

    Parameters
    ----------
    source : SettingsSource
        Settings of any trainer.
    """
    marked = re.search(
        r"--per_device_train_batch_size|--per-device-train-batch-size|accelerate\s+launch|--fsdp\b"
        r"|llamafactory-cli\s+train|swift\s+(sft|pt|rlhf)\b|axolotl\s+train",
        source.text,
    )
    if marked:
        return True
    mappings = (read_yaml(text, name) for name, text in source.files.items() if name.endswith(YAML))
    return any(looks_familiar(mapping) for mapping in mappings)


def _typed(words: Sequence[str]) -> dict[str, str]:
    """Options of a command line, those without dashes too (`bf16=true`)."""
    return options_of([f"--{word}" if re.match(r"[a-z]\w*=", word) else word for word in words])


def _check_given(
    source: SettingsSource,
    launch: LaunchedProgram | None,
    typed: Mapping[str, str],
    words: Mapping[str, str],
) -> None:
    """Refuse a command whose YAML is not given: there most of the job is."""
    named = [word for word in (launch.arguments[:2] if launch else ()) if word.endswith(YAML)]
    named += [path for path in (typed.get("config", ""), words.get("config-file", "")) if path]
    for path in named:
        if path.endswith(YAML) and PurePosixPath(path).name not in source.files:
            raise SettingsError(f"{path}: give this file too, beside the command that names it")


def _documents(
    source: SettingsSource,
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Objects of JSON, and mappings of YAML that trainers have, by file name."""
    objects: dict[str, dict[str, Any]] = {}
    mappings: dict[str, dict[str, Any]] = {}
    for name, text in source.files.items():
        if text.lstrip().startswith("{"):
            shown = f"`{name}`" if name else "the configuration"
            message = f"{shown} is no JSON object"
            objects[name] = decode_json(
                strict_json(text.encode()), dict[str, Any], message, SettingsError
            )
        elif name.endswith(YAML):
            mappings[name] = read_yaml(text, f"`{name}`")
    return objects, mappings


def _accelerate_words(source: SettingsSource) -> dict[str, str]:
    """Options of `accelerate launch` before its program."""
    for run in script_runs(source).values():
        for command in run.commands:
            words = list(command.words)
            if {"accelerate", "launch"} <= {PurePosixPath(word).name for word in words}:
                ends = (n for n, word in enumerate(words) if word.endswith(".py"))
                return options_of(words[: next(ends, len(words))])
    return {}


def _number(value: Any) -> int:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0


def _precision(word: Any) -> dict[str, str]:
    return {word: "true"} if word in ("bf16", "fp16") else {}


def _ds_document(
    objects: Mapping[str, dict[str, Any]],
    arguments: TrainerArguments,
    cluster: Mapping[str, Any],
    words: Mapping[str, str],
) -> tuple[str, dict[str, Any], list[str]]:
    """Name and content of DeepSpeed's JSON, and what was assumed of it; empty of a job without."""
    inner = _section(cluster, "deepspeed_config")
    options = arguments.options
    path = next(
        (
            text
            for text in (
                *(options.get("deepspeed"), options.get("deepspeed-config")),
                *(words.get("deepspeed-config-file"), inner.get("deepspeed_config_file")),
            )
            if text and text.lower() not in (*NO, "true")
        ),
        "",
    )
    by_name = {name: values for name, values in objects.items() if any(m in values for m in MARKS)}
    if "deepspeed" in arguments.sections:
        return "`deepspeed`", dict(arguments.sections["deepspeed"]), []
    if by_name:
        name = PurePosixPath(path).name if PurePosixPath(path).name in by_name else [*by_name][-1]
        return f"`{name}`" if name else "the configuration", by_name[name], []
    stage = inner.get("zero_stage", words.get("zero-stage"))
    if cluster.get(ACCELERATE) == "DEEPSPEED" and not path:
        return "`deepspeed_config`", _told(inner, stage), []
    if "use-deepspeed" in words and not path:
        return "accelerate's command", _told(words, stage), []
    if not path:
        return "what is given", {}, []
    hit = STAGE_IN_NAME.search(PurePosixPath(path).name)
    if hit is None:
        raise SettingsError(f"--deepspeed {path}: give this file too, beside the command")
    offload = {"offload_optimizer_device": "cpu"} if "offload" in path.lower() else {}
    said = f"{path} is not given: ZeRO-{hit[1]}{' with offload' if offload else ''}, by its name"
    return f"`{path}`", _told(offload, hit[1]), [said]


def _told(inner: Mapping[str, Any], stage: Any) -> dict[str, Any]:
    """DeepSpeed's JSON of accelerate's words for it."""
    given = {name.replace("-", "_"): value for name, value in inner.items()}
    zero: dict[str, Any] = {"stage": _number(stage) if stage is not None else 2}
    for name in ("optimizer", "param"):
        if (device := given.get(f"offload_{name}_device")) not in (None, "none"):
            zero[f"offload_{name}"] = {"device": device}
    document = {**PLAIN, "zero_optimization": zero}
    for name in ("gradient_accumulation_steps", "gradient_clipping"):
        if isinstance(value := given.get(name), int | float):
            document[name] = value
    return document


def _section(cluster: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Section of accelerate's YAML; empty where it is left out."""
    value = cluster.get(name) or {}
    if not isinstance(value, dict):
        raise SettingsError(f"`{name}` is {value!r}: expected names with their values")
    return value


def _sharding(
    arguments: TrainerArguments, section: Mapping[str, Any], cluster: Mapping[str, Any]
) -> Sharding:
    """Sharding of a job without DeepSpeed: copies where nothing says another."""
    options, sections = arguments.options, arguments.sections
    config = {**_section(cluster, "fsdp_config"), **sections.get("fsdp-config", {}), **section}
    config |= {name: text for name, text in options.items() if name.startswith("fsdp-")}
    if not (cluster.get(ACCELERATE) == "FSDP" or config or _is_given(options, "fsdp")):
        return Sharding(zero=0)
    return sharding_of(options.get("fsdp", ""), config)


def _degrees(arguments: TrainerArguments, cluster: Mapping[str, Any]) -> dict[str, int]:
    """Degrees of parallelism that accelerate's YAML or arguments have, by their short names."""
    section = {
        **_section(cluster, "parallelism_config"),
        **arguments.sections.get("parallelism-config", {}),
    }
    names = {"tp": "tensor-parallel-size", "cp": "sequence-parallel-size"}
    names |= {"dp_shard": "dp-shard-size", "dp_replicate": "dp-replicate-size"}
    stated = {
        short: section.get(f"parallelism_config_{short}_size", arguments.options.get(name))
        for short, name in names.items()
    }
    return {short: _number(value) for short, value in stated.items() if _number(value) > 1}


def _is_given(options: Mapping[str, str], name: str) -> bool:
    return name in options and options[name].lower() not in ("", *NO)
