"""Checked plans: ranked plans become plans, are laid out, and the best of these are simulated.

A simulator is handed in as a function; without one the planner's own cost decides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from functools import partial

from millrace.planner.errors import ProtocolError
from millrace.planner.formatting import counted, duration
from millrace.planner.plan import ON_DEVICES, Plan, Prediction
from millrace.planner.search.blocks.fork_join import run_both
from millrace.planner.search.choosing.settling import BlockTimer, SettledPlan, settle
from millrace.planner.search.evaluation import Evaluator, SolvedPlan
from millrace.planner.search.plan_writer import disobeyed
from millrace.planner.search.report.host_offload import host_shortage
from millrace.planner.search.request import HostMemoryError

Simulate = Callable[[Plan], Prediction]
Progress = Callable[[str], None]

SETTLED = 4  # plans that fit before one is chosen
# Plans are settled whose step is within this of the best: of any pipeline, of one that has been
# settled, and of one that was on a mesh of the same axes in another order.
CLOSE, SEEN, ALIKE = 1.02, 1.0, 0.998
TRIED = 8  # plans that are settled at most
NEAREST = 1.002  # times the best settled plan's step: the next up to this is simulated beside it


@dataclass(frozen=True, slots=True)
class Pure:
    """A simulator that changes nothing: it may run in a process of its own, beside another plan.

    `block_times` times the blocks of a plan, where it can.
    """

    prediction_of: Simulate
    block_times: BlockTimer | None = None

    def __call__(self, plan: Plan) -> Prediction:
        """Figures that it predicts of a plan."""
        return self.prediction_of(plan)


@dataclass(frozen=True, slots=True)
class Checked:
    """A settled plan, why it is no good, and what the simulator predicts of it where it was asked.

    `short` says what the host lacks.
    """

    settled_plan: SettledPlan
    reason: str
    short: HostMemoryError | None = None
    prediction: Prediction | None = None

    @property
    def solved_plan(self) -> SolvedPlan:
        """Its candidate, solutions and division."""
        return self.settled_plan.solved_plan

    @property
    def time_s(self) -> float:
        """Seconds of its simulated step; without one, by its blocks' times or the tables."""
        return self.prediction.step_time_s if self.prediction else self.settled_plan.step_ns / 1e9


def fastest(checked: Sequence[Checked]) -> Checked | None:
    """The fastest plan that is any good, one that was simulated before others.

    Parameters
    ----------
    checked : sequence of Checked
    """
    fitting = [plan for plan in checked if not plan.reason]
    return min(fitting, key=lambda plan: (not plan.prediction, plan.time_s), default=None)


def check_plans(
    evaluator: Evaluator,
    ranked_plans: list[SolvedPlan],
    simulate: Simulate | None,
    tell: Progress,
    checked_before: Sequence[Checked] = (),
    *,
    most: int = SETTLED,
) -> list[Checked]:
    """Best plans settled, and the best of these simulated, beside those checked before.

    Plans are taken in the order of their cost, times what settling has made of the cost of others
    of the same pipeline, until what is left is not near the best.

    Parameters
    ----------
    evaluator : Evaluator
    ranked_plans : list of SolvedPlan
        Plans by the planner's own cost.
    simulate : callable, optional
        Predicts the figures of a plan; one that is `Pure` may look at two plans at once.
    tell : callable
        Told a line of text now and then.
    checked_before : sequence of Checked
        Plans of earlier calls.
    most : int
        Plans that fit before these are simulated.
    """
    block_times = block_timer(simulate)
    checked = list(checked_before)
    ratios = _Ratios()
    for earlier in checked_before:
        ratios.note(earlier.settled_plan)
    # Settling mixes all that is known of a candidate, whichever of its divisions it begins with.
    waiting = list({plan.candidate: plan for plan in reversed(ranked_plans)}.values())
    fitting = [plan for plan in checked if not plan.reason]
    tried_most, settled_most = len(checked) + TRIED, len(fitting) + (most if simulate else 1)
    while len(checked) < tried_most and len(fitting) < settled_most:
        best_ns = min((plan.settled_plan.step_ns for plan in fitting), default=float("inf"))
        waiting = [
            plan
            for plan in sorted(waiting, key=ratios.expected_ns)
            if ratios.expected_ns(plan) <= best_ns * ratios.close(plan)
        ]
        if not waiting:
            break
        now, waiting = waiting[:2], waiting[2:]
        place = f"plan {len(checked) + 1} of at most {tried_most}"
        so_far = f", best step {duration(best_ns)}" if fitting else ""
        tell(f"dividing by measured figures, {place}{so_far}: {now[0].candidate.text}")
        for plan in settled_plans(evaluator, now, block_times):
            checked.append(plan)
            ratios.note(plan.settled_plan)
        fitting = [plan for plan in checked if not plan.reason]
    if simulate is None or not fitting:
        return checked
    # What is not simulated is slower by the times of its blocks than the best that is.
    simulated = [plan for plan in fitting if plan.prediction]
    due = sorted(
        (plan for plan in fitting if not plan.prediction),
        key=lambda plan: plan.settled_plan.step_ns,
    )
    best_s = min((plan.time_s for plan in simulated), default=float("inf"))
    while due and due[0].time_s < best_s:
        near = [plan for plan in due[:2] if plan.time_s <= NEAREST * due[0].time_s]
        simulated += simulated_plans(near, simulate, tell)
        due = due[len(near) :]
        best_s = min((plan.time_s for plan in simulated if not plan.reason), default=best_s)
    return [*simulated, *due, *(plan for plan in checked if plan.reason)]


