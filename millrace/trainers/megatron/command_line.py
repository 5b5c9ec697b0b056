"""Megatron-LM's command line: `launch.sh` of a job, and the job of a command or a script."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any

import msgspec

from millrace.planner.frameworks.framework_tables import capabilities
from millrace.trainers.header import header_of, read_header
from millrace.trainers.job import TrainingJob
from millrace.trainers.megatron.argument_table import (
    argument_table,
    defaults,
    options_of,
    row_of,
    words_of,
)
from millrace.trainers.megatron.earlier_arguments import DEEPSPEED, last_year, release_of
from millrace.trainers.megatron.given_arguments import GivenArguments
from millrace.trainers.megatron.hybrid_layers import PATTERN
from millrace.trainers.megatron.job_of_arguments import read_job
from millrace.trainers.megatron.job_values import MEGATRON, job_values
from millrace.trainers.megatron.unplanned_arguments import USUAL, check_others
from millrace.trainers.megatron.yaml_arguments import add_yaml, yaml_texts
from millrace.trainers.scripts.launched import LaunchedProgram, launches
from millrace.trainers.trainer import (
    ReadSettings,
    SettingsError,
    SettingsSource,
    Trainer,
    WrittenSettings,
)

PROGRAM, HYBRID_PROGRAM = "pretrain_gpt.py", "pretrain_hybrid.py"
# Arguments by which a command line is told from others, whatever its program's name is.
KNOWN_BY_IN_YAML = (
    *("num_attention_heads:", "tensor_model_parallel_size:", "--hidden-size:"),
    "framework: megatron",
)
KNOWN_BY = re.compile(
    r"--(tensor[-_]model[-_]parallel[-_]size|num[-_]attention[-_]heads|hidden[-_]size)\b"
)
# Last years in which attention had to be asked to be fused, and of releases before Megatron-Core.
FLASH_BY_DEFAULT, BEFORE_CORE = 2023, 2022
# Words in the names of programs that train other models than decoders of text.
OTHERS = re.compile(
    r"(?<![a-z0-9])(bert|t5|ict|realm|orqa|retro|retriever|biencoder|vit|vision|dino|"
    r"vlm|vl|clip|mimo|llava|multimodal)(?![a-z0-9])(?!.*(/.*/|gpt|llama))"
)
DECAY = "--lr-decay-style"  # linear where it is left out, which an export may say otherwise
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
    program = HYBRID_PROGRAM if values.get(PATTERN) else PROGRAM
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
        f'    {program} "${{SETTINGS[@]}}" "${{DATA[@]}}" \\',
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
    programs = launches(source)
    if not programs:  # arguments alone, or a script that stops before it starts one
        return KNOWN_BY.search(source.text) is not None
    return any(KNOWN_BY.match(word) for launch in programs for word in launch.arguments)


def read(source: SettingsSource) -> ReadSettings:
    """Job of a command line, a script or YAML of Megatron-LM; words of a command line count first.

    Parameters
    ----------
    source : SettingsSource
        Its `values` are variables of the script, or arguments that the script leaves out.

    Raises
    ------
    SettingsError
        It starts no program, or an argument that a plan depends on cannot be understood.
    """
    given, assumed, header = GivenArguments(source.left_out), list[str](), read_header(source)
    others = add_yaml(given, source, assumed)
    launch = _launch(source, optional=bool(yaml_texts(source)))
    given.add_words(launch.arguments)
    _add_values(given, source)
    check_others(given.unread)
    header = _as_released(given, source, assumed) | header
    settings = read_job(
        given,
        source.nodes or launch.nodes,
        source.devices_per_node or launch.devices_per_node,
        header,
    )
    given.check_slips()
    return replace(
        settings,
        assumed=(*assumed, *settings.assumed),
        ignored=(*given.without_influence(USUAL), *others),
        unread=tuple(dict.fromkeys(given.unread)),
        given={DECAY: "linear", **given.options},
    )


def _launch(source: SettingsSource, optional: bool) -> LaunchedProgram:
    """The launch whose arguments are Megatron's: that with most of them."""
    candidates = list(launches(source))
    if optional and not candidates:
        return LaunchedProgram(program="", arguments=())
    if "" in source.files and not candidates:  # arguments alone
        candidates = [LaunchedProgram(program="", arguments=tuple(shlex.split(source.files[""])))]
    chosen = max(candidates, key=lambda launch: len(launch.arguments), default=None)
    if chosen is not None and (other := OTHERS.search(chosen.program.lower())):
        raise SettingsError(
            f"{PurePath(chosen.program).name} trains another model than GPT's and Llama's kind "
            f"({other[0]}), and its settings are not read; if it does train one, give its "
            f"arguments alone"
        )
    if chosen is None or not (chosen.arguments or optional):
        raise SettingsError(
            f"nothing there starts {PROGRAM}: give the script that does, or its command line"
        )
    return chosen


def _add_values(given: GivenArguments, source: SettingsSource) -> None:
    """Add arguments that the user sets; other names are variables of what was given."""
    for name, value in source.values.items():
        if row_of(name) or row_of(f"--{name}") or last_year(f"--{name}") is not None:
            given.add_pair(name if row_of(name) else f"--{name}", value)
        elif not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", source.text):
            close = get_close_matches(name, defaults(), n=1)
            hint = f"did you mean {close[0]}?" if close else "see pretrain_gpt.py --help"
            raise SettingsError(
                f"--set {name}: neither an argument of Megatron-LM nor a variable there; {hint}"
            )


def _as_released(
    given: GivenArguments, source: SettingsSource, assumed: list[str]
) -> dict[str, str]:
    """Header with the framework of the release that arguments are of, whose defaults are added."""
    sentence, year = release_of(given.names)
    if not year:
        assumed += [sentence] if sentence else []
        return {}
    fused = given.gives("use_flash_attn", "attention_backend") or (
        given["transformer_impl"] == "transformer_engine" and given.gives("transformer_impl")
    )
    if year <= FLASH_BY_DEFAULT and not fused:
        given.suppose("attention_backend", "unfused")
        sentence += "; attention is not fused, since it has no --use-flash-attn"
    assumed.append(sentence)
    if year == DEEPSPEED:
        stage = re.search(r"[\"']?stage[\"']?\s*:\s*([0-3])\b", source.text)
        if stage is None and not given.gives("zero_stage"):
            assumed.append("ZeRO-1, as its --zero-stage is where nothing says it")
        given.suppose("zero_stage", stage[1] if stage else "1")
        given.suppose("moe_layer_freq", "2")  # its --expert-interval
        given.suppose("moe_router_topk", "1")
        return {"framework": "megatron-deepspeed"}
    newer = given.gives("use_distributed_optimizer", "context_parallel_size", "num_experts")
    return {"framework": "megatron-2022"} if year <= BEFORE_CORE and not newer else {}


MEGATRON_CORE = Trainer(
    name="megatron-core",
    frameworks=(MEGATRON, "megatron-2022", "megatron-2021", "megatron-kwai", "megatron-lm"),
    version=argument_table().version,
    source=argument_table().source,
    optimizers=("adamw", "sgd", "muon"),
    recognizes=recognizes,
    write=write,
    read=read,
    respelled=respelled,
    # Sequence parallelism is optional, and a layout gives every chunk its own number of layers.
    runs=msgspec.structs.replace(capabilities(MEGATRON), sequence_parallel="free", layers="any"),
)
