"""The catalogue of schedules: one record each. A new schedule is a rule and an entry here."""

from millrace.planner.errors import PlanError
from millrace.planner.schedules import orders
from millrace.planner.schedules.orders import Order
from millrace.planner.schedules.record import Schedule

# A schedule repeats at most so many microbatches: twice those of any run in the published tables,
# and as many as a simulation of every op gets through in some ten seconds.
MICROBATCHES_MAX = 2**12

SCHEDULES: dict[str, Schedule] = {
    schedule.name: schedule
    for schedule in (
        Schedule(
            name="gpipe",
            turns=orders.gpipe,
            source='Huang et al., "GPipe", 2019, section 2.3',
            chunks=None,
            keeps_all=True,
            searched=False,  # never better than 1f1b: as long, more memory
        ),
        Schedule(
            name="1f1b",
            turns=orders.one_forward_one_backward,
            source='PipeDream-Flush; Narayanan et al., "Efficient large-scale language model '
            'training on GPU clusters", 2021, section 2.2',
            requirement="runs one chunk a stage",
        ),
        Schedule(
            name="eager-1f1b",
            turns=orders.eager_one_forward_one_backward,
            source='Zhuang et al., "On optimizing the communication of model parallelism", 2023, '
            "section 4",
            searched=False,  # others hide what travels too, and shorten the ramp
            requirement="runs one chunk a stage",
        ),
        Schedule(
            name="interleaved-1f1b",
            turns=orders.interleaved,
            source="Narayanan et al. 2021, section 2.2",
            chunks=None,
            in_rounds=True,
            requirement="needs microbatches in multiples of the stages",
        ),
        Schedule(
            name="zb-h1",
            turns=orders.zero_bubble_h1,
            source='Qi et al., "Zero bubble pipeline parallelism", 2023, section 2.2',
            least_microbatches=lambda stages: stages,
            requirement="needs one chunk a stage and at least as many microbatches as stages",
        ),
        Schedule(
            name="zb-v",
            turns=orders.zero_bubble_v,
            source="Qi et al. 2023, section 6",
            chunks=2,
            folded=True,
            least_microbatches=lambda stages: 2 * stages - 1,
            requirement="needs two chunks a stage and at least 2 · stages - 1 microbatches",
        ),
        Schedule(
            name="dualpipe-v",
            turns=orders.dualpipe_v,
            source='DeepSeek-AI, "DualPipe", 2025, dualpipev.py; Qi et al., "Pipeline parallelism '
            'with controllable memory", 2024, for its V',
            chunks=2,
            folded=True,
            least_microbatches=lambda stages: 2 * stages if stages > 1 else 1,
            pairs=True,
            searched=False,  # what its pairs hide is not in the search's cost
            requirement="needs two chunks a stage and at least 2 · stages microbatches",
        ),
    )
}
PLAIN = "1f1b"  # It has one chunk a stage and defers nothing: others are measured against it.


def schedule_of(name: str) -> Schedule:
    """The schedule called `name`.

    Raises
    ------
    PlanError
        No schedule has that name.
    """
    if name not in SCHEDULES:
        raise PlanError(f"unknown schedule `{name}`: choose one of {', '.join(SCHEDULES)}")
    return SCHEDULES[name]


def stage_of(schedule: str, position: int, stages: int) -> int:
    """Stage of the chunk at a position of the model.

    Parameters
    ----------
    schedule : str
        Name of the schedule.
    position : int
        Place of the chunk in the model, from 0.
    stages : int
        Stages of the pipeline.

    Raises
    ------
    PlanError
        No schedule has that name.

    Examples
    --------
    >>> [stage_of("interleaved-1f1b", k, 3) for k in range(6)]
    [0, 1, 2, 0, 1, 2]
    >>> [stage_of("zb-v", k, 3) for k in range(6)]
    [0, 1, 2, 2, 1, 0]
    """
    return schedule_of(schedule).stage_of(position, stages)


def schedule_order(name: str, *, stage: int, stages: int, chunks: int, microbatches: int) -> Order:
    """Slots that a stage runs during one step, in order.

    Parameters
    ----------
    name : str
        Of the schedule.
    stage, stages : int
        The stage, from 0, and how many there are.
    chunks : int
        Chunks of each stage.
    microbatches : int
        Microbatches of a step.

    Raises
    ------
    PlanError
        No schedule has that name.
    InfeasibleError
        The schedule cannot run that many chunks.

    Examples
    --------
    >>> [f"{s.part}{s.microbatch}" for s in
    ...  schedule_order("1f1b", stage=0, stages=2, chunks=1, microbatches=2)]
    ['F0', 'F1', 'BW0', 'BW1']
    """
    return schedule_of(name).order(stage, stages, chunks, microbatches)
