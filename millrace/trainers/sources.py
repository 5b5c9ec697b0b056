"""Sources: settings as they are named on the command line, read from files or taken as typed."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from millrace.models.documents import read_text
from millrace.trainers.trainer import SettingsError, SettingsSource

BYTES_MAX = 2**22  # launch scripts and configurations have some kB
FILES_MAX = 50
# Files of a folder that may hold settings.
SUFFIXES = (".sh", ".slurm", ".sbatch", ".toml", ".yaml", ".yml", ".json", ".py")


def source_of(
    named: Sequence[str],
    values: Mapping[str, str],
    nodes: int = 0,
    devices_per_node: int = 0,
    cluster: str | None = None,
    left_out: Sequence[str] = (),
) -> SettingsSource:
    """Source of settings that are files, a folder of files, or a command line.

    Parameters
    ----------
    named : sequence of str
        Paths, and command lines, each one text; or the words of one command line.
    values : mapping
        What the user adds, by name.
    nodes, devices_per_node : int
        In place of what the settings say; 0: as they say.
    cluster : str, optional
        Cluster that the user names: its sizes count where it has them (`h100:8x4`).
    left_out : sequence of str
        Names of settings that are not to be read, with dashes or without.

    Raises
    ------
    SettingsError
        Nothing is named, or a path is not there.
    FileError
        A file cannot be read.
    """
    if sized := re.fullmatch(r"[^:]+:([0-9]{1,6})x([0-9]{1,6})", cluster or ""):
        nodes, devices_per_node = nodes or int(sized[2]), devices_per_node or int(sized[1])
    files: dict[str, str] = {}
    if not named or not any(text.strip() for text in named):
        raise SettingsError("no settings: name a file, a folder, or the command line in quotes")
    quoted = [text for text in named if _is_command(text) and len(text.split()) > 1]
    paths = [Path(text) for text in named if text not in quoted]
    if quoted:
        # A command line may be broken before its options, with or without backslashes.
        files[""] = "\n".join(re.sub(r"\s*\\?\n\s*(?=--)", " ", text) for text in quoted)
    elif any(_is_command(text) for text in named):
        files[""], paths = " ".join(named), []
    for path in paths:
        if path.is_dir():
            for inner in sorted(path.iterdir())[:FILES_MAX]:
                if inner.suffix in SUFFIXES and inner.is_file():
                    files[inner.name] = _text(inner)
            if not files:
                raise SettingsError(f"`{path}`: no file there ends in {', '.join(SUFFIXES)}")
        else:
            files[path.name] = _text(path)
    return SettingsSource(
        files=files,
        values=values,
        nodes=nodes,
        devices_per_node=devices_per_node,
        left_out=frozenset(name.lstrip("-") for name in left_out),
    )


def _is_command(text: str) -> bool:
    """True if a text is a command line: it has words, or is an option, and names no file."""
    spaced = any(character.isspace() for character in text.strip())
    return (spaced or text.startswith("-")) and not _exists(text)


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # too long for a name, or with a zero byte
        return False


def _text(path: Path) -> str:
    text = read_text(path, "settings file", bytes_max=BYTES_MAX)
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise SettingsError(f"`{path}`: no text in UTF-8, as settings are") from None


def added_values(pairs: Sequence[str]) -> dict[str, str]:
    """Values that `--set NAME=VALUE` gives, by name.

    Parameters
    ----------
    pairs : sequence of str
        As typed.

    Raises
    ------
    SettingsError
        One has no name or no equals sign.
    """
    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise SettingsError(f"--set {pair}: expected NAME=VALUE")
        values[name.strip().lstrip("-")] = value
    return values
