"""Partial training: arguments by which not all weights are trained in full precision.

Adapters are planned, beside every matrix between hidden layers. A plan else trains all weights of
one model: frozen parts, quantized weights, other optimizers and models beside the one that is
trained have no place in it, and remarks say so.
"""

import re
from collections.abc import Iterator, Mapping

from millrace.trainers.deepspeed.script_options import NO, YES

FULL = ("full", "none", "")
SWITCHES = (
    *("lora-enable", "use-lora", "lora", "use-peft", "peft", "use-qlora", "qlora", "use-dora"),
    *("use-backbone-lora", "use-llm-lora"),
)
ADAPTERS = re.compile(r"(\w+-)*(lora|peft)-(r|rank|dim|target|target-modules|modules)|lora-alpha")
RANK = re.compile(r"(\w+-)*(lora|peft)-(r|rank|dim)|lora")
# The rank where an argument asks for adapters of none: LLaMA-Factory's and PEFT's (2026-11).
USUAL_RANK = 8
FROZEN = re.compile(r"freeze(-\w+)*|(\w+-)*tunable-parts|tune-mm-mlp-adapter|only-optimize-lora")
BITS = ("quantization-bit", "bits", "quant-bits", "load-in-4bit", "load-in-8bit")
PLANNED_OPTIMIZERS = re.compile(r"adamw?(_(torch|hf|apex|torch_xla))?(_(npu_)?fused)?|sgd")
OTHER_OPTIMIZERS = re.compile(r"use-(galore|apollo|badam|adam-mini|muon)")
LIGER = re.compile(r"(use|enable)-liger(-kernel)?|cut-cross-entropy|chunked-cross-entropy")
TOWERS = re.compile(r"(mm-)?vision-(tower|encoder|model)(-name-or-path|-path)?|vision-path")
SUPERVISED = ("sft", "pt", "1", "2", "3", "", "none")
# Names by which the remarks below go.
REMARKED = ("finetuning-type", "optim", "stage", "adafactor", *SWITCHES, *BITS)


def is_remarked(name: str) -> bool:
    """True if a remark is made about an argument of this name.

    Parameters
    ----------
    name : str
        With hyphens.
    """
    patterns = (ADAPTERS, FROZEN, OTHER_OPTIMIZERS, LIGER, TOWERS)
    return name in REMARKED or any(pattern.fullmatch(name) for pattern in patterns)


def partly_trained(options: Mapping[str, str]) -> Iterator[str]:
    """Sentences about arguments by which less is trained than a plan has, or otherwise.

    Parameters
    ----------
    options : mapping
        By transformers' names.

    Examples
    --------
    >>> list(partly_trained({"optim": "adamw_torch", "load-in-4bit": "true", "use-lora": "False"}))
    ['--load-in-4bit true: weights are quantized; a plan has them in the precision of training']
    """
    given = {name: text for name, text in options.items() if text.lower() not in NO}
    if _adapters(given, options):
        shown = ", ".join(f"--{name} {given[name]}".strip() for name in _adapters(given, options))
        yield (
            f"{shown}: planned with adapters of rank {adapter_rank(options)} beside every matrix "
            f"between hidden layers, and all else frozen"
        )
    frozen = [name for name in given if FROZEN.fullmatch(name)]
    if options.get("finetuning-type") == "freeze":
        frozen.append("finetuning-type")
    if frozen:
        shown = ", ".join(f"--{name}" for name in frozen)
        yield f"{shown}: parts are not trained; the plan trains all weights, and takes more memory"
    for name in BITS:
        if given.get(name, "16") not in ("16", "32"):
            yield (
                f"--{name} {given[name]}: weights are quantized; a plan has them in the precision "
                f"of training"
            )
    optimizer = given.get("optim", "adamw").lower()
    others = [f"--{name}" for name in given if OTHER_OPTIMIZERS.fullmatch(name)]
    if given.get("adafactor", "false").lower() in YES:
        others.append("--adafactor")
    if not PLANNED_OPTIMIZERS.fullmatch(optimizer):
        others.append(f"--optim {optimizer}")
    for shown in others:
        yield f"{shown}: planned as AdamW, with 8 bytes of state for every parameter"
    if options.get("stage", "").lower() not in SUPERVISED:
        yield f"--stage {options['stage']}: models beside the one that is trained are not planned"
    for name in given:
        if LIGER.fullmatch(name):
            yield f"--{name}: logits are made in parts, which takes less memory than predicted"
        if TOWERS.fullmatch(name):
            yield f"--{name}: images are left out; planned is the text part alone"


def adapter_rank(options: Mapping[str, str]) -> int:
    """Rank of the adapters that arguments ask for; 0 for none.

    Parameters
    ----------
    options : mapping
        By transformers' names.

    Examples
    --------
    >>> adapter_rank({"use-lora": "true", "lora-r": "16"}), adapter_rank({"lora-r": "0"})
    (16, 0)
    """
    given = {name: text for name, text in options.items() if text.lower() not in NO}
    if not _adapters(given, options):
        return 0
    ranks = [given[name] for name in given if RANK.fullmatch(name) and given[name].isdecimal()]
    return next((int(rank) for rank in ranks if int(rank) > 0), USUAL_RANK)


def _adapters(given: Mapping[str, str], options: Mapping[str, str]) -> list[str]:
    """Names that ask for adapters; none where a switch, or the kind of tuning, says otherwise."""
    kind = options.get("finetuning-type")
    if kind is not None:
        return ["finetuning-type"] if kind.lower() not in (*FULL, "freeze") else []
    switches = [name for name in SWITCHES if name in options]
    if switches:
        return [name for name in switches if name in given and given[name] != "0"]
    return [name for name in given if ADAPTERS.fullmatch(name) and given[name] != "0"]
