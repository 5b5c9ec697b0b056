"""Drifts of a run in a sentence each."""

from typing import TYPE_CHECKING

from millrace.units import format_seconds

if TYPE_CHECKING:
    from millrace.executor.drift.drift_watch import Drift


def drift_text(drift: "Drift") -> str:
    """Sentence on a drift that has begun, or has ended."""
    if drift.ended is not None:
        return (
            f"step {drift.ended}: steps take {format_seconds(drift.step_time_before_s)} again, as "
            f"before step {drift.step}"
        )
    before = format_seconds(drift.step_time_before_s)
    against = f"of {before} that are predicted"
    if drift.against != "prediction":
        against = f"of the {before} of the first steps"
    return (
        f"step {drift.step}: steps take {format_seconds(drift.step_time_s)} in place {against}; "
        f"{_moved(drift)}"
    )


def _moved(drift: "Drift") -> str:
    """Clause on the actor that moved."""
    if drift.before_s is None or drift.now_s is None:
        return "which actor moved is not known"
    moved = f"from {format_seconds(drift.before_s)} to {format_seconds(drift.now_s)} a step"
    others = _others(drift.others)
    return f"`{drift.actor}` on rank {drift.rank} moved most, {moved}{others}"


def _others(count: int) -> str:
    """Clause on other actors of the rank that moved too."""
    if count == 0:
        return ""
    return f", and {count} other actor{'s' * (count > 1)} of this rank by more than a fifth"
