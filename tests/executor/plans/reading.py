"""Plans that the search found once, kept as documents.

What is compiled of them is compared with texts that were written down, and must not change when the
search does.
"""

from pathlib import Path

from millrace.planner.plan import Plan, read_plan

FOLDER = Path(__file__).parent


def stored_plan(name: str) -> Plan:
    """Plan in `<name>.json`."""
    return read_plan((FOLDER / f"{name}.json").read_bytes())
