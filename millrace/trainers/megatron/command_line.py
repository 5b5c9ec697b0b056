"""Megatron-LM's command line: `launch.sh` of a job, and the job of a command or a script."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from millrace.planner.frameworks.framework_tables import capabilities
from millrace.trainers.header import header_of, read_header
from millrace.trainers.job import TrainingJob
from millrace.trainers.megatron.argument_table import (
    argument_table,
    defaults,
    given_values,
    option_of,
    options_of,
    words_of,
)
from millrace.trainers.megatron.job_of_arguments import read_job
from millrace.trainers.megatron.job_values import MEGATRON, job_values
from millrace.trainers.megatron.yaml_arguments import yaml_texts, yaml_values
from millrace.trainers.scripts.launched import LaunchedProgram, launches
from millrace.trainers.trainer import (
    ReadSettings,
    SettingsError,
    SettingsSource,
    Trainer,
    WrittenSettings,
)

PROGRAM = "pretrain_gpt.py"
# Arguments by which a command line is told from others, whatever its program's name is.
KNOWN_BY_IN_YAML = ("num_attention_heads:", "tensor_model_parallel_size:", "--hidden-size:")
KNOWN_BY = ("--tensor-model-parallel-size", "--num-attention-heads", "--hidden-size")
# What earlier versions called what has another name now.
RENAMED = {"--layernorm-epsilon": "--norm-epsilon"}
SELECTIVE, GRANULARITY = "--recompute-activations", "--recompute-granularity"
CHUNKS, CHUNK = "--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage"
LEFT_TO_THE_SCRIPT = (
    "data, tokenizer, checkpoints and the number of steps are no part of a plan: random tokens, "
    "none saved, 100 steps, until the script is told others"
)
LINE, ROOM = 96, 20  # characters of a line of the script, and of a value that follows


def write(job: TrainingJob) -> WrittenSettings:
    """Settings of a job: `launch.sh`, which starts the training program on every node.

    Parameters
    ----------
    job : TrainingJob
        With all degrees pinned.

    Raises
    ------
    InfeasibleError
        Megatron-LM has no setting for a choice; names it.
    """
    values, unsaid = job_values(job)
    words = words_of(values)
    lines = [
        "#!/bin/bash",
        header_of(job),
        f"# Megatron-LM {argument_table().version}: run in its checkout, on every node, with "
        f"NODE_RANK and MASTER_ADDR set.",
        *(f"# Not said: {sentence}" for sentence in unsaid),
        "export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}",
        "# The data: random tokens until DATA_PATH and TOKENIZER_MODEL are set.",
        "DATA=(--mock-data --tokenizer-type NullTokenizer)",
        'if [ -n "$DATA_PATH" ]; then',
        '    DATA=(--data-path "$DATA_PATH" --split 99,1,0 --tokenizer-type HuggingFaceTokenizer '
        '--tokenizer-model "$TOKENIZER_MODEL")',
        "fi",
        "SETTINGS=(",
        *(f"    {line}" for line in wrapped(words)),
        ")",
        f"torchrun --nproc-per-node {job.devices_per_node} --nnodes {job.nodes} "
        '--node-rank "${NODE_RANK:-0}" \\',
        '    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}" \\',
        f'    {PROGRAM} "${{SETTINGS[@]}}" "${{DATA[@]}}" \\',
        '    --train-iters "${TRAIN_ITERS:-100}" --eval-iters 0 --log-interval 1 --log-throughput',
        "",
    ]
    unsaid.append(LEFT_TO_THE_SCRIPT)
    return WrittenSettings(
        files={"launch.sh": "\n".join(lines)},
        arguments=tuple(words),
        unsaid=tuple(unsaid),
        settings=options_of(values),
    )


def wrapped(words: Sequence[str]) -> Iterator[str]:
    """Yield lines of a script with the words, an argument and its values on one.

    Parameters
    ----------
    words : sequence of str
        Words of a command line, not yet quoted.
    """
    line = ""
    for word in words:
        quoted = shlex.quote(word)
        begins = word.startswith("--") or "=" in word
        if line and begins and len(line) + len(quoted) + ROOM > LINE:
            yield line
            line = ""
        line = f"{line} {quoted}".lstrip()
    yield line


def respelled(settings: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by the arguments that the user has for them, of those that say the same.

    Parameters
    ----------
    settings : mapping
        As written.
    given : mapping
        As read.
    """
    words = dict(settings)
    if CHUNK in given:
        stages = words["--pipeline-model-parallel-size"]
        chunks = words.pop(CHUNKS, 1)
        words[CHUNK] = words["--num-layers"] // (stages * chunks) if chunks > 1 else None
    if SELECTIVE in given:
        selective = words.get(GRANULARITY) == "selective"
        words[SELECTIVE] = True if selective else None
        for name in (GRANULARITY, "--recompute-modules") if selective else ():
            words.pop(name, None)
    return words


