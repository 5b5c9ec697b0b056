"""Shares of a step that are priced beyond the profile."""

import msgspec

from millrace.planner.clusters import device, local_cluster
from millrace.profiling.profile_coverage import coverage_warning, extrapolations_of
from tests.plan_requests import plan_of
from tests.small_models import small


def test_kinds_beyond_their_tables_are_named_with_their_share() -> None:
    tables = {"matmul": ((10, 1000), (1000, 2000)), "gelu": ((10**9, 10**6),)}
    measured = msgspec.structs.replace(device("cpu-core"), kernels=tables)
    plan = plan_of(small("gpt"), local_cluster(2, 2, 2**33, measured), 8)
    rows = extrapolations_of(plan)
    assert [row.kind for row in rows] == ["matmul"]
    assert rows[0].times > 10
    assert "matmul of " in (coverage_warning(rows) or "")


def test_devices_of_data_sheets_extrapolate_nothing() -> None:
    assert extrapolations_of(plan_of(small("gpt"), 2, 8)) == ()
    assert coverage_warning(()) is None
