"""Exporting a plan: the files of a trainer, and the same written to a folder."""

from collections.abc import Iterable, Mapping
from os.path import isdir
from pathlib import Path

from millrace.files import check_writable, make_folder
from millrace.models.documents import write_bytes
from millrace.planner.errors import InfeasibleError
from millrace.planner.plan import Plan
from millrace.trainers.job_of_plan import job_of
from millrace.trainers.trainer import Trainer, WrittenSettings

EXECUTABLE = 0o755


def export_plan(plan: Plan, trainer: Trainer) -> WrittenSettings:
    """Settings of a plan for a trainer.

    Parameters
    ----------
    plan : Plan
        Whoever it was made for.
    trainer : Trainer
        Of `millrace.trainers.catalogue`.

    Raises
    ------
    InfeasibleError
        The trainer cannot run the plan; says what stands in its way.
    """
    training = plan.training
    if training.optimizer not in trainer.optimizers:
        raise InfeasibleError(
            f"optimizer {training.optimizer}: settings for {trainer.name} say "
            f"{' or '.join(trainer.optimizers)}; plan with one of these, or export to another "
            f"trainer"
        )
    if training.lora_rank:
        raise InfeasibleError(
            f"adapters of rank {training.lora_rank}: settings for {trainer.name} train all weights;"
            f" plan without --lora-rank, or add the adapters in the trainer's own script"
        )
    if trainer.write_plan is not None:
        return trainer.write_plan(plan)
    return trainer.write(job_of(plan, trainer))


def write_files(written: WrittenSettings, folder: Path) -> list[Path]:
    """Paths of the files of settings, once they are written.

    Parameters
    ----------
    written : WrittenSettings
        The settings.
    folder : Path
        Made where it is not there; files of other names in it stay.

    Raises
    ------
    FileError, OSError
        A file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in written.files]
    for path, text in zip(paths, written.files.values(), strict=True):
        _write(path, text)
    return paths


def write_texts(texts: Mapping[str, str], place: Path, read: Iterable[Path] = ()) -> list[Path]:
    """Paths of texts, once they are written to a folder, or a single one to a file.

    Parameters
    ----------
    texts : mapping
        By file name.
    place : Path
        The folder, made where it is not there; or the file, where there is one text and the name
        has its suffix.
    read : iterable of Path
        Files and folders that the texts came from: nothing in them is replaced.

    Raises
    ------
    FileError, OSError
        A file cannot be written, or is one that was read.
    """
    (name, *others) = texts
    alone = not others and not place.is_dir() and place.suffix == Path(name).suffix
    paths = [place] if alone else [place / name for name in texts]
    taken = [inner for path in read for inner in (path.iterdir() if isdir(path) else [path])]
    if not alone:
        make_folder(place)
    check_writable(*paths, read=taken)
    for path, text in zip(paths, texts.values(), strict=True):
        _write(path, text)
    return paths


def _write(path: Path, text: str) -> None:
    write_bytes(path, text.encode())
    if path.suffix == ".sh":
        path.chmod(EXECUTABLE)
