"""The names that `import millrace` hands out: light, typed, and none hidden by a package."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import millrace

ROOT = Path(millrace.__file__).parent
VERBS = {"plan", "simulate", "run", "compare", "scale", "recommend", "profile", "improve"}
HEAVY = ("numpy", "ortools", "simpy", "rich", "typer", "pandas", "msgspec")

PROGRAM = """\
import millrace

planned: millrace.PlanResult = millrace.plan(
    "gpt2-small", "a100:8x1", global_batch=64, pins=millrace.Pins(tp=2)
)
step_s: float = planned.prediction.step_time_s
memory: int = planned.prediction.memory_bytes_max
tp: int | None = planned.choices.tp
simulated = millrace.simulate(planned, stragglers={5: 1.3})
slower: float = simulated.step_time_s / step_s
measured = millrace.run(planned, steps=20)
comparison = millrace.compare(planned, measured)
error: float = comparison.step_time_error
last: float = measured.loss[-1]
sweep = millrace.scale("llama3-8b", ["h100:8"], nodes=[1, 2], global_batches=[256])
speeds: list[float | None] = [row.tokens_per_s for row in sweep]
answer = millrace.recommend("llama3-8b", ["h100:8"], tokens=1e12, pins=millrace.Pins(tp=1))
cheapest: millrace.SweepRow | None = answer.cheapest
improved = millrace.improve(["run.sh"], "h100:8x1", measured_s=6.1)
today_s: float = improved.today.prediction.step_time_s
flops: float = millrace.profile().flops_per_s["fp32"]
lines: list[str] = [reason.line for reason in planned.explain()]
ranks: int = millrace.load("plan.json").plan.ranks
devices: int = millrace.cluster("h100:8x2").devices
parameters: int = millrace.build("mlp").parameter_count
"""
WRONG = """\
import millrace

millrace.plan("gpt2-small", "a100:8x1", global_batch="64")
millrace.Pins(tensor=2)
millrace.plan("gpt2-small", "a100:8x1", global_batch=64).step_time_ns
"""


def test_importing_millrace_imports_nothing_of_weight():
    code = (
        "import sys, millrace; dir(millrace);"
        f"print([name for name in {HEAVY!r} if name in sys.modules],"
        "[name for name in sys.modules if name.startswith('millrace.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] []\n"


def test_every_name_is_there_and_none_is_hidden_by_a_module_of_its_name():
    modules = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert VERBS < set(millrace.__all__) <= set(dir(millrace))
    assert set(millrace.__all__) & modules == set()
    for name in millrace.__all__:
        assert getattr(millrace, name) is getattr(millrace, name)
    assert not hasattr(millrace, "no_such_name")


def test_types_are_told_of_the_names_that_are_handed_out():
    module = ast.parse((ROOT / "__init__.py").read_text())
    typed = {
        (node.module.removeprefix("millrace."), alias.name)
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("millrace.")
        for alias in node.names
    }
    assert {(place, name) for name, place in millrace._MODULES.items()} == typed


def test_a_typed_program_passes_mypy_and_a_wrong_one_does_not(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "wrong.py").write_text(WRONG)
    cache = ["--cache-dir", str(ROOT.parent / ".mypy_cache")]
    config = ["--config-file", str(ROOT.parent / "pyproject.toml"), "--output", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *cache, *config]
        + [str(tmp_path / name) for name in ("program.py", "wrong.py")],
        cwd=ROOT.parent,
        env={**os.environ, "MYPYPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    faults = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(Path(fault["file"]).name, fault["line"]) for fault in faults] == [
        ("wrong.py", 3),
        ("wrong.py", 4),
        ("wrong.py", 5),
    ], done.stderr
