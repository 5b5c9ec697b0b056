"""Alternatives as a table: the roles in which each differs from the plan, and its loss or lack.

What it loses is a share of the plan's step: by the simulator, by times of blocks that were measured
in the simulator, or by the planner's own cost.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from millrace.planner.parallel_degrees import ROLES, plan_roles
from millrace.planner.plan import Plan
from millrace.units import format_percent

# Roles whose value says by itself what it is of.
NAMED = ("schedule",)
# Roles of a pipeline alone.
PIPELINED = ("schedule", "interleave")


def alternatives_table(plan: Plan) -> Table | None:
    """Table of the plans that lost, best first; None where the evidence lists none."""
    rows = plan.evidence.alternatives if plan.evidence else ()
    if not rows:
        return None
    values = plan_roles(plan, plan.graph)
    table = Table(title="alternatives", title_justify="left", collapse_padding=True)
    table.add_column("plan", overflow="fold")
    table.add_column("loses", justify="right", no_wrap=True)
    table.add_column("by", no_wrap=True)
    table.add_column("why", overflow="fold")
    for row in rows:
        loss = row.get("loss")
        loses = "" if loss is None else format_percent(loss)
        why = row.get("reason", "") if loss is None else row.get("cause") or _unsure(row)
        texts = (difference(values, row), loses, row.get("by", ""), why)
        table.add_row(*(Text(str(text)) for text in texts))
    return table


def difference(values: Mapping[str, Sequence[object]], row: Mapping[str, Any]) -> str:
    """Roles in which an alternative differs from a plan: `pp 2, zb-v`; its text where it has none.

    Parameters
    ----------
    values : mapping
        Values of the plan's roles, as `plan_roles` gives them.
    row : mapping
        The alternative, as the evidence holds it.
    """
    mixed = row.get("mixed")
    if mixed is None:  # it was not solved, or is of another kind
        return str(row.get("plan", ""))
    words = []
    for name in ROLES:
        others = mixed.get(name, [row.get(name)])
        if list(values[name]) == list(others) or (name in PIPELINED and row.get("pp") == 1):
            continue
        text = "/".join(_word(value) for value in others)
        words.append(text if name in NAMED else f"{name.replace('_', '-')} {text}")
    return ", ".join(words)


def _unsure(row: Mapping[str, Any]) -> str:
    """Caution about a plan that seems better than the chosen one; empty where it does not."""
    return "not simulated" if row["loss"] < 0 and "step_time_s" not in row else ""


def _word(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
