"""Counterfactual steps: how long a step takes whose firings take so long and begin so late.

Durations, lags, and what slows firings beside these are replaced in a prediction. Where a firing
that has begun may be slowed, by data that moves or by ranks that share its cores, the actors run in
the simulator's kernel, whose events take ten microseconds a firing: one rank of every program while
all ranks of each are alike. Other steps follow from longest paths
(`millrace.comparison.longest_paths`), which take a tenth of that for many ranks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

import numpy as np

from millrace.comparison.longest_paths import LongestPaths
from millrace.comparison.measured_run import MeasuredRun, Table, Times
from millrace.planner.cluster import Cluster
from millrace.planner.costs import durations
from millrace.planner.costs.launch_overhead import Pacing, pacing_of
from millrace.simulator.kernel import Kernel
from millrace.simulator.simulated_rank import Instance, instances_of
from millrace.simulator.step_split import step_ends_ns, window_ns

PATH_SPEED = 10  # firings that longest paths cover while the kernel has one event
STEADY_STEPS = 3  # the fewest that show the steady state, as for `millrace.simulator.simulate`

Key = tuple[int, int]  # a rank and an actor


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Durations and lags of every firing, [steps, firings] or [1, firings] of steps all alike.

    Attributes
    ----------
    work, lags
        Nanoseconds by rank and actor: what a firing takes (a meeting's from its last arrival), and
        how long after it could begin it does.
    shares_cores
        True where ranks of a node slow each other down as the cluster says.
    pacing
        Launches and contention; None: nothing holds firings back.
    """

    work: Table
    lags: Table
    shares_cores: bool
    pacing: Pacing | None

    @property
    def slows(self) -> bool:
        """True if a firing that has begun may be slowed."""
        return self.shares_cores or (self.pacing is not None and self.pacing.overlap < 1)

    def changed(
        self,
        work: Mapping[Key, Times] | None = None,
        lags: Mapping[Key, Times] | None = None,
    ) -> "Scenario":
        """Scenario in which some actors have other durations or lags."""
        return replace(
            self, work=_replaced(self.work, work or {}), lags=_replaced(self.lags, lags or {})
        )


class Counterfactuals:
    """Replays of a plan's steps under scenarios.

    Parameters
    ----------
    cluster
        The cluster that the plan was made for.
    run
        The measured run: its graph, and which of its steps count.
    """

    def __init__(self, cluster: Cluster, run: MeasuredRun) -> None:
        self.cluster, self.run = cluster, run

    def predicted(self) -> Scenario:
        """Scenario of the prediction."""
        run = self.run
        rows = [
            [np.full((1, actor.firings), ns) for actor, ns in zip(p.actors, row, strict=True)]
            for p, row in zip(run.graph.programs, durations(run.graph, self.cluster), strict=True)
        ]
        lags = [
            [np.zeros((1, actor.firings), np.int64) for actor in program.actors]
            for program in run.graph.programs
        ]
        programs = [run.graph.program_of(rank) for rank in range(run.graph.ranks)]
        return Scenario(
            work=[rows[index] for index in programs],
            lags=[lags[index] for index in programs],
            shares_cores=self.cluster.cores_per_node is not None,
            pacing=pacing_of(run.graph, self.cluster),
        )

    def step_time_ns(self, scenario: Scenario) -> float:
        """Step time of a scenario: the median of the counted steps, on the slowest rank.

        Where steps are all alike the middle one of three counts, as in a prediction.
        """
        run = self.run
        tables = (*scenario.work, *scenario.lags)
        alike = all(len(times) == 1 for row in tables for times in row)
        steps = STEADY_STEPS if alike else run.steps
        slowest = self._step_ends_ns(scenario, steps)
        if alike:
            begin_ns, end_ns = window_ns([slowest])
            return end_ns - begin_ns
        slowest = [run.until_ns - run.begin_ns, *slowest]
        return float(median(slowest[step + 1] - slowest[step] for step in run.counted))

    def events(self, scenario: Scenario, steps: int) -> int:
        """Number of the kernel's events that take as long as a replay of some steps; at least 1."""
        run = self.run
        replayed = run.graph.programs if scenario.slows and self._alike(scenario) else run.programs
        firings = steps * sum(actor.firings for program in replayed for actor in program.actors)
        return max(1, firings if scenario.slows else firings // PATH_SPEED)

    def _step_ends_ns(self, scenario: Scenario, steps: int) -> list[int]:
        """End of each step on the slowest rank."""
        if not scenario.slows:
            return self._paths.step_ends_ns(scenario.work, scenario.lags, scenario.pacing, steps)
        ends = [
            step_ends_ns(instance.program, instance.ends, steps)
            for instance in self._instances(scenario, steps)
        ]
        return [max(column) for column in zip(*ends, strict=True)]

    @cached_property
    def _paths(self) -> LongestPaths:
        return LongestPaths(self.run)

    def replayed(self, scenario: Scenario, steps: int) -> list[Instance]:
        """Every rank after some steps of a scenario, or the one that stands for its program's."""
        graph, instances = self.run.graph, self._instances(scenario, steps)
        if len(instances) == graph.ranks:
            return instances
        return [instances[graph.program_of(rank)] for rank in range(graph.ranks)]

    def _instances(self, scenario: Scenario, steps: int) -> list[Instance]:
        """Every rank after some steps in the kernel, or one of every program where that is exact.

        What is exact about it: ranks of a program run alike (`millrace.simulator.variation`).
        """
        graph = self.run.graph
        firsts = [program.ranks[0] for program in graph.programs]
        ranks = firsts if self._alike(scenario) else list(range(graph.ranks))
        instances = instances_of(
            graph,
            self.cluster,
            ranks,
            steps,
            [[0] * len(program.actors) for program in graph.programs],
        )
        lagged = any(bool(times.any()) for row in scenario.lags for times in row)
        for instance in instances:
            work, lags = scenario.work[instance.rank], scenario.lags[instance.rank]
            instance.firing_delays = [_listed(times, steps) for times in work]
            if lagged:
                instance.lags = [_listed(times, steps) for times in lags]
        Kernel(
            graph,
            instances,
            cores_per_node=self.cluster.cores_per_node if scenario.shares_cores else None,
            crowded_speed=self.cluster.device.crowded_speed,
            pacing=scenario.pacing,
        ).run()
        return instances

    def _alike(self, scenario: Scenario) -> bool:
        """True if every rank has the times of its program's first one, and cores of its own."""
        return not scenario.shares_cores and all(
            times is first or np.array_equal(times, first)
            for table in (scenario.work, scenario.lags)
            for program in self.run.graph.programs
            for rank in program.ranks
            for times, first in zip(table[rank], table[program.ranks[0]], strict=True)
        )


def _listed(times: Times, steps: int) -> list[int]:
    """Times of all firings of some steps."""
    row: list[int] = times.ravel().tolist()
    return row * steps if len(times) == 1 else row


def _replaced(table: Table, entries: Mapping[Key, Times]) -> Table:
    if not entries:
        return table
    rows = [list(row) for row in table]
    for (rank, actor), times in entries.items():
        rows[rank][actor] = times
    return rows
