"""Slices of what one GPU can show, each within ten minutes, in the order of what they decide.

`benchmarks/gpu.sh SLICE [--seconds N] [--emulated]` runs one of them (`__main__.py`). A slice
is a list of parts, each a command with a limit of time; a part that fails or is late ends, and the
next one begins. Lines and what was printed go to `slice-SLICE.jsonl` and `.log` in the folder that
OUT names (benchmarks/results/lines where it is not set), and the summary to `gpu-<device>.json`
there (benchmarks/results), anew after every part.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.gpu.lines import DETAILS, FILE, LOG, PART, RUN, append, log_file
from benchmarks.gpu.processes import (
    end_with,
    ended,
    in_words,
    printed,
    size_of,
    started,
    unwind_when_asked_to_end,
)
from benchmarks.gpu.results import EMULATED as EMULATED_DEVICE
from benchmarks.gpu.results import summarised

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "benchmarks" / "results"
SECONDS = 540  # for a slice: what is left of ten minutes is for starting and for bringing back
SMOKE = "from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(1))"
SMOKE_S_MAX = 12
ENDING_S = 5  # of a part, after its own clock has run out, and when it is asked to end
# A machine without a network may have nothing but a loopback device, or no name that it resolves.
MPI_TRIES: tuple[tuple[str, dict[str, str]], ...] = (
    ("as it is", {}),
    ("the loopback device", {"HYDRA_IFACE": "lo"}),
    ("shared memory alone", {"HYDRA_IFACE": "lo", "UCX_TLS": "self,sm"}),
)
EMULATED = {"MILLRACE_GPU_TESTS": "emulated"}
SLOWER = 3  # an emulated device; limits of parts are for a GPU


@dataclass(frozen=True, slots=True)
class SlicePart:
    """A command of a slice, with a limit of time.

    In `arguments`, `{seconds}` is what it may take by its own clock, and `{folder}` where its files
    go. `emulated`: arguments that are added where there is no GPU; None: it needs one.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    seconds: float
    emulated: tuple[str, ...] | None = ()


def tests(name: str, seconds: float, *files: str) -> SlicePart:
    """Part that runs some of the tests."""
    paths = tuple(f"tests/gpu/test_{stem}.py" for stem in files)
    return SlicePart(name, "benchmarks.gpu.slices.tests", (*BUDGET, *paths), seconds)


def trained(model: str, seconds: float, name: str = "", *more: str) -> SlicePart:
    """Part that trains a model, ours beside PyTorch's; it is called like the model."""
    given = (*BUDGET, *PROFILED, *more, "--models", model)
    return SlicePart(name or model, "benchmarks.gpu", given, seconds, ("--emulated",))


BUDGET = ("--budget", "{seconds}")
PROFILED = ("--profile", "{folder}/profile.json")
PROFILE = ("profile", "--device", "gpu", "--ranks", "1", "-o", "{folder}/profile.json")
Slices = Mapping[str, tuple[SlicePart, ...]]
SLICES: Slices = {
    "1": (
        SlicePart("facts", "benchmarks.gpu.slices.facts", BUDGET, 90, ("--emulated",)),
        tests("libraries", 90, "cudnn", "products"),
        trained("gpt2-small", 450),
    ),
    "2": (
        tests("kernels", 90, "kernels", "collectives"),
        tests("training", 100, "training"),
        trained("llama-1b", 450),
    ),
    "3": (
        tests("runs", 110, "front_door", "failures", "memory"),
        SlicePart("profile", "millrace", (*PROFILE, "--seconds", "20"), 80, None),
        trained("gpt2-small", 45, "prediction", "--ours"),
        trained("resnet-50", 110),
        trained("moe-1b", 450),
    ),
}


def arguments(slices: Slices = SLICES) -> argparse.Namespace:
    """Read the command line."""
    asked = argparse.ArgumentParser(prog="benchmarks/gpu.sh", description=__doc__)
    asked.add_argument("slice", choices=tuple(slices))
    asked.add_argument("--seconds", type=float, default=SECONDS, help="for all parts")
    asked.add_argument("--emulated", action="store_true", help="on the emulated device")
    return asked.parse_args()


def main(options: argparse.Namespace, slices: Slices = SLICES) -> int:
    """Run a slice; return 1 where something in it failed, or had no turn."""
    folder = Path(os.environ.get("OUT") or RESULTS / "lines")
    summary = Path(os.environ.get("OUT") or RESULTS)
    deadline = time.monotonic() + options.seconds
    begin(folder, options.slice)
    unwind_when_asked_to_end()
    ok = True
    try:
        append("run", None, figures={"device": device_name(options.emulated)})
        os.environ[PART] = "mpi"
        ok &= smoke()
        for part in slices[options.slice]:
            ok &= run(part, deadline, folder, options.emulated)
            ok &= try_summary(folder, summary) is not None
    except SystemExit as stop:
        append("slice", ok := False, error=str(stop.code))
    text = try_summary(folder, summary)
    print("\n".join(text or ()))
    return int(not ok or text is None)


