"""Older settings: names that torchtitan's TOML had before 0.2.2, told in those that it has there.

`older_settings.json` has every name that its repository dropped, the days between which it was
there, and its successor. Where there is none, a plan does not depend on it, or it is read here.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from millrace.trainers.trainer import SettingsError

RELEASED = {"2025-06-17": "0.1.0", "2025-10-17": "0.2.0"}  # days of the tags, read 2026-11
REPLICATE = "parallelism.data_parallel_replicate_degree"
SHARD = "parallelism.data_parallel_shard_degree"
MICROBATCH = "parallelism.pipeline_parallel_microbatch_size"
Rows = Mapping[str, Mapping[str, Any]]


def renamed(rows: Rows, values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the last release that read TOML, with what older ones say.

    Parameters
    ----------
    rows : mapping
        Of a table of settings: those of older releases have the day of their end.
    values : mapping
        As they are set, by whatever release's names.

    Raises
    ------
    SettingsError
        An older setting has a value that it never took.
    """
    newer = dict(values)
    for name, value in values.items():
        if "now" in rows.get(name, ()):
            row, word = rows[name], str(value)
            if "values" in row and word not in row["values"]:
                choices = ", ".join(row["values"])
                raise SettingsError(f"{name} is {value!r}: choose one of {choices}")
            newer[row["now"]] = row["values"][word] if "values" in row else value
            del newer[name]
    counted = "experimental.pipeline_parallel_degree" in values
    return newer | _data_parallel(newer) | _pipeline(newer, counted)


def _data_parallel(values: Mapping[str, Any]) -> dict[str, int]:
    """Degrees that were one until 2024-09, with a word on what it splits."""
    degree = values.get("training.data_parallel_degree")
    if values.get("training.data_parallel_type") == "ddp":
        return {REPLICATE: -1 if degree is None else degree, SHARD: 1}
    return {} if degree is None else {SHARD: degree}


def _pipeline(values: Mapping[str, Any], counted: bool) -> dict[str, int]:
    """Samples of a microbatch, where they were told by the number of microbatches: until 2025-04.

    It was that of stages where nothing said it.
    """
    names = (f"{part}.pipeline_parallel_microbatches" for part in ("experimental", "parallelism"))
    count = next((values[name] for name in names if values.get(name)), 0)
    if not count and counted:
        count = values["parallelism.pipeline_parallel_degree"]
    local = values.get("training.local_batch_size", 8)
    if not count or MICROBATCH in values or type(local) is not int or type(count) is not int:
        return {}
    return {MICROBATCH: max(1, local // count)}


def split_points(values: Mapping[str, Any]) -> list[str]:
    """Names of the modules with which stages begin but the first, as told until 2025-10.

    Parameters
    ----------
    values : mapping
        Settings, by dotted name.
    """
    names = (f"{part}.pipeline_parallel_split_points" for part in ("experimental", "parallelism"))
    return next((list(values[name]) for name in names if values.get(name)), [])


def releases(rows: Rows, names: Mapping[str, Any]) -> Iterator[str]:
    """Sentence about the release that older names are of; none where there are no such names.

    Parameters
    ----------
    rows : mapping
        As `renamed` takes them.
    names : mapping
        Settings as they were set, by name.
    """
    older = [name for name in names if "until" in rows.get(name, ())]
    if not older:
        return
    since = max(str(rows[name]["since"]) for name in older)
    until = min(str(rows[name]["until"]) for name in older)
    version = next((f"before {name}" for day, name in RELEASED.items() if until <= day), "")
    days = f"of {since} to {until}" if since < until else "of several releases"
    yield (
        f"settings of torchtitan {f'{version}, ' if version else ''}{days}, by "
        f"{', '.join(sorted(older)[:4])}: read by the names of 0.2.2"
    )
