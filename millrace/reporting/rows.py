"""The rows of a report as `millrace simulate --json` prints them; docs/step.md says what they are.

Seconds are of one step, in the mean over ranks.
"""

from typing import Any

from millrace.simulator.account import Account, CommunicationRow


def report_rows(account: Account) -> dict[str, list[dict[str, Any]]]:
    """Rows of a report by what they are of: `communication`, `compute` and `stages`."""
    step_ns = max(account.step_time_ns, 1)
    return {
        "communication": [_communication(row) for row in account.communication],
        "compute": [
            {
                "kind": row.kind,
                "phase": row.phase,
                "busy_s": row.busy_ns / 1e9,
                "share": row.busy_ns / step_ns,
            }
            for row in account.compute
        ],
        "stages": [
            {
                "stage": row.stage,
                "busy_s": row.busy_ns / 1e9,
                "exposed_s": row.exposed_ns / 1e9,
                "bubble_s": row.bubble_ns / 1e9,
                "host_s": row.host_ns / 1e9,
                "memory_bytes_max": sum(row.memory_by_kind.values()),
                "memory_by_kind": row.memory_by_kind,
            }
            for row in account.stages
        ],
    }


def _communication(row: CommunicationRow) -> dict[str, Any]:
    return {
        "kind": row.kind,
        "axes": list(row.axes),
        "message_bytes": row.message_bytes,
        "duration_s": row.duration_ns / 1e9,
        "exposed_s": row.exposed_ns / 1e9,
    }
