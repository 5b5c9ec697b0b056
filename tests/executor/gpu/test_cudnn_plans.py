"""cuDNN itself, where it is installed, has plans for what it is asked for: no GPU is needed."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest

from tests.executor.gpu.cudnn_planning import driver_stub
from tests.executor.sources import ROOT


def library_folders() -> list[str]:
    """Folders of cuDNN, cuBLAS and the compiler that were installed as packages."""
    folders = []
    for name in ("nvidia.cudnn", "nvidia.cu13"):
        try:
            spec = find_spec(name)
        except ModuleNotFoundError:
            spec = None
        places = [] if spec is None else list(spec.submodule_search_locations or ())
        folders += [str(Path(place) / "lib") for place in places]
    return folders


def is_there(folders: list[str], pattern: str) -> bool:
    return any(list(Path(folder).glob(pattern)) for folder in folders)


def test_cudnn_has_plans_for_an_h200(tmp_path: Path) -> None:
    folders = library_folders()
    needed = ("libcudnn.so.9", "libcublasLt.so.13", "libnvrtc.so.13")
    missing = [name for name in needed if not is_there(folders, name)]
    if missing or find_spec("cudnn") is None or which("gcc") is None:
        pytest.skip(f"needs cuDNN, its front end, cuBLAS, NVRTC and gcc (missing: {missing})")
    driver_stub(tmp_path)
    search = os.pathsep.join([str(tmp_path), *folders])
    done = subprocess.run(
        [sys.executable, "-m", "tests.executor.gpu.cudnn_planning"],
        cwd=ROOT,
        env={**os.environ, "LD_LIBRARY_PATH": search, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    scores = 8 * 12 * 1024**2
    for answers, in_order in zip(json.loads(done.stdout), (False, True), strict=True):
        assert len(answers) > 25
        refused = {name: words for name, words in answers.items() if not isinstance(words, int)}
        assert not refused
        # A fixed order of summation takes 2 bytes of every score.
        assert (answers["gpt2-small, attention_grad, 0"] >= 2 * scores) == in_order
        assert answers["gpt2-small, attention, 0"] < 2**20
