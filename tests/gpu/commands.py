"""Plans for one GPU, and the command line on them."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from millrace.models.graph import to_json
from millrace.models.zoo.catalogue import model_spec
from millrace.planner.plan import Plan
from tests.executor.sources import ROOT
from tests.plan_requests import plan_of

LIMIT_S = 120
# Figures of a whole device move by code that is loaded when it is first called, and by what the
# driver keeps for graphs: some tens of MiB of CuPy, cuBLASLt and cuDNN (estimated, November 2026).
CODE_BYTES = 64 * 2**20


@cache
def middling_plan() -> Plan:
    """GPT-2 small at 1,024 tokens in bf16: two microbatches of four."""
    return plan_of(
        msgspec.structs.replace(model_spec("gpt2-small"), precision="bf16"), "h100-sxm-80gb:1x1",
        dp=1, tp=1, pp=1, micro_batch=4,
    )  # fmt: skip


def written(plan: Plan, folder: Path) -> Path:
    """A plan's file."""
    path = folder / "plan.json"
    path.write_bytes(to_json(plan))
    return path


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def millrace(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "millrace", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=ROOT,
        env=environment(),
    )


def answer_of(*arguments: object) -> dict[str, Any]:
    """The JSON document of a command that ends well."""
    done = millrace(*arguments, "--json")
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def used_bytes() -> int:
    """Memory of the first GPU that anybody holds."""
    import cupy

    free, total = cupy.cuda.runtime.memGetInfo()
    return int(total - free)
