"""Figures of a fixed plan under changes (what-ifs), fast enough to follow a slider.

Whole parts of chunks are simulated (stage fidelity). Their times are measured once for every change
of cluster or precision and kept; stragglers and jitter reuse them.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace.figures import shortage, simulated_spending, speed
from millrace.planner.errors import PlanError
from millrace.planner.frameworks.peak_memory import needed_memory
from millrace.planner.memory import StageMemory
from millrace.planner.plan import Plan
from millrace.serving.engine_calls import tried
from millrace.serving.questions import WhatIfs
from millrace.serving.refusals import RefusedError
from millrace.simulator import FastPrediction, Simulated, predict, predict_fast
from millrace.simulator.prediction import STAGE
from millrace.simulator.stage_fidelity import StageGraph, stage_graph
from millrace.simulator.variation.representatives import SAMPLED

CACHED = 24  # changed plans whose parts are measured
# A fifth of a second of events, of which jitter needs many; more steps give a steadier mean.
FIRINGS_MAX, STEPS_MIN, STEPS_MAX = 40_000, 2, 12
FIRINGS_REFUSED = 2_000_000  # of one simulation: ten seconds and more


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPlan:
    """A plan with what its simulations share: the times of parts and the memory of stages."""

    plan: Plan
    stages: StageGraph
    memory: Sequence[StageMemory]


class WhatIfFigures:
    """Simulations of plans under changes; measured parts of the latest are kept."""

    def __init__(self) -> None:
        self._measured: OrderedDict[tuple[str, str], MeasuredPlan] = OrderedDict()
        self._base: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def measured(self, digest: str, plan: Plan, changes: WhatIfs) -> MeasuredPlan:
        """The changed plan, with the times of its parts.

        Parameters
        ----------
        digest : str
            Name of the plan.
        plan : Plan
            The plan before any change.
        changes : WhatIfs
            What is changed.
        """
        disturbed = {"straggler_factor", "straggler_rank", "jitter", "seed"}
        key = (digest, changes.model_dump_json(exclude=disturbed))
        if key not in self._measured:
            changed = tried(plan, changes)
            unlike = (changes.cluster, changes.precision, changes.microbatches)
            memory: Sequence[StageMemory]
            if changed is plan or unlike != (None, None, None):
                memory = needed_memory(changed)
            else:  # speeds alone are changed, which memory does not depend on
                memory = self.measured(digest, plan, WhatIfs()).memory
            stages = stage_graph(changed, detailed=True)
            measured = MeasuredPlan(plan=changed, stages=stages, memory=memory)
            self._measured[key] = measured
            if len(self._measured) > CACHED:
                self._measured.popitem(last=False)
        self._measured.move_to_end(key)
        return self._measured[key]

    def simulated(
        self, digest: str, plan: Plan, changes: WhatIfs, *, detailed: bool = False
    ) -> tuple[Plan, Simulated]:
        """The changed plan and its simulation.

        Parameters
        ----------
        digest, plan, changes
            As for `measured`.
        detailed : bool
            Keep every firing, for pictures of the step.
        """
        measured = self.measured(digest, plan, changes)
        stragglers = None
        if changes.straggler_factor != 1.0:
            if changes.straggler_rank >= measured.plan.ranks:
                raise RefusedError(
                    f"there is no rank {changes.straggler_rank}: the plan has ranks 0 to "
                    f"{measured.plan.ranks - 1}",
                    field="straggler_rank",
                )
            stragglers = {changes.straggler_rank: changes.straggler_factor}
        simulated = predict(
            measured.plan,
            fidelity=STAGE,
            stages=measured.stages,
            memory=measured.memory,
            steps=_steps(measured, changes),
            jitter=changes.jitter,
            seed=changes.seed,
            stragglers=stragglers,
            spans=detailed,
        )
        return measured.plan, simulated

    def figures(self, digest: str, plan: Plan, changes: WhatIfs) -> dict[str, Any]:
        """Figures of the changed plan and of the plan as it is, both at stage fidelity.

        Parameters
        ----------
        digest, plan, changes
            As for `measured`.
        """
        if digest not in self._base:
            self._base[digest] = self._changed_figures(digest, plan, WhatIfs())
            if len(self._base) > CACHED:
                self._base.popitem(last=False)
        base = self._base[digest]
        if changes == WhatIfs():
            return {"base": base, "changed": base}
        return {"base": base, "changed": self._changed_figures(digest, plan, changes)}

    def _changed_figures(self, digest: str, plan: Plan, changes: WhatIfs) -> dict[str, Any]:
        """Figures of the changed plan: without events where nothing disturbs its ranks."""
        if changes.jitter == 0 and changes.straggler_factor == 1:
            measured = self.measured(digest, plan, changes)
            steady = predict_fast(
                measured.plan, measured.memory, fidelity=STAGE, stages=measured.stages
            )
            return _figures(measured.plan, steady, steady.step_time_ns)
        changed, simulated = self.simulated(digest, plan, changes)
        return _figures(changed, simulated, _mean_step_ns(simulated))


def _steps(measured: MeasuredPlan, changes: WhatIfs) -> int:
    """Steps to simulate: three where all are alike, else as many as events allow."""
    if not changes.jitter:
        return 3
    programs = measured.stages.coarse.ordered().programs
    firings = sum(actor.firings for program in programs for actor in program.actors)
    firings *= min(SAMPLED, measured.plan.mesh.devices)
    if STEPS_MIN * firings > FIRINGS_REFUSED:
        raise RefusedError(
            f"a step of this plan with jitter has {firings:,} events, too many to follow a slider: "
            f"ask `millrace simulate --jitter {changes.jitter:g}`",
            field="jitter",
        )
    return min(max(FIRINGS_MAX // max(firings, 1), STEPS_MIN), STEPS_MAX)


def _mean_step_ns(simulated: Simulated) -> float:
    """Length of a step in ns: the mean of all but the first and the last, where there are more."""
    ends_ns = np.asarray(simulated.trace.step_end_ns).max(axis=0)  # [steps], of the slowest rank
    if len(ends_ns) > STEPS_MIN + 1:
        return float(np.diff(ends_ns[:-1]).mean())
    return float(simulated.step_time_ns)


def _figures(
    plan: Plan, simulated: Simulated | FastPrediction, step_time_ns: float
) -> dict[str, Any]:
    """Figures of a changed plan, for steps that take so long."""
    if step_time_ns <= 0:
        raise PlanError("the simulated step has no length")
    step_time_s = step_time_ns / 1e9
    return {
        "step_time_s": step_time_s,
        **speed(plan, step_time_s)._asdict(),
        "bubble_fraction": simulated.bubble_fraction,
        "exposed_communication_s": simulated.exposed_communication_ns / 1e9,
        "memory_bytes_max": max(sum(kinds.values()) for kinds in simulated.memory_by_kind),
        **simulated_spending(plan, simulated),
        "shortage": shortage(plan, simulated.memory_by_kind) or None,
        "busy_by_stage": list(simulated.busy_by_stage),
        "global_batch": plan.global_batch,
        "fidelity": simulated.fidelity,
    }
