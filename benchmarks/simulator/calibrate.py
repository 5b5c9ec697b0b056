"""Fit of figures of devices and frameworks to published runs: printed, and written where wanted.

Run `python -m benchmarks.simulator.calibrate CSV [CSV...]` from the root of the repository; minutes
on two cores. Every row of tier A is planned, and simulated once per figure that it depends on
(`millrace.calibration`). Printed are

* the loss that is minimised (`millrace/calibration/fitting.py`), where it stands before the fit and
  after every step but the last, and the errors of the rows;
* every figure: its prior with what it may be off by, its value before and after the fit with what
  this may be off by, the share of that which rows say, and the sources that move it most. A figure
  of which rows say hardly anything is *at its prior* (that of its pool).

Options: `--device HEAD` takes the rows of both tiers on devices whose names begin so, and leaves
all other figures as they are (`tpu`: no row of tier A is on a TPU); `--every K` takes each K-th
row; `--steps N` takes N Gauss-Newton steps (2), each from where the one before has led; `--rows N`
names the N rows that move every figure most (0); `--processes P`; `--keep FILE` keeps the
sensitivities (npz); `--write` changes the catalogue's files and the frameworks' settings in place.
"""

import gc
import os
import re
from math import exp
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import millrace.planner
from millrace.calibration import Sensitivities
from millrace.calibration.fitting import FAR, USUAL
from millrace.calibration.gauss_newton import FitStep, fit_steps
from millrace.calibration.influence import FigureInfluence, influences
from millrace.calibration.parameters import DEVICE_FIELDS, value_of
from millrace.cli import COLLECTED
from millrace.models.arrays import Floats
from millrace.published.reading import LINE, read_table
from millrace.published.validation import RowQuestion, ask, source

SAID = "fitted on published runs, 2026-11 (benchmarks/simulator/calibrate.py)"
BELIEVED = "at its prior: no published run determines it (benchmarks/simulator/calibrate.py)"
DIGITS = 3


def main(
    tables: list[Path],
    every: int = 1,
    device: str = "",
    processes: int = os.cpu_count() or 1,
    write: Annotated[bool, typer.Option("--write")] = False,
    keep: Annotated[Path | None, typer.Option()] = None,
    steps: Annotated[int, typer.Option(min=1)] = 2,
    rows: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Fit and print, and write where wanted."""
    gc.set_threshold(*COLLECTED)
    asked = [question for path in tables for question in _row_questions(path, device)][::every]
    if not asked:
        raise typer.BadParameter(f"no row of tier A, or on a device that begins with `{device}`")
    told = 0

    def report_progress(done: int, of: int) -> None:
        nonlocal told
        if done // 50 != told or done == of:
            typer.echo(f"{done} of {of} questions", err=True)
        told = done // 50

    typer.echo(
        f"loss: {FAR:g}² / 2 Σ log(1 + (r / {FAR * USUAL:g})²) of the rows' r = log(predicted / "
        f"measured), and ½ (x - mean)ᵀ C⁻¹ (x - mean) of the figures' logarithms x"
    )
    step = None
    for number, step in enumerate(fit_steps(asked, steps, processes, report_progress, device)):
        _print_step(f"after step {number}" if number else "before", step)
    assert step is not None, "there is a step at least"
    _print_errors(f"expected after step {steps}", step.fit.residuals)
    answers = step.sensitivities
    if keep is not None:
        np.savez(keep, now=answers.now, slopes=answers.slopes, residuals=answers.residuals)
    sources = [source(asked[row].row) for row in answers.rows]
    figures = influences(answers, step.fit, sources, most=max(rows, 3))
    for figure in figures:
        _print_figure(figure, answers, asked, rows)
    if write:
        _write(figures, f"{SAID[:-1]} --device {device})" if device else SAID)


def _row_questions(path: Path, device: str) -> list[RowQuestion]:
    table = read_table(path)
    return [
        ask(row, table.layout)
        for row in table.rows
        if (row["gpu"].startswith(device) if device else row["tier"] == "A")
    ]


def _print_step(name: str, step: FitStep) -> None:
    typer.echo(f"{name}: loss {step.loss:.1f}")
    _print_errors(name, step.sensitivities.residuals)


def _print_errors(name: str, residuals: Floats) -> None:
    error = np.abs(np.expm1(residuals))
    typer.echo(
        f"{name}: {len(error)} rows, mean error {error.mean():.3f}, median {np.median(error):.3f}"
    )


def _print_figure(
    figure: FigureInfluence, answers: Sensitivities, asked: list[RowQuestion], rows: int
) -> None:
    """Print a figure, and who moves it."""
    owner, field = figure.parameter
    prior = figure.parameter.belief
    spread = float(np.hypot(prior.pool, prior.member))
    moves = ", ".join(f"{name} {_percent(move)}" for name, move in figure.sources[:3])
    said = "at its prior" if figure.at_prior else f"{figure.determined:.0%} by rows"
    typer.echo(
        f"{owner:26} {field:22} prior {prior.value:8.4g} ×÷ {exp(spread):4.2f}  "
        f"{value_of(figure.parameter):9.4g} -> {figure.value:9.4g} ×÷ {exp(figure.deviation):4.2f}"
        f"  {said:12}  {moves}"
    )
    for place, move in figure.rows[:rows]:
        row = asked[answers.rows[place]].row
        typer.echo(
            f"{'':27}{_percent(move)}  line {row[LINE]} of {source(row)}: {row['model']} on "
            f"{row['gpu']}, predicted {_percent(float(answers.residuals[place]))}"
        )


def _percent(change: float) -> str:
    """Change of a logarithm as the change of what it is of."""
    return f"{np.expm1(change):+.1%}"


def _write(figures: tuple[FigureInfluence, ...], fitted_on: str) -> None:
    root = Path(millrace.planner.__file__).parent
    for figure in figures:
        parameter, value = figure.parameter, figure.value
        said = BELIEVED if figure.at_prior else fitted_on
        if parameter.field in DEVICE_FIELDS:
            path = root / "catalogue" / f"{parameter.owner}.toml"
            _put(path, "device", parameter.field, min(value, 1.0), said)
            continue
        path = root / "frameworks" / "frameworks.toml"
        if parameter.field == "loss":
            _put(path, parameter.owner, "overlap", 1 - min(value, 1.0))
        else:
            _put(path, parameter.owner, parameter.field, value)


def _put(path: Path, table: str, field: str, value: float, said: str = "") -> None:
    """Change one figure of a TOML file, or add it at the end of its table."""
    text = path.read_text("utf-8")
    number = str(round(value)) if field == "host_ns" else f"{value:.{DIGITS}g}"
    head = text.index(f"[{table}]\n")
    end = text.find("\n[", head + 1)
    body, rest = text[head : end if end > 0 else None], text[end:] if end > 0 else ""
    line = f"{field} = {number}" + (f"  # {said}" if said else "")
    body, count = re.subn(rf"(?m)^{field} = .*$", line, body)
    if not count:
        body = f"{body.rstrip()}\n{line}\n"
    path.write_text(text[:head] + body + rest, "utf-8")


if __name__ == "__main__":
    typer.run(main)
