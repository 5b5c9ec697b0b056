"""Options of the script that DeepSpeed starts: those of the exported one, and transformers' own.

transformers' Trainer leaves values of DeepSpeed's JSON as `auto`, to be taken from its arguments
(huggingface.co/docs/transformers, main_classes/trainer and deepspeed, read 2026-11).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from millrace.trainers.trainer import SettingsError

AUTO = "auto"
LENGTHS = (
    *("seq-len", "seq-length", "max-seq-length", "max-seq-len", "max-length", "block-size"),
    *("model-max-length", "sequence-length", "cutoff-len"),
)
RECOMPUTING = (
    *("gradient-checkpointing", "checkpoint-activations", "activation-checkpointing"),
    "deepspeed-activation-checkpointing",
)
PIPELINES = (
    "pipeline-parallel-size",
    "pipe-parallel-size",
    "pp-size",
    "pipeline-model-parallel-size",
)
READ = (  # beside those that have a list or a row of their own
    *("deepspeed", "deepspeed-config", "model", "model-config", "model-name-or-path", "recompute"),
    *("attention", "attn-implementation", "stage-layers", "tf32", "adam-beta1", "adam-beta2"),
)
YES, NO = ("", "1", "true", "yes", "on"), ("0", "false", "no", "off")
# Settings that may be `auto`, by path: the argument that they are taken from, and its default.
ARGUMENTS: dict[tuple[str, ...], tuple[str, Any]] = {
    ("train_micro_batch_size_per_gpu",): ("per-device-train-batch-size", 8),
    ("gradient_accumulation_steps",): ("gradient-accumulation-steps", 1),
    ("gradient_clipping",): ("max-grad-norm", 1.0),
    ("bf16", "enabled"): ("bf16", False),
    ("fp16", "enabled"): ("fp16", False),
    ("optimizer", "params", "lr"): ("learning-rate", 5e-5),
    ("optimizer", "params", "weight_decay"): ("weight-decay", 0.0),
    ("optimizer", "params", "eps"): ("adam-epsilon", 1e-8),
    ("scheduler", "params", "warmup_num_steps"): ("warmup-steps", 0),
    ("scheduler", "params", "warmup_max_lr"): ("learning-rate", 5e-5),
}


def options_of(arguments: Sequence[str]) -> dict[str, str]:
    """Values of a script's options by name, with hyphens; empty for those that have none.

    Parameters
    ----------
    arguments : sequence of str
        Words behind the script.

    Examples
    --------
    >>> options_of(["--bf16", "--seq_len=512", "--lr", "1e-4", "data"])
    {'bf16': '', 'seq-len': '512', 'lr': '1e-4'}
    """
    options: dict[str, str] = {}
    name = ""
    for word in arguments:
        if word.startswith("--") and len(word) > 2:
            name, _, value = word[2:].partition("=")
            name = name.replace("_", "-")
            options[name] = value
        elif name and not options[name]:
            options[name] = word
    return options


def unread(options: Mapping[str, str]) -> tuple[str, ...]:
    """Options from which no job is read: of data, tokenizer, steps, saving and the like.

    Parameters
    ----------
    options : mapping
        The script's options, by name.
    """
    arguments = {name for name, _ in ARGUMENTS.values()}
    read = {*READ, *LENGTHS, *RECOMPUTING, *PIPELINES, *arguments}
    return tuple(f"--{name}" for name in options if name not in read)


def is_on(options: Mapping[str, str], name: str) -> bool:
    """True if an option that is a flag, or says true or false, is on."""
    return name in options and options[name].lower() in YES


def count_of(options: Mapping[str, str], name: str) -> int:
    """Whole number that an option says.

    Raises
    ------
    SettingsError
        It says something else.
    """
    text = options[name]
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:12]) < 10**9:
        raise SettingsError(f"--{name} is `{text}`: expected a whole number of at least 1")
    return int(text)


def without_auto(
    document: Mapping[str, Any], options: Mapping[str, str], assumed: list[str]
) -> dict[str, Any]:
    """Configuration whose `auto` values are what transformers' Trainer makes of its arguments.

    Parameters
    ----------
    document : mapping
        DeepSpeed's JSON, as decoded.
    options : mapping
        The script's options, by name.
    assumed : list of str
        Takes a sentence for each batch size that is the Trainer's default.
    """
    return _resolved(document, (), options, assumed)


def _resolved(
    section: Mapping[str, Any],
    path: tuple[str, ...],
    options: Mapping[str, str],
    assumed: list[str],
) -> dict[str, Any]:
    resolved: dict[str, Any] = {}
    for name, value in section.items():
        place = (*path, name)
        if isinstance(value, dict) and len(place) < 10:
            resolved[name] = _resolved(value, place, options, assumed)
        elif value != AUTO:
            resolved[name] = value
        elif place == ("optimizer", "params", "betas"):
            pair = (("adam-beta1", 0.9), ("adam-beta2", 0.999))
            resolved[name] = [_value(options, *row) for row in pair]
        elif place in ARGUMENTS:
            option, default = ARGUMENTS[place]
            resolved[name] = _value(options, option, default)
            if option not in options and isinstance(default, int) and len(place) == 1:
                assumed.append(
                    f"{name} is auto, and there is no --{option}: {default}, as transformers has it"
                )
    return resolved


def _value(options: Mapping[str, str], name: str, default: Any) -> Any:
    if name not in options:
        return default
    if isinstance(default, bool):
        return is_on(options, name)
    try:
        return type(default)(options[name])
    except ValueError:
        raise SettingsError(f"--{name} is `{options[name]}`: expected a number") from None
