"""Counterfactual steps: how long a step takes whose firings take so long and begin so late.

The actors run in the simulator's kernel, as in a prediction; only durations, lags, and what slows
firings beside that are replaced.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from millrace.compare.measured_run import MeasuredRun, Table, Times
from millrace.planner.cluster import Cluster
from millrace.planner.costs import durations
from millrace.planner.costs.launch_overhead import Pacing, pacing_of
from millrace.simulator.kernel import Kernel
from millrace.simulator.simulated_rank import Instance, instances_of
from millrace.simulator.step_split import step_ends_ns, window_ns

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

    Attributes
    ----------
    firings
        Number of firings of a step on all ranks.
    """

    def __init__(self, cluster: Cluster, run: MeasuredRun) -> None:
        self.cluster, self.run = cluster, run
        self.firings = sum(actor.firings for program in run.programs for actor in program.actors)

    def predicted(self) -> Scenario:
        """Scenario of the prediction."""
        run = self.run
        table = durations(run.graph, self.cluster)
        programs = [run.graph.program_of(rank) for rank in range(run.graph.ranks)]
        rows = [
            [(actor, ns) for actor, ns in zip(run.graph.programs[p].actors, table[p], strict=True)]
            for p in programs
        ]
        return Scenario(
            work=[[np.full((1, actor.firings), ns) for actor, ns in row] for row in rows],
            lags=[[np.zeros((1, actor.firings), np.int64) for actor, _ in row] for row in rows],
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
        instances = self.replayed(scenario, steps)
        ends = [step_ends_ns(instance.program, instance.ends, steps) for instance in instances]
        if alike:
            begin_ns, end_ns = window_ns(ends)
            return end_ns - begin_ns
        slowest = [run.until_ns - run.begin_ns]
        slowest += [max(column) for column in zip(*ends, strict=True)]
        return float(median(slowest[step + 1] - slowest[step] for step in run.counted))

    def replayed(self, scenario: Scenario, steps: int) -> list[Instance]:
        """Every rank after some steps of a scenario."""
        graph = self.run.graph
        instances = instances_of(
            graph,
            self.cluster,
            range(graph.ranks),
            steps,
            [[0] * len(program.actors) for program in graph.programs],
        )
        lagged = any(bool(times.any()) for row in scenario.lags for times in row)
        for instance, work, lags in zip(instances, scenario.work, scenario.lags, strict=True):
            instance.firing_delays = [_listed(times, steps) for times in work]
            if lagged:
                instance.lags = [_listed(times, steps) for times in lags]
        Kernel(
            graph,
            instances,
            cores_per_node=self.cluster.cores_per_node if scenario.shares_cores else None,
            pacing=scenario.pacing,
        ).run()
        return instances


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
