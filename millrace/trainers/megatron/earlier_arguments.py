"""Earlier arguments, of other years and of forks: their names of today, and their release.

Read off the histories of Megatron-LM, Megatron-DeepSpeed (bigscience-workshop, deepspeedai) and
Megatron-LLM (epfLLM), 2026-11.
"""

from collections.abc import Iterable, Mapping, Sequence

from millrace.trainers.megatron.argument_table import argument_table

# Words of today; `{}` are the words that follow.
TODAY: Mapping[str, str] = {
    "--layernorm-epsilon": "--norm-epsilon {}",
    "--model-parallel-size": "--tensor-model-parallel-size {}",
    "--batch-size": "--micro-batch-size {}",
    "--intermediate-size": "--ffn-hidden-size {}",
    "--fp32-allreduce": "--accumulate-allreduce-grads-in-fp32",
    "--checkpoint-activations": "--recompute-granularity full",
    "--checkpoint-num-layers": "--recompute-method uniform --recompute-num-layers {}",
    "--activations-checkpoint-method": "--recompute-granularity full --recompute-method {}",
    "--activations-checkpoint-num-layers": "--recompute-num-layers {}",
    "--distribute-checkpointed-activations": "--distribute-saved-activations",
    "--fp8-e4m3": "--fp8-format e4m3",
    "--fp8-hybrid": "--fp8-format hybrid",
    "--use-custom-fsdp": "--use-megatron-fsdp",
    "--use-flash-attn-v1": "--use-flash-attn",
    "--use-flash-attn-v2": "--use-flash-attn",
    "--use-flash-attn-triton": "--use-flash-attn",
    "--use-flash-attn-builder": "--use-flash-attn",
    "--deepspeed-config": "--deepspeed",
    "--deepspeed_config": "--deepspeed",
    "--cpu-optimizer": "--optimizer-cpu-offload",
    "--ds-sequence-parallel-size": "--context-parallel-size {} --cp-comm-type a2a",
    "--num-key-value-heads": "--group-query-attention --num-query-groups {}",
    "--num-attention-heads-kv": "--group-query-attention --num-query-groups {}",
    "--rotary-position-embeddings-theta": "--rotary-base {}",
    "--rope-theta": "--rotary-base {}",
    "--partial-rotary-factor": "--rotary-percent {}",
    "--use-multiquery-attn": "--group-query-attention --num-query-groups 1",
    "--geglu": "--quick-geglu",
    "--pad-vocab-size-to": "--padded-vocab-size {}",
    "--use-rms-norm": "--normalization RMSNorm --disable-bias-linear",
    "--no-tie-embed-logits": "--untie-embeddings-and-output-weights",
    "--sliding-window-size": "--window-size {},0",
    "--moe-expert-parallel-size": "--expert-model-parallel-size {}",
    "--moe-train-capacity-factor": "--moe-expert-capacity-factor {}",
    "--expert-interval": "--moe-layer-freq {}",
    "--topk": "--moe-router-topk {}",
}
# Values that are called otherwise today, by argument.
VALUES: Mapping[str, Mapping[str, str]] = {
    "--position-embedding-type": {
        "rotary": "--position-embedding-type rope",
        "absolute": "--position-embedding-type learned_absolute",
        "alibi": "--position-embedding-type none --position-embedding-type=alibi",
    },
    "--attention-head-type": {
        "multiquery": "--group-query-attention --num-query-groups 1",
        "multihead": "",
    },
    "--context-parallel-algo": {
        "ulysses_cp_algo": "--cp-comm-type a2a",
        "megatron_cp_algo": "--cp-comm-type p2p",
    },
    "--normalization": {
        "rmsnorm": "--normalization RMSNorm",
        "layernorm": "--normalization LayerNorm",
    },
    "--glu-activation": {
        "swiglu": "--swiglu",
        **dict.fromkeys(("geglu", "reglu", "liglu"), "--quick-geglu"),
    },
    "--moe-token-dispatcher-type": {"alltoall_seq": "--moe-token-dispatcher-type alltoall"},
    "--num-experts": {"1": ""},  # the default of Megatron-DeepSpeed, whose layers are then dense
}
DEEPSPEED = 1  # the year of Megatron-DeepSpeed, which is none
# Arguments that today's parser has for a message alone, with the last year that took them.
_YEARS = {"--model-parallel-size": 2020, "--batch-size": 2020, "--checkpoint-activations": 2021}


def todays_words(name: str, words: Sequence[str]) -> list[str] | None:
    """Words of today that say the same as an argument; None where it is called so today.

    Parameters
    ----------
    name : str
        The argument, with dashes or, as in some forks, with underscores.
    words : sequence of str
        Those that follow it.

    Examples
    --------
    >>> todays_words("--layernorm_epsilon", ["1e-6"])
    ['--norm-epsilon', '1e-6']
    >>> todays_words("--normalization", ["RMSNorm"])
    """
    dashed = name[:2] + name[2:].replace("_", "-")
    said = " ".join(words)
    today = VALUES.get(dashed, {}).get(said, TODAY.get(name, TODAY.get(dashed)))
    return None if today is None else today.replace("{}", said).split()


def last_year(name: str) -> int | None:
    """Last year that has an argument, 0 for a fork's; None where no earlier release has it."""
    dashed = name[:2] + name[2:].replace("_", "-")
    earlier = {**argument_table().earlier, **_YEARS}
    return earlier.get(name, earlier.get(dashed))


def release_of(names: Iterable[str]) -> tuple[str, int]:
    """Sentence about the release that a command line was written for, and its year.

    Parameters
    ----------
    names : iterable of str
        Arguments that are given, by any name.

    Returns
    -------
    tuple of str and int
        Empty and 0 where nothing tells it from today's; `DEEPSPEED` for Megatron-DeepSpeed.

    Examples
    --------
    >>> release_of(["--num-layers", "--DDP-impl"])
    ('read as Megatron-LM of 2023, the last year that has --DDP-impl', 2023)
    """
    years = {name: year for name in names if (year := last_year(name)) is not None}
    if any(name.startswith(("--deepspeed", "--zero-stage", "--ds-")) for name in years):
        return "read as Megatron-DeepSpeed, whose arguments it has", DEEPSPEED
    years = {name: year for name, year in years.items() if year}
    if not years:
        return "", 0
    last = min(years, key=lambda name: years[name])
    since = argument_table().since
    newest = max(names, key=lambda name: since.get(name, 0))
    if since.get(newest, 0) > years[last]:
        return f"read as of today: it has {last}, gone since {years[last]}, and {newest}", 0
    return f"read as Megatron-LM of {years[last]}, the last year that has {last}", years[last]
