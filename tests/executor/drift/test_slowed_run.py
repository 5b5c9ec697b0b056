"""A run in which one kernel of one rank becomes slow: it is named while the run goes on."""

from pathlib import Path

import pytest

import millrace
from millrace.executor.drift.drift_watch import FIRST, Drift
from millrace.planner.clusters import parse_cluster

SLOW_FROM, SLOW_TO, STEPS = 20, 28, 36  # counted from 0

# Of every rank: a kernel takes 60 ms longer, and in some steps on rank 1 another 300.
CUSTOM = f"""
import os

if os.environ.get("PMI_RANK") is not None:
    from time import sleep

    import millrace.executor.rank as ranks

    make_kernel = ranks.make_kernel

    def slowed(context):
        kernel = make_kernel(context)
        if context.name != {{name!r}}:
            return kernel
        rank = int(os.environ["PMI_RANK"])

        def call(firing, inputs, outputs):
            sleep(0.36 if rank == 1 and {SLOW_FROM} <= firing < {SLOW_TO} else 0.06)
            return kernel(firing, inputs, outputs)

        return call

    ranks.make_kernel = slowed
"""


def test_a_kernel_that_becomes_slow_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = parse_cluster("local:2")
    planned = millrace.plan("mlp", cluster, global_batch=8, pins=millrace.Pins(dp=2))
    graph = planned.compile()
    name = next(
        actor.name
        for actor in graph.programs[0].actors
        if actor.kind == "matmul" and "weight" in actor.name and actor.firings == 1
    )
    (tmp_path / "sitecustomize.py").write_text(CUSTOM.format(name=name))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    told: list[Drift] = []
    measured = millrace.run(planned, steps=STEPS, trace=False, drifted=told.append)
    drifts = [each for each in measured.drift if each.against == FIRST]
    (drift,) = [each for each in drifts if each.actor == name]
    assert drift.rank == 1
    assert drift.step == SLOW_FROM + 1
    assert drift.ended == SLOW_TO + 1
    assert drift.now_s is not None
    assert drift.before_s is not None
    assert drift.now_s - drift.before_s > 0.25
    assert [each.ended for each in told if each.actor == name][-2:] == [None, drift.ended]
