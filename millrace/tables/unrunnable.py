"""Unrunnable parts of a plan: lines on them, for its own framework or another."""

from collections.abc import Sequence

from rich.console import Console

from millrace.planner.frameworks.framework_tables import capabilities, framework
from millrace.planner.frameworks.runnable import unrunnable
from millrace.planner.plan import Plan


def faults_by(plan: Plan, name: str | None) -> list[str]:
    """Clauses on what of a plan a framework cannot run; none where it can run all of it.

    Parameters
    ----------
    plan : Plan
        Whoever it was made for.
    name : str or None
        The framework's; None: that of the plan's cluster.

    Raises
    ------
    ClusterError
        There is no such framework.
    """
    if name is not None:
        framework(name)
    return unrunnable(plan, capabilities(plan.cluster.software.name if name is None else name))


def draw_faults(plan: Plan, name: str | None, faults: Sequence[str], console: Console) -> None:
    """Print clauses of `faults_by`; where there are none, only of a framework that is asked about.

    Parameters
    ----------
    plan : Plan
        The plan.
    name : str or None
        The framework that is asked about.
    faults : sequence of str
        What it cannot run.
    console : Console
        The console to print on.
    """
    runner = plan.cluster.software.name if name is None else name
    title = f"{runner} {capabilities(runner).version}".strip()
    if faults:
        console.print(f"{title} cannot run this plan:", markup=False)
    elif name is not None:
        console.print(f"{title} can run this plan", markup=False)
    for fault in faults:
        console.print(f"  {fault}", markup=False, soft_wrap=True)
