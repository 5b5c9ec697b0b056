"""Launched programs: the one that a launcher's words start, its devices and its arguments."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from millrace.trainers.scripts.shell_script import commands_of
from millrace.trainers.trainer import SettingsError, SettingsSource

PER_NODE = ("nproc-per-node", "nproc_per_node", "num_gpus", "ntasks-per-node", "gpus-per-node")
NODES = ("nnodes", "num_nodes", "nodes")
MOST = 10**6  # nodes, or devices of one


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedProgram:
    """Program that is launched; `nodes` and `devices_per_node` are 0 where the words do not say."""

    program: str
    arguments: tuple[str, ...]
    nodes: int = 0
    devices_per_node: int = 0


def launches(source: SettingsSource) -> list[LaunchedProgram]:
    """Launches of Python programs in the scripts or the command line of a source.

    Parameters
    ----------
    source : SettingsSource
        Only texts that are no documents (JSON, TOML, YAML, Python) are looked at.

    Raises
    ------
    SettingsError
        A script cannot be worked out, or a number of nodes is none.
    """
    programs = []
    for name, text in source.files.items():
        if name.endswith((".json", ".toml", ".yaml", ".yml", ".py")):
            continue
        for words in commands_of(text, source.values):
            launch = launch_of(words)
            if launch is not None:
                programs.append(launch)
    return programs


def launch_of(words: Sequence[str]) -> LaunchedProgram | None:
    """Program that the words of a command make; None where they start no Python program.

    Parameters
    ----------
    words : sequence of str
        With variables filled in.

    Raises
    ------
    SettingsError
        A number of nodes or devices is none.

    Examples
    --------
    >>> launch_of("torchrun --nnodes=2 --nproc_per_node 8 train.py --lr 1".split())
    LaunchedProgram(program='train.py', arguments=('--lr', '1'), nodes=2, devices_per_node=8)
    """
    for position, word in enumerate(words):
        module = position > 0 and words[position - 1] == "-m" and not word.startswith("-")
        if word.endswith(".py") or (module and word not in ("torch.distributed.run",)):
            before = words[:position]
            return LaunchedProgram(
                program=word,
                arguments=tuple(words[position + 1 :]),
                nodes=_count(before, NODES),
                devices_per_node=_count(before, PER_NODE),
            )
    return None


def _count(words: Sequence[str], names: Sequence[str]) -> int:
    """Number that one of a launcher's options says; 0 where none does, or a variable is open."""
    for position, word in enumerate(words):
        option, equals, value = word.lstrip("-").partition("=")
        if word.startswith("-") and option in names:
            if not equals:
                value = words[position + 1] if position + 1 < len(words) else ""
            value = value.rpartition(":")[2]  # torchrun's `MIN:MAX`
            if "$" in value:
                return 0
            if not re.fullmatch(r"[0-9]{1,7}", value) or not 1 <= int(value) <= MOST:
                raise SettingsError(f"{word}: `{value}` is no number of devices; write 1 or more")
            return int(value)
    return 0
