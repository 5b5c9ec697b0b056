"""Faults planted into runs, and whether the comparison with the prediction names them first.

Run `python -m benchmarks.compare.faults [NUMBERS]` from the root of the repository; without numbers
all of the `FAULTS` are planted, one run each. Meaningful only while nothing else runs.

A fault is an op kind that takes twice as long, a rank that does, a link that is late, or another
program on one of the cores. The comparison sees the plan and the trace of the faulty run alone; the
product has no switch for faults: ranks plant them into themselves
(`benchmarks/compare/planted/sitecustomize.py`).
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import millrace
from millrace.comparison.comparison import (
    COLLECTIVE_COST,
    OP_COST,
    OVERLAP,
    STRAGGLERS,
    WAITING,
    Blame,
    Comparison,
)
from millrace.executor.probes.machine_load import (
    MachineLoad,
    core_times,
    load_between,
    wait_for_quiet,
)
from millrace.planner.plan import Plan

STEPS = 12
ATTEMPTS, PATIENCE_S = 3, 20.0
PLANTED = Path(__file__).parent / "planted"
BUSY = "while True: pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyPlan:
    """A model, the samples of its step, and how it is split over two ranks."""

    model: str
    global_batch: int
    pins: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault in a plan's run, as `planted_fault.plant` takes it; None: a busy process."""

    plan: FaultyPlan
    planted: dict[str, Any] | None
    seed: int

    @property
    def name(self) -> str:
        """Words for the fault."""
        if self.planted is None:
            return "a busy process on one core"
        if "op" in self.planted:
            return f"{self.planted['op']} takes {self.planted['factor']:g} times"
        if "rank" in self.planted:
            return f"rank {self.planted['rank']} takes {self.planted['factor']:g} times"
        sender, receiver = self.planted["link"]
        return f"link {sender} → {receiver} is {self.planted['delay_s'] * 1e3:g} ms late"

    def named_by(self, blame: Blame | None) -> bool:
        """True if the comparison blames the fault."""
        if blame is None:
            return False
        if self.planted is None:
            return blame.cause == WAITING
        if "op" in self.planted:
            return blame.cause in (OP_COST, OVERLAP) and blame.item == self.planted["op"]
        if "rank" in self.planted:
            return blame.cause == STRAGGLERS and blame.item == f"rank {self.planted['rank']}"
        sender, receiver = self.planted["link"]
        links = (f"recv {sender} → {receiver}", "of ranks 0, 1")
        return blame.cause == COLLECTIVE_COST and blame.item.endswith(links)


GPT_PIPELINE = FaultyPlan(model="gpt-demo", global_batch=16, pins={"pp": 2, "micro_batch": 4})
GPT_TENSOR = FaultyPlan(model="gpt-demo", global_batch=16, pins={"tp": 2})
LLAMA_DATA = FaultyPlan(model="llama-demo", global_batch=16, pins={"dp": 2})
LLAMA_PIPELINE = FaultyPlan(model="llama-demo", global_batch=16, pins={"pp": 2, "micro_batch": 4})
MLP_DATA = FaultyPlan(model="mlp", global_batch=4096, pins={"dp": 2})
RESNET_DATA = FaultyPlan(model="resnet-demo", global_batch=512, pins={"dp": 2})
RESNET_PIPELINE = FaultyPlan(
    model="resnet-demo", global_batch=128, pins={"pp": 2, "micro_batch": 16}
)

