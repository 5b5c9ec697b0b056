"""Launched programs: those that scripts come to, with their devices and their arguments."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from posixpath import basename

from millrace.trainers.scripts.cluster_answers import (
    NODES_MAX,
    ClusterSize,
    cluster_size,
    cluster_values,
)
from millrace.trainers.scripts.sandbox import DOCUMENTS, TYPED, ScriptRun, run_script
from millrace.trainers.trainer import SettingsError, SettingsSource

PER_NODE = (
    *("nproc-per-node", "num-gpus", "ntasks-per-node", "gpus-per-node", "gres", "npernode", "ppn"),
    *("tasks-per-node", "gpu-num"),
)
NODES = ("nnodes", "num-nodes", "nodes", "num-machines", "N")
TOTAL = ("np", "n", "ntasks", "num-processes")
# Modules that start a program, and programs that are known by their names.
STARTERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
PROGRAMS = ("llamafactory-cli", "axolotl", "swift", "xtuner", "run_train.sh")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedProgram:
    """Program that is launched; `nodes` and `devices_per_node` are 0 where nothing says.

    `environment` has the exported variables, `script` the name of the file that comes to it.
    """

    program: str
    arguments: tuple[str, ...]
    nodes: int = 0
    devices_per_node: int = 0
    environment: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    script: str = field(default="", compare=False, repr=False)


def launches(source: SettingsSource) -> list[LaunchedProgram]:
    """Launches of Python programs in the scripts or the command line of a source.

    Parameters
    ----------
    source : SettingsSource
        Its documents (JSON, TOML, YAML, Python) lie beside the scripts and are not run.

    Raises
    ------
    SettingsError
        A script is none, takes more than a launch does, or a number of nodes is none.
    """
    programs = []
    for name, run in script_runs(source).items():
        text = source.files["" if name == TYPED else name]
        size = cluster_size(text, source.nodes, source.devices_per_node)
        for command in run.commands:
            launch = launch_of(command.words)
            if launch is not None:
                launch = replace(
                    launch,
                    nodes=launch.nodes or (0 if size.guessed else size.nodes),
                    devices_per_node=launch.devices_per_node
                    or (size.devices_per_node if "#SBATCH" in text else 0),
                    environment=command.environment,
                    script=name,
                )
                if size.guessed and launch.nodes == 1 and _asks_for_nodes(run, text):
                    launch = replace(launch, nodes=0)
                programs.append(launch)
    return programs


def main_launch(programs: Sequence[LaunchedProgram]) -> LaunchedProgram | None:
    """Launch that a source is about: the first of those with the most arguments."""
    return max(programs, key=lambda launch: len(launch.arguments), default=None)


def _asks_for_nodes(run: ScriptRun, text: str) -> bool:
    """True if the number of nodes came from a variable of the cluster that nothing sets."""
    counted = cluster_values(ClusterSize(nodes=2, devices_per_node=3))
    return any(counted.get(name) == "2" for name in run.unset) or "scontrol" in text


def script_runs(source: SettingsSource) -> dict[str, ScriptRun]:
    """Runs of those scripts of a source that no other script of it names, by file name.

    Parameters
    ----------
    source : SettingsSource
        A command line is the file `.command`, and comes first.

    Raises
    ------
    SettingsError
        A script is none, or takes more than a launch does.
    """
    files = tuple((name or TYPED, text) for name, text in source.files.items())
    return _runs(files, tuple(source.values.items()), source.nodes, source.devices_per_node)


@lru_cache(maxsize=64)
def _runs(
    texts: tuple[tuple[str, str], ...],
    values: tuple[tuple[str, str], ...],
    nodes: int,
    devices_per_node: int,
) -> dict[str, ScriptRun]:
    files, runs = dict(texts), {}
    scripts = [name for name, text in texts if not _is_document(name, text)]
    outer = [name for name in scripts if not _is_named(name, files, scripts)] or scripts
    for name in sorted(outer, key=lambda name: name != TYPED):
        size = cluster_size(files[name], nodes, devices_per_node)
        given = {key.lstrip("$"): value for key, value in values}
        variables = {key: value for key, value in given.items() if not key.isdigit()}
        if "#SBATCH" in files[name]:
            slurm = cluster_values(size)
            variables = {key: slurm[key] for key in slurm if key.startswith("SLURM")} | variables
        count = max((int(key) for key in given if key.isdigit() and int(key) < 100), default=0)
        arguments = [given.get(str(place + 1), "") for place in range(count)]
        runs[name] = run_script(files, name, variables, size, arguments)
    return runs


def _is_document(name: str, text: str) -> bool:
    return name.endswith(DOCUMENTS) or (name != TYPED and text.lstrip().startswith("{"))


def _is_named(name: str, files: Mapping[str, str], scripts: Sequence[str]) -> bool:
    """True if another script has a file's name in its text."""
    pattern = re.compile(rf"(?<![\w.-]){re.escape(basename(name))}(?![\w.-])")
    return any(other != name and pattern.search(files[other]) for other in scripts)


def launch_of(words: Sequence[str]) -> LaunchedProgram | None:
    """Program that the words of a command start; None where they start no Python program.

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
        module = position > 0 and words[position - 1] in ("-m", "--module")
        if module and (word.startswith("-") or word in STARTERS):
            continue
        if module or re.search(r"\S\.py$", word) or basename(word) in PROGRAMS:
            before = words[:position]
            nodes, per_node = _count(before, NODES), _count(before, PER_NODE)
            total = _count(before, TOTAL)
            if total and nodes and not per_node and total % nodes == 0:
                per_node = total // nodes
            if total and per_node and not nodes and total % per_node == 0:
                nodes = total // per_node
            return LaunchedProgram(
                program=word,
                arguments=tuple(words[position + 1 :]),
                nodes=nodes,
                devices_per_node=per_node,
            )
    return None


def _count(words: Sequence[str], names: Sequence[str]) -> int:
    """Number that an option says, of the launcher next to the program; 0 where none does."""
    for position in reversed(range(len(words))):
        option, equals, value = words[position].partition("=")
        short = re.fullmatch(r"-([Nn])(\d+)", option)
        if short and short[1] in names:
            return int(short[2])
        if not option.startswith("-") or option.lstrip("-").replace("_", "-") not in names:
            continue
        if not equals:
            value = words[position + 1] if position + 1 < len(words) else ""
        value = value.rpartition(":")[2]  # torchrun's `MIN:MAX`, Slurm's `gpu:a100:8`
        if not re.match(r"[-+]?[0-9]", value) or value == "0":  # `auto`, or counted from nothing
            continue
        if not re.fullmatch(r"[0-9]{1,7}", value) or not 1 <= int(value) <= NODES_MAX:
            raise SettingsError(
                f"{words[position]}: `{value}` is no number of devices; write 1 or more"
            )
        return int(value)
    return 0