def try_summary(folder: Path, summary: Path) -> list[str] | None:
    """Summarise all lines; a summary that fails costs no part its turn, and is a line itself."""
    try:
        return summarised(folder, summary)
    except Exception as error:
        append("summary", False, error=repr(error), details=traceback.format_exc()[-DETAILS:])
        return None


def device_name(emulated: bool) -> str:
    """CUDA's name of the first GPU; asked in a process that is gone before any part."""
    if emulated:
        return EMULATED_DEVICE
    ask = "import cupy; print(cupy.cuda.runtime.getDeviceProperties(0)['name'].decode())"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def begin(folder: Path, number: str) -> None:
    """Name the files of a slice to all its processes, and keep what they compile."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ[FILE] = str(folder.resolve() / f"slice-{number}.jsonl")
    os.environ[LOG] = str(folder.resolve() / f"slice-{number}.log")
    os.environ[RUN] = f"{number}-{int(time.time())}"
    cache = Path(tempfile.gettempdir()) / "millrace-gpu"  # what one slice compiled, the next finds
    os.environ.setdefault("CUPY_CACHE_DIR", str(cache / "cupy"))
    os.environ.setdefault("XDG_CACHE_HOME", str(cache / "cache"))
    if (plans := ROOT / ".carry" / "plans").is_dir():
        os.environ.setdefault("MILLRACE_PLANS", str(plans))
    os.environ.setdefault("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    os.environ["PYTHONUNBUFFERED"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    )


def smoke() -> bool:
    """Start two ranks, and start all later ones with the environment in which that worked."""
    beside = Path(sys.executable).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        append("mpi", False, error="there is no mpiexec: benchmarks/gpu/carry.sh brings one")
        return False
    command = [mpiexec, "-launcher", "fork", "-n", "2", sys.executable, "-m", "mpi4py", "-c", SMOKE]
    said = []
    for name, environment in MPI_TRIES:
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=SMOKE_S_MAX,
                env={**os.environ, **environment},
                preexec_fn=partial(end_with, os.getpid()),
            )
            if done.returncode == 0 and "".join(done.stdout.split()) == "22":  # two lines, mingled
                os.environ.update(environment)
                append("mpi", True, figures={"started": name})
                return True
            said.append(f"{name}: {(done.stderr or done.stdout).strip()[-300:]}")
        except subprocess.TimeoutExpired:
            said.append(f"{name}: not done after {SMOKE_S_MAX} s")
    append("mpi", False, error="two ranks do not start", details="\n".join(said))
    return False


def run(part: SlicePart, deadline: float, folder: Path, emulated: bool) -> bool:
    """Run a part within its limit and what is left; write down how it ended."""
    os.environ[PART] = part.name
    left_s = deadline - time.monotonic()
    if emulated and part.emulated is None:
        append(f"part.{part.name}", None, error="needs a GPU")
        return True
    limit_s = min(part.seconds * (SLOWER if emulated else 1), left_s)
    print(f"== {part.name} (at most {max(limit_s, 0):.0f} s)", flush=True)
    if limit_s < 1:
        append(f"part.{part.name}", False, late=True, error="no time was left")
        return False
    append(f"part.{part.name}", None)  # all there is of it should this process be killed
    began, said = time.monotonic(), size_of(log_file())
    process = started(_command(part, limit_s, folder, emulated), EMULATED if emulated else {})
    error = None
    try:
        code = process.wait(limit_s)
        error = in_words(code) if code else None
    except subprocess.TimeoutExpired:
        error = f"not done after {limit_s:.0f} s"
    except SystemExit as stop:
        append(f"part.{part.name}", False, error=str(stop.code), details=printed(said))
        raise
    finally:
        ended(process, ENDING_S)
    seconds = round(time.monotonic() - began, 1)
    more = {"error": error, "details": printed(said)} if error else {}
    append(f"part.{part.name}", error is None, seconds=seconds, **more)
    print(f"   {error or 'ok'}, {seconds:.0f} s", flush=True)
    return error is None


def _command(part: SlicePart, limit_s: float, folder: Path, emulated: bool) -> list[str]:
    seconds = f"{max(limit_s - ENDING_S, 1):.0f}"
    given = [argument.format(seconds=seconds, folder=folder) for argument in part.arguments]
    more = (part.emulated or ()) if emulated else ()
    return [sys.executable, "-m", part.module, *given, *more]
