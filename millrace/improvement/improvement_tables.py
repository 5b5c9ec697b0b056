"""Tables and sentences of an improvement, for a terminal and for a notebook."""

from typing import TYPE_CHECKING, Any

from millrace.comparison.comparison import (
    COLLECTIVE_COST,
    HOST_OVERHEAD,
    OP_COST,
    STRAGGLERS,
    WAITING,
)
from millrace.drawing import filled, headline
from millrace.improvement.improved_job import ChangeOutcome, Improvement, speed_gain
from millrace.planner.formatting import size
from millrace.units import format_percent, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

# Kinds of cause by which a run differs from its prediction, as `millrace compare` splits them.
SLOWER = (
    f"{OP_COST}: another precision, attention kernel or clock than the settings say",
    f"{COLLECTIVE_COST}: a slow or shared link, a collective that takes another way",
    f"{STRAGGLERS}: one slow device or host, which all wait for",
    f"{WAITING}: other programs on the hosts, too few threads",
    f"{HOST_OVERHEAD}: data loading, logging, checkpoints and evaluation within the step",
)
FASTER = (
    "other settings than these: batch, sequence length, layers, packed or padded samples",
    "another step: one microbatch instead of all, the forward pass alone",
)
LEAST_SHARE = 0.005  # of a step; what goes to less is not printed


def change_document(outcome: ChangeOutcome) -> dict[str, Any]:
    """Fields of a change as `millrace improve --json` has them."""
    return {
        "change": outcome.change.text,
        "choice": outcome.change.choice,
        "before": outcome.change.before,
        "after": outcome.change.after,
        "step_time_s": outcome.step_time_s,
        "gain": outcome.gain,
        "speed_gain": outcome.speed_gain,
        "memory_bytes_max": outcome.memory_bytes_max,
        "spare_bytes": outcome.spare_bytes,
        "fits": outcome.fits,
        "risky": outcome.risky,
        "settings": [change.document for change in outcome.settings],
    }


def improvement_document(improvement: Improvement) -> dict[str, Any]:
    """Fields of `millrace improve --json`.

    Parameters
    ----------
    improvement : Improvement
        As `improved` returned it.
    """
    free = improvement.free_plan
    return {
        "model": improvement.job.model.name,
        "cluster": improvement.plan.cluster.name,
        "framework": improvement.job.framework,
        "predicted_s": improvement.predicted_s,
        "measured_s": improvement.measured_s,
        "correction": improvement.correction,
        "measured_within_range": None
        if improvement.measured_s is None or improvement.expected is None
        else not improvement.unexpected,
        "causes": list(causes(improvement)),
        "step_time_compared_with": improvement.range_text,
        "memory_bytes_max": improvement.memory_bytes_max,
        "spare_bytes": improvement.spare_bytes,
        "bottlenecks": dict(improvement.bottlenecks),
        "binding": dict(improvement.binding),
        "changes": [change_document(outcome) for outcome in improvement.outcomes],
        "refused": [
            {"change": change.text, "reason": reason} for change, reason in improvement.refused
        ],
        "free_plan": None if free is None else headline(free),
        "free_gain": improvement.free_gain,
        "free_settings": [change.document for change in improvement.free_settings],
    }


def today_lines(improvement: Improvement) -> list[str]:
    """Lines on the job as it runs: its step, its memory and what binds.

    Parameters
    ----------
    improvement : Improvement
        As `improved` returned it.
    """
    lines = [headline(improvement.plan)]
    lines.append(f"predicted step time {format_seconds(improvement.predicted_s)}")
    lines.append(f"  {improvement.range_text}")
    lines += _measured_lines(improvement)
    lines.append(
        f"{filled(improvement.plan, improvement.memory_bytes_max)}, "
        f"{_spare(improvement.spare_bytes)}"
    )
    parts = [
        f"{name} {format_percent(share)}"
        for name, share in improvement.bottlenecks.items()
        if share >= LEAST_SHARE
    ]
    lines.append(f"the step goes to {', '.join(parts)}")
    return lines


def causes(improvement: Improvement) -> tuple[str, ...]:
    """Causes that a measured step outside of the range can have; none where it is inside.

    Parameters
    ----------
    improvement : Improvement
        As `improved` returned it.
    """
    if improvement.measured_s is None or not improvement.unexpected:
        return ()
    return SLOWER if improvement.measured_s > improvement.predicted_s else FASTER


def _measured_lines(improvement: Improvement) -> list[str]:
    if improvement.measured_s is None:
        return []
    step = f"measured step time {format_seconds(improvement.measured_s)}"
    reasons = causes(improvement)
    if not reasons:
        factor = f"{improvement.correction:.3f}"
        return [f"{step}: all step times below are multiplied by {factor}"]
    return [
        f"{step}, outside of this range: something else than what is predicted takes the time, so "
        f"predictions are left as they are. Look first for",
        *(f"  {reason}" for reason in reasons),
    ]


def _spare(spare_bytes: int) -> str:
    return f"{size(spare_bytes)} to spare" if spare_bytes >= 0 else f"{size(-spare_bytes)} too many"


def change_table(improvement: Improvement) -> "Table":
    """Table of changes, the one that gains most first, those that do not fit last.

    Parameters
    ----------
    improvement : Improvement
        As `improved` returned it.
    """
    from rich.table import Table

    table = Table(title="single changes", title_justify="left")
    table.add_column("change", overflow="fold", max_width=14)
    for column in ("step", "time", "tokens/s", "memory"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    table.add_column("in the trainer's settings", overflow="fold")
    for outcome in improvement.outcomes:
        fits = "yes" if not outcome.risky else "barely" if outcome.fits else "no"
        table.add_row(
            outcome.change.text,
            format_seconds(outcome.step_time_s),
            format_percent(-outcome.gain, signed=True),
            format_percent(outcome.speed_gain, signed=True),
            size(outcome.memory_bytes_max),
            fits,
            "\n".join(change.text for change in outcome.settings),
        )
    return table


def closing_lines(improvement: Improvement) -> list[str]:
    """Lines after the table: what the words of the table mean, and the free plan.

    Parameters
    ----------
    improvement : Improvement
        As `improved` returned it.
    """
    lines = []
    if any(outcome.risky and outcome.fits for outcome in improvement.outcomes):
        lines.append("barely: it fits, but the reserve for what is not predicted is not left free")
    free = improvement.free_plan
    if free is not None and improvement.free_gain is not None:
        step_s = improvement.predicted_s * (1 - improvement.free_gain) * improvement.correction
        lines.append(
            f"the best plan of {improvement.job.framework} that fits: {headline(free)}; "
            f"{format_seconds(step_s)}, {format_percent(-improvement.free_gain, signed=True)} "
            f"time, {format_percent(speed_gain(improvement.free_gain), signed=True)} tokens/s"
        )
        lines += [f"  {change.text}" for change in improvement.free_settings]
    return lines