def but_axes(plan: SolvedPlan) -> object:
    """Key that plans share which differ in the order of their axes only."""
    candidate = plan.candidate
    return candidate.pipeline, candidate.batch, tuple(sorted(candidate.sizes))


class _Ratios:
    """Ratios of measured to tabled step times, by pipeline, to expect those not yet measured."""

    def __init__(self) -> None:
        self._of_shape: dict[object, float] = {}
        self._of_schedule: dict[str, float] = {}
        self._but_axes: set[object] = set()

    def note(self, settled: SettledPlan) -> None:
        """Keep the step that was measured of a plan, over the tabled one."""
        pipeline = settled.solved_plan.candidate.pipeline
        ratio = settled.step_ns / max(settled.solved_plan.division.step_ns, 1.0)
        self._of_shape[pipeline.schedule, pipeline.stages, pipeline.interleave] = ratio
        if settled.fits:
            self._but_axes.add(but_axes(settled.solved_plan))
        least = self._of_schedule.get(pipeline.schedule, ratio)
        self._of_schedule[pipeline.schedule] = min(ratio, least)

    def close(self, plan: SolvedPlan) -> float:
        """Ratio of a plan's expected step to the best one up to which the plan is settled."""
        pipeline = plan.candidate.pipeline
        if but_axes(plan) in self._but_axes:
            return ALIKE
        shape = pipeline.schedule, pipeline.stages, pipeline.interleave
        return SEEN if shape in self._of_shape else CLOSE

    def expected_ns(self, plan: SolvedPlan) -> float:
        """Step to expect of a plan."""
        pipeline = plan.candidate.pipeline
        shape = pipeline.schedule, pipeline.stages, pipeline.interleave
        usual = self._of_schedule.get(pipeline.schedule, 1.0)
        return plan.division.step_ns * self._of_shape.get(shape, usual)


def block_timer(simulate: Simulate | None) -> BlockTimer | None:
    """Timer of blocks that comes with a simulator."""
    return simulate.block_times if isinstance(simulate, Pure) else None


def settled_plans(
    evaluator: Evaluator, plans: Sequence[SolvedPlan], block_times: BlockTimer | None
) -> list[Checked]:
    """One plan or two at once, settled, with what is wrong with them."""
    settled: tuple[SettledPlan, ...]
    if len(plans) == 1:
        settled = (settle(evaluator, plans[0], block_times),)
    else:
        settled = run_both(
            lambda: settle(evaluator, plans[0], block_times),
            lambda: settle(evaluator, plans[1], block_times),
        )
    return [_checked(evaluator, plan) for plan in settled]


def _checked(evaluator: Evaluator, settled: SettledPlan) -> Checked:
    """A settled plan with the reason why it is no good, if there is one."""
    plan = settled.plan
    short = host_shortage(plan) if plan.offload != ON_DEVICES else None
    reason = disobeyed(plan, evaluator.graph, evaluator.request.pins) or str(short or "")
    if not reason and not settled.fits:
        reason = f"needs {settled.over_bytes} bytes more than the limit once compiled"
    return Checked(settled, reason, short)


def simulated_plans(
    checked: Sequence[Checked], simulate: Simulate, tell: Progress
) -> list[Checked]:
    """The plans with the simulator's figures; two at once where it changes nothing."""

    def predicted(plan: Checked) -> Checked:
        try:
            return replaced(plan, prediction=simulate(plan.settled_plan.plan))
        except ProtocolError as error:
            return replaced(plan, reason=f"cannot run: {str(error)[:200]}")

    tell(f"simulating {counted(len(checked), 'plans')}: {checked[0].solved_plan.candidate.text}")
    if len(checked) == 2 and isinstance(simulate, Pure):
        return list(run_both(partial(predicted, checked[0]), partial(predicted, checked[1])))
    return [predicted(plan) for plan in checked]
