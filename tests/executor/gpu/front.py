"""Runs through `execute` whose ranks share an emulated device in a process of their own."""

from typing import Any

import pytest

from millrace.executor.backend import WORKERS, Backend
from millrace.executor.launch import execute
from millrace.executor.training.measured import Measured
from millrace.planner.plan import Plan

LOOPBACK = Backend(name="cupy", loopback=True)
LOOPBACK_EAGER = Backend(name="cupy", loopback=True, eager=True)


def emulate_gpus(patch: pytest.MonkeyPatch, **settings: object) -> None:
    """Put emulated devices where GPUs would be; `settings` are those of the worker."""
    patch.setitem(WORKERS, "cupy", "tests.executor.gpu.emulated_worker")
    patch.setattr("millrace.executor.training.training_run.require_gpu", lambda ranks: None)
    for name, value in settings.items():
        patch.setenv(f"EMULATED_{name.upper()}", str(value))


def on_gpu(plan: Plan, steps: int, **how: Any) -> Measured:
    """Run a plan, all ranks on one device."""
    return execute(plan, steps=steps, **({"backend": LOOPBACK} | how))
