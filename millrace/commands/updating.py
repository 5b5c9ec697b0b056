"""Updating of a kept profile from a run, for `compare --update-profile` and the demo."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.output import say
from millrace.planner.errors import ClusterError, PlanError
from millrace.units import format_percent, format_seconds

if TYPE_CHECKING:
    from millrace.planner.actors.trace import Trace
    from millrace.planner.cluster import Device
    from millrace.planner.plan import Plan
    from millrace.profiling.profile_update import ProfileUpdate


def update_profile(
    plan: "Plan", trace: "Trace", *, keep: bool, output: Path | None = None
) -> "ProfileUpdate":
    """Profile with a run folded in, kept for the next plans on this machine or written to a file.

    Parameters
    ----------
    plan : Plan
        The plan that was run.
    trace : Trace
        Of that run, with the times of firings.
    keep : bool
        Keep it in place of this machine's profile.
    output : Path, optional
        A file to write it to, for `plan --profile`.

    Raises
    ------
    ClusterError
        It is to be kept, and the plan is not of this machine.
    PlanError
        The trace is a prediction.
    FileError
        The file cannot be written.
    """
    from millrace.files import write_document
    from millrace.profiling.profile_update import profile_update

    check_measured(trace)
    update = profile_update(plan, trace, _today(plan) if keep else None)
    if keep:
        _keep(plan, update.device)
    if output is not None:
        write_document(output, update.device)
        say(f"device profile written to {output}")
    return update


def check_measured(trace: "Trace") -> None:
    """Refuse a predicted trace, of which a profile learns nothing.

    Parameters
    ----------
    trace : Trace
        What is to be folded in.

    Raises
    ------
    PlanError
        It was not measured.
    """
    if trace.source != "measured":
        raise PlanError(
            f"the trace is {trace.source}, not measured: a profile learns nothing of predictions; "
            f"give that of `millrace run --trace`"
        )


def _today(plan: "Plan") -> "Device | None":
    """Profile that is kept of this machine as the plan uses it; None where there is none."""
    from millrace.executor.measure import profile_in_keep

    _check_local(plan)
    device = profile_in_keep(plan.cluster.devices)
    if device is not None and device.name != plan.cluster.device.name:
        raise ClusterError(
            f"--update-profile: the plan is for `{plan.cluster.device.name}`, and this machine is "
            f"`{device.name}`; give --write-profile FILE, and that to `plan --profile`"
        )
    return device


def _check_local(plan: "Plan") -> None:
    if plan.cluster.cores_per_node is None:
        raise ClusterError(
            f"--update-profile: the plan is for {plan.cluster.name}, and profiles are kept of "
            f"`local:N`; give --write-profile FILE, and that to `plan --profile`"
        )


def _keep(plan: "Plan", device: "Device") -> None:
    from millrace.executor.measure import keep_profile

    keep_profile(plan.cluster.devices, device, unkept=say)


def updated_figures(update: "ProfileUpdate") -> dict[str, Any]:
    """Figures of an update for `--json`: all but the profile.

    Parameters
    ----------
    update : ProfileUpdate
        The update.
    """
    figures: dict[str, Any] = msgspec.to_builtins(update)
    del figures["device"]
    return figures


def updated_lines(figures: Mapping[str, Any]) -> list[str]:
    """Lines that say what an update changed, for the reader.

    Parameters
    ----------
    figures : mapping
        As `updated_figures` gives them.
    """
    lines = []
    if changes := figures["changes"]:
        rows = ((row["kind"], row["before_s"], row["after_s"]) for row in changes)
        moved = ", ".join(
            f"{kind} {format_seconds(before_s)} to {format_seconds(after_s)}"
            for kind, before_s, after_s in rows
        )
        lines.append(f"costs of a step that moved most: {moved}")
    if steps := figures["left_out"]:
        lines.append(f"steps left out as outliers: {', '.join(map(str, steps))}")
    lines.append(
        f"with the run folded in, the step is predicted to take "
        f"{format_seconds(figures['step_time_s'])}, "
        f"error {format_percent(figures['error'], signed=True)}"
    )
    return lines
