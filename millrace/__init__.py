"""Millrace: plan, simulate, run and compare distributed training of large models.

>>> import millrace
>>> planned = millrace.plan("gpt2-small", "a100:8x1", global_batch=64)
>>> planned.prediction.step_time_s < 1
True

In come names, files, clusters and pins; out go results with figures in seconds, bytes and fractions
(`millrace/api/`). The command line (`millrace/cli.py`) calls the same functions. A name is imported
when it is first used, so that `import millrace` takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millrace.api.clusters import cluster as cluster
    from millrace.api.comparison_results import ComparisonResult as ComparisonResult
    from millrace.api.comparison_results import compare as compare
    from millrace.api.explanations import ExplanationResult as ExplanationResult
    from millrace.api.graphs import build as build
    from millrace.api.plan_figures import PlanChoices as PlanChoices
    from millrace.api.plan_figures import PlanPrediction as PlanPrediction
    from millrace.api.plan_results import PlanResult as PlanResult
    from millrace.api.plan_results import load as load
    from millrace.api.plan_results import plan as plan
    from millrace.api.profile_results import ProfileResult as ProfileResult
    from millrace.api.profile_results import profile as profile
    from millrace.api.recommendation_results import RecommendationResult as RecommendationResult
    from millrace.api.recommendation_results import recommend as recommend
    from millrace.api.run_results import RunResult as RunResult
    from millrace.api.run_results import run as run
    from millrace.api.simulation_results import SimulationResult as SimulationResult
    from millrace.api.simulation_results import simulate as simulate
    from millrace.api.sweep_results import SweepResult as SweepResult
    from millrace.api.sweep_results import scale as scale
    from millrace.api.sweep_rows import SweepRow as SweepRow
    from millrace.executor.errors import ExecutorError as ExecutorError
    from millrace.improvement.improvement_results import ImprovementResult as ImprovementResult
    from millrace.improvement.improvement_results import improve as improve
    from millrace.models.documents import FileError as FileError
    from millrace.models.errors import ModelError as ModelError
    from millrace.models.spec import TrainingSpec as TrainingSpec
    from millrace.planner.actors.trace import Trace as Trace
    from millrace.planner.cluster import Cluster as Cluster
    from millrace.planner.errors import ClusterError as ClusterError
    from millrace.planner.errors import InfeasibleError as InfeasibleError
    from millrace.planner.errors import PlanError as PlanError
    from millrace.planner.plan import Plan as Plan
    from millrace.planner.search.pins import Pins as Pins
    from millrace.scaling.sweep import Failures as Failures
    from millrace.simulator.errors import SimulationError as SimulationError

__version__ = "0.1.0"

_NAMES_BY_MODULE = {
    "api.clusters": ("cluster",),
    "api.comparison_results": ("ComparisonResult", "compare"),
    "api.explanations": ("ExplanationResult",),
    "api.graphs": ("build",),
    "improvement.improvement_results": ("ImprovementResult", "improve"),
    "api.plan_figures": ("PlanChoices", "PlanPrediction"),
    "api.plan_results": ("PlanResult", "load", "plan"),
    "api.profile_results": ("ProfileResult", "profile"),
    "api.recommendation_results": ("RecommendationResult", "recommend"),
    "api.run_results": ("RunResult", "run"),
    "api.simulation_results": ("SimulationResult", "simulate"),
    "api.sweep_results": ("SweepResult", "scale"),
    "api.sweep_rows": ("SweepRow",),
    "executor.errors": ("ExecutorError",),
    "models.documents": ("FileError",),
    "models.errors": ("ModelError",),
    "models.spec": ("TrainingSpec",),
    "planner.actors.trace": ("Trace",),
    "planner.cluster": ("Cluster",),
    "planner.errors": ("ClusterError", "InfeasibleError", "PlanError"),
    "planner.plan": ("Plan",),
    "planner.search.pins": ("Pins",),
    "scaling.sweep": ("Failures",),
    "simulator.errors": ("SimulationError",),
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}
__all__ = ["__version__", *sorted(_MODULES)]


def __getattr__(name: str) -> object:
    """Public name of the API, imported when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module `millrace` has no `{name}`")
    value = getattr(import_module(f"millrace.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
