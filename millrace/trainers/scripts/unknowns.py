"""Unknowns of scripts: what was not set, not given or not reached, where it decides a job."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from posixpath import basename

from millrace.models.spec import TrainingSpec
from millrace.trainers.scripts.launched import launches, main_launch, script_runs
from millrace.trainers.scripts.sandbox import TYPED
from millrace.trainers.trainer import ReadSettings, SettingsError, SettingsSource

Reader = Callable[[SettingsSource], ReadSettings]
NAMES_MAX = 30  # variables that are tried out, and names that a sentence lists
TRIED = "1"  # what a variable is set to, to see whether it decides anything


def read_scripts(read: Reader, source: SettingsSource) -> ReadSettings:
    """Job of a source, with sentences about what its scripts left open and decides it.

    Parameters
    ----------
    read : callable
        As `Trainer.read`.
    source : SettingsSource
        Scripts and documents.

    Raises
    ------
    SettingsError
        As `read` does; names the variables that the scripts leave open.
    """
    try:
        settings = read(source)
    except SettingsError as error:
        taken = _unset(source)
        unset = list(taken)[:NAMES_MAX]
        if launches(source):
            unset = [x for x in unset if _complaint(read, source, taken, x) != str(error)]
        cause = "".join(_stop(source))
        if not unset:
            raise SettingsError(f"{error}{cause}") from None
        raise SettingsError(
            f"{error}{cause}; the script does not set {', '.join(map(_shown, unset))}: "
            f"--set {unset[0]}=VALUE"
        ) from None
    sentences = (*_open(read, source, settings), *_unread(source), *_unused(read, source, settings))
    return replace(settings, assumed=(*settings.assumed, *sentences))


def _stop(source: SettingsSource) -> Iterator[str]:
    """Yield what scripts complain about last that come to no program."""
    started = {launch.script for launch in launches(source)}
    for name, run in script_runs(source).items():
        if name not in started and name != TYPED and run.complaint:
            yield f"; {name} comes to: {run.complaint.removeprefix('/job/')}"


def _shown(name: str) -> str:
    return f"${name}" if name.isdigit() else name


def _unset(source: SettingsSource) -> dict[str, str]:
    """Variables that no script sets, as they are taken; those on which one stops are its name."""
    return {name: text for run in script_runs(source).values() for name, text in run.unset.items()}


def _complaint(read: Reader, source: SettingsSource, taken: Mapping[str, str], name: str) -> str:
    """Refusal of a source in which a variable is set; empty where it is read."""
    try:
        read(replace(source, values={**taken, **source.values, name: TRIED}))
    except SettingsError as error:
        return str(error)
    return ""


def _decides(
    read: Reader, source: SettingsSource, settings: ReadSettings, values: Mapping[str, str]
) -> bool:
    """True if a job is another, or none, with other variables."""
    try:
        other = read(replace(source, values=values))
    except SettingsError:
        return True
    return _deciding(other) != _deciding(settings)


def _deciding(settings: ReadSettings) -> tuple[object, ...]:
    """Part of settings that a plan depends on: no learning rates."""
    training = settings.job.training
    usual = TrainingSpec(optimizer=training.optimizer, attention=training.attention)
    return replace(settings.job, training=usual), settings.unplanned, settings.unread


def _open(read: Reader, source: SettingsSource, settings: ReadSettings) -> Iterator[str]:
    """Yield a sentence about variables that are taken as empty and decide something."""
    taken = _unset(source)
    names = [
        name
        for name in list(taken)[:NAMES_MAX]
        if _decides(read, source, settings, {**taken, **source.values, name: TRIED})
    ]
    if names:
        yield (
            f"not set in the script, and taken as empty or as on one node: "
            f"{', '.join(map(_shown, names))} (--set {names[0]}=VALUE)"
        )


def _unread(source: SettingsSource) -> Iterator[str]:
    """Yield sentences about files and launches that were not read."""
    programs = launches(source)
    chosen = main_launch(programs)
    for name, run in script_runs(source).items():
        shown = "the command line" if name == TYPED else name
        reached = [launch for launch in programs if launch.script == name]
        if not reached and name != TYPED:
            yield f"{shown} starts no program: nothing in it was read"
        if reached and run.went_on:
            yield f"{shown} stops before it starts a program, and was read as if it went on"
        if run.missing:
            listed = ", ".join(run.missing[:NAMES_MAX])
            yield f"{shown} reads files that were not given: {listed}"
        if run.silent:
            yield f"{shown} takes the output of {', '.join(run.silent)}, which is not known: empty"
    if chosen is None:
        return
    alike = [x for x in programs if basename(x.program) == basename(chosen.program)]
    starts = len({launch.arguments for launch in alike})
    if starts > 1:
        scripts = dict.fromkeys(launch.script for launch in alike)
        place = f" by {', '.join(scripts)}" if len(scripts) > 1 else ""
        read_script = f", {chosen.script}'s," if place else ""
        yield (
            f"{chosen.program} is started {starts} times with other arguments{place}: the first "
            f"start with the most of them{read_script} is read"
        )


def _unused(read: Reader, source: SettingsSource, settings: ReadSettings) -> Iterator[str]:
    """Yield sentences about values of `--set` that change nothing."""
    for name in source.values:
        others = {key: value for key, value in source.values.items() if key != name}
        if _decides(read, source, settings, others):
            continue
        if name not in " ".join((*settings.ignored, *settings.unread)).replace("-", "_"):
            yield (
                f"--set {name}={source.values[name]} changes nothing: no setting or variable has "
                f"this name, or it has this value already, or the script sets it after that"
            )