def recognizes(source: SettingsSource) -> bool:
    """True if a source looks like a command line or a YAML file of Megatron-LM."""
    if any(name in text for _, text in yaml_texts(source) for name in KNOWN_BY_IN_YAML):
        return True
    return any(name in source.text for name in KNOWN_BY) and "deepspeed" not in source.text


def read(source: SettingsSource) -> ReadSettings:
    """Job of a command line, a script or YAML of Megatron-LM; words of a command line count first.

    Parameters
    ----------
    source : SettingsSource
        Its `values` are variables of the script, or arguments that the script leaves out.

    Raises
    ------
    SettingsError
        It starts no program, or an argument cannot be understood.
    """
    written: dict[str, Any] = {}
    others: list[str] = []
    for name, text in yaml_texts(source):
        values, keys = yaml_values(name, text)
        written |= values
        others += keys
    launch = _launch(source, optional=bool(written))
    given, gone = given_values(launch.arguments)
    given = {**written, **_renamed(gone), **given, **_set(source.values)}
    values = defaults() | given
    header = read_header(source)
    settings = read_job(
        values,
        source.nodes or launch.nodes,
        source.devices_per_node or launch.devices_per_node,
        header,
    )
    unknown = [name for name in gone if name not in RENAMED]
    return replace(
        settings,
        ignored=(*_without_influence(given), *unknown, *others),
        given=options_of({"lr_decay_style": values["lr_decay_style"], **given}),
    )


def _launch(source: SettingsSource, optional: bool) -> LaunchedProgram:
    """The launch whose arguments are Megatron's: that with most of them."""
    candidates = list(launches(source))
    if optional and not candidates:
        return LaunchedProgram(program="", arguments=())
    if "" in source.files and not candidates:  # arguments alone
        candidates = [LaunchedProgram(program="", arguments=tuple(shlex.split(source.files[""])))]
    chosen = max(candidates, key=lambda launch: len(launch.arguments), default=None)
    if chosen is None or not (chosen.arguments or optional):
        raise SettingsError(
            f"nothing there starts {PROGRAM}: give the script that does, or its command line"
        )
    return chosen


def _renamed(gone: Mapping[str, str]) -> dict[str, Any]:
    words = [word for old, new in RENAMED.items() if old in gone for word in (new, gone[old])]
    return given_values(words)[0]


def _set(values: Mapping[str, str]) -> dict[str, Any]:
    """Values of arguments that the user adds, by destination; others are the script's variables."""
    by_dest = defaults()
    words = [
        word
        for name, value in values.items()
        if name in by_dest
        for word in (f"--{name.replace('_', '-')}", value)
    ]
    return given_values(words)[0]


# What settings are about that a plan has: all others have no influence on it.
PLANNED = (
    *("parallel", "layers", "hidden", "heads", "ffn", "seq_length", "position", "rotary", "rope"),
    *("norm", "swiglu", "geglu", "squared", "bias", "untie", "query", "kv_", "vocab"),
    *("window", "softmax", "batch_size", "recompute", "moe", "expert", "mtp", "lora", "head_dim"),
    *("optimizer", "adam", "sgd", "lr", "weight_decay", "clip_grad", "fp16", "bf16", "fp8", "fp4"),
    *("overlap", "grad_reduce", "grads_in_fp32", "attention_backend", "cuda_graph_impl", "qk_"),
    *("pipeline", "virtual", "init_method", "cp_comm", "fsdp", "group_query", "offload"),
    *("cross_entropy", "yarn", "latent", "hybrid", "checkpoint_activations"),
)


def _without_influence(given: Mapping[str, Any]) -> Iterator[str]:
    for dest in given:
        if not any(part in dest for part in PLANNED):
            yield option_of(dest)


MEGATRON_CORE = Trainer(
    name="megatron-core",
    frameworks=(MEGATRON, "megatron-2022", "megatron-2021", "megatron-kwai", "megatron-lm"),
    version=argument_table().version,
    source=argument_table().source,
    recognizes=recognizes,
    write=write,
    read=read,
    respelled=respelled,
    # Sequence parallelism is optional, and a layout gives every chunk its own number of layers.
    runs=msgspec.structs.replace(capabilities(MEGATRON), sequence_parallel="free", layers="any"),
)
