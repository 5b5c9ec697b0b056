"""Changed files: the user's own, with the settings of another job; nothing else in them differs.

What was changed is read again, until it says the other job; a script whose change is not plainly in
one place is given as a patch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import unified_diff

from millrace.improvement.edited_text import (
    edited_document,
    edited_module,
    edited_script,
    edited_toml,
    option_places,
)
from millrace.improvement.setting_changes import (
    PADDED,
    SettingChange,
    setting_changes,
    written_words,
)
from millrace.planner.errors import InfeasibleError
from millrace.trainers.job import TrainingJob
from millrace.trainers.trainer import ReadSettings, SettingsError, SettingsSource, Trainer

EDITORS = {
    ".toml": edited_toml,
    ".py": edited_module,
    **dict.fromkeys((".json", ".yaml", ".yml"), edited_document),
}
COMMAND = "command.sh"  # the file of a command line that was given as it is typed
ROUNDS = 3  # what follows from other settings shows once these are changed


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFiles:
    """Files with the settings of another job.

    Attributes
    ----------
    files : mapping
        Texts by name, those without a change too; a script's patch in place of the script.
    changes : tuple of SettingChange
        What differs.
    """

    files: Mapping[str, str]
    changes: tuple[SettingChange, ...]


def changed_files(
    source: SettingsSource, read: ReadSettings, target: TrainingJob, trainer: Trainer
) -> ChangedFiles:
    """Files of a source that say another job.

    Parameters
    ----------
    source : SettingsSource
        The user's settings.
    read : ReadSettings
        Their job.
    target : TrainingJob
        The other.
    trainer : Trainer
        Whose settings they are.

    Raises
    ------
    InfeasibleError
        The trainer cannot be told, or a setting has no plain place in the files; names them.
    """
    texts, now = dict(source.files), read
    first: dict[str, SettingChange] = {}
    plain = dict.fromkeys(texts, True)
    placed: set[str] = set()
    for _ in range(ROUNDS):
        changes = setting_changes(now.job, target, trainer, now.given)
        if not changes:
            break
        near = [name for name in now.given if name not in {change.name for change in changes}]
        near = [change.name for change in changes] + near
        for change in changes:
            first.setdefault(change.name, change)
            if _apply(texts, change, near, plain):
                placed.add(change.name)
        try:
            now = trainer.read(replace(source, files=texts))
        except SettingsError:
            break  # what is changed and what is not contradict each other
    if first.keys() - placed or _left(now.job, target, trainer):
        words = "; ".join(change.text for change in first.values())
        raise InfeasibleError(
            f"the files say these settings in a way that is not changed here; set by hand: {words}"
        )
    files: dict[str, str] = {}
    for name, text in texts.items():
        shown, before = name or COMMAND, source.files[name]
        if plain[name]:
            files[shown] = text if text.endswith("\n") else f"{text}\n"
        else:
            lines = (before.splitlines(keepends=True), text.splitlines(keepends=True))
            files[f"{shown}.patch"] = "".join(unified_diff(*lines, f"a/{shown}", f"b/{shown}"))
    return ChangedFiles(files=files, changes=tuple(first.values()))


def _apply(
    texts: dict[str, str], change: SettingChange, near: list[str], plain: dict[str, bool]
) -> bool:
    """True if a change is made, in the file that holds the setting or has a place for it."""
    if " " in change.name:  # it is no setting, and follows from none
        return False
    words = sorted(texts, key=lambda name: suffix(name) in EDITORS)
    holding = [name for name in words if suffix(name) not in EDITORS]
    for name in holding:
        places = list(option_places(texts[name], change.name, change.before is True))
        if places and (text := edited_script(texts[name], change, ())) is not None:
            texts[name] = text
            plain[name] &= len(places) == 1 and "$" not in places[0][2]
            return True
    for name in [*words[len(holding) :], *holding]:
        text = EDITORS.get(suffix(name), edited_script)(texts[name], change, near)
        if text is not None:
            texts[name] = text
            return True
    return False


def suffix(name: str) -> str:
    """Suffix of a file's name, with its point."""
    return f".{name.rpartition('.')[2]}"


def _left(job: TrainingJob, target: TrainingJob, trainer: Trainer) -> list[str]:
    """Settings in which a job still is another one; padding of the vocabulary is the trainer's."""
    try:
        words, wanted = (written_words(x, trainer, {}) for x in (job, target))
    except InfeasibleError as error:
        return [str(error)]
    names = {**words, **wanted}
    return [x for x in names if words.get(x) != wanted.get(x) and PADDED not in x]
