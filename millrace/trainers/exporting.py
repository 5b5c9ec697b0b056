"""Exporting a plan: the files of a trainer, and the same written to a folder."""

from pathlib import Path

from millrace.models.documents import write_bytes
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
    paths = []
    for name, text in written.files.items():
        path = folder / name
        write_bytes(path, text.encode())
        if name.endswith(".sh"):
            path.chmod(EXECUTABLE)
        paths.append(path)
    return paths
