"""Fit figures of devices and frameworks to published runs, and write them where they are kept.

Run `python -m benchmarks.simulator.calibrate CSV [CSV...] [--every K] [--processes P] [--write]`
from the root of the repository. Every row of tier A is planned, and simulated once per figure that
it depends on (`millrace.calibration`); printed are the figures before and after, and what the rows
are expected to be off by. With `--write` the catalogue's files and the frameworks' settings are
changed in place.
"""

import os
import re
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import millrace.planner
from millrace.calibration import FittedParameter, fitted, sensitivities_of
from millrace.calibration.parameters import DEVICE_FIELDS
from millrace.published.reading import read_table
from millrace.published.validation import RowQuestion, ask

SAID = "fitted on published runs, 2026-11 (benchmarks/simulator/calibrate.py)"
DIGITS = 3


def main(
    tables: list[Path],
    every: int = 1,
    processes: int = os.cpu_count() or 1,
    write: Annotated[bool, typer.Option("--write")] = False,
    keep: Annotated[Path | None, typer.Option()] = None,
) -> None:
    """Fit and print, and write where wanted."""
    asked = [question for path in tables for question in _row_questions(path)][::every]

    def report_progress(done: int, of: int) -> None:
        if done % 50 == 0 or done == of:
            typer.echo(f"{done} of {of} questions", err=True)

    answers = sensitivities_of(asked, processes, report_progress)
    if keep is not None:
        np.savez(keep, now=answers.now, slopes=answers.slopes, residuals=answers.residuals)
    fit = fitted(answers.parameters, answers.now, answers.slopes, answers.residuals)
    for parameter, before in zip(answers.parameters, np.exp(answers.now), strict=True):
        typer.echo(
            f"{parameter.owner:28} {parameter.field:22} {before:10.4g} -> "
            f"{fit.values[parameter]:10.4g}"
        )
    for name, off in (("now", answers.residuals), ("fitted", fit.residuals)):
        error = np.abs(np.expm1(off))
        typer.echo(
            f"{name}: {len(off)} rows, mean error {error.mean():.3f}, median {np.median(error):.3f}"
        )
    if write:
        _write(fit.values)


def _row_questions(path: Path) -> list[RowQuestion]:
    table = read_table(path)
    return [ask(row, table.layout) for row in table.rows if row["tier"] == "A"]


def _write(values: dict[FittedParameter, float]) -> None:
    root = Path(millrace.planner.__file__).parent
    for parameter, value in values.items():
        if parameter.field in DEVICE_FIELDS:
            _put(
                root / "catalogue" / f"{parameter.owner}.toml",
                "device",
                parameter.field,
                min(value, 1.0),
            )
            continue
        path = root / "frameworks" / "frameworks.toml"
        if parameter.field == "loss":
            _put(path, parameter.owner, "overlap", 1 - min(value, 1.0))
        else:
            _put(path, parameter.owner, parameter.field, value)


def _put(path: Path, table: str, field: str, value: float) -> None:
    """Change one figure of a TOML file, or add it at the end of its table."""
    text = path.read_text("utf-8")
    number = str(round(value)) if field == "host_ns" else f"{value:.{DIGITS}g}"
    head = text.index(f"[{table}]\n")
    end = text.find("\n[", head + 1)
    body, rest = text[head : end if end > 0 else None], text[end:] if end > 0 else ""
    line = f"{field} = {number}" + (f"  # {SAID}" if table == "device" else "")
    body, count = re.subn(rf"(?m)^{field} = .*$", line, body)
    if not count:
        body = f"{body.rstrip()}\n{line}\n"
    path.write_text(text[:head] + body + rest, "utf-8")


if __name__ == "__main__":
    typer.run(main)