_PLANTED: tuple[tuple[FaultyPlan, dict[str, Any] | None], ...] = (
    (GPT_PIPELINE, {"op": "matmul", "factor": 2}),
    (GPT_TENSOR, {"op": "matmul", "factor": 2}),
    (LLAMA_DATA, {"op": "matmul", "factor": 2}),
    (LLAMA_PIPELINE, {"op": "attention_grad", "factor": 2}),
    (MLP_DATA, {"op": "matmul", "factor": 2}),
    (GPT_PIPELINE, {"rank": 1, "factor": 2}),
    (GPT_TENSOR, {"rank": 0, "factor": 2}),
    (LLAMA_DATA, {"rank": 1, "factor": 2}),
    (LLAMA_PIPELINE, {"rank": 0, "factor": 2}),
    (RESNET_DATA, {"rank": 1, "factor": 2}),
    (GPT_PIPELINE, {"link": (0, 1), "delay_s": 0.03}),
    (GPT_TENSOR, {"link": (0, 1), "delay_s": 0.003}),
    (LLAMA_PIPELINE, {"link": (1, 0), "delay_s": 0.03}),
    (MLP_DATA, {"link": (0, 1), "delay_s": 0.02}),
    (RESNET_PIPELINE, {"link": (0, 1), "delay_s": 0.03}),
    (GPT_PIPELINE, None),
    (GPT_TENSOR, None),
    (LLAMA_DATA, None),
    (MLP_DATA, None),
    (RESNET_DATA, None),
)
FAULTS = tuple(
    Fault(plan=plan, planted=planted, seed=number)
    for number, (plan, planted) in enumerate(_PLANTED)
)


def main(numbers: list[int]) -> None:
    """Plant faults one after the other, and say which the comparison names first."""
    named = 0
    for number in numbers:
        fault = FAULTS[number]
        comparison, load = compared(fault)
        blame = comparison.blamed
        right = fault.named_by(blame)
        named += right
        print(
            f"{number:2d} {'named ' if right else 'MISSED'} "
            f"{fault.plan.model} {' '.join(f'{k} {v}' for k, v in fault.plan.pins.items())}: "
            f"{fault.name}; predicted {comparison.predicted_step_time_s * 1e3:.0f} ms, "
            f"measured {comparison.measured_step_time_s * 1e3:.0f} ms, blamed "
            f"{'nothing' if blame is None else _words(blame)}"
            + ("" if load is None else f"; other programs took {load.others:.0%} of the cores"),
            flush=True,
        )
    print(f"{named} of {len(numbers)} faults named first")


def compared(fault: Fault) -> tuple[Comparison, MachineLoad | None]:
    """Comparison of the plan's prediction with a run that has the fault, and the load beside it.

    Other programs are a fault of their own: a run beside which they took much is made anew.
    """
    plan = _planned(fault.plan.model, fault.plan.global_batch, tuple(fault.plan.pins.items()))
    for _ in range(ATTEMPTS):
        wait_for_quiet(None, PATIENCE_S)
        before, computed_s = core_times(), _computed_s()
        with _planted(fault):
            measured = millrace.run(plan, steps=STEPS, seed=fault.seed)
        load = load_between(before, core_times(), _computed_s() - computed_s)
        if load is None or not load.is_busy:
            break
    return millrace.compare(plan, measured).comparison, load


def _computed_s() -> float:
    """Seconds that this process and those that it has seen end have computed."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@cache
def _planned(model: str, global_batch: int, pins: tuple[tuple[str, int], ...]) -> Plan:
    where = millrace.cluster("local:2", progress=lambda text: print(text, file=sys.stderr))
    pinned = millrace.Pins.of(dict(pins))
    return millrace.plan(model, where, global_batch=global_batch, pins=pinned).plan


@contextmanager
def _planted(fault: Fault) -> Iterator[None]:
    """Environment in which ranks plant the fault, or a busy process beside them."""
    if fault.planted is None:
        core = min(os.sched_getaffinity(0))
        busy = subprocess.Popen([sys.executable, "-c", BUSY])
        os.sched_setaffinity(busy.pid, {core})
        try:
            yield
        finally:
            busy.kill()
            busy.wait()
        return
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(PLANTED), before)))
    os.environ["MILLRACE_PLANTED_FAULT"] = json.dumps(fault.planted)
    try:
        yield
    finally:
        del os.environ["MILLRACE_PLANTED_FAULT"]
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def _words(blame: Blame) -> str:
    item = f", {blame.item}" if blame.item else ""
    return f"{blame.cause}{item} ({blame.seconds * 1e3:+.0f} ms)"


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or list(range(len(FAULTS))))
