"""Dearth: how much longer a step may take where memory is short, by an estimate.

It proves nothing: candidates are solved in its order, and those far off never, but what is said of
them rests on their bounds.
"""

from millrace.planner.search.stages.shape import Pipeline

# Shares that are added to a step where nearly all that is held is too much; by eye from some 300
# candidates of twelve questions (22 November 2026). The first that has to go costs next to
# nothing (attention's scores are made again, or weights gathered), but for schedules that defer
# gradients of weights: what these need is kept until then.
ALONE, STAGED, DEFERRED = 0.4, 0.7, 0.8


def memory_pressure_slowdown(pipeline: Pipeline, held_share: float) -> float:
    """Ratio of a step's time where memory is short to its time where there is enough.

    Parameters
    ----------
    pipeline : Pipeline
    held_share : float
        Bytes that are held where nothing is done about it, over those there is room for.
    """
    over = 1 - 1 / max(held_share, 1.0)
    if pipeline.defers_weight_gradients:
        return 1 + DEFERRED * over
    return 1 + (ALONE if pipeline.stages == 1 else STAGED) * over**2
