"""Rows of the published table become the jobs that ran."""

import pytest

from benchmarks.trainers.rows import job_of_row
from millrace.published.question import InexpressibleError
from tests.millrace.published.rows import row


def test_a_row_is_a_job_with_every_choice_that_a_plan_has():
    job = job_of_row(row(tp="2", pp="2", dp="8", gpus="32", recompute="", zero="1"))
    assert job.nodes * job.devices_per_node == 32
    assert (job.pins.dp, job.pins.tp, job.pins.pp, job.pins.cp) == (8, 2, 2, 1)
    assert job.pins.recompute == "none"
    assert job.pins.zero == 1
    assert job.pins.schedule == "1f1b"
    assert job.pins.sequence_parallel is not None


def test_a_row_without_a_microbatch_is_no_job():
    with pytest.raises(InexpressibleError, match="micro_batch is blank"):
        job_of_row(row(micro_batch=""))
