"""Hosts whose cores are shared: exact times of processor sharing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simpy import Environment

from millrace.simulator.shared_cores import SharedCores

Jobs = list[tuple[int, int, int]]  # arrival, work, threads


def ends(cores: int, jobs: Jobs, crowded_speed: float = 1.0) -> list[int]:
    env = Environment()
    host = SharedCores(env, cores, crowded_speed)
    end_times = [-1] * len(jobs)
    for index, (arrival, work, threads) in enumerate(jobs):

        def done(index: int = index) -> None:
            end_times[index] = int(env.now)

        def arrive(_: object, work: int = work, threads: int = threads, done=done) -> None:
            host.add(work, threads, done)

        env.timeout(arrival).callbacks.append(arrive)
    env.run()
    return end_times


def test_jobs_that_find_a_core_each_do_not_notice_each_other() -> None:
    assert ends(2, [(0, 100, 1), (0, 70, 1)]) == [100, 70]


def test_two_jobs_on_one_core_take_twice_as_long() -> None:
    assert ends(1, [(0, 100, 1), (0, 100, 1)]) == [200, 200]


def test_a_late_short_job_delays_the_long_one_by_its_own_work() -> None:
    assert ends(1, [(0, 100, 1), (50, 20, 1)]) == [120, 90]


def test_three_jobs_on_two_cores_run_at_two_thirds() -> None:
    assert ends(2, [(0, 100, 1)] * 3) == [150, 150, 150]


def test_crowded_cores_are_slower_and_others_are_not() -> None:
    assert ends(2, [(0, 100, 1)] * 2, 0.75) == [100, 100]
    assert ends(2, [(0, 100, 1)] * 3, 0.75) == [200, 200, 200]
    assert ends(1, [(0, 100, 1), (50, 20, 1)], 0.5) == [160, 130]


def test_a_job_of_several_threads_takes_several_shares() -> None:
    assert ends(2, [(0, 100, 2), (0, 100, 1)]) == [150, 150]


def test_a_job_of_more_threads_than_cores_shares_them_among_its_own() -> None:
    assert ends(2, [(0, 100, 4)]) == [200]


def test_a_job_of_no_work_ends_at_once() -> None:
    assert ends(1, [(5, 0, 1), (0, 100, 1)]) == [5, 100]


@given(
    cores=st.integers(1, 4),
    jobs=st.lists(
        st.tuples(st.integers(0, 500), st.integers(0, 1000), st.integers(1, 3)),
        min_size=1,
        max_size=12,
    ),
)
def test_no_core_idles_while_there_is_work_and_none_does_more_than_it_can(
    cores: int, jobs: Jobs
) -> None:
    end_times = ends(cores, jobs)
    alone = [end - arrival - work for end, (arrival, work, _) in zip(end_times, jobs, strict=True)]
    assert min(alone) >= 0, "no job is faster than alone"
    work = sum(work * threads for _, work, threads in jobs)
    last = max(arrival for arrival, _, _ in jobs)
    assert max(end_times) <= last + work + len(jobs), "at least one core works"
    first = min(arrival for arrival, _, _ in jobs)
    assert (max(end_times) - first + 1) * cores >= work, "cores do no more than they can"


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_equal_work_at_the_same_time_ends_at_the_same_time(cores: int) -> None:
    assert len(set(ends(cores, [(10, 333, 1)] * 7))) == 1
