"""Documents of one simulated step: spans of a Gantt chart, memory over time, where time goes.

Times are whole nanoseconds from the begin of the step. Long lists are columns: one list per field.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from millrace.drawing import memory_text
from millrace.figures import speed
from millrace.models.zoo.catalogue import unit_of
from millrace.palette import HUES, LIGHT
from millrace.planner.plan import Plan
from millrace.reporting import report_rows
from millrace.reporting.areas import drawn_bytes
from millrace.reporting.bars import bar_hues, moving_hues, stage_pieces, step_timeline
from millrace.simulator.account import Account, MemoryTimeline, account_of
from millrace.simulator.account.memory import window_of
from millrace.simulator.simulate import Simulated
from millrace.traces.timeline import Timeline
from millrace.units import format_percent, format_rate, format_seconds

BARS_MAX = 60_000  # of a chart; beyond, it would not be drawn in a frame
POINTS = 480  # moments of a memory curve


def step_document(plan: Plan, simulated: Simulated) -> dict[str, Any]:
    """Schedule, memory and breakdown of a step that was simulated with `spans`.

    Parameters
    ----------
    plan : Plan
        The plan that was simulated.
    simulated : Simulated
        Its steps.
    """
    account = account_of(plan, simulated)
    return {
        "step_time_ns": account.step_time_ns,
        "schedule": schedule_document(step_timeline(simulated), plan.microbatches),
        "memory": memory_document(account),
        "breakdown": breakdown_document(account),
        **{name: rows for name, rows in report_rows(account).items() if name != "stages"},
    }


def schedule_document(timeline: Timeline, microbatches: int) -> dict[str, Any]:
    """Rows and bars of a Gantt chart: what one rank of each stage computes and moves.

    `microbatch` counts from 0; -1 where an op runs once a step.

    Parameters
    ----------
    timeline : Timeline
        One step.
    microbatches : int
        Of a step, to tell what runs for each of them.
    """
    bars = timeline.bars[:BARS_MAX]
    times = Counter((bar.row, bar.name) for bar in bars)
    seen: Counter[tuple[int, str]] = Counter()
    numbers = []
    for bar in bars:
        key = bar.row, bar.name
        numbers.append(seen[key] if times[key] == microbatches > 1 else -1)
        seen[key] += 1
    names = list(dict.fromkeys(bar.name for bar in bars))
    kinds = list(dict.fromkeys(bar.what for bar in bars))
    name_index = {name: index for index, name in enumerate(names)}
    kind_index = {kind: index for index, kind in enumerate(kinds)}
    return {
        "rows": [row._asdict() for row in timeline.rows],
        "names": names,
        "kinds": kinds,
        "bars": {
            "row": [bar.row for bar in bars],
            "start_ns": [int(bar.start_ns) for bar in bars],
            "end_ns": [int(bar.end_ns) for bar in bars],
            "name": [name_index[bar.name] for bar in bars],
            "kind": [kind_index[bar.what] for bar in bars],
            "microbatch": numbers,
        },
        "bars_left_out": len(timeline.bars) - len(bars),
    }


def memory_document(account: Account) -> list[dict[str, Any]]:
    """Memory over the step, per stage and by kind; of moments between two the fullest is given."""
    begin_ns, step_ns = account.begin_ns, account.step_time_ns
    documents = []
    for course in account.memory:
        shown = window_of(course, begin_ns, begin_ns + step_ns)
        rows = drawn_bytes(shown)
        moments = _moments(shown, rows, step_ns)
        documents.append(
            {
                "stage": shown.stage,
                "rank": shown.rank,
                "limit_bytes": shown.limit_bytes,
                "times_ns": [int(shown.times_ns[moment]) for moment in moments],
                "bytes_by_kind": {
                    kind: [int(row[moment]) for moment in moments] for kind, row in rows.items()
                },
            }
        )
    return documents


def _moments(course: MemoryTimeline, rows: Mapping[str, Sequence[int]], step_ns: int) -> list[int]:
    """Indices of the moments that are shown: the fullest of each of `POINTS` columns."""
    totals = [sum(column) for column in zip(*rows.values(), strict=True)]
    fullest: dict[int, int] = {}
    for moment, ns in enumerate(course.times_ns):
        column = int(ns) * POINTS // max(step_ns, 1)
        if column not in fullest or totals[moment] >= totals[fullest[column]]:
            fullest[column] = moment
    return [fullest[column] for column in sorted(fullest)]


def breakdown_document(account: Account) -> dict[str, Any]:
    """Pieces of the step of every stage, in nanoseconds, and the colour of each piece."""
    moving = moving_hues(account)
    return {
        "colours": {name: HUES.get(hue, LIGHT.mist) for name, hue in bar_hues(account).items()},
        "stages": [
            {
                "stage": stage.stage,
                "busy_ns": stage.busy_ns,
                "pieces": {piece.name: piece.ns for piece in stage_pieces(stage, moving)},
            }
            for stage in account.stages
        ],
    }


def report_figures(plan: Plan, simulated: Simulated) -> dict[str, str]:
    """Figures at the top of the report of a step, as text, by name.

    Parameters
    ----------
    plan : Plan
        The plan that was simulated.
    simulated : Simulated
        Its steps.
    """
    step_time_s = simulated.step_time_ns / 1e9
    tokens_per_s, _, mfu = speed(plan, step_time_s)
    return {
        "step time": format_seconds(step_time_s),
        "speed": format_rate(tokens_per_s, unit_of(plan.model)),
        "mfu": "not known" if mfu is None else format_percent(mfu),
        "bubble": format_percent(simulated.bubble_fraction),
        "exposed communication": format_seconds(simulated.exposed_communication_ns / 1e9),
        "memory of the fullest device": memory_text(plan, simulated.memory_bytes_max),
    }
