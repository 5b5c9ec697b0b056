"""Planning and simulating ask nothing of Linux alone: they run where its files and calls are not.

The functions and files are taken away in a process of their own, which says it runs on macOS.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

WITHOUT_LINUX = """
import os, pathlib, sys, sysconfig
import networkx, numpy, ortools, rich, simpy, typer, ortools.math_opt.python.mathopt

sysconfig.get_config_vars()  # read here: their names have the platform in them
LINUX = ("/proc/", "/sys/", "/dev/shm")

def missing(event, arguments):
    if event == "open" and str(arguments[0]).startswith(LINUX):
        raise FileNotFoundError(arguments[0])
    if event == "import" and arguments[0] in ("mpi4py", "pwd", "resource"):
        raise ModuleNotFoundError(arguments[0])
    if event == "os.fork":
        raise OSError("no process is forked")

there = pathlib.Path.exists
pathlib.Path.exists = lambda path: not str(path).startswith(LINUX) and there(path)
for name in ("sched_getaffinity", "sched_setaffinity", "memfd_create"):
    delattr(os, name)
sys.platform = "darwin"
sys.addaudithook(missing)

from millrace.cli import run

plan, folder = ["plan", "mlp", "--cluster", "a100:2x2", "--global-batch", "64"], sys.argv[1]
codes = [
    run([*plan, "-o", f"{folder}/plan.json"]),
    run(["simulate", f"{folder}/plan.json", "--html", f"{folder}/step.html"]),
    run(["show", f"{folder}/plan.json"]),
    run(["scale", "mlp", "--cluster", "a100:2", "--nodes", "1,2", "--global-batch", "64"]),
]
sys.exit(0 if codes == [0, 0, 0, 0] else f"exit codes {codes}")
"""


def test_planning_simulating_and_scaling_work_without_what_only_linux_has(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LINUX, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "predicted step time" in done.stdout
    assert (tmp_path / "step.html").exists()
