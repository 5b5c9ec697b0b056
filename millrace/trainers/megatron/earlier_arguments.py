"""Earlier arguments, of other years and of forks: their names of today, and their release.

Read off the histories of Megatron-LM, Megatron-DeepSpeed (bigscience-workshop, deepspeedai) and
Megatron-LLM (epfLLM), 2026-11.
"""

from collections.abc import Iterable, Sequence

from millrace.trainers.megatron.argument_table import argument_table

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
    said, table = " ".join(words), argument_table()
    today = table.values.get(dashed, {}).get(said, table.today.get(name, table.today.get(dashed)))
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
